"""A client of Redis as the feature store uses it."""

import importlib
from typing import Any

from multigate.configs.errors import ServingError


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
