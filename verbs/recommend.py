"""Call a server for a ranked list of items that it finds itself."""

import argparse
import sys
from typing import Any

from multigate.verbs.common import add_caller, connect

EXAMPLE = (
    "multigate recommend --target localhost:8500 --model deskdrop \\\n"
    """    --user '{"user_id": "-1032019229384696495"}' --limit 10"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_caller(parser)
    parser.add_argument(
        "--exclude",
        default="",
        help="ids to leave out, separated by commas; write --exclude=-7,8 if the first is negative",
    )
    parser.add_argument(
        "--candidates", type=int, help="items to find and rank (default: the server's)"
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.serving.client.ids import fit_ids
    from multigate.serving.client.rank_client import parse_ids
    from multigate.serving.client.show import show_ranked

    exclude = [item for item in options.exclude.split(",") if item]
    with connect(options) as client:
        contract = client.contract(options.model)
        found = client.recommend(
            options.model,
            user=fit_ids(contract, options.user),
            context=fit_ids(contract, options.context),
            exclude=parse_ids(contract, exclude) if exclude else (),
            candidates=options.candidates,
            weights=options.weights,
            floors=options.floors,
            limit=options.limit,
        )
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    version = found.candidates_version
    candidates = f"{found.candidates_name}, version {'none' if version is None else version}"
    title = f"{options.model}, version {found.model_version}; {found.source.lower()}: {candidates}"
    show_ranked(title, found)
    return {
        "ranked": found,
        "model_version": found.model_version,
        "candidates_name": found.candidates_name,
        "candidates_version": version,
        "source": found.source,
        "request_id": found.request_id,
        "warnings": found.warnings,
    }
