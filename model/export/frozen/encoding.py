"""The encoding of `model.data.encoding` as a TensorFlow graph, frozen into the export.

A value is missing if the companion input `<feature>__present` says so, if it is empty text or a
number that is not finite.  With `missing: error` there is no companion, and the server refuses a
missing value before it calls the model; an empty text that reaches the graph gets row 0.

All ids of a side are looked up together, and all numbers are standardised together
(`frozen.columns`).  Texts of several vocabularies share one table: its keys begin with the
vocabulary's number, as in `1|news`.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tensorflow as tf

from multigate.configs.contract import (
    AGE_EDGES,
    LENGTH,
    PRESENT,
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.model.data.encoding import HASHES, Encoder
from multigate.model.data.hashing import LONGEST, MIXER, POWERS
from multigate.model.export.frozen.columns import Block, Columns, Layout, join, side_by_side
from multigate.model.export.frozen.ngrams import ngram_lists

Tensor = Any


def raw_inputs(contract: Contract, names: Iterable[str]) -> dict[str, tf.TensorSpec]:
    """Inputs of a signature for these features: their raw values and companions."""
    inputs: dict[str, tf.TensorSpec] = {}

    def add(name: str, dtype: tf.DType, *shape: int | None) -> None:
        inputs[name] = tf.TensorSpec(shape, dtype, name=name)

    for name in names:
        feature = contract.features[name]
        if isinstance(feature, NumberFeature):
            add(name, tf.float32, None)
        elif isinstance(feature, IdListFeature):
            add(name, _DTYPES[feature.dtype], None, None)
            add(name + LENGTH, tf.int64, None)
        elif isinstance(feature, VectorFeature):
            add(name, tf.float32, None, feature.size)
        elif isinstance(feature, IdFeature | TextFeature):
            add(name, _DTYPES[feature.dtype], None)
        if not isinstance(feature, IdListFeature) and feature.missing != "error":
            add(name + PRESENT, tf.bool, None)
    return inputs


class Check(NamedTuple):
    """A condition on F features that a call must meet.

    Attributes:
        messages: F, what to say where a feature does not meet it.
        largest: (F,) float32, at most `LARGEST`.
    """

    messages: tuple[str, ...]
    largest: Tensor


class GraphEncoder:
    """Encodes raw values in-graph; holds the vocabularies as lookup tables.

    Args:
        encoder: its contract, statistics and vocabularies become part of the graph.

    Attributes:
        tables: lookup tables by name; a SavedModel must track them.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._contract = encoder.contract
        self._kinds = _kinds(self._contract)
        self._owners: dict[str, list[str]] = {}
        for name, kind in self._kinds.items():
            owner = self._contract.vocabulary_of(name)
            if kind.table and owner not in self._owners.setdefault(kind.table, []):
                self._owners[kind.table].append(owner)
        self.tables = {name: _table(encoder, owners) for name, owners in self._owners.items()}

    def __call__(self, raw: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        """Encode the features `names`.

        Args:
            raw: the inputs that `raw_inputs` lists for these features; N rows each.
            names: features to encode; others in `raw` are ignored.

        Returns:
            The encoded features, as `Encoder` describes them.

        Raises (when the graph runs):
            InvalidArgumentError: a number is too large to compute with.
        """
        columns, checks = self.encode(raw, names)
        with tf.control_dependencies(refuse_huge(checks)):
            return dict(columns.map(tf.identity) if checks else columns)

    def encode(self, raw: dict[str, Tensor], names: Iterable[str]) -> tuple[Columns, list[Check]]:
        """As a call, but leaves it to the caller to check the numbers by `refuse_huge`."""
        layout = layout_of(self._contract, names)
        blocks: list[Block] = []
        checks: list[Check] = []
        if layout.codes:
            with tf.name_scope("encode_ids"):
                blocks.append(Block(tuple(layout.codes), self._ids(layout.codes, raw)))
        if layout.lengths:
            blocks += self._lists(layout, raw)
        if layout.numbers or layout.present:
            with tf.name_scope("encode_numbers"):
                found, check = self._numbers(layout, raw)
                blocks += found
                checks += check
        for name in layout.vectors:
            if not name.endswith(PRESENT):
                with tf.name_scope(f"encode_{name}"):
                    found, check = self._vector(name, raw[name], raw.get(name + PRESENT))
                    blocks += found
                    checks += check
        return Columns(blocks), checks

    def id_hash(self, name: str, raw: dict[str, Tensor]) -> Tensor:
        """Hash (N,) int32 of an id feature's raw values, as `Encoder.id_hash` computes it."""
        feature: Any = self._contract.features[name]
        values = raw[name]
        present = raw.get(name + PRESENT, tf.ones_like(values, tf.bool))
        if feature.dtype == "string":
            present &= values != ""
        absent = -1
        if feature.missing == "default":
            absent = int(self._encoder.id_hash(name, pa.array([feature.default]))[0])
        return tf.where(present, hash_ids(values, HASHES), absent)

    def _ids(self, names: Sequence[str], raw: dict[str, Tensor]) -> Tensor:
        """Codes (N, F) int32 of ids, and of numbers in buckets."""
        features: list[Any] = [self._contract.features[name] for name in names]
        parts = []
        for kind, group in groupby(names, key=lambda name: self._kinds[name]):
            of_kind = list(group)
            if kind.how == "buckets":
                parts += [self._bucket(name, raw)[:, None] for name in of_kind]
            else:
                values = side_by_side([raw[name] for name in of_kind])
                parts.append(self._codes(kind, of_kind, values))
        codes = join(parts)
        ids = [isinstance(feature, IdFeature) for feature in features]
        if not any(i and f.missing != "error" for i, f in zip(ids, features, strict=True)):
            return codes
        substitutes: Any = [
            self._encoder.code(name, feature.default) if i and feature.missing == "default" else 0
            for i, name, feature in zip(ids, names, features, strict=True)
        ]
        always = tf.ones_like(raw[names[0]], tf.bool)
        present = side_by_side(
            [
                raw.get(name + PRESENT, always) if i else always
                for i, name in zip(ids, names, strict=True)
            ]
        )
        if not any(substitutes):
            return codes * tf.cast(present, tf.int32)
        present &= codes > 0  # an empty text is missing, too
        return tf.where(present, codes, tf.constant(substitutes, tf.int32))

    def _bucket(self, name: str, raw: dict[str, Tensor]) -> Tensor:
        """Code (N,) of a number under `scale: buckets`."""
        feature: Any = self._contract.features[name]
        values = raw[name]
        present = self._present(name, raw)
        if feature.missing == "default":
            values = tf.where(present, values, np.float32(feature.default))
        if feature.transform == "log1p":
            values = tf.maximum(values, 0.0)
        boundaries = self._encoder.boundaries(name).tolist()
        codes = 1 + tf.raw_ops.Bucketize(input=values, boundaries=boundaries)
        return codes if feature.missing == "default" else tf.where(present, codes, 0)

    def _present(self, name: str, raw: dict[str, Tensor]) -> Tensor:
        """Which numbers (N,) have a value."""
        finite = tf.math.is_finite(raw[name])
        return finite & raw[name + PRESENT] if name + PRESENT in raw else finite

    def _lists(self, layout: Layout, raw: dict[str, Tensor]) -> list[Block]:
        """Codes of the lists and texts, and their lengths."""
        blocks = []
        lengths, limits = [], []
        for size, names in layout.lists.items():
            kept = []
            for name in names:
                feature: Any = self._contract.features[name]
                with tf.name_scope(f"encode_{name}"):
                    if isinstance(feature, TextFeature):
                        texts = tf.where(raw[name + PRESENT], raw[name], "")
                        values, length = ngram_lists(feature, texts)
                    else:
                        values, length = raw[name], raw[name + LENGTH]
                    # Codes, because to move integers costs less than to move texts.
                    codes = self._codes(self._kinds[name], [name], values[:, None])
                    kept.append(last_values(codes[:, 0], length, size))
                lengths.append(length)
                limits.append(size)
            blocks.append(Block(tuple(names), side_by_side(kept)))
        with tf.name_scope("encode_lengths"):
            counts = tf.minimum(side_by_side(lengths), tf.constant(limits, tf.int64))
            logs = tf.math.log1p(tf.cast(counts, tf.float32))
        return [*blocks, Block(tuple(layout.lengths), logs)]

    def _numbers(self, layout: Layout, raw: dict[str, Tensor]) -> tuple[list[Block], list[Check]]:
        """Numbers outside buckets, and the indicators of all numbers."""
        blocks: list[Block] = []
        checks: list[Check] = []
        names, present = layout.numbers, None
        if names:
            split = layout.logarithms
            # (K, N) until the end: to stack rows is to copy K long pieces.
            parts = [
                tf.stack([raw[n] for n in some]) for some in (names[:split], names[split:]) if some
            ]
            given = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
            present = tf.math.is_finite(given)
            if any(name + PRESENT in raw for name in names):
                always = tf.ones_like(raw[names[0]], tf.bool)
                present &= tf.stack([raw.get(name + PRESENT, always) for name in names])
            if split:
                parts[0] = tf.math.log1p(tf.maximum(parts[0], 0.0))
                given = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
            moments = np.array([self._encoder.moments(name) for name in names], np.float32)
            mean, std = moments.T[:, :, None]
            values = given if not mean.any() and (std == 1).all() else (given - mean) / std
            substitutes = self._substitutes(names, mean, std)
            # Of one shape, where that is possible: to broadcast takes twice as long.
            others = substitutes if substitutes.any() else tf.zeros_like(values)
            values = tf.transpose(tf.where(present, values, others))  # (N, K)
            blocks.append(Block(tuple(names), values))
            if split < len(names):
                checks.append(_check(names, values))
        if layout.present:
            of_numbers = [n for n in layout.present if n.removesuffix(PRESENT) in names]
            shown = []
            if of_numbers:
                places = [names.index(name.removesuffix(PRESENT)) for name in of_numbers]
                whole = places == list(range(len(names)))
                shown = [tf.transpose(present if whole else tf.gather(present, places))]
            shown += [
                self._present(name.removesuffix(PRESENT), raw)[:, None]
                for name in layout.present[len(of_numbers) :]
            ]
            blocks.append(Block(tuple(layout.present), tf.cast(join(shown), tf.float32)))
        return blocks, checks

    def _substitutes(self, names: Sequence[str], mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        """What numbers get where they are missing, standardised, (K, 1)."""
        found = np.zeros((len(names), 1), np.float32)
        for place, name in enumerate(names):
            feature: Any = self._contract.features[name]
            if feature.missing == "default":
                value = np.float32(feature.default)
                if feature.transform == "log1p":
                    value = np.log1p(np.maximum(value, np.float32(0)))
                found[place] = (value - mean[place]) / std[place]
        return found

    def _vector(
        self, name: str, values: Tensor, present: Tensor | None
    ) -> tuple[list[Block], list[Check]]:
        feature: Any = self._contract.features[name]
        finite = tf.reduce_all(tf.math.is_finite(values), axis=1)
        present = finite if present is None else finite & present
        values = tf.where(present[:, None], values, 0.0)
        checks = []
        if feature.scale == "unit":
            squares = tf.square(tf.cast(values, tf.float64))
            norms = tf.sqrt(tf.reduce_sum(squares, axis=1, keepdims=True))
            values = tf.cast(
                tf.cast(values, tf.float64) / tf.where(norms > 0, norms, 1), tf.float32
            )
        elif feature.scale == "standardise":
            mean, std = self._encoder.vector_moments(name)
            values = (values - mean) / std
        if feature.scale != "unit":
            checks.append(_check([name] * feature.size, values))
        if feature.missing != "indicator":
            return [Block((name,), values[:, None])], checks
        zeros = tf.where(present[:, None], values, 0.0)
        shown = tf.cast(present, tf.float32)
        return [Block((name,), zeros[:, None]), Block((name + PRESENT,), shown[:, None])], checks

    def _codes(self, kind: "_Kind", names: Sequence[str], values: Tensor) -> Tensor:
        """Codes of ids (N, F, ...) of one kind, int32; 0 for empty text."""
        owners = [self._contract.vocabulary_of(name) for name in names]
        features: list[Any] = [self._contract.features[owner] for owner in owners]
        shape = [len(names)] + [1] * (len(values.shape) - 2)
        if kind.how == "ages":
            # Not `tf.searchsorted`, which fails where there is no value.
            edges = tf.constant([AGE_EDGES], tf.int64)
            at = tf.raw_ops.UpperBound(sorted_inputs=edges, values=tf.reshape(values, [1, -1]))
            return 1 + tf.reshape(at, tf.shape(values))
        if kind.how == "hash":
            buckets = np.array([feature.hash_buckets for feature in features]).reshape(shape)
            codes = 1 + hash_ids(values, buckets)
            if values.dtype == tf.string:
                codes *= tf.cast(values != "", tf.int32)
            return codes
        keys, together = values, self._owners[kind.table]
        if len(together) > 1:
            prefixes = [_prefix(together.index(owner)) for owner in owners]
            # Not `tf.strings.join`, which does not broadcast.
            keys = tf.raw_ops.Add(x=tf.constant(prefixes, shape=shape), y=values)
        codes = self.tables[kind.table].lookup(keys)
        if not kind.several:
            return codes
        buckets = np.array([feature.oov_buckets for feature in features]).reshape(shape)
        return tf.where(codes == _UNSEEN, 1 + hash_ids(values, buckets), codes)


def layout_of(contract: Contract, names: Iterable[str]) -> Layout:
    """The blocks of some features; those that are looked up alike stand side by side."""
    kinds = _kinds(contract)
    place = {name: number for number, name in enumerate(contract.features)}
    return Layout(
        contract, sorted(names, key=lambda name: (kinds.get(name, _NO_CODES), place[name]))
    )


def last_values(values: Tensor, length: Tensor, size: int) -> Tensor:
    """The last values of each list, 0 in the place of padding.

    Args:
        values: (N, .) integers, junk beyond the length.
        length: (N,) int64 of each list.
        size: L.

    Returns:
        (N, L).
    """
    padded = tf.pad(values, [[0, 0], [0, size]])
    start = tf.maximum(length - size, 0)
    place = tf.range(size, dtype=tf.int64)
    kept = tf.gather(padded, start[:, None] + place, batch_dims=1)  # (N, L)
    return kept * tf.cast(place < length[:, None], kept.dtype)


def hash_ids(values: Tensor, buckets: int | np.ndarray) -> Tensor:
    """Bucket in [0, buckets) of each id, int32, shaped as `values`; see `model.data.hashing`.

    `buckets` is a number, or an array that broadcasts with `values`.
    """
    if values.dtype == tf.string:
        lengths = tf.strings.length(values)
        width = tf.clip_by_value(tf.reduce_max(lengths), 1, LONGEST)
        data = tf.io.decode_raw(values, tf.uint8, fixed_length=width)  # (..., width), zero-padded
        terms = (tf.cast(data, tf.uint64) + 1) * tf.constant(POWERS)[:width]
        inside = tf.range(width) < lengths[..., None]
        h = tf.reduce_sum(tf.where(inside, terms, tf.zeros_like(terms)), axis=-1)
        h += tf.cast(lengths, tf.uint64)
    else:
        h = tf.bitcast(values, tf.uint64)
    for shift, factor in MIXER:
        h = tf.bitwise.bitwise_xor(h, _shifted(h, shift)) * tf.constant(factor, tf.uint64)
    h = tf.bitwise.bitwise_xor(h, _shifted(h, 31))
    positive = tf.bitcast(_shifted(h, 1), tf.int64)
    return tf.cast(tf.math.floormod(positive, tf.constant(buckets, tf.int64)), tf.int32)


_DTYPES = {"string": tf.string, "int": tf.int64}
_UNSEEN = -1  # code of unseen values in tables of features with several buckets for them

LARGEST = 1e18
"""Of a standardised number: about the root of the largest float32."""


def refuse_huge(checks: Sequence[Check]) -> list[Any]:
    """One operation that refuses numbers so large that products overflow; none without checks.

    Relu would turn the NaN of such products into 0, unnoticed.
    """
    if not checks:
        return []
    with tf.name_scope("refuse_huge"):
        messages = tf.constant([text for check in checks for text in check.messages])
        parts = [check.largest for check in checks]
        largest = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
        worst = tf.argmax(largest, output_type=tf.int32)
        small = tf.gather(largest, worst) <= LARGEST
        return [tf.debugging.Assert(small, [tf.gather(messages, worst)])]


def _check(names: Sequence[str], values: Tensor) -> Check:
    """The check of finite values (N, F)."""
    expected = f"expected a number within {LARGEST:g} standard deviations"
    largest = tf.reduce_max(tf.abs(values), axis=0)
    return Check(tuple(f"feature {name}: {expected}" for name in names), largest)


def _shifted(h: Tensor, bits: int) -> Tensor:
    return tf.bitwise.right_shift(h, tf.constant(bits, h.dtype))


class _Kind(NamedTuple):
    """How a feature gets its codes; features of one kind are looked up together.

    Attributes:
        how: `look_up`, `hash`, `ages` or `buckets`.
        table: name of the lookup table; empty without one.
        several: whether there are several codes for unseen ids.
        dtype: of the raw values.
    """

    how: str
    table: str = ""
    several: bool = False
    dtype: str = ""


_NO_CODES = _Kind("~")  # after all others


def _kinds(contract: Contract) -> dict[str, _Kind]:
    """The kind of each feature with codes.

    Vocabularies of texts share a table where ids of one side use them.  One that only lists use,
    or that holds integers, which cannot have a prefix, has its own.
    """
    owners = {
        contract.vocabulary_of(name)
        for name, feature in contract.features.items()
        if isinstance(feature, IdFeature)
    }
    found = {}
    for name, feature in contract.features.items():
        owner = contract.vocabulary_of(name)
        of_owner: Any = contract.features[owner]
        if isinstance(feature, NumberFeature):
            if feature.scale == "buckets":
                found[name] = _Kind("buckets")
        elif isinstance(of_owner, IdListFeature) and of_owner.is_age:
            found[name] = _Kind("ages")
        elif isinstance(feature, IdFeature | IdListFeature | TextFeature):
            if of_owner.hash_buckets is not None:
                found[name] = _Kind("hash", dtype=of_owner.dtype)
                continue
            several, table = of_owner.oov_buckets > 1, owner
            if owner in owners and of_owner.dtype == "string":
                side = "item" if of_owner.side == "item" else "user"
                table = f"{side} ids" + (" of several buckets" if several else "")
            found[name] = _Kind("look_up", table, several, of_owner.dtype)
    return found


def _prefix(number: int) -> str:
    """What the keys of one of several vocabularies in a table begin with."""
    return f"{number}|"


def _table(encoder: Encoder, owners: Sequence[str]) -> tf.lookup.StaticHashTable:
    """Lookup table from values to codes; unseen values get code 1 if that is their only bucket."""
    features: list[Any] = [encoder.contract.features[owner] for owner in owners]
    text = features[0].dtype == "string"
    keys: list[Any] = []
    codes: list[np.ndarray] = []
    for number, (owner, feature) in enumerate(zip(owners, features, strict=True)):
        vocabulary = encoder.vocabularies[owner]
        codes.append(1 + feature.oov_buckets + np.arange(len(vocabulary), dtype=np.int32))
        if text:
            prefix = _prefix(number) if len(owners) > 1 else ""
            keys += [prefix + value for value in [*vocabulary.cast(pa.string()).to_pylist(), ""]]
            codes.append(np.zeros(1, np.int32))
        else:
            keys += vocabulary.cast(pa.int64()).to_pylist()
    default = 1 if features[0].oov_buckets == 1 else _UNSEEN
    if not keys:  # TensorFlow has no empty tables: 0 is unseen, as every other value
        keys, codes = [0], [np.array([default], np.int32)]
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(np.array(keys, object) if text else np.array(keys, np.int64)),
        tf.constant(np.concatenate(codes)),
    )
    return tf.lookup.StaticHashTable(initializer, default)
