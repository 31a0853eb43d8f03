"""A Rank request against the contract: inputs of the `rank` signature, or a clear error.

A feature that is not named at all comes from the feature store, where that knows the id, or else is
missing; `serving.request.feature_values` reads those that are named.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multigate.configs.contract import PRESENT, Contract, Side
from multigate.serving.core.layout import TASK_WEIGHTS, USER_INDEX, Arrays
from multigate.serving.core.status import InvalidRequestError, StoreError
from multigate.serving.feature_store.interface import (
    OnlineFeatures,
    Question,
    Stored,
    stored_features,
)
from multigate.serving.request.feature_values import readers_of

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


class RequestReader:
    """Reads the Rank requests for one contract."""

    def __init__(
        self, contract: Contract, max_candidates: int, store: OnlineFeatures | None = None
    ) -> None:
        self._contract = contract
        self._max_candidates = max_candidates
        self._store = store
        self._sides = {side: readers_of(contract, side) for side in _SIDES}
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
        candidates = request.candidates
        rows = self._count(candidates)
        given = {} if user is not None else self._of_user(request)
        columns = candidates.columns
        for name in columns:
            if name not in self._sides["item"]:
                self._refuse_unknown(name, "item", "candidate columns")
            given[name] = columns[name]
        item = self._contract.item
        if item in given:
            raise InvalidRequestError(f"candidate column {item!r}: these values belong in item_id")
        given[item] = candidates.item_id
        if user is None:
            part = self._read(_SIDES, given, rows)
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
        return self._read(("user", "context"), self._of_user(request), 1)

    def read_ids(self, where: str, ids: Any) -> list[bytes | int]:
        """Ids of items as the graph has them.

        Raises:
            InvalidRequestError: they are of another type, or too many.
        """
        which = ids.WhichOneof("values")
        if which is None:
            return []
        count = len(getattr(ids, which).values)
        if count > self._max_candidates:
            raise InvalidRequestError(
                f"{where}: expected at most {self._max_candidates} ids, received {count}"
            )
        column = self._sides["item"][self._contract.item].of_ids(ids, count)
        return list(column.values.tolist())

    def _of_user(self, request: Any) -> dict[str, Any]:
        """What a request holds of the user and the context, by feature."""
        given: dict[str, Any] = {}
        sides: tuple[tuple[Side, str, Any], ...] = (
            ("user", "user features", request.user),
            ("context", "context features", request.context),
        )
        for side, where, values in sides:
            for name in values:
                if name not in self._sides[side]:
                    self._refuse_unknown(name, side, where)
                given[name] = values[name]
        return given

    def _read(self, sides: Sequence[Side], given: Mapping[str, Any], rows: int) -> Part:
        """Inputs of some sides' features, from the request, the store, or the missing rule.

        Args:
            sides: whose features are due.
            given: messages by feature: Value of the user and the context, ItemIds of the item, and
                Column of its other features.
            rows: N.
        """
        contract = self._contract
        missing: dict[str, int] = {}
        stored: dict[str, int] = {}
        inputs: Arrays = {}
        if "user" in sides:
            reader, value = self._sides["user"][contract.user], given.get(contract.user)
            column = reader.absent(1) if value is None else reader.of_value(value)
            inputs = reader.inputs(column, missing)
        if "item" in sides:
            reader = self._sides["item"][contract.item]
            inputs |= reader.inputs(reader.of_ids(given[contract.item], rows), missing)
        found = self._ask(sides, inputs, given)
        for side in sides:
            for name, reader in self._sides[side].items():
                if name in inputs:
                    continue
                due = rows if side == "item" else 1
                if (message := given.get(name)) is not None:
                    column = (
                        reader.of_column(message, due)
                        if side == "item"
                        else reader.of_value(message)
                    )
                elif (known := found.columns.get(name)) is not None:
                    column = known
                    stored[name] = int(np.count_nonzero(column.present))
                elif found.problem and reader.feature.missing == "error":
                    raise StoreError(
                        f"feature {name!r}: the request leaves it out, and the feature store gave "
                        f"{found.problem}; send it, or try again"
                    )
                else:
                    column = reader.absent(due)
                inputs |= reader.inputs(column, missing)
        return Part(inputs, missing, stored, found.problem)

    def _ask(self, sides: Sequence[Side], inputs: Arrays, given: Mapping[str, Any]) -> Stored:
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

    def _refuse_unknown(self, name: str, side: Side, where: str) -> None:
        home = next((s for s, features in self._sides.items() if name in features), None)
        if home is not None:
            raise InvalidRequestError(
                f"{where}: feature {name!r} is of side {home!r}; send it there"
            )
        known = ", ".join(self._sides[side]) or "none"
        raise InvalidRequestError(f"{where}: unknown feature {name!r}; expected some of {known}")

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
