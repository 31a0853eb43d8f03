"""The nightly run."""

import argparse
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from multigate.configs.sections.run import ALL_STAGES, GUARDS
from multigate.configs.storage import place
from multigate.verbs.common import add_config, import_tensorflow

EXAMPLE = (
    "multigate run --config deskdrop --data ~/deskdrop --date 2017-02-28 --out runs\n"
    "multigate run --config deskdrop --data ~/deskdrop --date 2017-02-28 --out runs "
    "--force training\n"
    "multigate run --config deskdrop --data ~/deskdrop --date 2017-02-28 --out runs "
    "--accept max_row_drop"
)

INTERRUPTED = "finished stages are kept, and the same command goes on where it stopped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    parser.add_argument(
        "--data", type=place, required=True, help="folder of the log's files, or its address"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument(
        "--date",
        type=date.fromisoformat,
        default=datetime.now(UTC).date() - timedelta(days=1),
        metavar="YYYY-MM-DD",
        help="last day of the log to learn from (default: yesterday in UTC)",
    )
    parser.add_argument(
        "--base", type=Path, help="base folder that servers follow (default: OUT/models/NAME)"
    )
    parser.add_argument("--force", choices=ALL_STAGES, help="repeat this stage and all after it")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="GUARD",
        help="let this guard stop nothing in this night's run, and record it; may be repeated: "
        + ", ".join(GUARDS),
    )


def execute(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import load

    config = load(options.config)
    from multigate.jobs.night import nightly
    from multigate.jobs.night.listing import show_outcome

    result = nightly.run(
        config,
        options.date,
        options.data,
        options.out,
        base=options.base,
        force=options.force,
        accept=options.accept,
        import_tensorflow=import_tensorflow,
    )
    show_outcome(result)
    return result
