"""Writes the embedded feature store (module `snapshot`) from the pipeline's snapshot.

Runs at export and needs pyarrow.  The table of users, and that of items, must fit in memory.
`snapshot` says which libraries were considered.
"""

import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from multigate.configs.contract import FrozenContract, IdListFeature, NumberFeature, VectorFeature
from multigate.configs.errors import DataError
from multigate.configs.files import ExamplesFolder, new_folder, write_json
from multigate.serving.core.layout import value_dtype
from multigate.serving.feature_store.interface import (
    read_manifest,
    read_priors,
    stored_columns,
)
from multigate.serving.feature_store.snapshot import (
    FORMAT,
    KEYS,
    MANIFEST,
    SOURCES,
    SnapshotManifest,
    checksum,
)


def write_snapshot(
    examples: Path, out: Path, sources: Collection[str] = ("users", "items")
) -> dict[str, int]:
    """Write the snapshot of a folder of examples as an embedded feature store.

    Args:
        examples: a folder that the pipeline wrote.
        out: the folder to create.
        sources: which tables to write: `users`, `items` or both.

    Returns:
        Rows by source.

    Raises:
        DataError: the examples have no snapshot, or no priors.
    """
    folder = ExamplesFolder(examples)
    frozen = FrozenContract.read(folder.contract)
    contract = frozen.contract
    rows: dict[str, int] = {}
    with new_folder(out) as made:
        for side, source in SOURCES:
            if source not in sources:
                continue
            table = read_source(folder, source)
            key = contract.user if side == "user" else contract.item
            (made / source).mkdir()
            rows[source] = _write(made / source, table, key, stored_columns(contract, side))
        files = sorted(path for path in made.rglob("*.npy"))
        manifest: SnapshotManifest = {
            "format": FORMAT,
            "schema": frozen.schema_fingerprint,
            "cut_off": read_manifest(folder.manifest)["cut_off"],
            "rows": rows,
            "files": {path.relative_to(made).as_posix(): checksum(path) for path in files},
        }
        if priors := read_priors(folder, contract):
            manifest["priors"] = priors
        write_json(made / MANIFEST, manifest)
    return rows


def read_source(folder: ExamplesFolder, source: str) -> pa.Table:
    """The snapshot's table of `users` or `items`.

    Raises:
        DataError: the examples have no snapshot.
    """
    path = folder.snapshot(source)
    if not any(path.glob("*.parquet")):
        raise DataError(
            f"{path}: no snapshot here; make the examples again with `multigate examples`"
        )
    return pq.read_table(path)


def last_values(feature: IdListFeature, lists: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The values of lists that a model reads: the last ones, without nulls and empty texts.

    What is known of a history's entries keeps its nulls, so that it stays beside them.

    Returns:
        The values end to end, and (R + 1,) int64: where each row's values begin and end.
    """
    lists = lists.cast(pa.large_list(lists.type.value_type))
    counts = np.asarray(pc.list_value_length(lists).fill_null(0), np.int64)
    flat = pc.list_flatten(lists)
    row_of = np.repeat(np.arange(len(lists)), counts)
    kept = np.asarray(flat.is_valid())
    if feature.entry is not None:  # each value belongs to an entry of the history
        kept = np.ones(len(flat), bool)
    elif feature.dtype == "string":
        kept &= np.asarray(pc.not_equal(flat, "").fill_null(False))
    counts = np.bincount(row_of[kept], minlength=len(lists))
    place = np.zeros(len(flat), np.int64)
    place[kept] = np.arange(kept.sum()) - (np.cumsum(counts) - counts)[row_of[kept]]
    kept &= place >= (counts - feature.max_length)[row_of]
    ends = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.minimum(counts, feature.max_length), out=ends[1:])
    return flat.filter(pa.array(kept)), ends


def _write(folder: Path, table: pa.Table, key: str, features: dict[str, Any]) -> int:
    """Write one side's table; returns its number of rows."""
    ids = table[key].combine_chunks()
    if pa.types.is_integer(ids.type):
        keys = np.asarray(ids, np.int64)
        order = np.argsort(keys, kind="stable")
    else:
        texts = [text.encode() for text in ids.to_pylist()]
        keys = np.fromiter(map(zlib.crc32, texts), np.uint32, len(texts))
        order = np.argsort(keys, kind="stable")
        _write_texts(folder, KEYS, [texts[at] for at in order])
    _save(folder, KEYS, keys[order])
    table = table.take(pa.array(order))
    for name, feature in features.items():
        _write_feature(folder, name, feature, table[name].combine_chunks())
    return table.num_rows


def _write_feature(folder: Path, name: str, feature: Any, column: pa.Array) -> None:
    if isinstance(feature, IdListFeature):
        column, ends = last_values(feature, column)
        _save(folder, f"{name}.ends", ends)
    if value_dtype(feature) == "string":
        encoded = pc.dictionary_encode(column.cast(pa.large_string()))
        distinct = [text.encode() for text in encoded.dictionary.to_pylist()]
        codes = np.array(encoded.indices.fill_null(-1), np.int32)
        # An empty text is missing.
        codes[np.isin(codes, [at for at, text in enumerate(distinct) if not text])] = -1
        _save(folder, f"{name}.codes", codes)
        _write_texts(folder, name, distinct)
    elif isinstance(feature, VectorFeature):
        vectors = np.full((len(column), feature.size), np.nan, np.float32)
        known = np.asarray(column.is_valid())
        vectors[known] = np.asarray(column.flatten(), np.float32).reshape(-1, feature.size)
        _save(folder, name, vectors)
    elif isinstance(feature, NumberFeature):
        numbers = column.cast(pa.float32()).fill_null(np.nan)
        _save(folder, name, np.asarray(numbers, np.float32))
    else:
        _save(folder, name, np.asarray(column.fill_null(0), np.int64))
        if not isinstance(feature, IdListFeature):
            _save(folder, f"{name}.present", np.asarray(column.is_valid()))


def _write_texts(folder: Path, name: str, texts: list[bytes]) -> None:
    places = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=places[1:])
    _save(folder, f"{name}.places", places)
    _save(folder, f"{name}.texts", np.frombuffer(b"".join(texts), np.uint8))


def _save(folder: Path, name: str, array: np.ndarray) -> None:
    np.save(folder / f"{name}.npy", array, allow_pickle=False)
