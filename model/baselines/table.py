"""Examples as a plain table of numbers, for boosted trees and other models of columns.

    feature    columns
    id         name            code among the 2,000 most frequent ids of training, from 1; 0 for
                               other ids, NaN missing.  A category, not a number.
               name__count     number of training rows with this id; 0 unseen, NaN missing
    number     name            the raw value, NaN missing
    id_list    name__length    number of ids in the list
               name__match     how often the candidate's raw id stands in the list; only where the
                               list shares the candidate's vocabulary
               name__1, ...    1 where the list holds the most frequent id of training, the second,
                               ... the twentieth, else 0; only where the list does not share the
                               candidate's vocabulary: genres or tags
    text       name__length    number of words
    vector     name__0, ...    its numbers, NaN missing
    position   none            it is not known when serving; of a `places` table the place itself,
                               NaN missing

Counts, most frequent ids and their order come from the training split alone, of each impression
once; ids of equal count are in ascending order.  Trees need no transform, so numbers stay as they
are.  A missing value stays missing under every rule of the contract, `default` too: trees have a
branch of their own.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multigate.configs.contract import (
    LENGTH,
    MATCH,
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    PositionFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.errors import DataError, one_line
from multigate.model.data.encoding import as_ids, vectors
from multigate.model.data.ngrams import words
from multigate.model.data.rows import Rows, read_rows

MOST_FREQUENT = 2_000
COUNT = "__count"
"""Suffix of the column with the number of training rows of an id."""
FREQUENT_ENTRIES = 20
"""How many entries of lists such as genres have a column of their own."""
_ROWS_AT_ONCE = 1 << 18  # bounds the memory of raw text


class _Ids(NamedTuple):
    """The ids of training, most frequent first, and the number of rows of each."""

    values: pa.Array
    counts: np.ndarray


class Tabulator:
    """Makes the table of this module's docstring.

    Args:
        contract: its features are read.
        train: the training split.
        places: whether the place that a row was shown at has a column.

    Attributes:
        columns: names of the F columns.
        categories: those among them that are codes.
        counts: those among them that are numbers of training rows.
        left_out: features without a column.
        lists: id_lists of the candidate's vocabulary, see `entries`.

    Raises:
        DataError: a column is absent or of a wrong type.
    """

    def __init__(self, contract: Contract, train: Rows, places: bool = False) -> None:
        self.contract = contract
        self.columns: list[str] = []
        self.categories: list[str] = []
        self.counts: list[str] = []
        self.left_out: list[str] = []
        self.lists: list[str] = []
        self._ids: dict[str, _Ids] = {}
        self._entries: dict[str, pa.Array] = {}
        for name, feature in contract.features.items():
            train.check_columns([name])
            if isinstance(feature, IdFeature):
                self._ids[name] = _most_frequent_first(_ids(train, name, feature.dtype))
                self.columns += [name, name + COUNT]
                self.categories.append(name)
                self.counts.append(name + COUNT)
            elif isinstance(feature, NumberFeature) or (
                places and isinstance(feature, PositionFeature)
            ):
                self.columns.append(name)
            elif isinstance(feature, IdListFeature) and feature.entry is not None:
                self.left_out.append(name)
            elif isinstance(feature, IdListFeature):
                self.columns.append(name + LENGTH)
                if _holds_candidates(contract, name):
                    self.columns.append(name + MATCH)
                    self.lists.append(name)
                else:
                    entries = _most_frequent_first(_entries(train, name, feature.dtype)[0])
                    self._entries[name] = entries.values[:FREQUENT_ENTRIES]
                    self.columns += _entry_columns(name, self._entries[name])
            elif isinstance(feature, TextFeature):
                self.columns.append(name + LENGTH)
            elif isinstance(feature, VectorFeature):
                self.columns += [f"{name}__{place}" for place in range(feature.size)]
            else:
                self.left_out.append(name)

    def __call__(self, rows: Rows) -> np.ndarray:
        """The table (N, F) float64 of N rows.

        Raises:
            DataError: a column is absent or of a wrong type.
        """
        rows.check_columns([n for n in self.contract.features if n not in self.left_out])
        parts = [np.zeros((0, len(self.columns)))]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = Rows(rows.source, rows.table.slice(start, _ROWS_AT_ONCE))
            found: dict[str, np.ndarray] = {}
            for name, feature in self.contract.features.items():
                if isinstance(feature, IdFeature):
                    found |= self._codes(name, _ids(part, name, feature.dtype))
                elif name in self.left_out:
                    continue
                elif isinstance(feature, NumberFeature | PositionFeature):
                    found[name] = _numbers(part, name)
                elif isinstance(feature, IdListFeature):
                    found[name + LENGTH] = _lengths(part, name).astype(np.float64)
                    if name in self.lists:
                        found[name + MATCH] = matches(self.contract, part, name)
                    else:
                        found |= self._holds(part, name, feature.dtype)
                elif isinstance(feature, TextFeature):
                    texts = _ids(part, name, feature.dtype).to_pylist()
                    found[name + LENGTH] = np.array([len(words(text or "")) for text in texts])
                elif isinstance(feature, VectorFeature):
                    values, present = vectors(name, feature, _whole(part, name))
                    values = np.where(present[:, None], values.astype(np.float64), np.nan)
                    found |= {f"{name}__{place}": of for place, of in enumerate(values.T)}
            parts.append(np.stack([found[column] for column in self.columns], axis=1))
        return np.concatenate(parts)

    def entries(self, rows: Rows, name: str) -> np.ndarray:
        """A list of the candidate's vocabulary as codes of the candidate's column.

        Args:
            rows: N rows.
            name: one of `lists`, of at most L ids.

        Returns:
            (N, L) float64: codes of the last L ids, oldest first, NaN behind them.
        """
        feature = self.contract.features[name]
        assert isinstance(feature, IdListFeature)
        values, row = _entries(rows, name, feature.dtype)
        codes = self._codes(self.contract.item, values)[self.contract.item]
        lengths = np.bincount(row, minlength=len(rows))
        place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        place -= np.maximum(lengths - feature.max_length, 0)[row]
        found = np.full((len(rows), feature.max_length), np.nan)
        kept = place >= 0
        found[row[kept], place[kept]] = codes[kept]
        return found

    def _holds(self, part: Rows, name: str, dtype: str) -> dict[str, np.ndarray]:
        """Which of the most frequent entries each row's list holds."""
        frequent = self._entries[name]
        values, row = _entries(part, name, dtype)
        place = np.asarray(pc.index_in(values, value_set=frequent).fill_null(-1)).astype(np.int64)
        held = np.zeros((len(part), len(frequent) + 1))
        held[row, place] = 1  # other entries in the last column
        return dict(zip(_entry_columns(name, frequent), held.T, strict=False))

    def _codes(self, name: str, column: pa.Array) -> dict[str, np.ndarray]:
        values, counts = self._ids[name]
        missing = np.asarray(column.is_null())
        place = np.asarray(pc.index_in(column, value_set=values).fill_null(-1)).astype(np.int64)
        known = (place >= 0) & ~missing
        code = np.where(known & (place < MOST_FREQUENT), place + 1.0, 0.0)
        count = np.where(known, np.append(counts, 0)[place], 0.0)
        code[missing], count[missing] = np.nan, np.nan
        return {name: code, name + COUNT: count}


