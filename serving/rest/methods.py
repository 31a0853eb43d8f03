"""What HTTP calls: the methods of the gRPC services, as functions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from multigate.serving.versions.ranker_version import RankerVersion

Method = Callable[[Any, Any], Awaitable[Any]]
"""Takes a request message and its `core.calls.Caller`; raises as `core.status` says."""
OfVersion = Callable[[RankerVersion, Any, Any], Awaitable[Any]]
"""The same of a version that the caller holds."""


@dataclass(frozen=True)
class Methods:
    """The methods that HTTP has paths for."""

    rank: Method
    recommend: Method
    explain: Method
    predict: OfVersion
    metadata: Method
    status: Method
