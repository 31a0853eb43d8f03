"""Call a server for one ranked list."""

import argparse
import sys
from typing import Any

from multigate.verbs.common import add_caller, connect, json_object

EXAMPLE = (
    "multigate rank --target localhost:8500 --model deskdrop \\\n"
    """    --user '{"user_id": "-1032019229384696495"}' --items 123,456 --limit 10"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_caller(parser)
    parser.add_argument(
        "--items",
        required=True,
        help="candidate ids, separated by commas; write --items=-7,8 if the first is negative",
    )
    parser.add_argument(
        "--columns", type=json_object, default={}, help="item features, JSON: name -> list"
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.serving.client.ids import fit_ids
    from multigate.serving.client.rank_client import parse_ids
    from multigate.serving.client.show import show_ranked

    items = [item for item in options.items.split(",") if item]  # the empty text is no id
    with connect(options) as client:
        contract = client.contract(options.model)
        ranked = client.rank(
            options.model,
            user=fit_ids(contract, options.user),
            context=fit_ids(contract, options.context),
            item_ids=parse_ids(contract, items),
            columns=options.columns,
            weights=options.weights,
            floors=options.floors,
            limit=options.limit,
        )
    for warning in ranked.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    show_ranked(f"{options.model}, version {ranked.model_version}", ranked)
    return {
        "ranked": ranked,
        "model_version": ranked.model_version,
        "request_id": ranked.request_id,
        "warnings": ranked.warnings,
    }
