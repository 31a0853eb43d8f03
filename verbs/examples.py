"""Make training examples from raw logs."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from multigate.configs.storage import place
from multigate.verbs.common import add_config, add_forget

EXAMPLE = (
    "multigate examples --config deskdrop --data ~/deskdrop --out examples\n"
    "multigate examples --config model.yaml --data s3://bucket/logs --out s3://bucket/examples"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_config(parser)
    parser.add_argument(
        "--data", type=place, required=True, help="folder of the log's files, or its address"
    )
    parser.add_argument(
        "--out",
        type=place,
        required=True,
        help="new folder for the examples, or its address, such as s3://bucket/examples",
    )
    parser.add_argument(
        "--from",
        dest="since",
        metavar="DAY",
        help="make only the examples whose labels close on this day or later (or from an instant "
        "such as 2026-11-20T06:00:00Z), and read only the partitions that they need",
    )
    parser.add_argument(
        "--to", dest="until", metavar="DAY", help="up to this day, not including it"
    )
    add_forget(parser)
    parser.add_argument(
        "--previous",
        type=place,
        help="folder or address of the previous run's examples: to report drift against, and for "
        "counters without a window to go on from",
    )
    parser.add_argument("--report", type=Path, help="HTML file to write: the data report")
    parser.add_argument(
        "--beam",
        type=shlex.split,
        metavar="OPTIONS",
        help="Beam's own options in quotes, such as '--runner=FlinkRunner'; default: this machine",
    )
    parser.add_argument(
        "--shuffle",
        choices=("files", "beam"),
        help="how rows travel between stages: through files on this machine's disk, or through "
        "Beam, so that workers share only --data and --out (default: files on this machine, beam "
        "on every other engine)",
    )
    parser.add_argument(
        "--max_reject_rate",
        type=float,
        metavar="SHARE",
        help="share of rejected rows above which the run fails (default: the "
        "configuration's, 0.01)",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import ConfigError, load
    from multigate.verbs.inputs import require_log

    config, span = load(options.config), None
    zone = config.pipeline.log.time_zone
    if (options.since is None) != (options.until is None):
        raise ConfigError("--from and --to go together: expected both or neither")
    if options.max_reject_rate is not None:
        if not 0 <= options.max_reject_rate <= 1:
            raise ConfigError(
                f"--max_reject_rate: expected a share from 0 to 1, received "
                f"{options.max_reject_rate:g}"
            )
        changed = config.pipeline.model_copy(update={"max_reject_rate": options.max_reject_rate})
        config = config.model_copy(update={"pipeline": changed})
    require_log(options.data)
    from multigate.jobs.show import show_manifest
    from multigate.pipeline import job
    from multigate.pipeline.window import parse_instant

    if options.since is not None:
        span = parse_instant(options.since, zone), parse_instant(options.until, zone)
    manifest = job.run(
        config,
        options.data,
        options.out,
        options.beam,
        span=span,
        forget=options.forget,
        previous=options.previous,
        shuffle=options.shuffle,
    )
    show_manifest(manifest, options.out)
    if options.report is not None:
        from multigate.jobs.data_page import write_page
        from multigate.pipeline.write import data_report

        write_page(options.report, data_report.read(options.out))
    return manifest
