"""Checks a Rank request against the contract and makes the inputs of the `rank` signature.

`serving.request.feature_values` reads the features that a request names.  Other features come from
the feature store if it knows the id; otherwise they are missing.

protovalidate was considered: its rules are fixed in the .proto file, these come from the contract
of each loaded version.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multigate.configs.contract import LENGTH, PRESENT, VISIT, Contract, Side
from multigate.configs.sections.nearest import did_you_mean, listed
from multigate.serving.core.layout import TASK_WEIGHTS, USER_INDEX, Arrays
from multigate.serving.core.status import InvalidRequestError, MissingValueError, StoreError
from multigate.serving.feature_store.interface import (
    Column,
    FeatureAnswer,
    FeatureQuery,
    stored_features,
)
from multigate.serving.feature_store.online_features import OnlineFeatures
from multigate.serving.request.feature_values import feature_readers, plain_columns, plain_values

_SIDES: tuple[Side, ...] = ("user", "context", "item")
_NO_ITEMS = np.empty(0, object)
_SHOWN = 10
"""Items that a warning names."""


@dataclass(frozen=True)
class ParsedRequest:
    """A valid request, ready to run."""

    inputs: Arrays
    """Of the `rank` signature, for one user (M = 1)."""
    rows: int
    """N candidates that can be scored."""
    floors: dict[str, tuple[float, float]]
    """By task: items whose score is below the first or above the second number are dropped."""
    limit: int
    """Most items of the answer."""
    missing: dict[str, int]
    """By feature: number of missing values, which its missing rule replaced."""
    from_store: dict[str, int]
    """By feature: number of values that the feature store gave."""
    problem: str = ""
    """Why the feature store did not answer; empty where it did."""
    places: np.ndarray | None = None
    """(N,) where these candidates stand in the request; None: all of its candidates, in order."""
    unscored: np.ndarray | None = None
    """(K,) where the other candidates stand, which lack a required feature."""
    lacking: dict[str, list[str]] = field(default_factory=dict)
    """By required feature: the ids of the items that lack it."""
    stranger: str = ""
    """The feature and the id of a user whom the feature store does not know; empty otherwise."""
    newcomers: tuple[int, list[str]] = (0, [])
    """Of candidates that the feature store does not know: how many, and the first ids."""

    def place(self, row: int) -> int:
        """Where the candidate of a row stands in the request."""
        return row if self.places is None else int(self.places[row])

    def row(self, place: int) -> int:
        """The row of the candidate that stands at a place of the request.

        Raises:
            InvalidRequestError: there is none, or it lacks a required feature.
        """
        count = self.rows + (0 if self.unscored is None else len(self.unscored))
        if not 0 <= place < count:
            raise InvalidRequestError(
                f"candidate: expected 0 to {count - 1}, a place among the candidates, received "
                f"{place}"
            )
        if self.places is None:
            return place
        found = np.flatnonzero(self.places == place)
        if not len(found):
            raise InvalidRequestError(
                f"candidate {place}: has no score, it lacks a required feature (missing: error): "
                f"{', '.join(map(repr, self.lacking))}; send it"
            )
        return int(found[0])

    def warnings(self) -> list[str]:
        """For the answer: the store's problem, the items without score, and missing values."""
        problems = [f"feature store: {self.problem}"] if self.problem else []
        if self.stranger:
            problems.append(
                f"{self.stranger}: the feature store does not know this user, who is new or "
                "written in another way than in the log"
            )
        count, ids = self.newcomers
        if count:
            problems.append(
                f"the feature store does not know {count} item{'s' if count > 1 else ''}, new or "
                f"written in another way than in the log: {_first(ids, count)}"
            )
        for name, items in self.lacking.items():
            problems.append(
                f"feature {name!r}: {len(items)} item{'s' if len(items) > 1 else ''} not scored "
                f"for lack of it (missing: error): {_first(items[:_SHOWN], len(items))}"
            )
        return problems + [
            f"feature {name!r}: {count} missing value{'s' if count > 1 else ''}; "
            "its missing rule stood in"
            for name, count in self.missing.items()
        ]


