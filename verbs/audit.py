"""Prove that no example uses the future."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigate.configs.storage import place
from multigate.verbs.common import add_config, add_examples, add_forget

if TYPE_CHECKING:
    from multigate.configs import Config

EXAMPLE = "multigate audit --config deskdrop --data ~/deskdrop --examples examples"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    parser.add_argument(
        "--data", type=place, required=True, help="folder of the log's files, or its address"
    )
    add_examples(parser)
    add_forget(parser)
    parser.add_argument(
        "--sample", type=int, default=500, help="how many examples to check (default: 500)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import load
    from multigate.verbs.inputs import examples_folders, require_least, require_log

    require_least("sample", options.sample)
    require_least("seed", options.seed, 0)
    config = load(options.config)
    require_log(options.data)
    folders = examples_folders(options)
    if len(folders) == 1:
        return _audit(config, folders[0], options)
    found = {}
    for folder in folders:
        print(f"{folder}:")
        found[str(folder)] = _audit(config, folder, options)
    return {"folders": found}


def _audit(config: "Config", folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Audit one folder of examples, print what was found and return it."""
    from multigate.pipeline.audit.audit import audit

    result = audit(
        config, options.data, folder, options.sample, options.seed, forget=options.forget
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
