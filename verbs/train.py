"""Train the ranker, or a baseline."""

import argparse
from pathlib import Path
from typing import Any

from multigate.verbs.common import add_config, add_examples, import_backend

EXAMPLE = (
    "multigate train --config deskdrop --examples examples --out checkpoint\n"
    "multigate train --config model.yaml --examples runs --days 30 --out checkpoint"
)

INTERRUPTED = (
    "no half-written checkpoint is left; the same command with --resume continues from the last "
    "snapshot, if there is one"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    add_examples(parser)
    parser.add_argument("--out", type=Path, required=True, help="new folder for the checkpoint")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with a training of --out that was killed or interrupted, if there is one",
    )
    parser.add_argument(
        "--from",
        dest="start_from",
        metavar="CHECKPOINT",
        type=Path,
        help="start from the weights of this checkpoint; new ids get new rows",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="train a baseline instead: shared_bottom, or single_task:TASK",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import load
    from multigate.configs.baselines import baseline
    from multigate.verbs.inputs import gather_examples, require_checkpoint

    config = load(options.config)
    if options.baseline is not None:
        baseline(config, options.baseline)  # a wrong name is told at once
    gather_examples(options)
    if options.start_from is not None:
        require_checkpoint(options.start_from)
    import_backend()
    from multigate.jobs import interface

    trained = interface.train(
        config,
        options.examples,
        options.out,
        resume=options.resume,
        start_from=options.start_from,
        baseline=options.baseline,
    )
    return dict(trained)
