"""The feature store in Redis: written by `multigate features load`, asked in one round trip.

    multigate:NAME:SCHEMA:current           JSON: generation, cut_off, and rows by side
    multigate:NAME:SCHEMA:loading           who loads at the moment
    multigate:NAME:SCHEMA:GENERATION:u:ID   the features of a user, a JSON list in the contract's
    multigate:NAME:SCHEMA:GENERATION:i:ID   order; of an item

A new snapshot is written beside the one in use; then `current` moves on, in one step, and what it
left behind expires.  A question carries `current` along, so that a server follows by itself: the
first question after a move is asked twice.  The schema is part of the key, so that a
model never reads features of another contract.  The client of a cluster would need keys on one
node; one Redis, or one with replicas, is what this is for.
"""

import importlib
import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.contract import Contract, FrozenContract, IdListFeature, Side
from configs.errors import DataError, ServingError
from configs.files import ExamplesFolder
from serving.breaker import Breaker
from serving.feature_store import (
    Column,
    Question,
    Stored,
    absent,
    column_of,
    read_cut_off,
    read_manifest,
    stored_features,
)

_LOCK_SECONDS = 60  # a loader that dies keeps others out for so long
_AT_ONCE = 1000  # keys of one write
_UNREADABLE = (ValueError, LookupError, TypeError, StopIteration)  # what others wrote
_SIDES: tuple[tuple[Side, str, str], ...] = (("user", "users", "u"), ("item", "items", "i"))


@dataclass(frozen=True)
class _Current:
    """The generation in use."""

    text: bytes | None = None
    """As Redis has it; None where nothing was found yet."""
    generation: str = ""
    cut_off: float | None = None


class RedisStore:
    """Features of one model's users and items in Redis."""

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
        self._prefix = prefix(name, schema)
        self._seconds = seconds
        self._features = {side: stored_features(contract, side) for side, _, _ in _SIDES}
        self._place = {
            name: place
            for features in self._features.values()
            for place, name in enumerate(features)
        }
        self._current = _Current()
        self._breaker = Breaker(f"feature store of model {name!r}")
        with suppress(self._error, *_UNREADABLE):  # a question will find out, and say so
            self._follow(self._redis.get(f"{self._prefix}:current"))

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
        keys: list[Any] = [f"{self._prefix}:current"]
        asks_user = question.user is not None and bool(question.user_features)
        if asks_user:
            keys.append(_key(self._prefix, asked.generation, "u", question.user))
        if question.item_features:
            begin = f"{self._prefix}:{asked.generation}:i:".encode()
            texts = question.items.tolist()
            keys += [begin + (t if isinstance(t, bytes) else b"%d" % t) for t in texts]
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


def connect(address: str, seconds: float | None = None) -> Any:
    """A client of Redis that tries once.

    Raises:
        ServingError: the client is not installed, or the address cannot be understood.
    """
    try:
        redis = importlib.import_module("redis")
        retry = importlib.import_module("redis.retry")
        backoff = importlib.import_module("redis.backoff")
    except ImportError:
        raise ServingError(
            f"{address}: needs the client of Redis, which is not installed: pip install redis"
        ) from None
    try:
        return redis.Redis.from_url(
            address,
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            retry=retry.Retry(backoff.NoBackoff(), 0),
        )
    except ValueError as error:
        raise ServingError(f"{address}: {error}") from None


def prefix(name: str, schema: str) -> str:
    """What all keys of a model begin with."""
    return f"multigate:{name}:{schema}"


