"""Write a SavedModel version."""

import argparse
from pathlib import Path
from typing import Any

from multigate.verbs.common import add_checkpoint, add_examples, import_tensorflow

EXAMPLE = "multigate export --checkpoint checkpoint --examples examples --out models/deskdrop"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_checkpoint(parser)
    add_examples(parser)
    parser.add_argument(
        "--out", type=Path, required=True, help="the model's base folder, which gets a new version"
    )
    parser.add_argument("--version", type=int, help="version number (default: highest plus one)")


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.verbs.inputs import gather_examples, require_checkpoint

    require_checkpoint(options.checkpoint)
    gather_examples(options)
    import_tensorflow()
    from multigate.jobs import interface

    version = interface.export(
        options.checkpoint, options.examples, options.out, version=options.version
    )
    print(f"exported {version}")
    return {"export": str(version)}
