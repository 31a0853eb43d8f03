"""Item table: features of known items inside the exported file, so that requests can send ids only.

Known items are those of the examples' snapshot and of the item's vocabulary.  The snapshot has the
features as of the cut-off.  Counters keep changing after it; signature `rank` takes them from the
request instead.  Any other id gets a row by its code, with all other features missing.  Rows, R in
all:

    0 .. I - 1      known items
    I + code        other ids, by their code (0: empty text; else unseen, by hash)
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf

from multigate.configs.contract import IdFeature, NumberFeature, VectorFeature
from multigate.configs.errors import ExportError
from multigate.configs.files import ExamplesFolder
from multigate.model.data.encoding import Encoded, Encoder
from multigate.model.data.raw import raw_values
from multigate.model.export.frozen.columns import Block, Columns
from multigate.model.export.frozen.encoding import layout_of
from multigate.model.export.frozen.matches import fingerprints
from multigate.model.export.frozen.weights import constant

Tensor = Any


class ItemTable:
    """Encoded item features of known items, and of every code that an unknown id can have.

    Attributes:
        names: item features, including the item's id.
        ids: (I,) known items.
        table: the raw item features of the R rows; valid placeholders where `complete` is False.
        encoded: by item feature and companion, (R, ...), see `model.data.encoding`.
        complete: (R,) bool; whether every feature with `missing: error` has a value.
        counters: features that change over time; their values are as of the cut-off.
        tables: lookup tables, which a SavedModel must track.

    Args:
        encoder: of the version's contract.
        examples: folder with a snapshot of items.

    Raises:
        ExportError: the folder has no snapshot of items, or the snapshot lacks an item feature.
    """

    def __init__(self, encoder: Encoder, examples: Path) -> None:
        contract = encoder.contract
        self._encoder = encoder
        self.item = contract.item
        self.names = [name for name, _ in contract.of_side("item")]
        self.counters = [
            name
            for name, feature in contract.of_side("item")
            if isinstance(feature, NumberFeature) and feature.counter is not None
        ]
        table = _read(examples, self.item, self.names, encoder)
        self.ids = table[self.item].combine_chunks()
        others = self._unknown_codes()
        table = pa.concat_tables([table, _unknown_rows(table.schema, self.item, self.ids, others)])
        self.complete = np.ones(table.num_rows, bool)
        for name in self.names:
            feature = contract.features[name]
            if feature.missing == "error" and name != self.item:
                column = table[name].combine_chunks()
                self.complete &= np.asarray(column.is_valid())
                index = table.column_names.index(name)
                table = table.set_column(index, name, _filled(column, feature))
        self.table = table
        self.encoded: Encoded = encoder(table, self.names)
        self.encoded[self.item][len(self.ids) :] = np.arange(others)
        keys = self.ids.to_pylist()
        dtype = tf.string if pa.types.is_string(self.ids.type) else tf.int64
        initializer = tf.lookup.KeyValueTensorInitializer(
            tf.constant(keys, dtype), tf.range(len(keys), dtype=tf.int32)
        )
        self._rows = tf.lookup.StaticHashTable(initializer, -1)
        layout = layout_of(contract, self.names)
        packed = layout.pack(self.encoded)
        self._blocks = Columns(
            Block(names, constant(packed.block(names))) for names in layout.blocks()
        )
        self._complete = constant(self.complete)
        matched = {name for names in contract.matches().values() for name in names} - {self.item}
        raw = raw_values(contract, table, sorted(matched))
        self._fingerprints = {
            name: constant(values)
            for name, values in fingerprints(contract, raw, sorted(matched)).items()
        }
        self.tables = [self._rows]

    def index(self, raw: Tensor, codes: Tensor) -> Tensor:
        """Rows (N,) int32 of raw ids (N,) with their codes (N,).

        Raises (when the graph runs):
            InvalidArgumentError: an id is unknown, or lacks a feature that must have a value.
        """
        found = self._rows.lookup(raw)
        others = tf.minimum(codes, self._unknown_codes() - 1)
        rows = tf.where(found >= 0, found, len(self.ids) + others)
        if self.complete.all():
            return rows
        message = f"feature {self.item}: not in the item table; send its features to signature rank"
        known = tf.gather(self._complete.read_value(), rows)
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(known), [message])]):
            return tf.identity(rows)

    def features(self, rows: Tensor) -> Columns:
        """Encoded item features of rows (N,) of the table; only blocks that are read are gathered.

        So its column is not in the file of a graph that reads precomputed products instead.
        """
        return self._blocks.map(lambda values: tf.gather(values.read_value(), rows))

    def fingerprints(self, rows: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Fingerprints of item features, see `model.export.frozen.matches`, of rows (N,)."""
        return {name: tf.gather(self._fingerprints[name].read_value(), rows) for name in names}

    def rows_of(self, ids: pa.Array, codes: np.ndarray) -> np.ndarray:
        """Rows (N,) of ids (N,) with codes (N,), outside the graph."""
        place = {value: row for row, value in enumerate(self.ids.to_pylist())}
        found = np.array([place.get(value, -1) for value in ids.to_pylist()], np.int64)
        return np.where(
            found >= 0, found, len(self.ids) + np.minimum(codes, self._unknown_codes() - 1)
        )

    def bytes(self) -> int:
        """Size of the encoded features."""
        return sum(values.nbytes for values in self.encoded.values())

    def _unknown_codes(self) -> int:
        """Number of codes that ids outside the vocabulary can have."""
        owner: Any = self._encoder.contract.features[
            self._encoder.contract.vocabulary_of(self.item)
        ]
        return 1 + (owner.oov_buckets if owner.hash_buckets is None else owner.hash_buckets)


