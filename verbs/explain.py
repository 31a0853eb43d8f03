"""Say why an item stands where it stands."""

import argparse
from pathlib import Path
from typing import Any

from multigate.configs import progress
from multigate.configs.errors import ConfigError, DataError
from multigate.configs.storage import place
from multigate.verbs.common import add_connection, connect

EXAMPLE = (
    "multigate explain --model models/deskdrop/1 --request request.json --item 123\n"
    "multigate explain --model models/deskdrop/1 --examples examples --row 17\n"
    "multigate explain --model models/deskdrop/1 --request request.json --item 123 "
    "--background rows.csv\n"
    "multigate explain --target localhost:8500 --model deskdrop --request request.json --item 123"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--model",
        required=True,
        help="exported version, folder of versions (the newest), or run; with --target the "
        "model's name",
    )
    parser.add_argument(
        "--request", type=Path, help="JSON file: user, context, items, columns, weights"
    )
    parser.add_argument("--item", help="id of the item to explain")
    parser.add_argument("--examples", type=Path, help="folder of examples, in place of a request")
    parser.add_argument("--row", type=int, help="row of the split to explain, from 0")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="split of --examples (default: test)",
    )
    parser.add_argument(
        "--against",
        choices=("examples", "candidates"),
        help="compare with the version's example rows (default), or with the request's other items",
    )
    parser.add_argument(
        "--background",
        type=place,
        metavar="FILE",
        help="compare with rows of this file, or address, with all features: .parquet, .csv, .tsv "
        "or .jsonl, .gz too; 32 of them, evenly spread",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=2,
        help="pairs of orders of the features for each row that is compared with (default: 2); "
        "more leave smaller errors",
    )
    parser.add_argument(
        "--exact", action="store_true", help="take all orders: for at most 12 groups of features"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: 0)")
    parser.add_argument(
        "--top", type=int, default=12, help="show so many groups of features (default: 12)"
    )
    parser.add_argument(
        "--feature_store",
        default="version",
        help="source of features that the request leaves out, as of `multigate serve` (default: "
        "version)",
    )
    add_connection(parser, target=None)


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    _check(options)
    found = _of_server(options) if options.target is not None else _of_version(options)
    from multigate.explanation.show import show

    show(found, options.top)
    return dict(found)


def _check(options: argparse.Namespace) -> None:
    """Refuse options that contradict one another."""
    from multigate.verbs.inputs import require_least

    if (options.request is None) == (options.examples is None):
        given = "neither" if options.request is None else "both"
        raise ConfigError(
            f"--request, --examples: expected one of them, received {given}; give --request with "
            "--item, or --examples with --row"
        )
    for name, partner in (("request", "item"), ("examples", "row")):
        if (getattr(options, name) is None) != (getattr(options, partner) is None):
            raise ConfigError(f"--{name} and --{partner} belong together: give both or neither")
    if options.target is not None and (options.examples is not None or options.exact):
        raise ConfigError("--target: a server takes --request and --item, and draws orders")
    if options.background is not None:
        if options.target is not None:
            raise ConfigError("--background: a server compares with its own rows; leave it out")
        if options.against is not None:
            raise ConfigError(f"--background, --against {options.against}: give one of them")
    if options.examples is not None and options.against == "candidates":
        raise ConfigError("--against candidates: a row of examples has none; give --request")
    require_least("pairs", options.pairs, 2)
    require_least("top", options.top)


def _of_server(options: argparse.Namespace) -> Any:
    """The explanation of the version that a server has."""
    from multigate.serving.client.rank_client import parse_ids
    from multigate.serving.client.request_file import read_request

    request = read_request(options.request)
    with connect(options) as client:
        [item] = parse_ids(client.contract(options.model), [options.item])
        return client.explain(
            options.model,
            user=request["user"],
            item=item,
            item_ids=request.get("items"),
            columns=request.get("columns"),
            context=request.get("context"),
            weights=request.get("weights"),
            against=options.against or "examples",
            pairs=options.pairs,
            seed=options.seed,
        )


def _of_version(options: argparse.Namespace) -> Any:
    """The explanation of a version in a folder."""
    from multigate.runtime.start import start_runtime
    from multigate.serving.client.request_file import read_request
    from multigate.serving.versions.explaining import Against, Drawing
    from multigate.serving.versions.opened import OpenedVersion, find_version

    folder = find_version(Path(options.model))
    request = None if options.request is None else read_request(options.request)
    background = options.background
    if background is not None:
        from multigate.jobs.scoring.rows import kind_of

        kind_of(background)
        if not background.is_file():
            raise DataError(f"{background}: no such file; expected rows to compare with")
    drawing = Drawing(None if options.exact else options.pairs, options.seed)
    raw = None if request is not None else _example(options, folder)
    start_runtime()
    opened = OpenedVersion(folder, options.feature_store)
    rows = None
    if background is not None:
        from multigate.jobs.scoring.background import read_background

        rows = read_background(background, opened.saved_model)
    with progress.bar("explain", unit="runs of the model") as bar:
        if raw is not None:
            return opened.explain_example(raw, drawing, rows, bar.advance)
        assert request is not None
        against: Against = options.against or "examples"
        return opened.explain(request, options.item, against, drawing, rows, bar.advance)


def _example(options: argparse.Namespace, folder: Path) -> Any:
    """A row of examples as inputs of `serving_default`."""
    from multigate.configs.contract import FrozenContract
    from multigate.configs.lineage import check_schema
    from multigate.model.data.raw import raw_values
    from multigate.model.data.rows import read_rows
    from multigate.verbs.inputs import require_examples

    require_examples(options.examples)
    frozen = FrozenContract.read(folder / "assets.extra" / "contract.json")
    check_schema(folder, frozen, options.examples)
    names = [name for name, _ in frozen.contract.of_side("user", "context", "item")]
    rows = read_rows(options.examples, options.split, names)
    if not 0 <= options.row < len(rows):
        raise DataError(
            f"--row: expected 0 to {len(rows) - 1}, the rows of the {options.split} split, "
            f"received {options.row}"
        )
    return raw_values(frozen.contract, rows.table.slice(options.row, 1), names)
