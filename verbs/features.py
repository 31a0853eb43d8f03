"""Load the features of users and items into the online store that servers read."""

import argparse
from dataclasses import asdict
from typing import Any

from multigate.configs.storage import place

EXAMPLE = "multigate features load --snapshot examples --to redis://localhost:6379/0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("action", choices=["load"], help="load: replace the stored features")
    parser.add_argument(
        "--snapshot",
        type=place,
        required=True,
        help="folder of examples or its address, or the snapshot in the folder",
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
    from multigate.configs.examples_store import fetched
    from multigate.serving.feature_store.redis_loader import load_snapshot

    named = options.snapshot
    folder = named.parent if named.name == "snapshot" else named
    snapshot = options.temporary.enter_context(fetched(folder))
    loaded = load_snapshot(snapshot, options.to, options.model_name, options.keep_seconds)
    print(
        f"loaded {loaded.rows['users']} users and {loaded.rows['items']} items of "
        f"{loaded.name}, schema {loaded.schema}, as of {loaded.cut_off}"
    )
    return asdict(loaded)
