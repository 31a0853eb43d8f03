"""Show and change which version is in production."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLE = (
    "multigate publish --base runs/models/deskdrop\n"
    "multigate publish --base runs/models/deskdrop --rollback\n"
    "multigate publish --base runs/models/deskdrop --version 12"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--base", type=Path, required=True, help="the model's base folder, which servers follow"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--rollback", action="store_true", help="withdraw the version in production"
    )
    choice.add_argument(
        "--version",
        type=int,
        help="put this version into production: withdraws higher versions, restores this one if it "
        "was withdrawn",
    )


def execute(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.jobs.night.listing import show_base
    from multigate.jobs.publication.base_folder import Base
    from multigate.jobs.publication.pair import Pair

    pair = Pair(Base(options.base))
    if options.rollback:
        pair.rollback()
    elif options.version is not None:
        pair.choose(options.version)
    return show_base(pair.ranker)