def _read(examples: Path, item: str, names: list[str], encoder: Encoder) -> pa.Table:
    """Known items (I) with their features; null if the snapshot has no value."""
    folder = ExamplesFolder(examples).snapshot("items")
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise ExportError(
            f"{folder}: no snapshot of items, which export.items needs; build the "
            "examples anew, or set export.items: none"
        )
    table = pa.concat_tables(pq.read_table(path) for path in paths)
    if absent := [name for name in names if name not in table.column_names]:
        raise ExportError(
            f"{folder}: no column {', '.join(absent)}; expected every item feature; build the "
            "examples anew, or set export.items: none"
        )
    table = table.select(names)
    owner = encoder.contract.vocabulary_of(item)
    kind = pa.string() if _id(encoder, item).dtype == "string" else pa.int64()
    table = table.set_column(names.index(item), item, table[item].cast(kind))
    known = set(table[item].to_pylist())
    if owner in encoder.vocabularies:
        more = [v for v in encoder.vocabularies[owner].cast(kind).to_pylist() if v not in known]
        columns = {
            name: pa.array(more, kind) if name == item else pa.nulls(len(more), table[name].type)
            for name in names
        }
        table = pa.concat_tables([table, pa.table(columns)])
    return table


def _unknown_rows(schema: pa.Schema, item: str, ids: pa.Array, rows: int) -> pa.Table:
    """Rows without features; the item's id is a valid placeholder."""
    columns = {name: pa.nulls(rows, schema.field(name).type) for name in schema.names}
    columns[item] = pa.array([ids[0].as_py() if len(ids) else None] * rows, ids.type)
    return pa.table(columns)


def _filled(column: pa.Array, feature: Any) -> pa.Array:
    """A column with a valid value for the feature in place of missing ones."""
    if isinstance(feature, VectorFeature):  # no `fill_null` of lists
        zeros = pa.array([[0.0] * feature.size], column.type)
        return pc.if_else(column.is_valid(), column, zeros.take(pa.array([0] * len(column))))
    return column.fill_null(_placeholder(feature))


def _placeholder(feature: Any) -> Any:
    if isinstance(feature, NumberFeature):
        return 0.0
    return "?" if feature.dtype == "string" else 0


def _id(encoder: Encoder, name: str) -> IdFeature:
    feature = encoder.contract.features[name]
    assert isinstance(feature, IdFeature)
    return feature
