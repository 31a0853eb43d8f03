"""Score a file of rows, or a split of examples, with a version."""

import argparse
import sys
from pathlib import Path
from typing import Any

EXAMPLE = (
    "multigate score --version models/deskdrop/1 --rows pairs.csv --out scored.csv\n"
    "multigate score --version models/deskdrop/1 --examples examples --split test \\\n"
    "    --out scored.parquet"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--version",
        type=Path,
        required=True,
        help="folder that export wrote, with its number",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="rows of a user, a context and an item: .parquet, .csv, .tsv or .jsonl, .gz too; "
        "features without a column come from the version's snapshot",
    )
    what.add_argument("--examples", type=Path, metavar="FOLDER", help="folder of examples")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="split of --examples (default: test)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="file to write: the same rows with the columns score and score/TASK; .parquet, .csv, "
        ".tsv or .jsonl",
    )
    parser.add_argument(
        "--keep",
        metavar="COLUMNS",
        help="columns of the rows to write, separated by commas (default: all)",
    )
    parser.add_argument(
        "--feature_clock",
        choices=("now", "cut_off"),
        default="now",
        help="end of the times since an event in the version's snapshot, as of `serve` "
        "(default: now)",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs.errors import DataError
    from multigate.verbs.inputs import require_examples, require_version

    contract = require_version(options.version).contract
    if options.examples is not None:
        require_examples(options.examples)
    elif not options.rows.is_file():
        raise DataError(f"{options.rows}: no such file; expected a file of rows")
    if not options.out.absolute().parent.is_dir():
        raise DataError(f"{options.out.parent}: no such folder; make it, or choose another file")
    from multigate.jobs.scoring.rows import FORMATS, kind_of, read_parts, split_parts

    if options.out.name.endswith(".gz"):
        raise DataError(f"{options.out}: expected a name that ends with {', '.join(FORMATS)}")
    for path in (options.out, *([options.rows] if options.rows else [])):
        kind_of(path)
    from multigate.jobs import interface
    from multigate.jobs.scoring.score import score

    parts = (
        read_parts(options.rows, contract)
        if options.examples is None
        else split_parts(options.examples, options.split)
    )
    with interface.load(options.version, feature_clock=options.feature_clock) as version:
        result = score(
            version,
            parts,
            options.out,
            keep=options.keep.split(",") if options.keep else None,
        )
    filled = result["filled"]
    if filled:
        some = ", ".join(filled[:5]) + (", ..." if len(filled) > 5 else "")
        print(
            f"no column for {len(filled)} features ({some}): from the version's snapshot, or "
            "missing",
            file=sys.stderr,
        )
    print(f"{result['out']}: {result['rows']:,} rows in {result['seconds']:.1f} s")
    return dict(result)