def _first(ids: Sequence[str], count: int) -> str:
    """The first ids of so many, and how many more there are."""
    more = f" and {count - len(ids)} more" if count > len(ids) else ""
    return ", ".join(map(repr, ids)) + more


@dataclass(frozen=True)
class FeatureInputs:
    """Inputs of the `rank` signature for the features of some sides."""

    inputs: Arrays
    missing: dict[str, int]
    from_store: dict[str, int]
    problem: str = ""
    """The fields so far are as in `ParsedRequest`."""
    lacking: dict[str, np.ndarray] = field(default_factory=dict)
    """By required feature of the item: which candidates lack it, (N,)."""
    categories: dict[str, Column] = field(default_factory=dict)
    """The context's features that rates by category are looked up by."""
    stranger: str = ""
    newcomers: tuple[int, list[str]] = (0, [])
    """Both as in `ParsedRequest`."""

    def merged(self, other: "FeatureInputs") -> "FeatureInputs":
        """The inputs of both."""
        return FeatureInputs(
            self.inputs | other.inputs,
            self.missing | other.missing,
            self.from_store | other.from_store,
            self.problem or other.problem,
            self.lacking | other.lacking,
            self.categories | other.categories,
            self.stranger or other.stranger,
            self.newcomers if self.newcomers[0] else other.newcomers,
        )


