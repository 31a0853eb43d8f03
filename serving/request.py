"""A Rank request against the contract: inputs of the `rank` signature, or a clear error.

An error names the feature, what was expected and what came.

Missing values are told apart from values in one way for every side: an absent field, an entry whose
presence is false, and an empty text are missing; NaN is an error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.contract import LENGTH, PRESENT, Contract, IdListFeature, NumberFeature, Side
from serving.layout import (
    TASK_WEIGHTS,
    USER_INDEX,
    Arrays,
    empty_like,
    may_be_missing,
    value_dtype,
)
from serving.status import InvalidRequestError

_KIND_OF = {"texts": "string", "integers": "int64", "numbers": "float32"}
_LIST_OF = {"text": "texts", "integer": "integers", "number": "numbers"}
_SIDES: tuple[Side, ...] = ("user", "context", "item")


@dataclass(frozen=True)
class ParsedRequest:
    """What a valid request asks for."""

    inputs: Arrays
    """Of the `rank` signature, with M = 1."""
    rows: int
    """N candidates."""
    floors: dict[str, tuple[float, float]]
    """Lowest and highest score that stays, by task."""
    limit: int
    """Items of the answer at most."""
    missing: dict[str, int]
    """Values for which a missing rule stood in, by feature."""

    def warnings(self) -> list[str]:
        """The missing values, in words."""
        return [
            f"feature {name!r}: {count} missing value{'s' if count > 1 else ''}; "
            "its missing rule stood in"
            for name, count in self.missing.items()
        ]


@dataclass(frozen=True)
class _Values:
    """The values of one feature for some rows, as the request held them."""

    dtype: str | None
    """None where there is none to tell it by."""
    values: Sequence[Any]
    lengths: Sequence[int] | None
    present: Sequence[bool]
    """Empty where all are."""


class RequestReader:
    """Reads the Rank requests for one contract."""

    def __init__(self, contract: Contract, max_candidates: int) -> None:
        self._contract = contract
        self._max_candidates = max_candidates
        self._sides = {side: dict(contract.of_side(side)) for side in _SIDES}
        self._weights = np.array(
            [[task.score_weight for task in contract.tasks.values()]], np.float32
        )

    def read(self, request: Any) -> ParsedRequest:
        """Validate a RankRequest.

        Raises:
            InvalidRequestError: the first thing that contradicts the contract.
        """
        rows = self._count(request.candidates)
        inputs: Arrays = {}
        missing: dict[str, int] = {}
        sides: tuple[tuple[Side, Any], ...] = (("user", request.user), ("context", request.context))
        for side, given in sides:
            self._refuse_unknown(given, side, f"{side} features")
            for name, feature in self._sides[side].items():
                found = _single(name, given[name]) if name in given else None
                inputs |= _encode(name, feature, found, 1, missing)
        columns = request.candidates.columns
        self._refuse_unknown(columns, "item", "candidate columns")
        if self._contract.item in columns:
            raise InvalidRequestError(
                f"candidate column {self._contract.item!r}: these values belong in item_id"
            )
        for name, feature in self._sides["item"].items():
            if name == self._contract.item:
                found = _ids(request.candidates.item_id)
            else:
                found = _column(columns[name]) if name in columns else None
            inputs |= _encode(name, feature, found, rows, missing)
        inputs[USER_INDEX] = np.zeros(rows, np.int32)
        inputs[TASK_WEIGHTS] = self._read_weights(request.task_weights)
        if request.limit < 0:
            raise InvalidRequestError(f"limit: expected 0 (all) or more, received {request.limit}")
        return ParsedRequest(
            inputs, rows, self._read_floors(request.floors), request.limit or rows, missing
        )

    def _count(self, candidates: Any) -> int:
        """N."""
        which = candidates.item_id.WhichOneof("values")
        rows = len(getattr(candidates.item_id, which).values) if which else 0
        if rows == 0:
            raise InvalidRequestError("candidates: expected at least one item_id, received none")
        if rows > self._max_candidates:
            raise InvalidRequestError(
                f"candidates: expected at most {self._max_candidates}, received {rows}; "
                "rank them in parts"
            )
        return rows

    def _refuse_unknown(self, given: Mapping[str, Any], side: Side, where: str) -> None:
        known = self._sides[side]
        for name in given:
            if name in known:
                continue
            home = next((s for s, features in self._sides.items() if name in features), None)
            if home is not None:
                raise InvalidRequestError(
                    f"{where}: feature {name!r} is of side {home!r}; send it there"
                )
            raise InvalidRequestError(
                f"{where}: unknown feature {name!r}; expected some of {', '.join(known) or 'none'}"
            )

    def _read_weights(self, given: Mapping[str, float]) -> np.ndarray:
        """Task weights (1, T): the contract's, with the request's in their place."""
        if not given:
            return self._weights
        weights = self._weights.copy()
        tasks = list(self._contract.tasks)
        for task, weight in given.items():
            self._refuse_unknown_task("task_weights", task)
            if not math.isfinite(weight):
                raise InvalidRequestError(
                    f"task_weights: task {task!r}: expected a finite number, received {weight}"
                )
            weights[0, tasks.index(task)] = weight
        return weights

    def _read_floors(self, given: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        floors = {}
        for task, floor in given.items():
            self._refuse_unknown_task("floors", task)
            low = floor.min if floor.HasField("min") else -math.inf
            high = floor.max if floor.HasField("max") else math.inf
            if not low <= high:  # false for NaN as well
                raise InvalidRequestError(
                    f"floors: task {task!r}: expected min <= max, received {low} and {high}"
                )
            floors[task] = (low, high)
        return floors

    def _refuse_unknown_task(self, where: str, task: str) -> None:
        if task not in self._contract.tasks:
            raise InvalidRequestError(
                f"{where}: unknown task {task!r}; expected some of "
                f"{', '.join(self._contract.tasks)}"
            )


def _single(name: str, value: Any) -> _Values | None:
    """The value of a user or context feature as a column of one row."""
    which = value.WhichOneof("kind")
    if which is None:
        return None
    inside = getattr(value, which)
    if which in _LIST_OF:
        return _Values(_KIND_OF[_LIST_OF[which]], [inside], None, ())
    # An empty list has no dtype to be wrong about.
    dtype = _KIND_OF[which] if inside.values else None
    return _Values(dtype, inside.values, [len(inside.values)], ())


def _column(column: Any) -> _Values:
    which = column.WhichOneof("values")
    values = getattr(column, which).values if which else ()
    return _Values(
        _KIND_OF[which] if len(values) else None,
        values,
        column.lengths or None,
        column.present,
    )


def _ids(ids: Any) -> _Values:
    which = ids.WhichOneof("values")
    return _Values(_KIND_OF[which], getattr(ids, which).values, None, ())


def _encode(
    name: str, feature: Any, found: _Values | None, rows: int, missing: dict[str, int]
) -> Arrays:
    """The signature's inputs for one feature.

    Args:
        name: of the feature.
        feature: its part of the contract.
        found: what the request held, if anything.
        rows: how many values are due.
        missing: where values that are missing are counted.

    Returns:
        `name` and its companions, (rows, ...) each.
    """
    if isinstance(feature, IdListFeature):
        return _encode_lists(name, feature, found, rows, missing)
    dtype = value_dtype(feature)
    if found is None:
        values, present = empty_like(dtype, (rows,)), np.zeros(rows, bool)
    else:
        values, present = _encode_values(name, feature, found, rows)
    absent = rows - int(np.count_nonzero(present))
    if not may_be_missing(feature):
        if absent:
            row = int(np.argmin(present))
            where = "" if found is None or rows == 1 else f" in row {row} and {absent} in all"
            raise InvalidRequestError(
                f"feature {name!r}: expected a value ({_describe(feature)}; missing: error), "
                f"received none{where}"
            )
        return {name: values}
    if absent:
        missing[name] = absent
    return {name: values, name + PRESENT: present}


def _encode_values(
    name: str, feature: Any, found: _Values, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Values (rows,) and presence (rows,) of a feature that is no list."""
    if found.lengths is not None:
        raise InvalidRequestError(
            f"feature {name!r}: expected {_describe(feature)} per row, received lists"
        )
    dtype = value_dtype(feature)
    _check_dtype(name, feature, found.dtype, dtype)
    if len(found.values) != rows:
        raise InvalidRequestError(
            f"feature {name!r}: expected {rows} values, one per row, received {len(found.values)}"
        )
    present = _presence(name, found.present, rows)
    if dtype == "string":
        texts = [text.encode() for text in found.values]
        values = np.empty(rows, object)
        values[:] = texts
        present = present & np.fromiter(map(bool, texts), bool, rows)
        return values, present
    values = np.array(found.values, dtype)
    if dtype == "float32":
        values = np.where(present, values, np.float32(0))
        _check_finite(name, feature, values)
    return values, present


