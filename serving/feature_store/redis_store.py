"""The feature store in Redis as a server asks it, in one round trip.

A question carries the generation in use along, so that a server follows a load by itself: the first
question after it is asked twice.  `serving.feature_store.redis_keys` says what lies where,
`serving.feature_store.redis_loader` puts it there.
"""

import importlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from multigate.configs.contract import Contract, Side
from multigate.serving.feature_store import redis_keys
from multigate.serving.feature_store.circuit_breaker import Breaker
from multigate.serving.feature_store.interface import (
    Column,
    Question,
    Stored,
    absent,
    column_of,
    read_cut_off,
    stored_features,
)
from multigate.serving.feature_store.redis_client import connect

_UNREADABLE = (ValueError, LookupError, TypeError, StopIteration)  # what others wrote


@dataclass(frozen=True)
class _Current:
    """The generation in use."""

    text: bytes | None = None
    """As Redis has it; None where nothing was found yet."""
    generation: str = ""
    cut_off: float | None = None


class RedisStore:
    """Features of one model's users and items in Redis."""

    remote = True

    def __init__(
        self, address: str, name: str, contract: Contract, schema: str, seconds: float
    ) -> None:
        """Connect, and find the generation in use.

        Args:
            address: such as `redis://localhost:6379/0`.
            name: of the model.
            contract: its contract.
            schema: the contract's fingerprint.
            seconds: how long to wait for a connection or an answer.

        Raises:
            ServingError: the client is not installed, or the address cannot be understood.
        """
        self._redis = connect(address, seconds)
        self._error = importlib.import_module("redis").RedisError
        self._prefix = redis_keys.prefix(name, schema)
        self._seconds = seconds
        self._features = {side: stored_features(contract, side) for side, _, _ in redis_keys.SIDES}
        self._place = {
            name: place
            for features in self._features.values()
            for place, name in enumerate(features)
        }
        self._current = _Current()
        self._breaker = Breaker(f"feature store of model {name!r}")
        with suppress(self._error, *_UNREADABLE):  # a question will find out, and say so
            self._follow(self._redis.get(redis_keys.current(self._prefix)))

    def read(self, question: Question) -> Stored:
        """The features asked for; the problem where Redis does not answer in time.

        A Redis that has not answered several times in a row is asked again after a moment only.
        """
        if not self._breaker.allows():
            return Stored(problem="no answer several times in a row; not asked", asked=False)
        try:
            return self._ask(question)
        except self._error as error:
            reason = f"{type(error).__name__}: {error}"
            self._breaker.failed(reason)
            return Stored(problem=f"no answer within {self._seconds:g} s ({reason:.100})")
        except _UNREADABLE as error:
            return Stored(problem=f"an answer that cannot be read ({error!r:.100}); load it anew")

    def _ask(self, question: Question) -> Stored:
        asked = self._current
        keys: list[Any] = [redis_keys.current(self._prefix)]
        asks_user = question.user is not None and bool(question.user_features)
        if asks_user:
            keys += self._keys(asked, "u", [question.user])
        if question.item_features:
            keys += self._keys(asked, "i", question.items.tolist())
        current, *rows = self._redis.mget(keys)
        self._breaker.worked()
        if current is None:
            return Stored(problem="no features are loaded for this model and schema")
        if current != asked.text:
            self._follow(current)
            return self._ask(question)
        columns: dict[str, Column] = {}
        if asks_user:
            columns |= self._columns("user", rows[:1], question.user_features)
        if question.item_features:
            columns |= self._columns("item", rows[asks_user:], question.item_features)
        return Stored(columns, cut_off=asked.cut_off)

    def close(self) -> None:
        """Give the connections back."""
        self._redis.close()

    def _keys(self, asked: _Current, letter: str, ids: Sequence[Any]) -> list[bytes]:
        begin = redis_keys.rows(self._prefix, asked.generation, letter).encode()
        return [begin + (one if isinstance(one, bytes) else b"%d" % one) for one in ids]

    def _columns(
        self, side: Side, rows: Sequence[bytes | None], names: Sequence[str]
    ) -> dict[str, Column]:
        features = self._features[side]
        known = [row for row in rows if row is not None]
        if not known:
            return {name: absent(features[name], len(rows)) for name in names}
        # One text is read several times faster than its parts.
        lists = iter(json.loads(b"[" + b",".join(known) + b"]"))
        nothing = [None] * len(features)
        values = [nothing if row is None else next(lists) for row in rows]
        return {
            name: column_of(features[name], [row[self._place[name]] for row in values])
            for name in names
        }

    def _follow(self, current: bytes | None) -> None:
        """Take notice of the generation in use."""
        if current is not None:
            said = json.loads(current)
            self._current = _Current(current, said["generation"], read_cut_off(said["cut_off"]))
