"""Connects to the Redis of the feature store."""

import importlib
from typing import Any

from multigate.configs.errors import ServingError


def connect(address: str, seconds: float | None = None) -> Any:
    """A redis-py client that does not retry.

    Args:
        address: such as `redis://localhost:6379/0`.
        seconds: time limit for connecting and for each answer; None waits for ever.

    Raises:
        ServingError: redis-py is not installed, or the address is malformed.
    """
    try:
        redis = importlib.import_module("redis")
        retry = importlib.import_module("redis.retry")
        backoff = importlib.import_module("redis.backoff")
    except ImportError:
        raise ServingError(
            f"{address}: needs the package redis, which is not installed: pip install redis"
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
