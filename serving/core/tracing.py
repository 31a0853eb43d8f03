"""What a call did and when, for the calls that are traced; knows nothing of OpenTelemetry.

Steps are recorded wherever they happen, in the loop or in a thread: a call that is not traced costs
one look at a context variable per step.  `serving.observe.spans` makes spans of them.
"""

import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
"""W3C's traceparent."""
_SAMPLED = 1
_HEADERS = frozenset({"traceparent", "tracestate"})
_LONGEST = 512
"""Characters of a header that is kept: W3C asks nobody to pass a longer `tracestate` on."""


@dataclass
class Trace:
    """One traced call; times are those of time.perf_counter."""

    carrier: dict[str, str]
    """The caller's `traceparent` and `tracestate`, as far as it sent them."""
    started: float = field(default_factory=time.perf_counter)
    offset: int = field(default_factory=lambda: time.time_ns() - time.perf_counter_ns())
    """Nanoseconds from the clock of the steps to that of the world."""
    steps: list[tuple[str, float, float, dict[str, Any]]] = field(default_factory=list)
    """Name, beginning, end and attributes."""

    def add(self, name: str, began: float, ended: float, **attributes: Any) -> None:
        """Record a step; any thread may."""
        self.steps.append((name, began, ended, attributes))

    def nanoseconds(self, moment: float) -> int:
        """Since 1970."""
        return int(moment * 1e9) + self.offset


@dataclass(frozen=True)
class TracedCall:
    """A call that has ended."""

    trace: Trace
    path: str
    """`package.Service/Method`."""
    entrypoint: str
    status: str
    """Name of its gRPC status."""
    message: str
    fields: dict[str, Any]
    """Those of its log line."""
    ended: float


_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


class Tracing:
    """Decides which calls are traced."""

    def __init__(self, rate: float, finished: Callable[[TracedCall], None]) -> None:
        """Trace a share of the calls.

        Args:
            rate: share of the calls whose callers have not decided.
            finished: called in the loop with each traced call.
        """
        self._rate = rate
        self.finished = finished

    def begin(self, metadata: Iterable[tuple[str, str | bytes]]) -> Trace | None:
        """The trace of the current call; None where it is not traced.

        A caller that sends a trace context has decided already.
        """
        carrier = {
            key: value
            for key, value in metadata
            if key in _HEADERS and isinstance(value, str) and len(value) <= _LONGEST
        }
        found = _PARENT.fullmatch(carrier["traceparent"]) if "traceparent" in carrier else None
        if found is not None:
            sampled = bool(int(found[1], 16) & _SAMPLED)
        else:
            sampled = random.random() < self._rate
            carrier = {}
        trace = Trace(carrier) if sampled else None
        _CURRENT.set(trace)
        return trace


def current() -> Trace | None:
    """The trace of the current call; None where it is not traced."""
    return _CURRENT.get()


class _Step:
    """A block that is recorded."""

    __slots__ = ("_attributes", "_began", "_name", "_trace")

    def __init__(self, trace: Trace, name: str, attributes: dict[str, Any]) -> None:
        self._trace, self._name, self._attributes = trace, name, attributes

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._trace.add(self._name, self._began, time.perf_counter(), **self._attributes)


_NO_STEP = nullcontext()
"""For calls that are not traced, which pay for a look and nothing else."""


def step(name: str, **attributes: Any) -> AbstractContextManager[None]:
    """A block that is recorded as a step of the current call, if that is traced."""
    trace = _CURRENT.get()
    return _NO_STEP if trace is None else _Step(trace, name, attributes)
