"""Canary: the version on trial answers its share of the users, and fails no call.

A call of the canary's users goes to the version on trial first.  If that version raises an error,
is late, or is gone, the version in production answers the same call.  A circuit breaker spares the
calls the wait for a version that fails again and again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal, TypeVar

from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import LOG, Call, InvalidRequestError, NotServedError
from multigate.serving.feature_store.circuit_breaker import CircuitBreaker
from multigate.serving.observe.side import CANARY, Side, side_of
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion

T = TypeVar("T")
Spec = tuple[str, int | None, str]
"""Name, version and label of a model, as a call names it."""
CanaryResult = Literal["answered", "failed", "late", "skipped"]
"""What became of a call of the canary's users."""


class CanaryRouter:
    """Leads each call to the version that is to answer it."""

    def __init__(self, models: Models, metrics: ServerMetrics, timeout: float) -> None:
        """Make a router.

        Args:
            models: of the server.
            metrics: counts the canary's calls.
            timeout: seconds that the version on trial has for an answer.
        """
        self._models = models
        self._metrics = metrics
        self._timeout = timeout
        self._breakers: dict[tuple[str, int], CircuitBreaker] = {}

    def side(self, spec: Spec, user: Any, request_id: str) -> Side | None:
        """The side of a call.

        Args:
            spec: what the call names.
            user: its features of the user, a map of `Value`s.
            request_id: of the call.

        Returns:
            None where no version is on trial, or the call names a version or a label.
        """
        name, version, label = spec
        if version is not None or label:
            return None
        found = self._models.trial(name)
        if found is None:
            return None
        trial, tried = found
        id_ = tried.contract.user
        return side_of(trial, user.get(id_, None), request_id)

    async def answer(
        self,
        spec: Spec,
        side: Side | None,
        call: Call,
        work: Callable[[RankerVersion], Awaitable[T]],
    ) -> T:
        """Do a call's work with the version of its side, or with the one in production.

        Args:
            spec: what the call names.
            side: of the call.
            call: whose deadline counts.
            work: may be done twice; must leave no trace but its result.

        Raises:
            RequestError: as `work` and `Models.use` raise it for the version in production.
        """
        failed: tuple[CanaryResult, str] | None = None
        if side is not None and side.group == CANARY:
            number = side.trial.version
            breaker = self._breakers.setdefault(
                (spec[0], number), CircuitBreaker(f"{spec[0]} version {number} on trial")
            )
            if breaker.allows_call():
                task = asyncio.ensure_future(self._tried(spec[0], number, work))
                remaining = call.remaining()
                # Half of the caller's time is left for the version in production.
                most = self._timeout if remaining is None else min(self._timeout, remaining / 2)
                try:
                    await asyncio.wait({task}, timeout=max(most, 0.0))
                finally:
                    if not task.done():
                        task.cancel()  # it leaves the queue; a run goes on, and keeps its version
                        task.add_done_callback(_read)
                if not task.done():
                    failed = "late", f"no answer within {1e3 * most:.0f} ms"
                elif (error := task.exception()) is None:
                    breaker.record_success()
                    self._count(spec[0], number, "answered")
                    return task.result()
                else:
                    failed = "failed", f"{type(error).__name__}: {error}"
            else:
                failed = "skipped", ""
            if len(self._breakers) > 1:
                self._forget_ended()
        with self._models.use(*spec) as ranker:
            try:
                answer = await work(ranker)
            except InvalidRequestError:
                if failed is not None and failed[0] == "failed":
                    failed = None  # the request is at fault: no version can answer it
                raise
            finally:
                if failed is not None and side is not None:
                    self._fell_back(spec[0], side.trial.version, *failed)
        return answer

    @contextmanager
    def version(self, spec: Spec, side: Side | None) -> Iterator[RankerVersion]:
        """The version of a call's side, or that in production where the trial has ended."""
        with ExitStack() as held:
            ranker = None
            if side is not None and side.group == CANARY:
                with suppress(NotServedError):
                    ranker = held.enter_context(self._models.use(spec[0], side.trial.version))
            yield ranker or held.enter_context(self._models.use(*spec))

    async def _tried(
        self, name: str, number: int, work: Callable[[RankerVersion], Awaitable[T]]
    ) -> T:
        with self._models.use(name, number) as ranker:
            return await work(ranker)

    def _count(self, name: str, number: int, result: CanaryResult) -> None:
        self._metrics.canary_calls.add(name, str(number), result)

    def _fell_back(self, name: str, number: int, result: CanaryResult, reason: str) -> None:
        """Count a call that the version in production answered in the canary's place."""
        self._count(name, number, result)
        if result == "skipped":
            return
        breaker = self._breakers.get((name, number))
        if breaker is not None:
            breaker.record_failure(reason)
        LOG.warning(
            "model %s version %d on trial: %s; the version in production answered",
            name,
            number,
            reason,
        )

    def _forget_ended(self) -> None:
        """Forget the breakers of trials that have ended."""
        for name, number in list(self._breakers):
            found = self._models.trial(name)
            if found is None or found[0].version != number:
                del self._breakers[name, number]


def _read(task: "asyncio.Task[Any]") -> None:
    """Look at what became of a task that nobody waits for; else asyncio would log it."""
    if not task.cancelled():
        task.exception()
