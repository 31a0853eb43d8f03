"""Score a file of rows, or a split of examples, with a version."""

import argparse
import sys
from pathlib import Path
from typing import Any

from multigate.configs.storage import place

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
        type=place,
        metavar="FILE",
        help="file or address: rows of a user, a context and an item: .parquet, .csv, .tsv or "
        ".jsonl, .gz too; "
        "features without a column come from the version's snapshot",
    )
    what.add_argument(
        "--examples", type=place, metavar="FOLDER", help="folder of examples, or its address"
    )
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="split of --examples (default: test)",
    )
    parser.add_argument(
        "--out",
        type=place,
        required=True,
        metavar="FILE",
        help="file or address to write: the same rows with the columns score and score/TASK; "
        ".parquet, .csv, .tsv or .jsonl",
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
    from multigate.configs import progress
    from multigate.configs.errors import DataError
    from multigate.configs.examples_store import fetched
    from multigate.verbs.inputs import require_examples, require_version

    contract = require_version(options.version).contract
    examples = options.examples
    if examples is not None:
        examples = options.temporary.enter_context(fetched(examples))
        require_examples(examples)
    elif not options.rows.is_file():
        raise DataError(f"{options.rows}: no such file; expected a file of rows")
    if isinstance(options.out, Path) and not options.out.absolute().parent.is_dir():
        raise DataError(f"{options.out.parent}: no such folder; make it, or choose another file")
    from multigate.jobs.scoring.rows import FORMATS, count_rows, kind_of, read_parts, split_parts

    if options.out.name.endswith(".gz"):
        raise DataError(f"{options.out}: expected a name that ends with {', '.join(FORMATS)}")
    for path in (options.out, *([options.rows] if options.rows else [])):
        kind_of(path)
    from multigate.jobs import interface
    from multigate.jobs.examples import Examples
    from multigate.jobs.scoring.score import score

    if examples is None:
        parts, total = read_parts(options.rows, contract), count_rows(options.rows)
    else:
        parts = split_parts(examples, options.split)
        total = Examples(examples).count(options.split)
    with (
        interface.load(options.version, feature_clock=options.feature_clock) as version,
        progress.bar("score", total, "rows") as bar,
    ):
        result = score(
            version,
            parts,
            options.out,
            keep=options.keep.split(",") if options.keep else None,
            progress=bar.show,
        )
    filled = result["filled"]
    if filled:
        some = ", ".join(filled[:5]) + (", ..." if len(filled) > 5 else "")
        print(
            f"no column for {len(filled)} features ({some}): from the version's snapshot, or "
            "missing",
            file=sys.stderr,
        )
    scored = result["rows"] - result["unscored"]
    for name, count in result["unknown"].items():
        print(
            f"note: {count:,} of {scored:,} rows have a {name} that the model's vocabulary lacks; "
            "it learnt nothing of such an id (is it new, or written in another way than in the "
            "log?)",
            file=sys.stderr,
        )
    for row, names in result["lacking"].items():
        lacked = ", ".join(map(repr, names))
        print(f"warning: row {row}: no score, it lacks {lacked} (missing: error)", file=sys.stderr)
    told = f"{result['out']}: {result['rows']:,} rows in {result['seconds']:.1f} s"
    if result["unscored"]:
        told += f"; {result['unscored']:,} of them without scores, for lack of a required feature"
    print(told)
    return dict(result)
