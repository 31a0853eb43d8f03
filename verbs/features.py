"""Load the features of users and items into the online store that servers read."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

EXAMPLE = "multigate features load --snapshot examples --to redis://localhost:6379/0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("action", choices=["load"], help="load: replace the stored features")
    parser.add_argument(
        "--snapshot", type=Path, required=True, help="folder of examples, or the snapshot in it"
    )
    parser.add_argument("--to", required=True, help="address such as redis://localhost:6379/0")
    parser.add_argument(
        "--model_name", help="name under which the model is served (default: the configuration's)"
    )
    parser.add_argument(
        "--keep_seconds",
        type=int,
        default=3600,
        help="how long the previous features stay, for calls that use them (default: 3600)",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.serving.feature_store.redis_loader import load_snapshot

    loaded = load_snapshot(options.snapshot, options.to, options.model_name, options.keep_seconds)
    print(
        f"loaded {loaded.rows['users']} users and {loaded.rows['items']} items of "
        f"{loaded.name}, schema {loaded.schema}, as of {loaded.cut_off}"
    )
    return asdict(loaded)
