"""The feature store in Redis, as servers read it: one round trip per query.

Every query also reads the generation in use, so that a server notices a load by itself; it then
repeats that query once.  `serving.feature_store.redis_keys` defines the keys,
`serving.feature_store.redis_loader` writes them.

Feast's Redis store was considered: it cannot switch to a new snapshot in one step.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multigate.configs.contract import Contract, Side
from multigate.serving.feature_store import redis_keys
from multigate.serving.feature_store.circuit_breaker import CircuitBreaker
from multigate.serving.feature_store.interface import (
    Column,
    FeatureAnswer,
    FeatureQuery,
    missing_column,
    parse_cut_off,
    stored_columns,
    to_column,
)
from multigate.serving.feature_store.redis_client import connect

_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, StopIteration)
"""A value that the loader did not write."""


@dataclass(frozen=True)
class _Current:
    """The generation in use."""

    text: bytes | None = None
    """The value in Redis; None where none was found yet."""
    generation: str = ""
    cut_off: float | None = None
    priors: Mapping[str, float] = field(default_factory=dict)
    places: Mapping[Side, Mapping[str, int]] = field(default_factory=dict)
    """By side, the place of each column in a row."""


class RedisStore:
    """Features of one model's users and items in Redis."""

    remote = True

    def __init__(
        self, address: str, name: str, contract: Contract, schema: str, seconds: float
    ) -> None:
        """Connect, and read the generation in use.

        Args:
            address: such as `redis://localhost:6379/0`.
            name: of the model.
            contract: the version's contract.
            schema: the contract's fingerprint.
            seconds: time limit for connecting and for each answer.

        Raises:
            ServingError: redis-py is not installed, or the address is malformed.
        """
        self._redis = connect(address, seconds)
        self._error = importlib.import_module("redis").RedisError
        self._prefix = redis_keys.prefix(name, schema)
        self._seconds = seconds
        self._features = {side: stored_columns(contract, side) for side, _, _ in redis_keys.SIDES}
        self._current = _Current()
        self._breaker = CircuitBreaker(f"feature store of model {name!r}")
        with suppress(self._error, *_UNREADABLE):  # the first query reports it
            self._switch_to(self._redis.get(redis_keys.current(self._prefix)))

    def read(self, query: FeatureQuery) -> FeatureAnswer:
        """Look up features; names the problem where Redis does not answer in time.

        A circuit breaker skips Redis for a moment after several failures in a row.
        """
        if not self._breaker.allows_call():
            return FeatureAnswer(problem="no answer several times in a row; skipped", queried=False)
        try:
            return self._query(query)
        except self._error as error:
            reason = f"{type(error).__name__}: {error}"
            self._breaker.record_failure(reason)
            return FeatureAnswer(problem=f"no answer within {self._seconds:g} s ({reason:.100})")
        except _UNREADABLE as error:
            return FeatureAnswer(
                problem=f"an unreadable answer ({error!r:.100}); load the snapshot again"
            )

    def _query(self, query: FeatureQuery) -> FeatureAnswer:
        used = self._current
        keys: list[Any] = [redis_keys.current(self._prefix)]
        needs_user = query.user is not None and bool(query.user_features)
        if needs_user:
            keys += self._keys(used, "u", [query.user])
        if query.item_features:
            keys += self._keys(used, "i", query.items.tolist())
        current, *rows = self._redis.mget(keys)
        self._breaker.record_success()
        if current is None:
            return FeatureAnswer(problem="no features are loaded for this model and schema")
        if current != used.text:
            self._switch_to(current)
            return self._query(query)
        columns: dict[str, Column] = {}
        of_items = rows[needs_user:]
        if needs_user:
            columns |= self._columns(used, "user", rows[:1], query.user_features)
        if query.item_features:
            columns |= self._columns(used, "item", of_items, query.item_features)
        return FeatureAnswer(
            columns,
            cut_off=used.cut_off,
            priors=used.priors,
            lacks_user=needs_user and rows[0] is None,
            lacks_items=np.flatnonzero([row is None for row in of_items])
            if None in of_items
            else None,
        )

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _keys(self, used: _Current, letter: str, ids: Sequence[Any]) -> list[bytes]:
        begin = redis_keys.rows(self._prefix, used.generation, letter).encode()
        return [begin + (one if isinstance(one, bytes) else b"%d" % one) for one in ids]

    def _columns(
        self, used: _Current, side: Side, rows: Sequence[bytes | None], names: Sequence[str]
    ) -> dict[str, Column]:
        features, places = self._features[side], used.places[side]
        known = [row for row in rows if row is not None]
        if not known:
            return {name: missing_column(features[name], len(rows)) for name in names}
        # Parsing one joined text is several times faster than parsing its parts.
        lists = iter(json.loads(b"[" + b",".join(known) + b"]"))
        all_missing = [None] * len(places)
        values = [all_missing if row is None else next(lists) for row in rows]
        return {
            name: to_column(features[name], [row[places[name]] for row in values]) for name in names
        }

    def _switch_to(self, current: bytes | None) -> None:
        """Use the generation that Redis names.

        Raises:
            ValueError: its rows lack a column, or do not say which columns they have.
        """
        if current is not None:
            value = json.loads(current)
            self._current = _Current(
                current,
                value["generation"],
                parse_cut_off(value["cut_off"]),
                value.get("priors", {}),
                {
                    side: self._read_places(side, source, value)
                    for side, source, _ in redis_keys.SIDES
                },
            )

    def _read_places(self, side: Side, source: str, value: Any) -> dict[str, int]:
        """The place of each column in one side's rows."""
        columns = value.get("columns", {}).get(source)
        if columns is None:  # written by an earlier version, in the order of its contract
            raise ValueError(f"{source}: no names of columns")
        absent = self._features[side].keys() - set(columns)
        if absent:
            raise ValueError(f"{source}: no column {min(absent)!r}")
        return {name: place for place, name in enumerate(columns)}
