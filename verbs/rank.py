"""Call a server for one ranked list."""

import argparse
import sys
from pathlib import Path
from typing import Any

from verbs.common import json_object

HELP = "rank candidates for one user by calling a server"
EXAMPLE = (
    "multigate rank --target localhost:8500 --model deskdrop \\\n"
    """    --user '{"user_id": "-1032019229384696495"}' --items 123,456 --limit 10"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--target", default="localhost:8500", help="host:port of the server")
    parser.add_argument("--model", required=True, help="model name")
    parser.add_argument("--user", type=json_object, required=True, help="user features, JSON")
    parser.add_argument("--context", type=json_object, default={}, help="context features, JSON")
    parser.add_argument(
        "--items",
        required=True,
        help="candidate ids, separated by commas; --items=-7,8 where the first is negative",
    )
    parser.add_argument(
        "--columns", type=json_object, default={}, help="item features, JSON: name -> list"
    )
    parser.add_argument("--weights", type=json_object, help="task weights, JSON: task -> number")
    parser.add_argument(
        "--floors",
        type=json_object,
        help="scores that an item may have, JSON: task -> [lowest or null, highest or null]",
    )
    parser.add_argument("--limit", type=int, help="return so many items at most")
    parser.add_argument("--tls", action="store_true", help="encrypt, trusting the system's CAs")
    parser.add_argument("--ca", type=Path, help="PEM file of the CAs to trust; encrypts")
    parser.add_argument("--certificate", type=Path, help="PEM file that shows who calls; encrypts")
    parser.add_argument("--key", type=Path, help="PEM file of the certificate's private key")
    parser.add_argument("--token_file", type=Path, help="file whose first line is a bearer token")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds (default: 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from serving.client import RankClient, parse_ids
    from serving.security import read_tokens
    from serving.show import show_ranked

    items = [item for item in options.items.split(",") if item]  # the empty text is no id
    with RankClient(
        options.target,
        timeout=options.timeout,
        tls=options.tls,
        ca=options.ca,
        certificate=options.certificate,
        key=options.key,
        token=read_tokens(options.token_file)[0] if options.token_file else "",
    ) as client:
        ranked = client.rank(
            options.model,
            user=options.user,
            context=options.context,
            item_ids=parse_ids(client.contract(options.model), items),
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
