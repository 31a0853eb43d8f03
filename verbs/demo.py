"""Run every stage on simulated or real data."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multigate.verbs.common import import_tensorflow

EXAMPLE = (
    "multigate demo --out demo-out\n"
    "multigate demo --config deskdrop --data ~/deskdrop --out deskdrop-out"
)

INTERRUPTED = "finished stages are left in --out; remove it to start the demo again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--out", type=Path, required=True, help="new folder for all results")
    parser.add_argument("--config", default="demo", help="preset or YAML file (default: demo)")
    parser.add_argument("--data", type=Path, help="folder of the log's files; simulated if absent")


def execute(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import load

    config = load(options.config)
    from multigate.jobs import demo

    demo.check(config, options.data, options.out)
    import_tensorflow()
    return demo.run(config, options.data, options.out)
