"""From a table of raw features to the integers and numbers that enter the Keras model.

`model.export.frozen.encoding` computes the same inside the exported graph; tests/contract
compares the two.  Keras's `StringLookup` and TensorFlow Transform were considered: both need
TensorFlow, which training on JAX does without.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from multigate.configs.contract import (
    AGE_EDGES,
    ID_HASH,
    LENGTH,
    MATCH,
    PRESENT,
    Contract,
    FrozenContract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    PositionFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.errors import DataError
from multigate.configs.files import ExamplesFolder
from multigate.configs.statistics import Statistics
from multigate.model.data.hashing import hash_ids
from multigate.model.data.ngrams import ngram_lists
from multigate.model.data.vocabulary_index import VocabularyIndex

Encoded = dict[str, np.ndarray]

HASHES = 2**31
"""Number of values of a raw id's hash: those of an int32 that are not negative."""


class Encoder:
    """Encodes tables that have the contract's features as columns.

    Encoded features, B rows:

        id         name           int32 (B,)         0 missing; 1 .. oov_buckets unseen, by hash;
                                                     then the vocabulary, in its order.  With
                                                     hash_buckets: 0 missing, else 1 + hash.
        id_list    name           int32 (B, L)       L = max_length; the codes of the last L values,
                                                     then zeros as padding, which is not pooled
                   name__length   float32 (B,)       log(1 + number of values that are kept)
                   name__match    float32 (B,)       log(1 + how often the values that are kept are
                                                     the candidate's); of the lists of
                                                     `Contract.matches`, where all features are
                                                     encoded.  Raw ids are compared: ids outside
                                                     the vocabulary share codes.
                   Of a history's `with`: `<list>__event`, `<list>__age` (0 missing; else 1 + the
                   number of `AGE_EDGES` <= seconds), `<list>__topic`, each as an id_list
        text       as an id_list, of its n-grams; see `model.data.ngrams`
        number     name           float32 (B,)       0 where missing under `indicator`
                   name           int32 (B,)         under `scale: buckets`; 0 missing, else 1 +
                                                     the number of boundaries <= value
                   name__present  float32 (B,)       under `missing: indicator`
        vector     name           float32 (B, S)     S = size; zeros where missing under `indicator`
                   name__present  float32 (B,)       under `missing: indicator`
        position   name           int32 (B,)         0 unknown, else 1 + min(position, max_position)
        user id    name__hash     int32 (B,)         hash of the raw id, -1 missing; only where all
                                                     features are encoded.  For gates that route by
                                                     id: a code changes with the vocabulary.

    Empty text counts as missing, and so does a number, or a vector with one, that is not finite.

    Args:
        contract: its features are encoded.
        statistics: means, deviations and boundaries of the number features.
        vocabularies: values of each feature that keeps a vocabulary, most frequent first.
        counts: training rows that have each value of a vocabulary; 1 each if not given.

    Raises:
        DataError: a vocabulary or statistic that the contract needs is absent.
    """

    def __init__(
        self,
        contract: Contract,
        statistics: Statistics,
        vocabularies: Mapping[str, pa.Array],
        counts: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.contract = contract
        self.statistics = statistics
        self.vocabularies = dict(vocabularies)
        self.counts = {n: np.ones(len(values), np.int64) for n, values in vocabularies.items()}
        self.counts |= counts or {}
        self._indices: dict[str, VocabularyIndex] = {}
        """By owner; made when the first id is looked up."""
        for name, feature in contract.features.items():
            if isinstance(feature, IdFeature | IdListFeature):
                if keeps_vocabulary(contract, name) and name not in self.vocabularies:
                    raise DataError(
                        f"feature {name!r}: no vocabulary, received those of "
                        f"{', '.join(self.vocabularies) or 'no feature'}; build the examples again"
                    )
            elif (
                isinstance(feature, NumberFeature)
                and feature.scale != "none"
                and name not in statistics.features
            ) or (
                isinstance(feature, VectorFeature)
                and feature.scale == "standardise"
                and name not in statistics.vectors
            ):
                raise DataError(
                    f"feature {name!r}: no statistics, received those of "
                    f"{', '.join([*statistics.features, *statistics.vectors]) or 'no feature'}; "
                    "build the examples again"
                )

    @classmethod
    def read(cls, folder: Path) -> "Encoder":
        """Read an encoder from an examples folder or a checkpoint; both use the same file names.

        Raises:
            DataError: a file is missing or damaged.
        """
        files = ExamplesFolder(folder)
        contract = FrozenContract.read(files.contract).contract
        vocabularies, counts = {}, {}
        for name in contract.features:
            if not keeps_vocabulary(contract, name):
                continue
            path = files.vocabulary(name)
            try:
                table = pq.read_table(path)
                vocabularies[name] = table["value"].combine_chunks()
                counts[name] = table["count"].to_numpy()
            except FileNotFoundError:
                raise DataError(f"{path}: no vocabulary here; build the examples again") from None
            except (pa.ArrowInvalid, KeyError) as error:
                raise DataError(f"{path}: not a vocabulary: {error}") from None
        return cls(contract, Statistics.read(files.statistics), vocabularies, counts)

    def __call__(self, table: pa.Table, names: Iterable[str] | None = None) -> Encoded:
        """Encode features of a table.

        Args:
            table: with the features as columns, in raw values.
            names: features to encode; all where None.

        Raises:
            DataError: a column is absent or of a wrong type, or a value is missing under
                `missing: error`.
        """
        encoded: Encoded = {}
        for name in self.contract.features if names is None else names:
            if name not in table.column_names:
                raise DataError(
                    f"column {name!r}: absent, expected the contract's features, received "
                    f"{', '.join(table.column_names)}"
                )
            try:
                parts = [self._encode(name, chunk) for chunk in table[name].chunks]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise DataError(f"column {name!r}: type {table[name].type}: {error}") from None
            if not parts:
                parts = [self._encode(name, pa.array([], table[name].type))]
            for key in parts[0]:
                encoded[key] = np.concatenate([part[key] for part in parts])
        if names is None:
            user = self.contract.user
            hashes = [self.id_hash(user, chunk) for chunk in table[user].chunks]
            encoded[user + ID_HASH] = np.concatenate([np.zeros(0, np.int32), *hashes])
            for name, candidates in self.contract.matches().items():
                encoded[name + MATCH] = self._match(table, name, candidates)
        return encoded

    def id_hash(self, name: str, column: pa.Array) -> np.ndarray:
        """Hash (N,) int32 of an id feature's raw values; -1 where one is missing."""
        feature = self.contract.features[name]
        assert isinstance(feature, IdFeature)
        return _hash_distinct(self._ids(feature, column), HASHES)

    def rows(self, name: str) -> int:
        """Number of rows of a feature's embedding table.

        Features that share a vocabulary use the table of its owner.
        """
        feature = self.contract.features[self.contract.vocabulary_of(name)]
        if isinstance(feature, IdListFeature) and feature.is_age:
            return 2 + len(AGE_EDGES)
        if isinstance(feature, IdFeature | IdListFeature | TextFeature):
            if feature.hash_buckets is not None:
                return 1 + feature.hash_buckets
            vocabulary = self.vocabularies[self.contract.vocabulary_of(name)]
            return 1 + feature.oov_buckets + len(vocabulary)
        if isinstance(feature, PositionFeature):
            return feature.max_position + 2
        if isinstance(feature, NumberFeature) and feature.scale == "buckets":
            return 1 + feature.buckets
        raise ValueError(f"feature {name!r}: a number without buckets has no embedding")

    def _encode(self, name: str, column: pa.Array) -> Encoded:
        feature = self.contract.features[name]
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        if isinstance(feature, IdFeature):
            return self._id(name, feature, column)
        if isinstance(feature, IdListFeature):
            return self._id_list(name, feature, column)
        if isinstance(feature, TextFeature):
            return self._id_list(name, feature.as_list, ngram_lists(feature, column))
        if isinstance(feature, NumberFeature):
            return self._number(name, feature, column)
        if isinstance(feature, VectorFeature):
            return self._vector(name, feature, column)
        positions = np.asarray(column.cast(pa.int64()).fill_null(-1))
        codes = np.clip(positions, -1, feature.max_position) + 1
        return {name: codes.astype(np.int32)}

    def _id(self, name: str, feature: IdFeature, column: pa.Array) -> Encoded:
        column = self._ids(feature, column)
        if feature.missing == "error":
            _refuse_missing(name, column.null_count, len(column))
        return {name: self._codes(name, column)}

    def _ids(self, feature: IdFeature, column: pa.Array) -> pa.Array:
        """Raw ids; a missing id becomes the default where the feature has one."""
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        column = as_ids(column, feature.dtype)
        return column.fill_null(feature.default) if feature.missing == "default" else column

    def _id_list(self, name: str, feature: IdListFeature, column: pa.Array) -> Encoded:
        kept = _kept_values(column, feature)
        out = np.zeros((len(column), feature.max_length), np.int32)
        out[kept.row, kept.place] = self._codes(name, _ids_of(kept, column, feature))
        return {name: out, name + LENGTH: np.log1p(kept.lengths).astype(np.float32)}

    def _match(self, table: pa.Table, name: str, candidates: Sequence[str]) -> np.ndarray:
        """log1p of how often the candidates' raw ids stand in a list of the user, (N,) float32.

        Args:
            table: N rows.
            name: the list.
            candidates: features of the item.
        """
        found = []
        for chunk in table.select([name, *candidates]).to_batches():
            kept, values = self._kept_ids(name, chunk[name])
            counts = np.zeros(len(chunk), np.int64)
            for candidate in candidates:
                feature = self.contract.features[candidate]
                if isinstance(feature, IdFeature):
                    counts += _count_equal(kept.row, values, self._ids(feature, chunk[candidate]))
                    continue
                others, ids = self._kept_ids(candidate, chunk[candidate])
                for place in range(int(others.lengths.max(initial=0))):  # the item's n-th value
                    nth = np.full(len(chunk), -1)
                    here = others.place == place
                    nth[others.row[here]] = np.flatnonzero(here)
                    of_row = ids.take(pa.array(nth, mask=nth < 0))
                    counts += _count_equal(kept.row, values, of_row)
            found.append(np.log1p(counts).astype(np.float32))
        return np.concatenate([np.zeros(0, np.float32), *found])

    def _kept_ids(self, name: str, column: pa.Array) -> tuple["_Kept", pa.Array]:
        """The values of a list that are kept, and their raw ids, null where missing."""
        feature = self.contract.features[name]
        assert isinstance(feature, IdListFeature)
        kept = _kept_values(column, feature)
        return kept, _ids_of(kept, column, feature)

    def _number(self, name: str, feature: NumberFeature, column: pa.Array) -> Encoded:
        present = np.asarray(column.is_valid())
        values = np.asarray(column.cast(pa.float64()).fill_null(np.nan)).astype(np.float32)
        present = present & np.isfinite(values)
        if feature.missing == "error":
            _refuse_missing(name, int((~present).sum()), len(column))
        default = feature.missing == "default"
        values = np.where(present, values, np.float32(feature.default))
        encoded: Encoded = {}
        if feature.missing == "indicator":
            encoded[name + PRESENT] = present.astype(np.float32)
        if feature.transform == "log1p":
            values = np.maximum(values, 0)
        if feature.scale == "buckets":
            codes = 1 + np.searchsorted(self.boundaries(name), values, side="right")
            encoded[name] = np.where(present | default, codes, 0).astype(np.int32)
            return encoded
        mean, std = self.moments(name)
        if feature.transform == "log1p":
            values = np.log1p(values)
        scaled = (values - np.float32(mean)) / np.float32(std)
        encoded[name] = np.where(present | default, scaled, 0).astype(np.float32)
        return encoded

    def _vector(self, name: str, feature: VectorFeature, column: pa.Array) -> Encoded:
        values, present = vectors(name, feature, column)
        if feature.missing == "error":
            _refuse_missing(name, int((~present).sum()), len(column))
        if feature.scale == "unit":
            norms = np.sqrt(np.square(values.astype(np.float64)).sum(axis=1, keepdims=True))
            values = (values / np.where(norms > 0, norms, 1)).astype(np.float32)
        elif feature.scale == "standardise":
            mean, std = self.vector_moments(name)
            values = (values - mean) / std
        if feature.missing != "indicator":
            return {name: values}
        zeros = np.where(present[:, None], values, np.float32(0))
        return {name: zeros, name + PRESENT: present.astype(np.float32)}

    def vector_moments(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (S,) float32 of a vector under `scale: standardise`."""
        statistics = self.statistics.vectors[name]
        return np.asarray(statistics.mean, np.float32), np.asarray(statistics.std, np.float32)

    def boundaries(self, name: str) -> np.ndarray:
        """Inner edges of a number's buckets, float32, in the units of the raw value.

        Transformed edges would not do: libraries round logarithms differently, so a value on an
        edge would be in different buckets.
        """
        edges = np.asarray(self.statistics.features[name].boundaries, np.float64)
        feature = self.contract.features[name]
        if isinstance(feature, NumberFeature) and feature.transform == "log1p":
            edges = np.expm1(edges)
        return edges.astype(np.float32)

    def moments(self, name: str) -> tuple[float, float]:
        """Mean and standard deviation to standardise a transformed number; (0, 1) if it is not."""
        feature = self.contract.features[name]
        if isinstance(feature, NumberFeature) and feature.scale == "standardise":
            statistics = self.statistics.features[name]
            return statistics.mean, statistics.std
        return 0.0, 1.0

    def code(self, name: str, value: str | int | None) -> int:
        """Code of one id; 0 for None."""
        feature = self.contract.features[name]
        assert isinstance(feature, IdFeature | IdListFeature)
        kind = pa.string() if feature.dtype == "string" else pa.int64()
        return int(self._codes(name, as_ids(pa.array([value], kind), feature.dtype))[0])

    def _codes(self, name: str, values: pa.Array) -> np.ndarray:
        """Codes (N,) int32 of ids that may be null."""
        owner = self.contract.vocabulary_of(name)
        feature = self.contract.features[owner]
        assert isinstance(feature, IdFeature | IdListFeature | TextFeature)
        if isinstance(feature, IdListFeature) and feature.is_age:
            ages = np.asarray(values.fill_null(0))
            buckets = 1 + np.searchsorted(np.array(AGE_EDGES), ages, side="right")
            return np.where(np.asarray(values.is_valid()), buckets, 0).astype(np.int32)
        if feature.hash_buckets is not None:
            return 1 + _hash_distinct(values, feature.hash_buckets)
        if owner not in self._indices:
            self._indices[owner] = VocabularyIndex(self.vocabularies[owner])
        found = self._indices[owner].find(values)
        codes = found + np.int32(1 + feature.oov_buckets)
        given = np.asarray(values.is_valid())
        unseen = (found < 0) & given
        codes[~given] = 0
        if unseen.any():
            unknown = values.filter(pa.array(unseen))
            codes[unseen] = 1 + _hash_distinct(unknown, feature.oov_buckets)
        return codes.astype(np.int32)


class _Kept(NamedTuple):
    """The values of N lists that are kept, K in all, list by list.

    Attributes:
        lengths: (N,) how many each list keeps.
        row: (K,) each value's list.
        place: (K,) its place among the values that its list keeps.
        at: (K,) its place among all values of all lists.
    """

    lengths: np.ndarray
    row: np.ndarray
    place: np.ndarray
    at: np.ndarray


def _kept_values(column: pa.Array, feature: IdListFeature) -> _Kept:
    """The last `max_length` values of each list."""
    lengths = np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.int64)
    ends = np.cumsum(lengths)
    kept = np.minimum(lengths, feature.max_length)
    row = np.repeat(np.arange(len(column)), kept)
    place = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    return _Kept(kept, row, place, np.repeat(ends - kept, kept) + place)


def _ids_of(kept: _Kept, column: pa.Array, feature: IdListFeature) -> pa.Array:
    """Raw ids (K,) of the values that are kept, null where missing."""
    values = column.flatten()
    if len(kept.at) < len(values):  # before the cast and the hashes, which cost more
        values = values.take(pa.array(kept.at))
    return as_ids(values, feature.dtype)


def vectors(name: str, feature: VectorFeature, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The vectors (N, S) float32 of a column of lists, and which rows have one, (N,) bool.

    A missing vector is zeros.

    Raises:
        DataError: a vector has another length.
    """
    given = np.asarray(column.is_valid())
    lengths = np.asarray(pc.list_value_length(column).fill_null(feature.size))
    if (lengths != feature.size).any():
        wrong = lengths[lengths != feature.size][0]
        raise DataError(
            f"feature {name!r}: expected vectors of {feature.size} numbers, received one of "
            f"{wrong}; build the examples again, or correct size"
        )
    flat = np.asarray(column.flatten().cast(pa.float32()).fill_null(np.nan))
    values = np.zeros((len(column), feature.size), np.float32)
    values[given] = flat.reshape(-1, feature.size)
    present = given & np.isfinite(values).all(axis=1)
    values[~present] = 0
    return values, present


def _count_equal(row: np.ndarray, values: pa.Array, candidate: pa.Array) -> np.ndarray:
    """How many values (K,) of each row equal its candidate (N,); missing ids equal none: (N,)."""
    equal = pc.equal(values, candidate.take(pa.array(row))).fill_null(False)
    return np.bincount(row[np.asarray(equal)], minlength=len(candidate))


def keeps_vocabulary(contract: Contract, name: str) -> bool:
    """Whether a feature has its own vocabulary: an id that is not hashed and shares no other's."""
    feature = contract.features[name]
    return (
        isinstance(feature, IdFeature | IdListFeature)
        and not (isinstance(feature, IdListFeature) and feature.is_age)
        and feature.share is None
        and feature.hash_buckets is None
    )


def _hash_distinct(values: pa.Array, buckets: int) -> np.ndarray:
    """Bucket of each value, (N,) int32; -1 where it is null."""
    distinct = values.dictionary_encode()
    hashed = np.append(hash_ids(distinct.dictionary, buckets), -1)
    return hashed[np.asarray(distinct.indices.fill_null(-1))].astype(np.int32)


def as_ids(column: pa.Array, dtype: str) -> pa.Array:
    """Raw ids (N,) cast to the dtype of the contract; empty text becomes null."""
    if dtype == "int":
        return column.cast(pa.int64())
    column = column.cast(pa.string())
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def _refuse_missing(name: str, missing: int, rows: int) -> None:
    if missing:
        raise DataError(
            f"feature {name!r}: {missing} of {rows} rows have no value, and the contract says "
            "missing: error; complete the data, or choose missing: default or indicator"
        )
