"""Judge the version on trial by what servers logged of it."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from multigate.configs.errors import ConfigError
from multigate.verbs.common import evaluation_options

EXAMPLE = (
    "multigate trial --base runs/models/deskdrop --log shown/deskdrop --examples shown-examples "
    "--config deskdrop"
)

_LONGEST = 1e9  # seconds, 31 years


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--base", type=Path, required=True, help="the model's base folder, which servers follow"
    )
    parser.add_argument(
        "--log",
        type=Path,
        nargs="+",
        required=True,
        metavar="FOLDER",
        help="the model's folder in the servers' impression logs: IMPRESSION_LOG/MODEL",
    )
    parser.add_argument(
        "--examples",
        nargs="+",
        metavar="FOLDER",
        help="folders of examples made from the impression log and the feedback: their labels are "
        "the outcomes (default: none, and no verdict on outcomes)",
    )
    parser.add_argument(
        "--days",
        type=int,
        metavar="N",
        help="--examples is a folder of runs: take those of the last N days",
    )
    parser.add_argument(
        "--config",
        help="preset or YAML file whose evaluation.rules judge (default: the rules' defaults)",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="leave out calls younger than this, whose rows servers may not have written yet "
        "(default: 120)",
    )
    parser.add_argument(
        "--stop", action="store_true", help="withdraw the version if the verdict is to refuse it"
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    if not 0 <= options.settle <= _LONGEST:  # neither NaN nor more than a clock can go back
        raise ConfigError(
            f"--settle: expected seconds from 0 to {_LONGEST:g}, received {options.settle:g}"
        )
    if options.days is not None and options.examples is None:
        raise ConfigError("--days: expected with --examples")
    settings = evaluation_options(options.config)
    from multigate.jobs.publication import trial
    from multigate.jobs.publication.base_folder import Base
    from multigate.verbs.inputs import gather_examples

    base = Base(options.base)
    if options.examples is not None:
        gather_examples(options)
    from multigate.jobs.trial.judge import judge
    from multigate.jobs.trial.show import show_trial

    settle = timedelta(seconds=options.settle)
    found = judge(base, options.log, options.examples, settings, settle)
    if options.stop and found["verdict"] == "refuse":
        trial.stop(base, f"trial: {found['objections'][0]['reason']}")
    show_trial(found, options.stop)
    return dict(found)


def status(result: dict[str, Any]) -> int:
    """Exit status of a verdict."""
    return 0 if result["verdict"] == "bless" else 1
