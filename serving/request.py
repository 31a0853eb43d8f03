"""A Rank request against the contract: inputs of the `rank` signature, or a clear error.

An error names the feature, what was expected and what came.

Missing values are told apart from values in one way for every side: a value without a kind, an
entry whose presence is false, and an empty text are missing; NaN is an error.  A feature that is
not named at all comes from the feature store, where that knows the id, or else is missing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.contract import LENGTH, PRESENT, Contract, IdListFeature, NumberFeature, Side
from serving.feature_store import (
    Column,
    OnlineFeatures,
    Question,
    Stored,
    absent,
    padded,
    stored_features,
)
from serving.layout import (
    TASK_WEIGHTS,
    USER_INDEX,
    Arrays,
    may_be_missing,
    value_dtype,
)
from serving.status import InvalidRequestError, StoreError

_KIND_OF = {"texts": "string", "integers": "int64", "numbers": "float32"}
_LIST_OF = {"text": "texts", "integer": "integers", "number": "numbers"}
_SIDES: tuple[Side, ...] = ("user", "context", "item")
_NO_ITEMS = np.empty(0, object)


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
    stored: dict[str, int]
    """Values that came from the feature store, by feature."""
    problem: str = ""
    """Why the feature store said nothing."""

    def warnings(self) -> list[str]:
        """The missing values, in words."""
        said = [f"feature store: {self.problem}"] if self.problem else []
        return said + [
            f"feature {name!r}: {count} missing value{'s' if count > 1 else ''}; "
            "its missing rule stood in"
            for name, count in self.missing.items()
        ]


@dataclass(frozen=True)
class Part:
    """Features of some sides, as they are used."""

    inputs: Arrays
    """Of the `rank` signature."""
    missing: dict[str, int]
    stored: dict[str, int]
    problem: str = ""
    """All three as in `ParsedRequest`."""

    def joined(self, other: "Part") -> "Part":
        """Both parts as one."""
        return Part(
            self.inputs | other.inputs,
            self.missing | other.missing,
            self.stored | other.stored,
            self.problem or other.problem,
        )


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

    def __init__(
        self, contract: Contract, max_candidates: int, store: OnlineFeatures | None = None
    ) -> None:
        self._contract = contract
        self._max_candidates = max_candidates
        self._store = store
        self._sides = {side: dict(contract.of_side(side)) for side in _SIDES}
        self._stored = {side: list(stored_features(contract, side)) for side in _SIDES}
        self._weights = np.array(
            [[task.score_weight for task in contract.tasks.values()]], np.float32
        )

    def read(self, request: Any, user: Part | None = None) -> ParsedRequest:
        """Validate a RankRequest.

        Args:
            request: the message.
            user: its user and context, where `read_user` has read them already; the message's own
                are not looked at then.

        Raises:
            InvalidRequestError: the first thing that contradicts the contract.
        """
        rows = self._count(request.candidates)
        candidates = request.candidates
        if user is None:
            self._refuse_unknown_of_user(request)
        self._refuse_unknown(candidates.columns, "item", "candidate columns")
        contract = self._contract
        if contract.item in candidates.columns:
            raise InvalidRequestError(
                f"candidate column {contract.item!r}: these values belong in item_id"
            )
        given = {name: _column(column) for name, column in candidates.columns.items()}
        given[contract.item] = _ids(candidates.item_id)
        if user is None:
            part = self._read(_SIDES, _of_user(request) | given, rows)
        else:
            part = user.joined(self._read(("item",), given, rows))
        inputs = part.inputs | {
            USER_INDEX: np.zeros(rows, np.int32),
            TASK_WEIGHTS: self._read_weights(request.task_weights),
        }
        if request.limit < 0:
            raise InvalidRequestError(f"limit: expected 0 (all) or more, received {request.limit}")
        return ParsedRequest(
            inputs,
            rows,
            self._read_floors(request.floors),
            request.limit or rows,
            part.missing,
            part.stored,
            part.problem,
        )

    def read_user(self, request: Any) -> Part:
        """Validate what a request says of the user and the context.

        Args:
            request: a RecommendRequest; of the candidates, which are not known yet, nothing.

        Raises:
            InvalidRequestError: the first thing that contradicts the contract.
            StoreError: a feature is due that the feature store cannot give.
        """
        self._refuse_unknown_of_user(request)
        return self._read(("user", "context"), _of_user(request), 1)

    def read_ids(self, where: str, ids: Any) -> list[bytes | int]:
        """Ids of items as the graph has them.

        Raises:
            InvalidRequestError: they are of another type, or too many.
        """
        if ids.WhichOneof("values") is None:
            return []
        found = _ids(ids)
        if len(found.values) > self._max_candidates:
            raise InvalidRequestError(
                f"{where}: expected at most {self._max_candidates} ids, received "
                f"{len(found.values)}"
            )
        name = self._contract.item
        feature = self._contract.features[name]
        column = _encode_values(name, feature, found, len(found.values))
        return list(column.values.tolist())

    def _read(self, sides: Sequence[Side], given: Mapping[str, _Values | None], rows: int) -> Part:
        """Inputs of some sides' features, from the request, the store, or the missing rule."""
        contract = self._contract
        inputs: Arrays = {}
        missing: dict[str, int] = {}
        stored: dict[str, int] = {}
        for name, side in ((contract.user, "user"), (contract.item, "item")):
            if side in sides:
                due = rows if side == "item" else 1
                inputs |= _encode(name, contract.features[name], given.get(name), due, missing)
        found = self._ask(sides, inputs, given)
        for side in sides:
            for name, feature in self._sides[side].items():
                if name in inputs:
                    continue
                if (column := found.columns.get(name)) is not None:
                    stored[name] = int(np.count_nonzero(column.present))
                    inputs |= _complete(name, feature, column, missing)
                    continue
                if found.problem and feature.missing == "error" and name not in given:
                    raise StoreError(
                        f"feature {name!r}: the request leaves it out, and the feature store gave "
                        f"{found.problem}; send it, or try again"
                    )
                due = rows if side == "item" else 1
                inputs |= _encode(name, feature, given.get(name), due, missing)
        return Part(inputs, missing, stored, found.problem)

    def _ask(
        self, sides: Sequence[Side], inputs: Arrays, given: Mapping[str, _Values | None]
    ) -> Stored:
        """What the feature store knows of what the request does not name, in one question."""
        if self._store is None:
            return Stored()
        contract = self._contract
        of_user, of_items = (
            [name for name in self._stored[side] if side in sides and name not in given]
            for side in ("user", "item")
        )
        known = inputs.get(contract.user + PRESENT)
        user = None
        if of_user and (known is None or known[0]):
            user = inputs[contract.user].tolist()[0]
        if user is None and not of_items:
            return Stored()
        items = inputs.get(contract.item, _NO_ITEMS)
        return self._store.read(Question(user, of_user, items, of_items))

    def _refuse_unknown_of_user(self, request: Any) -> None:
        self._refuse_unknown(request.user, "user", "user features")
        self._refuse_unknown(request.context, "context", "context features")

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


