"""Shadow: the other version of a trial scores the calls that one version answered.

A call only puts references into a bounded queue, after its answer is made.  A thread sends what is
queued to a process (`serving.observe.shadow_scoring`), which reads the requests again, with the
features that the other version's store has, runs them together, compares the scores and writes
rows.  No call waits for it, and what fails there fails no call.

The process runs while a trial has a shadow.  It has the system's idle priority: it takes no core
that the server wants, and shares no interpreter with it.  It works in the gaps between the calls
(`serving.observe.gaps`).  What it does not get done is dropped and counted.  A process that dies
or hangs is replaced, after a pause that doubles.

Each call's rows go to `FOLDER/MODEL/shadow/shadow-*.parquet`, one row per item of the answer: the
user, the item, the columns `ranked/...` of the impression log, and

    shadow/version        who scored besides
    shadow/position       place of the item in that version's order of all candidates, from 0
    shadow/score          combined; null where that version cannot score the item
    shadow/score/TASK     per task
    shadow/pairs          of the call: share of the pairs that both put in the same order
    shadow/overlap        of the call: share of the answer's items that the other would answer too

The rows of an answer show a call that is lost: `ranked/shadow` of the impression log says which
calls must be here.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from multigate.runtime.child import Child, ChildError
from multigate.runtime.in_flight import CallsInFlight
from multigate.serving.core.background import SupervisedThread, lower_priority
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG, RequestError
from multigate.serving.observe.agreement import places_of
from multigate.serving.observe.gathering import GatherQueue
from multigate.serving.observe.impressions import Ranked
from multigate.serving.observe.shadow_scoring import (
    Agreement,
    Answer,
    AnsweredCall,
    Outcome,
    Question,
    Wanted,
)
from multigate.serving.request.rank_request import ParsedRequest
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion

ShadowResult = Literal["scored", "dropped", "failed"]
"""What became of a call that two versions are to score."""
_QUEUED = 25_600
"""Candidates of the calls that may wait."""
_TOGETHER = 800
"""Of those that are sent together."""
_GATHER_SECONDS = 0.1
"""For which the thread waits, after a call, for others that it sends together with it."""
_LOOK_SECONDS = 1.0
"""Between two looks at the trials, while no call comes."""
_LONGEST = 600.0
"""Seconds after which a process that does not answer is replaced: a busy machine slows it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a process that ended is replaced."""
_WARN_AGAIN = 60.0
"""Seconds."""
_CLOSING_SECONDS = 5.0
"""How long a server that stops waits for what is queued."""
_KILLED_SECONDS = 5.0
"""How long it waits for the thread once the process is ended."""


@dataclass(frozen=True)
class _Queued:
    """An answered call that the other version is to score; holds references, no copies."""

    ranked: Ranked
    parsed: ParsedRequest
    request: Any
    user: Any

    @property
    def answered_by(self) -> tuple[str, int, int]:
        """Model, version, and version on trial: calls that agree in them have one other version."""
        assert self.ranked.side is not None
        return self.ranked.model, self.ranked.version, self.ranked.side.trial.version

    def sent(self) -> AnsweredCall:
        """What the process needs of it."""
        contract, inputs = self.ranked.contract, self.ranked.inputs
        ids = contract.user, contract.item
        needed = {name: array for name, array in inputs.items() if name.startswith(ids)}
        return AnsweredCall(
            replace(self.ranked, contract=None, inputs=needed),  # type: ignore[arg-type]
            places_of(self.parsed),
            self.request.SerializeToString(),
            None if self.user is None else self.user.SerializeToString(),
        )


class Shadow:
    """Has calls of all models scored on the other version of their trial."""

    def __init__(
        self,
        options: ServerOptions,
        models: Models,
        metrics: ServerMetrics,
        in_flight: CallsInFlight,
    ) -> None:
        """Start the thread; the process follows with the first trial that has a shadow.

        Args:
            options: of the server.
            models: of the server.
            metrics: counts the calls.
            in_flight: the server's calls, which the process leaves alone.
        """
        self._options = options
        self._models = models
        self._metrics = metrics
        self._child = Child(
            "multigate.serving.observe.shadow_scoring",
            "idle",
            _LONGEST,
            options,
            in_flight.file,
            files=[in_flight.file],
        )
        self._in_flight = in_flight
        """Kept: its file is closed with it."""
        self._queue = GatherQueue[_Queued](_QUEUED, _TOGETHER, _GATHER_SECONDS)
        self._ending = threading.Event()
        self._pause = _FIRST_PAUSE
        self._warned: dict[str, float] = {}
        """Monotonic seconds of the last warning, by model."""
        self._thread = SupervisedThread("shadow", self._run, metrics.thread_failed)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process that scores; None while none does."""
        return self._child.pid

    def add(self, ranked: Ranked, parsed: ParsedRequest, request: Any, user: Any = None) -> None:
        """Queue a call, if its side says so and there is room; never waits.

        Args:
            ranked: the call.
            parsed: its request, as the answering version read it.
            request: the RankRequest, which nobody changes any more.
            user: the RecommendRequest whose user and context it has; None: its own.
        """
        if ranked.side is None or not ranked.side.shadowed or not len(ranked.order):
            return
        if not self._queue.add(_Queued(ranked, parsed, request, user), parsed.rows):
            self._count(ranked, "dropped")

    def close(self) -> None:
        """Have what is queued scored and written, for a limited time, then stop."""
        self._queue.close()
        self._ending.set()
        self._thread.join(_CLOSING_SECONDS)
        self._child.close()
        self._thread.join(_KILLED_SECONDS)

    def _count(self, ranked: Ranked, result: ShadowResult) -> None:
        assert ranked.side is not None
        self._metrics.shadow_calls.add(ranked.model, str(ranked.side.trial.version), result)

    def _run(self) -> None:
        lower_priority()
        look = min(self._options.impression_log_seconds, _LOOK_SECONDS)
        while not self._queue.ended:
            if calls := self._queue.take(look):
                wanted = self._wanted()
                for _, alike in groupby(calls, attrgetter("answered_by")):
                    self._process(list(alike), wanted)
            elif wanted := self._wanted():
                self._ask(Question(wanted))
            else:
                self._finish()
        self._finish()

    def _wanted(self) -> list[Wanted]:
        """The versions that score calls in the trials under way."""
        found = []
        for name in self._models.managers():
            trial = self._models.trial(name)
            if trial is None or not trial[0].shadow:
                continue
            found.append(_of(trial[1]))
            if trial[0].canary and (other := self._version(name, None)) is not None:
                found.append(other)
        return found

    def _version(self, model: str, number: int | None) -> Wanted | None:
        """A version of a model, None being the one in production; None where it is not loaded."""
        try:
            loaded: RankerVersion = self._models.manager(model).acquire(number)
        except RequestError:
            return None
        loaded.saved_model.release()
        return _of(loaded)

    def _process(self, calls: Sequence[_Queued], wanted: list[Wanted]) -> None:
        """Have calls scored that one version answered, and count what becomes of them."""
        model, answered, trial = calls[0].answered_by
        other = self._version(model, None if answered == trial else trial)
        if other is None or other.number == answered:
            outcomes: Sequence[Outcome] = [f"version {trial} is no longer on trial"] * len(calls)
        else:
            versions = wanted if other in wanted else [*wanted, other]
            sent = [call.sent() for call in calls]
            answer = self._ask(Question(versions, other, sent))
            outcomes = answer.outcomes or ["the process that scores has ended"] * len(calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            if isinstance(outcome, Agreement):
                self._agrees(call.ranked, outcome)
            else:
                self._failed(call.ranked, outcome)

    def _ask(self, question: Question) -> Answer:
        """The answer of the process; an empty one where it has ended, after a pause."""
        try:
            answer: Answer = self._child.ask(question)
        except ChildError as error:
            if not self._ending.is_set():
                LOG.warning(
                    "shadow: the process that scores %s; another one follows in %g s",
                    error,
                    self._pause,
                )
                self._ending.wait(self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return Answer()
        self._pause = _FIRST_PAUSE
        for model, result, rows in answer.rows:
            self._metrics.shadow_rows.add(model, result, by=rows)
        return answer

    def _finish(self) -> None:
        """Have the files finished, and end the process, if there is one."""
        if self._child.pid is not None:
            self._ask(Question(last=True))
            self._child.end()

    def _agrees(self, ranked: Ranked, found: Agreement) -> None:
        """Count a call that both versions have scored."""
        assert ranked.side is not None
        labels = ranked.model, str(ranked.side.trial.version)
        if found.pairs is not None:
            self._metrics.shadow_pairs.observe(found.pairs, *labels)
        self._metrics.shadow_overlap.observe(found.overlap, *labels)
        self._count(ranked, "scored")

    def _failed(self, ranked: Ranked, reason: str) -> None:
        """Count a failure, and log it: of many in a row one a minute."""
        self._count(ranked, "failed")
        now = time.monotonic()
        if now - self._warned.get(ranked.model, -_WARN_AGAIN) < _WARN_AGAIN:
            return
        self._warned[ranked.model] = now
        LOG.warning(
            "model %s: shadow: request %s cannot be scored by the other version: %s",
            ranked.model,
            ranked.request_id,
            reason,
        )


def _of(version: RankerVersion) -> Wanted:
    assert version.folder is not None  # a server's versions have one
    return Wanted(version.model, version.number, version.folder, version.exported_at)
