"""List the nightly runs."""

import argparse
from pathlib import Path
from typing import Any

EXAMPLE = "multigate runs --out runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.jobs.night import listing

    found = listing.list_runs(options.out)
    listing.show_runs(found)
    return {"runs": found}