def _of_user(request: Any) -> dict[str, _Values | None]:
    """What a request holds of the user and the context."""
    given = {name: _single(name, value) for name, value in request.user.items()}
    return given | {name: _single(name, value) for name, value in request.context.items()}


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
    if found is None:
        column = absent(feature, rows)
    elif isinstance(feature, IdListFeature):
        column = _encode_lists(name, feature, found, rows)
    else:
        column = _encode_values(name, feature, found, rows)
    return _complete(name, feature, column, missing)


def _complete(name: str, feature: Any, column: Column, missing: dict[str, int]) -> Arrays:
    """The signature's inputs for a column, once its missing values are allowed and counted."""
    rows = len(column.present)
    count = rows - int(np.count_nonzero(column.present))
    if count:
        if feature.missing == "error":
            row = int(np.argmin(column.present))
            where = "" if rows == count else f" in row {row} and {count} in all"
            raise InvalidRequestError(
                f"feature {name!r}: expected a value ({_describe(feature)}; missing: error), "
                f"received none{where}"
            )
        missing[name] = count
    if column.lengths is not None:
        return {name: column.values, name + LENGTH: column.lengths}
    if may_be_missing(feature):
        return {name: column.values, name + PRESENT: column.present}
    return {name: column.values}


def _encode_values(name: str, feature: Any, found: _Values, rows: int) -> Column:
    """A feature that is no list."""
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
        return Column(values, present)
    values = np.array(found.values, dtype)
    if dtype == "float32":
        values = np.where(present, values, np.float32(0))
        _check_finite(name, feature, values)
    return Column(values, present)


def _encode_lists(name: str, feature: IdListFeature, found: _Values, rows: int) -> Column:
    """Lists without empty texts; the last values of long ones."""
    dtype, most = value_dtype(feature), feature.max_length
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
    return Column(padded(flat[place >= 0], lengths, dtype), present, lengths)


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
