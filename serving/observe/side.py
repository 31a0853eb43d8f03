"""On which side of a trial a call is: which version answers, and whether both score it.

The hash of the version on trial and the user decides, so that a user stays on one side over calls,
workers, servers and restarts, and over a higher percentage; and so that the next trial has other
users in its canary.  A call that names no user is split by its request id.
"""

import hashlib
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from multigate.configs.version_folders import Trial

CANARY: Literal["canary"] = "canary"
STABLE: Literal["stable"] = "stable"
Group = Literal["canary", "stable"]


@dataclass(frozen=True)
class Side:
    """The side of one call."""

    trial: Trial
    group: Group
    """The canary's users are meant to be answered by the version on trial."""
    shadowed: bool
    """Whether the other version scores the call as well."""


def side_of(trial: Trial, user: Any, request_id: str) -> Side:
    """The side of a call.

    Args:
        trial: under way.
        user: the `Value` of the user's id; None where the call has none.
        request_id: of the call.
    """
    which = None if user is None else user.WhichOneof("kind")
    id_ = "" if which is None else getattr(user, which)  # an empty text names nobody either
    key = f"request {request_id}" if id_ == "" else f"user {id_}"
    drawn = hashlib.blake2b(f"{trial.version} {key}".encode(), digest_size=8).digest()
    tried = int.from_bytes(drawn, "big") < trial.canary / 100 * 2**64
    return Side(trial, CANARY if tried else STABLE, sampled(request_id, trial.shadow / 100))


def sampled(request_id: str, rate: float) -> bool:
    """Whether a call is logged; whoever knows its id, such as a feedback collector, can tell."""
    return zlib.crc32(request_id.encode()) < rate * 2**32