class Tables(NamedTuple):
    """The training and the validation split as tables.

    Attributes:
        tabulator: fitted on the training split.
        train: the training rows.
        values: a table (N, F) of each split.
        labels: labels (N, T) of each split in own units, NaN where masked.
        weights: (N,) of each split's rows; None if all are equal.
    """

    tabulator: Tabulator
    train: Rows
    values: tuple[np.ndarray, np.ndarray]
    labels: tuple[np.ndarray, np.ndarray]
    weights: tuple[np.ndarray, np.ndarray] | None


def read_tables(
    examples: Path, contract: Contract, places: bool = False, weight: str | None = None
) -> Tables:
    """Read what trees learn from and what they are chosen by.

    Args:
        examples: folder of examples.
        contract: features and tasks.
        places: see `Tabulator`.
        weight: column of the rows' weights; None for equal ones.

    Raises:
        DataError: a split or a column cannot be read, or a label has a wrong value.
    """
    train, held_out = (read_rows(examples, split) for split in ("train", "validation"))
    tabulator = Tabulator(contract, train.once(), places)
    return Tables(
        tabulator,
        train,
        (tabulator(train), tabulator(held_out)),
        (train.labels(contract), held_out.labels(contract)),
        None if weight is None else (train.weights(weight), held_out.weights(weight)),
    )