class RequestReader:
    """Reads the Rank requests of one contract."""

    def __init__(
        self, contract: Contract, max_candidates: int, store: OnlineFeatures | None = None
    ) -> None:
        self._contract = contract
        self._max_candidates = max_candidates
        self._store = store
        self._sides = {side: feature_readers(contract, side) for side in _SIDES}
        crosses = contract.crosses()
        self._crosses = set(crosses)
        self._categories = {str(rule.category) for rule in crosses.values()}
        self._entries = {
            name: lists
            for name in contract.features
            if (lists := contract.entries_of(name).values())
        }
        self._stored = {side: list(stored_features(contract, side)) for side in _SIDES}
        self._weights = np.array(
            [[task.score_weight for task in contract.tasks.values()]], np.float32
        )

    def read(self, request: Any, user: FeatureInputs | None = None) -> ParsedRequest:
        """Validate a RankRequest.

        Args:
            request: the message.
            user: what `read_user` has read already; the message's own user and context are then
                ignored.

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
            features = self._read(_SIDES, given, rows)
        else:
            features = user.merged(self._read(("item",), given, rows, user))
        inputs, places, unscored, lacking = features.inputs, None, None, {}
        if features.lacking:
            bad = np.logical_or.reduce(list(features.lacking.values()))
            places, unscored = np.flatnonzero(~bad), np.flatnonzero(bad)
            ids = inputs[item]
            lacking = {name: _texts(ids[rows_]) for name, rows_ in features.lacking.items()}
            if not len(places):
                raise MissingValueError(
                    "candidates: none can be scored, each lacks one of the features "
                    f"{', '.join(map(repr, lacking))} (missing: error); send them, or give them "
                    "the rule default or indicator",
                    list(lacking),
                )
            inputs = self._of_candidates(inputs, places)
            rows = len(places)
        inputs = inputs | {
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
            features.missing,
            features.from_store,
            features.problem,
            places,
            unscored,
            lacking,
            features.stranger,
            features.newcomers,
        )

    def _of_candidates(self, inputs: Arrays, places: np.ndarray) -> Arrays:
        """The inputs with some of the candidates only."""
        of_item = {name + end for name in self._sides["item"] for end in ("", PRESENT, LENGTH)}
        return {n: values[places] if n in of_item else values for n, values in inputs.items()}

    def read_user(self, request: Any) -> FeatureInputs:
        """Validate the user and the context of a RecommendRequest, before there are candidates.

        Args:
            request: the message.

        Raises:
            InvalidRequestError: the first thing that contradicts the contract.
            StoreError: the feature store does not answer, and the contract requires the feature.
        """
        return self._read(("user", "context"), self._of_user(request), 1)

    def read_ids(self, where: str, ids: Any) -> list[bytes | int]:
        """Read `ItemIds` as ids that the graph takes.

        Args:
            where: the field's name, for error messages.
            ids: the message.

        Raises:
            InvalidRequestError: ids of another type, or too many.
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
        """A request's messages for the user and the context, by feature."""
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

    def _read(
        self,
        sides: Sequence[Side],
        given: Mapping[str, Any],
        rows: int,
        user: FeatureInputs | None = None,
    ) -> FeatureInputs:
        """Inputs of the features of some sides: from the request, the store, or the missing rule.

        Args:
            sides: `user`, `context`, `item`.
            given: the request's message for each feature: `ItemIds` for the item's id, `Column` for
                other item features, `Value` for the user and the context.
            rows: N.
            user: what has been read of the user and the context, where `sides` lacks them.
        """
        contract = self._contract
        missing: dict[str, int] = {}
        from_store: dict[str, int] = {}
        lacking: dict[str, np.ndarray] = {}
        inputs: Arrays = {}
        if "user" in sides:
            reader, value = self._sides["user"][contract.user], given.get(contract.user)
            column = reader.absent(1) if value is None else reader.of_value(value)
            inputs = reader.inputs(column, missing)
        if "item" in sides:
            reader = self._sides["item"][contract.item]
            inputs |= reader.inputs(reader.of_ids(given[contract.item], rows), missing, lacking)
        before = inputs if user is None else user.inputs | inputs
        categories = {} if user is None else user.categories
        categories = categories | self._given_categories(sides, given, rows)
        found = self._query_store(sides, before, given, categories)
        for side in sides:
            readers = self._sides[side]
            inputs |= (
                plain_columns(readers, given, rows)
                if side == "item"
                else plain_values(readers, given)
            )
        for side in sides:
            for name, reader in self._sides[side].items():
                if name in inputs:
                    continue
                count = rows if side == "item" else 1
                if (message := given.get(name)) is not None:
                    column = (
                        reader.of_column(message, count)
                        if side == "item"
                        else reader.of_value(message)
                    )
                elif (known := found.columns.get(name)) is not None:
                    column = known
                    from_store[name] = column.count()
                elif found.problem and reader.feature.missing == "error":
                    raise StoreError(
                        f"feature {name!r}: the request leaves it out, and the feature store did "
                        f"not give it ({found.problem}); send it, or try again"
                    )
                else:
                    column = reader.absent(count)
                inputs |= reader.inputs(column, missing, lacking if side == "item" else None)
        missing.pop(VISIT, None)  # no one expects an id of someone unknown
        if "user" in sides:
            self._check_entries(given)
        stranger = ""
        if found.lacks_user:
            [one] = _texts(before[contract.user])
            stranger = f"{contract.user} {one!r}"
        newcomers: tuple[int, list[str]] = (0, [])
        if (places := found.lacks_items) is not None:
            if contract.item in lacking:  # those without an id are not new
                places = places[~lacking[contract.item][places]]
            newcomers = (len(places), _texts(before[contract.item][places[:_SHOWN]]))
        return FeatureInputs(
            inputs, missing, from_store, found.problem, lacking, categories, stranger, newcomers
        )

    def _check_entries(self, given: Mapping[str, Any]) -> None:
        """What is sent of a history's entries must be of the history that is sent."""
        for name, lists in self._entries.items():
            for other in lists:
                if other not in given:
                    continue
                if name not in given:
                    raise InvalidRequestError(
                        f"feature {other!r}: expected feature {name!r} with it, whose entries it "
                        "describes; send both or neither"
                    )
                texts = given[name].texts.values
                if "" in texts:  # it is left out, and its place among the others' with it
                    raise InvalidRequestError(
                        f"feature {name!r}: value {list(texts).index('') + 1} is an empty text, "
                        f"and {other!r} describes its entries; leave the entry out of both"
                    )
                # As sent: both are cut to their last values, which would hide that they differ.
                expected, received = _sent(given[name]), _sent(given[other])
                if received not in (0, expected):
                    raise InvalidRequestError(
                        f"feature {other!r}: expected {expected} values, one for each entry of "
                        f"{name!r}, received {received}"
                    )

    def _given_categories(
        self, sides: Sequence[Side], given: Mapping[str, Any], rows: int
    ) -> dict[str, Column]:
        """The request's categories, by which the user's rates by category are looked up."""
        found = {}
        for name in self._categories:
            side = self._contract.features[name].side
            reader = self._sides[side][name]
            if side not in sides:
                continue
            if (message := given.get(name)) is not None:
                of_item = side == "item"
                found[name] = (
                    reader.of_column(message, rows) if of_item else reader.of_value(message)
                )
            elif side == "context":  # no store holds it
                found[name] = reader.absent(1)
        return found

    def _query_store(
        self,
        sides: Sequence[Side],
        inputs: Arrays,
        given: Mapping[str, Any],
        categories: Mapping[str, Column],
    ) -> FeatureAnswer:
        """Look up the features that the request does not name, in one query.

        Args:
            sides: of the features.
            inputs: hold the ids.
            given: see `_read`.
            categories: see `_given_categories`.
        """
        if self._store is None:
            return FeatureAnswer()
        contract = self._contract
        of_user, of_items = (
            [name for name in self._stored[side] if side in sides and name not in given]
            for side in ("user", "item")
        )
        # What the store knows of a history's entries is of its own history.
        sent = {other for name, lists in self._entries.items() if name in given for other in lists}
        of_user = [name for name in of_user if name not in sent]
        known = inputs.get(contract.user + PRESENT)
        user = None
        if (of_user or self._crosses.intersection(of_items)) and (known is None or known[0]):
            user = inputs[contract.user].tolist()[0]
        if user is None and not of_items:
            return FeatureAnswer()
        items = inputs.get(contract.item, _NO_ITEMS)
        return self._store.read(FeatureQuery(user, of_user, items, of_items, categories))

    def _count(self, candidates: Any) -> int:
        """The number of candidates, N."""
        which = candidates.item_id.WhichOneof("values")
        rows = len(getattr(candidates.item_id, which).values) if which else 0
        if rows == 0:
            raise InvalidRequestError("candidates: expected at least one item_id, received none")
        if rows > self._max_candidates:
            raise InvalidRequestError(
                f"candidates: expected at most {self._max_candidates}, received {rows}; "
                "rank them in several calls"
            )
        return rows

    def _refuse_unknown(self, name: str, side: Side, where: str) -> None:
        home = next((s for s, features in self._sides.items() if name in features), None)
        if home is not None:
            raise InvalidRequestError(
                f"{where}: feature {name!r} is of side {home!r}, not {side!r}; send it there"
            )
        known = list(self._sides[side])
        raise InvalidRequestError(
            f"{where}: unknown feature {name!r}; {did_you_mean(name, known)}expected some of "
            f"{listed(known) or 'none'}"
        )

    def _read_weights(self, given: Mapping[str, float]) -> np.ndarray:
        """Task weights (1, T): the request's, else the contract's."""
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


def _sent(message: Any) -> int:
    """How many entries a list of the user has in the request; 0 where it has none."""
    kind = message.WhichOneof("kind")
    return 0 if kind is None else len(getattr(message, kind).values)


def _texts(ids: np.ndarray) -> list[str]:
    """Ids as texts, for a message."""
    return [one.decode() if isinstance(one, bytes) else str(one) for one in ids.tolist()]
