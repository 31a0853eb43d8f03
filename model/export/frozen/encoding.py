"""The encoding of `model.data.encoding` as a TensorFlow graph, frozen into the export.

A value is missing if the companion input `<feature>__present` says so, if it is empty text or a
number that is not finite.  With `missing: error` there is no companion, and the server refuses a
missing value before it calls the model; an empty text that reaches the graph gets row 0.
"""

from collections.abc import Iterable
from typing import Any

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
from multigate.model.data.encoding import HASHES, Encoder, keeps_vocabulary
from multigate.model.data.hashing import LONGEST, MIXER, POWERS
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


class GraphEncoder:
    """Encodes raw values in-graph; holds the vocabularies as lookup tables.

    Args:
        encoder: its contract, statistics and vocabularies become part of the graph.

    Attributes:
        tables: lookup tables by feature; a SavedModel must track them.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._contract = encoder.contract
        self.tables = {
            name: _table(encoder, name)
            for name in self._contract.features
            if keeps_vocabulary(self._contract, name)
        }

    def __call__(self, raw: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        """Encode the features `names`.

        Args:
            raw: the inputs that `raw_inputs` lists for these features; N rows each.
            names: features to encode; others in `raw` are ignored.

        Returns:
            The encoded features, as `Encoder` describes them.
        """
        encoded: dict[str, Tensor] = {}
        for name in names:
            feature = self._contract.features[name]
            with tf.name_scope(f"encode_{name}"):
                if isinstance(feature, IdListFeature):
                    encoded |= self._id_list(name, feature, raw[name], raw[name + LENGTH])
                elif isinstance(feature, TextFeature):
                    texts = tf.where(raw[name + PRESENT], raw[name], "")
                    lists = ngram_lists(feature, texts)
                    encoded |= self._id_list(name, feature.as_list, *lists)
                elif isinstance(feature, IdFeature):
                    encoded[name] = self._id(name, feature, raw[name], raw.get(name + PRESENT))
                elif isinstance(feature, NumberFeature):
                    encoded |= self._number(name, feature, raw[name], raw.get(name + PRESENT))
                elif isinstance(feature, VectorFeature):
                    encoded |= self._vector(name, feature, raw[name], raw.get(name + PRESENT))
        return encoded

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

    def _id(self, name: str, feature: IdFeature, values: Tensor, present: Tensor) -> Tensor:
        codes = self._codes(name, values)
        if feature.missing == "indicator":
            return tf.where(present, codes, 0)
        if feature.missing == "default":
            substitute = self._encoder.code(name, feature.default)
            return tf.where(present & (codes > 0), codes, substitute)
        return codes

    def _id_list(
        self, name: str, feature: IdListFeature, values: Tensor, length: Tensor
    ) -> dict[str, Tensor]:
        kept, real = last_values(feature, values, length)
        lengths = tf.cast(tf.minimum(length, feature.max_length), tf.float32)
        codes = tf.where(real, self._codes(name, kept), 0)
        return {name: codes, name + LENGTH: tf.math.log1p(lengths)}

    def _number(
        self, name: str, feature: NumberFeature, values: Tensor, present: Tensor | None
    ) -> dict[str, Tensor]:
        finite = tf.math.is_finite(values)
        present = finite if present is None else finite & present
        encoded = {}
        if feature.missing == "default":
            values = tf.where(present, values, np.float32(feature.default))
        if feature.missing == "indicator":
            encoded[name + PRESENT] = tf.cast(present, tf.float32)
        if feature.transform == "log1p":
            values = tf.maximum(values, 0.0)
        if feature.scale == "buckets":
            boundaries = self._encoder.boundaries(name).tolist()
            codes = 1 + tf.raw_ops.Bucketize(input=values, boundaries=boundaries)
        else:
            mean, std = self._encoder.moments(name)
            if feature.transform == "log1p":
                values = tf.math.log1p(values)
            codes = (values - np.float32(mean)) / np.float32(std)
        if feature.missing != "default":
            codes = tf.where(present, codes, tf.zeros_like(codes))
        if feature.scale != "buckets" and feature.transform != "log1p":
            codes = _refuse_huge(name, codes)
        return encoded | {name: codes}

    def _vector(
        self, name: str, feature: VectorFeature, values: Tensor, present: Tensor | None
    ) -> dict[str, Tensor]:
        finite = tf.reduce_all(tf.math.is_finite(values), axis=1)
        present = finite if present is None else finite & present
        values = tf.where(present[:, None], values, 0.0)
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
            values = _refuse_huge(name, values)
        if feature.missing != "indicator":
            return {name: values}
        zeros = tf.where(present[:, None], values, 0.0)
        return {name: zeros, name + PRESENT: tf.cast(present, tf.float32)}

    def _codes(self, name: str, values: Tensor) -> Tensor:
        """Codes of ids, int32; 0 for empty text."""
        owner = self._contract.vocabulary_of(name)
        feature: Any = self._contract.features[owner]
        if isinstance(feature, IdListFeature) and feature.is_age:
            # Not `tf.searchsorted`, which fails where there is no value.
            edges = tf.constant([AGE_EDGES], tf.int64)
            at = tf.raw_ops.UpperBound(sorted_inputs=edges, values=tf.reshape(values, [1, -1]))
            return 1 + tf.reshape(at, tf.shape(values))
        if feature.hash_buckets is not None:
            codes = 1 + hash_ids(values, feature.hash_buckets)
            return tf.where(values == "", 0, codes) if values.dtype == tf.string else codes
        codes = self.tables[owner].lookup(values)
        if feature.oov_buckets == 1:
            return codes
        return tf.where(codes == _UNSEEN, 1 + hash_ids(values, feature.oov_buckets), codes)


def last_values(feature: IdListFeature, values: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The values of lists (N, .) that are kept, (N, L), and which of them are not padding."""
    L = feature.max_length
    padded = tf.pad(values, [[0, 0], [0, L]], constant_values=_EMPTY[feature.dtype])
    start = tf.maximum(length - L, 0)  # the last L values are kept
    place = tf.range(L, dtype=tf.int64)
    kept = tf.gather(padded, start[:, None] + place, batch_dims=1)  # (N, L)
    return kept, place < length[:, None]


