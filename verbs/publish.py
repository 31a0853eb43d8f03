"""Show and change which version is in production, and which one is on trial."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multigate.configs.errors import ConfigError
from multigate.configs.storage import Address, place

EXAMPLE = (
    "multigate publish --base runs/models/deskdrop\n"
    "multigate publish --base runs/models/deskdrop --rollback\n"
    "multigate publish --base runs/models/deskdrop --version 12\n"
    "multigate publish --base runs/models/deskdrop --version 13 --canary 10 --shadow 100\n"
    "multigate publish --base runs/models/deskdrop --promote\n"
    "multigate publish --base runs/models/deskdrop --to s3://bucket/models/deskdrop"
)
# As in `jobs.publication.trial`, which --help must not import.
_GUARDS = ("verdict", "loss", "feedback", "users", "sample_ratio", "fallbacks", "lost_records")


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
        "was withdrawn; with --canary or --shadow, put it on trial instead",
    )
    choice.add_argument(
        "--promote",
        action="store_true",
        help="put the version on trial into production, if `multigate trial` found it safe",
    )
    choice.add_argument("--stop", action="store_true", help="withdraw the version on trial")
    parser.add_argument(
        "--canary",
        type=float,
        metavar="PERCENT",
        help="of the users whom the version on trial answers; default for a new trial: 0",
    )
    parser.add_argument(
        "--shadow",
        type=float,
        metavar="PERCENT",
        help="of the calls that both versions score, without a change of the answer; default for a "
        "new trial: 0",
    )
    parser.add_argument(
        "--accept",
        action="append",
        choices=_GUARDS,
        metavar="GUARD",
        help=f"promote although this guard objects; may be repeated: {', '.join(_GUARDS)}",
    )
    parser.add_argument(
        "--to",
        metavar="ADDRESS",
        help="then copy what the base folder offers to this base path in an object store, such as "
        "s3://bucket/models/NAME, which servers read",
    )


def execute(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the verb; the result is what --json prints."""
    to = None if options.to is None else place(options.to)
    if to is not None and not isinstance(to, Address):
        raise ConfigError(f"--to: expected an address such as s3://bucket/key, received {to}")
    tries = options.canary is not None or options.shadow is not None
    if tries and (options.rollback or options.promote or options.stop):
        raise ConfigError("--canary, --shadow: expected with --version, or alone")
    if options.accept and not options.promote:
        raise ConfigError("--accept: expected with --promote")
    from multigate.jobs.night.listing import show_base
    from multigate.jobs.publication import trial
    from multigate.jobs.publication.base_folder import Base
    from multigate.jobs.publication.pair import Pair

    pair = Pair(Base(options.base))
    if options.rollback:
        pair.rollback()
    elif options.promote:
        trial.promote(pair.ranker, options.accept or ())
    elif options.stop:
        trial.stop(pair.ranker)
    elif tries:
        trial.begin(pair.ranker, options.version, options.canary, options.shadow)
    elif options.version is not None:
        pair.choose(options.version)
    summary = show_base(pair.ranker)
    if to is None:
        return summary
    from multigate.jobs.publication.upload import upload
    from multigate.jobs.show import say

    changed = upload(pair.ranker, to)
    for what, numbers in (("copied", changed["copied"]), ("removed", changed["removed"])):
        say(f"{to}: {what}: {', '.join(map(str, numbers)) or 'none'}")
    return {**summary, "uploaded": changed}
