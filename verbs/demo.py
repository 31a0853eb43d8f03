"""Run every stage on simulated or real data."""

import argparse
from pathlib import Path
from typing import Any

from multigate.verbs.common import import_tensorflow

HELP = "run every stage, from logs to ranked lists, on simulated or on real data"
EXAMPLE = (
    "multigate demo --out demo-out\n"
    "multigate demo --config deskdrop --data ~/deskdrop --out deskdrop-out"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--out", type=Path, required=True, help="new folder for all results")
    parser.add_argument("--config", default="demo", help="preset or YAML file (default: demo)")
    parser.add_argument("--data", type=Path, help="folder of the log's files; simulated if absent")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    import_tensorflow()
    from multigate.configs import load
    from multigate.jobs import demo

    return demo.run(load(options.config), options.data, options.out)
