"""Make training examples from raw logs."""

import argparse
from pathlib import Path
from typing import Any

from verbs.common import add_config

HELP = "make training examples from raw logs"
EXAMPLE = "multigate examples --config deskdrop --data ~/deskdrop --out examples"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    parser.add_argument("--data", required=True, help="folder of the log's files, or its address")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the examples")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from configs import load
    from jobs.show import show_manifest
    from pipeline import job

    manifest = job.run(load(options.config), options.data, options.out)
    show_manifest(manifest, options.out)
    return manifest