def hash_ids(values: Tensor, buckets: int) -> Tensor:
    """Bucket in [0, buckets) of each id, int32, shaped as `values`; see `model.data.hashing`."""
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
_EMPTY = {"string": "", "int": 0}
_LARGEST = 1e18  # about the root of the largest float32
_UNSEEN = -1  # code of unseen values in tables of features with several buckets for them


def _refuse_huge(name: str, codes: Tensor) -> Tensor:
    """Refuse numbers so large that products overflow: relu turns the NaN into 0, unnoticed."""
    message = f"feature {name}: expected a number within {_LARGEST:g} standard deviations"
    small = tf.reduce_all(tf.abs(codes) <= _LARGEST)
    with tf.control_dependencies([tf.debugging.Assert(small, [message])]):
        return tf.identity(codes)


def _shifted(h: Tensor, bits: int) -> Tensor:
    return tf.bitwise.right_shift(h, tf.constant(bits, h.dtype))


def _table(encoder: Encoder, name: str) -> tf.lookup.StaticHashTable:
    """Lookup table from values to codes; unseen values get code 1 if that is their only bucket."""
    feature: Any = encoder.contract.features[name]
    vocabulary = encoder.vocabularies[name]
    codes = 1 + feature.oov_buckets + np.arange(len(vocabulary), dtype=np.int32)
    if feature.dtype == "string":
        keys: Any = np.asarray([*vocabulary.cast(pa.string()).to_pylist(), ""], object)
        codes = np.append(codes, np.int32(0))
    else:
        keys = np.asarray(vocabulary.cast(pa.int64()))
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, _DTYPES[feature.dtype]), tf.constant(codes)
    )
    default = 1 if feature.oov_buckets == 1 else _UNSEEN
    return tf.lookup.StaticHashTable(initializer, default)
