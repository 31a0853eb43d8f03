"""Search for better settings."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multigate.verbs.common import add_config, add_examples, import_backend

EXAMPLE = "multigate tune --config tuned.yaml --examples examples --out search"

INTERRUPTED = "finished trials are kept, and the same command goes on with the one it was at"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    add_examples(parser)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the search; goes on with an earlier one"
    )
    parser.add_argument("--trials", type=int, help="trials in all (default: the configuration's)")


def execute(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import load
    from multigate.verbs.inputs import gather_examples

    config = load(options.config)
    if options.trials is not None:
        config = config.model_copy(
            update={"tune": config.tune.model_copy(update={"trials": options.trials})}
        )
    gather_examples(options)
    from multigate.jobs.tune import check, tune

    check(config)
    import_backend()
    result = tune(config, options.examples, options.out)
    best = result["best"]
    print(f"best: trial {best['number']}, {best['monitor']} {best['monitored']:.5f}")
    for name, value in best["settings"].items():
        print(f"  {name}: {value}")
    print(f"checkpoint {best['checkpoint']}")
    return result
