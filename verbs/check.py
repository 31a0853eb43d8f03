"""Check a configuration against a log."""

import argparse
from typing import Any

from multigate.configs.storage import place
from multigate.verbs.common import add_config

EXAMPLE = "multigate check --config my.yaml --data ~/logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    parser.add_argument(
        "--data",
        type=place,
        help="folder of the log's files, or its address (default: only --config is read)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=200_000,
        help="how many rows of the log to look at (default: 200000)",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import load
    from multigate.verbs.inputs import require_least, require_log

    config = load(options.config)
    require_least("rows", options.rows)
    if options.data is None:
        if not options.json:
            print(f"{options.config}: every key is valid; --data checks it against a log")
        return {"fails": False, "findings": []}
    require_log(options.data)
    from multigate.jobs.onboarding.check import check
    from multigate.jobs.onboarding.findings import lines

    found = check(config, options.data, options.rows)
    if not options.json:
        for line in lines(found):
            print(line)
    return found.as_json()


def status(result: dict[str, Any]) -> int:
    """1 where a run would fail."""
    return int(result["fails"])