def matches(contract: Contract, rows: Rows, name: str) -> np.ndarray:
    """How often each row's candidate, by its raw id, stands in the row's list, (N,) float64.

    Args:
        contract: names the candidate's feature.
        rows: N rows.
        name: of an id_list that shares the candidate's vocabulary.
    """
    feature = contract.features[contract.item]
    assert isinstance(feature, IdFeature)
    entries, row = _entries(rows, name, feature.dtype)
    candidates = _ids(rows, contract.item, feature.dtype).take(pa.array(row))
    equal = np.asarray(pc.equal(entries, candidates).fill_null(False))
    return np.bincount(row, equal, minlength=len(rows)).astype(np.float64)


def unmatched(contract: Contract, rows: Rows) -> np.ndarray | None:
    """Rows with a candidate that is new to the user, (N,) bool.

    Such a candidate's raw id is in none of the row's lists that share its vocabulary.  Lists of the
    item itself do not count: they say nothing about the user.

    Returns:
        None where the contract has no such list.
    """
    lists = [
        name
        for name, feature in contract.features.items()
        if isinstance(feature, IdListFeature)
        and feature.side != "item"
        and _holds_candidates(contract, name)
    ]
    if not lists:
        return None
    rows.check_columns([contract.item, *lists])
    new = [np.ones(0, bool)]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = Rows(rows.source, rows.table.slice(start, _ROWS_AT_ONCE))
        counts = np.stack([matches(contract, part, name) for name in lists])
        new.append(counts.sum(axis=0) == 0)
    return np.concatenate(new)


def _holds_candidates(contract: Contract, name: str) -> bool:
    """Whether a list's ids are of the candidates' vocabulary."""
    return contract.vocabulary_of(name) == contract.vocabulary_of(contract.item)


def _entries(rows: Rows, name: str, dtype: str) -> tuple[pa.Array, np.ndarray]:
    """All raw ids of a list column, and the row (int64) of each."""
    row = np.repeat(np.arange(len(rows)), _lengths(rows, name))
    column = _whole(rows, name)
    try:
        return as_ids(column.flatten(), dtype), row
    except pa.ArrowInvalid as error:
        raise _wrong_type(rows, name, column, error) from None


def _entry_columns(name: str, frequent: pa.Array) -> list[str]:
    return [f"{name}__{place}" for place in range(1, len(frequent) + 1)]


def _most_frequent_first(column: pa.Array) -> _Ids:
    counted = pc.value_counts(column.drop_null())
    table = pa.table({"value": counted.field("values"), "count": counted.field("counts")})
    table = table.sort_by([("count", "descending"), ("value", "ascending")]).combine_chunks()
    counts = np.asarray(table["count"]).astype(np.float64)
    return _Ids(_joined(table["value"]), counts)


def _ids(rows: Rows, name: str, dtype: str) -> pa.Array:
    """Raw ids of a column, null where missing."""
    column = _whole(rows, name)
    try:
        return as_ids(column, dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong_type(rows, name, column, error) from None


def _numbers(rows: Rows, name: str) -> np.ndarray:
    """Values (N,) float64, NaN where missing or not finite."""
    column = _whole(rows, name)
    try:
        values = np.asarray(column.cast(pa.float64()).fill_null(np.nan))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong_type(rows, name, column, error) from None
    found: np.ndarray = np.where(np.isfinite(values), values, np.nan)
    return found


def _lengths(rows: Rows, name: str) -> np.ndarray:
    column = _whole(rows, name)
    try:
        return np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.int64)
    except pa.ArrowNotImplementedError as error:
        raise _wrong_type(rows, name, column, error) from None


def _whole(rows: Rows, name: str) -> pa.Array:
    """A column as one array, dictionaries decoded."""
    column = rows.table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return _joined(column)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def _wrong_type(rows: Rows, name: str, column: pa.Array, error: Exception) -> DataError:
    reason = one_line(error)
    return DataError(
        f"{rows.source}: column {name!r}: type {column.type} does not fit the contract: {reason}; "
        "build the examples again"
    )
