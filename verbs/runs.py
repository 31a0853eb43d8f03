"""What became of the nightly runs."""

import argparse
from pathlib import Path
from typing import Any

HELP = "list nightly runs: state, version, durations and metrics"
EXAMPLE = "multigate runs --out runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.jobs.night import listing

    found = listing.listed(options.out)
    listing.show(found)
    return {"runs": found}