def _encode_lists(
    name: str, feature: IdListFeature, found: _Values | None, rows: int, missing: dict[str, int]
) -> Arrays:
    """Values (rows, L) padded at the end, and lengths (rows,); the last values of long lists."""
    dtype, most = value_dtype(feature), feature.max_length
    if found is None:
        missing[name] = rows
        return {name: empty_like(dtype, (rows, 1)), name + LENGTH: np.zeros(rows, np.int64)}
    _check_dtype(name, feature, found.dtype, dtype)
    if found.lengths is None:
        raise InvalidRequestError(
            f"feature {name!r}: expected {_describe(feature)} per row, received values without "
            "lengths"
        )
    if len(found.lengths) != rows:
        raise InvalidRequestError(
            f"feature {name!r}: expected {rows} lengths, one per row, received {len(found.lengths)}"
        )
    if min(found.lengths) < 0 or sum(found.lengths) != len(found.values):
        raise InvalidRequestError(
            f"feature {name!r}: expected lengths of 0 or more that add up to the "
            f"{len(found.values)} values, received a sum of {sum(found.lengths)}"
        )
    present = _presence(name, found.present, rows)
    absent = rows - int(np.count_nonzero(present))
    if absent:
        missing[name] = absent
    flat = np.empty(len(found.values), object if dtype == "string" else dtype)
    row_of = np.repeat(np.arange(rows), found.lengths)
    kept = present[row_of]
    if dtype == "string":
        flat[:] = [text.encode() for text in found.values]
        kept &= np.fromiter(map(bool, found.values), bool, len(flat))
    else:
        flat[:] = found.values
    flat, row_of = flat[kept], row_of[kept]
    counts = np.bincount(row_of, minlength=rows)
    # Negative for the values at the start of a list that is too long.
    place = np.arange(len(flat)) - np.cumsum(counts)[row_of] + np.minimum(counts, most)[row_of]
    lengths = np.minimum(counts, most)
    values = empty_like(dtype, (rows, max(int(lengths.max()), 1)))
    last = place >= 0
    values[row_of[last], place[last]] = flat[last]
    return {name: values, name + LENGTH: lengths}


def _presence(name: str, given: Sequence[bool], rows: int) -> np.ndarray:
    """Presence (rows,); none given means all present."""
    if not given:
        return np.ones(rows, bool)
    if len(given) != rows:
        raise InvalidRequestError(
            f"feature {name!r}: expected no presence entries or {rows}, received {len(given)}"
        )
    return np.array(given, bool)


def _check_dtype(name: str, feature: Any, received: str | None, expected: str) -> None:
    """Refuse values of another type; whole numbers are numbers."""
    if received in {expected, None} or (received, expected) == ("int64", "float32"):
        return
    raise InvalidRequestError(
        f"feature {name!r}: expected {_describe(feature)}, received {received}"
    )


def _check_finite(name: str, feature: Any, values: np.ndarray) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InvalidRequestError(
            f"feature {name!r}: expected {_describe(feature)}, received {values[row]} in row "
            f"{row}; leave out what is missing"
        )


def _describe(feature: Any) -> str:
    """What a feature takes, in words."""
    if isinstance(feature, NumberFeature):
        return "a finite number"
    one = "a text" if feature.dtype == "string" else "a whole number (int64)"
    return f"a list, each entry {one}" if isinstance(feature, IdListFeature) else one