def load(
    snapshot: Path, address: str, name: str | None = None, keep_seconds: int = 3600
) -> dict[str, Any]:
    """Put a snapshot into Redis and let servers use it.

    Args:
        snapshot: a folder of examples, or the `snapshot/` in it.
        address: such as `redis://localhost:6379/0`.
        name: of the model; that of the configuration where absent.
        keep_seconds: how long what was there before stays.

    Returns:
        `name`, `schema`, `generation`, `cut_off`, and `rows` by source.

    Raises:
        DataError: there is no snapshot.
        ServingError: Redis cannot be used, or somebody else is loading.
    """
    folder = ExamplesFolder(snapshot.parent if snapshot.name == "snapshot" else snapshot)
    frozen = FrozenContract.read(folder.contract)
    manifest = read_manifest(folder.manifest)
    name = name or manifest["name"]
    begin = prefix(name, frozen.schema_fingerprint)
    generation = f"{time.time_ns():x}{secrets.token_hex(4)}"
    redis = connect(address)
    try:
        with _alone(redis, f"{begin}:loading"):
            rows = {
                source: _write(
                    redis, folder, source, f"{begin}:{generation}:{letter}:", frozen.contract, side
                )
                for side, source, letter in _SIDES
            }
            said = {
                "generation": generation,
                "cut_off": manifest["cut_off"],
                "rows": rows,
            }
            redis.set(f"{begin}:current", json.dumps(said))
            _expire(redis, begin, generation, keep_seconds)
    except importlib.import_module("redis").RedisError as error:
        raise ServingError(f"{address}: {error}; what servers use is as it was") from None
    finally:
        redis.close()
    return {"name": name, "schema": frozen.schema_fingerprint, **said}


def _write(
    redis: Any, folder: ExamplesFolder, source: str, begin: str, contract: Contract, side: Side
) -> int:
    """One side's rows; returns how many there are."""
    parquet = importlib.import_module("pyarrow.parquet")
    parts = sorted(folder.snapshot(source).glob("*.parquet"))
    if not parts:
        raise DataError(f"{folder.snapshot(source)}: no snapshot here; make the examples anew")
    key = contract.user if side == "user" else contract.item
    features = stored_features(contract, side)
    count = 0
    for part in parts:
        for batch in parquet.ParquetFile(part).iter_batches(_AT_ONCE):
            columns = {name: batch.column(name).to_pylist() for name in (key, *features)}
            values = [
                [_value(feature, value) for value in columns[name]]
                for name, feature in features.items()
            ]
            ids = columns[key]
            rows = zip(*values, strict=True) if values else [()] * len(ids)
            redis.mset(
                {
                    f"{begin}{one}": json.dumps(row, ensure_ascii=False, separators=(",", ":"))
                    for one, row in zip(ids, rows, strict=True)
                }
            )
            redis.expire(f"{begin.rpartition(':')[0].rpartition(':')[0]}:loading", _LOCK_SECONDS)
            count += len(ids)
    return count


def _value(feature: Any, value: Any) -> Any:
    """As JSON holds it: empty texts are missing, lists keep what the model reads."""
    if isinstance(feature, IdListFeature):
        return [one for one in value or () if one not in (None, "")][-feature.max_length :]
    nan = isinstance(value, float) and math.isnan(value)
    return None if nan or value == "" else value


@contextmanager
def _alone(redis: Any, key: str) -> Iterator[None]:
    """Keep other loaders out."""
    mine = secrets.token_hex(8)
    if not redis.set(key, mine, nx=True, ex=_LOCK_SECONDS):
        raise ServingError(
            f"{key}: another load is under way, or died less than {_LOCK_SECONDS} s ago; try again"
        )
    try:
        yield
    finally:
        if redis.get(key) == mine.encode():
            redis.delete(key)


def _expire(redis: Any, begin: str, generation: str, seconds: int) -> None:
    """Let all generations but one go, those of loads that never ended too."""
    kept = (f"{begin}:{generation}:".encode(), f"{begin}:current".encode())
    pipeline = redis.pipeline(transaction=False)
    for key in redis.scan_iter(match=f"{_literal(begin)}:*", count=_AT_ONCE):
        if not key.startswith(kept) and key != f"{begin}:loading".encode():
            pipeline.expire(key, seconds, nx=True)
            if len(pipeline) >= _AT_ONCE:
                pipeline.execute()
    pipeline.execute()


def _literal(text: str) -> str:
    """A text in a pattern of Redis that stands for itself."""
    return "".join(f"\\{one}" if one in "*?[]\\^-" else one for one in text)


def _key(begin: str, generation: str, letter: str, one: bytes | int | None) -> bytes:
    text = one if isinstance(one, bytes) else b"%d" % (one or 0)
    return f"{begin}:{generation}:{letter}:".encode() + text
