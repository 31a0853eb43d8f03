"""Errors of calls, their mapping to gRPC status (in this one place), and deadlines.

    RequestError                (a ServingError)
    ├── InvalidRequestError     INVALID_ARGUMENT     contradicts the contract or the signature
    │   └── MissingValueError                      lacks a required feature
    ├── NotServedError          NOT_FOUND            no such model or version, or not ready yet
    ├── WrongStateError         FAILED_PRECONDITION  Predict: no such signature
    ├── OverloadedError         UNAVAILABLE          a queue is full; another server may have room
    ├── StoreError              UNAVAILABLE          no answer of the store on a required feature
    ├── DrainingError           UNAVAILABLE          the server is stopping
    ├── AdmissionError          RESOURCE_EXHAUSTED   too many calls at once
    ├── UnauthenticatedError    UNAUTHENTICATED      no valid bearer token
    ├── PermissionDeniedError   PERMISSION_DENIED    a reload request without an admin token
    └── TooLateError            DEADLINE_EXCEEDED    the caller no longer waits

gRPC itself cancels a call whose caller goes away or whose deadline passes, and answers
RESOURCE_EXHAUSTED for messages over the limit.  Any other error is a bug of ours: INTERNAL, with an
id that the log names.
"""

import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any

import grpc

from multigate.configs.errors import ServingError
from multigate.runtime.errors import RefusedInputError, RunTimeoutError

LOG = logging.getLogger("multigate.serving")

_LONGEST_MESSAGE = 1000  # characters; status travels in headers, which clients limit to 8 KiB


class RequestError(ServingError):
    """A call that cannot be answered; the message is meant for the caller."""

    code = grpc.StatusCode.UNKNOWN


class InvalidRequestError(RequestError):
    """The request contradicts the contract or the signature."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class MissingValueError(InvalidRequestError):
    """A feature without which nothing of the request can be scored has no value.

    Args:
        message: as of the others.
        features: such features.
    """

    def __init__(self, message: str, features: Sequence[str]) -> None:
        super().__init__(message)
        self.features = list(features)


class NotServedError(RequestError):
    """No such model or version, or it is not ready."""

    code = grpc.StatusCode.NOT_FOUND


class WrongStateError(RequestError):
    """The model does not offer what was asked for."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class OverloadedError(RequestError):
    """A queue is full."""

    code = grpc.StatusCode.UNAVAILABLE


class StoreError(RequestError):
    """The feature store does not answer, and no missing rule can stand in."""

    code = grpc.StatusCode.UNAVAILABLE


class DrainingError(RequestError):
    """The server is stopping."""

    code = grpc.StatusCode.UNAVAILABLE


class AdmissionError(RequestError):
    """Too many calls are in flight."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnauthenticatedError(RequestError):
    """The call shows no valid bearer token."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(RequestError):
    """The call needs an admin token."""

    code = grpc.StatusCode.PERMISSION_DENIED


class TooLateError(RequestError):
    """The deadline has passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Call:
    """How long the caller of one call waits."""

    def __init__(self, context: Any) -> None:
        """Read the deadline once: asking gRPC for it costs more than reading the clock."""
        remaining = context.time_remaining()
        # A client without a deadline reports some 290 years, too long for any wait().
        bounded = remaining is not None and remaining < 1e6
        self.deadline = time.monotonic() + remaining if bounded else None

    def remaining(self) -> float | None:
        """Seconds left, or None without a deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def check(self, stage: str) -> None:
        """Stop work for a caller that no longer waits.

        Raises:
            TooLateError: the deadline has passed.
        """
        remaining = self.remaining()
        if remaining is not None and remaining <= 0:
            raise TooLateError(f"the deadline passed {stage}")


def status_of(method: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status and message of a failure."""
    if isinstance(error, RequestError):
        code, message = error.code, str(error)
    elif isinstance(error, RefusedInputError):
        # Without a contract for its inputs (tf.Example), the graph itself refuses them.
        code, message = grpc.StatusCode.INVALID_ARGUMENT, f"{method}: {error}"
    elif isinstance(error, RunTimeoutError):
        code, message = grpc.StatusCode.DEADLINE_EXCEEDED, f"{method}: {error}"
    else:
        incident = uuid.uuid4().hex
        LOG.error("incident %s in %s", incident, method, exc_info=error)
        code = grpc.StatusCode.INTERNAL
        message = f"{method}: internal error; the server's log names its cause under {incident}"
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + " ..."
    return code, message
