"""Prove that no example uses the future."""

import argparse
from typing import Any

from multigate.verbs.common import add_config, add_examples, add_forget

EXAMPLE = "multigate audit --config deskdrop --data ~/deskdrop --examples examples"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    parser.add_argument("--data", required=True, help="folder of the log's files, or its address")
    add_examples(parser)
    add_forget(parser)
    parser.add_argument(
        "--sample", type=int, default=500, help="how many examples to check (default: 500)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import load
    from multigate.verbs.inputs import require_examples, require_log

    config = load(options.config)
    require_log(options.data)
    require_examples(options.examples)
    from multigate.pipeline.audit import audit

    result = audit(
        config,
        options.data,
        options.examples,
        options.sample,
        options.seed,
        forget=options.forget,
    )
    print(
        f"{result['examples']} examples, {result['negatives']} of them sampled negatives: "
        f"{result['values']} values of {', '.join(result['features']) or 'no feature'} agree with "
        "the raw log, and none uses the future"
    )
    told = result["giveaway"]
    if told is not None:
        low, high = told["interval"]
        print(
            f"{told['pairs']} pairs: nothing but taste tells sampled negatives from logged "
            f"impressions (AUC {told['auc']:.3f}, interval {low:.3f} to {high:.3f})"
        )
    return result
