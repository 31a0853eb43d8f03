"""Drift: how far a sample of the calls differs from the test split.

A call only puts references into a bounded queue, after its answer is made; calls that do not fit
are dropped and counted.  A thread of low priority does the rest, and runs the model's signature
`watch`, for several calls at once: a run costs 0.7 ms for one call of 100 candidates, 2 for eight.
Features of the user and the context count once per candidate, as they do in examples.

Evidently and NannyML were considered: they compare tables after the fact, and need pandas.
"""

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from multigate.configs.contract import LENGTH, PRESENT, IdListFeature
from multigate.serving.core.background import SupervisedThread, lower_priority
from multigate.serving.core.layout import RANK, SCORE, Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG
from multigate.serving.observe.gathering import GatherQueue
from multigate.serving.versions.batching import join_calls
from multigate.serving.versions.ranker_version import RankerVersion
from multigate.serving.versions.reference import Reference, stability_index

WATCH = "watch"
UNSEEN, EXPERTS = "unseen/", "experts"
"""The signature; the prefix of its counts of unseen ids; and its other output, which older exports
lack: the experts that were evaluated for each candidate, (N,)."""

_QUEUED = 20_000
"""Candidates of the calls that may wait."""
_TOGETHER = 800
"""Of those that are watched together."""
_GATHER_SECONDS = 0.5
"""For which the thread waits, after a call, for others to watch together with it."""
_LEAST_CALLS, _LEAST_ROWS = 300, 1000
"""What a window needs before it is compared.  The candidates of a call share its user: with few
calls, chance alone passes the thresholds."""
_REPEAT_AFTER = 600.0
"""Seconds before a warning that says nothing new."""


@dataclass(frozen=True)
class _Watched:
    """One sampled call; holds references, no copies."""

    ranker: RankerVersion
    inputs: Arrays
    """Of the `rank` signature."""
    outputs: Arrays
    """(N,) each."""

    @property
    def rows(self) -> int:
        """N."""
        return len(self.outputs[SCORE])


@dataclass
class _Count:
    """Counts of one feature in a window."""

    missing: int = 0
    values: int = 0
    """Rows, or values of lists; some of them are unseen."""
    unseen: int = 0


@dataclass
class _Window:
    """What one version's calls looked like since then."""

    since: float
    """Monotonic seconds."""
    calls: int = 0
    rows: int = 0
    features: dict[str, _Count] = field(default_factory=dict)
    scores: dict[str, np.ndarray] = field(default_factory=dict)


class DriftMonitor:
    """Compares sampled calls of all models with the test split."""

    def __init__(self, options: ServerOptions, metrics: ServerMetrics) -> None:
        self._rate = options.watch_rate
        self._seconds = options.watch_seconds
        self._psi_threshold = options.watch_psi
        self._share_threshold = options.watch_share
        self._metrics = metrics
        self._queue = GatherQueue[_Watched](_QUEUED, _TOGETHER, _GATHER_SECONDS)
        # By the version itself: a reload may bring another one of the same name and number.
        self._windows: WeakKeyDictionary[RankerVersion, _Window] = WeakKeyDictionary()
        self._warned: dict[str, tuple[frozenset[str], float]] = {}
        self._thread: SupervisedThread | None = None
        if self._rate > 0:
            self._thread = SupervisedThread("drift", self._run, metrics.thread_failed)
            self._thread.start()

    def add(self, ranker: RankerVersion, inputs: Arrays, outputs: Arrays) -> None:
        """Queue a call, if it is sampled and there is room; never waits."""
        if random.random() >= self._rate:
            return
        watched = _Watched(ranker, inputs, outputs)
        if not self._queue.add(watched, watched.rows):
            self._metrics.watched.add(ranker.model, "dropped")

    def close(self) -> None:
        """Process what is queued, then stop."""
        self._queue.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        lower_priority()
        while calls := self._queue.take():
            for together in _alike(calls):
                self._watch(together)
            # Else it would keep a version that is gone, and its mapped files, until another call.
            del calls, together

    def _watch(self, calls: Sequence[_Watched]) -> None:
        """Process calls together; if they cannot be counted so, each alone: one may be to blame."""
        try:
            inputs, counted = self._counted(calls)
        except Exception:
            if len(calls) == 1:
                self._fail(calls)
            else:
                for call in calls:
                    self._watch([call])
            return
        try:
            self._add(calls, inputs, counted)
        except Exception:
            self._fail(calls)
        else:
            self._metrics.watched.add(calls[0].ranker.model, "watched", by=len(calls))

    def _fail(self, calls: Sequence[_Watched]) -> None:
        """Log the present exception, and count the calls."""
        model = calls[0].ranker.model
        LOG.exception("model %s: drift: %d sampled calls cannot be processed", model, len(calls))
        self._metrics.watched.add(model, "failed", by=len(calls))

    def _add(self, calls: Sequence[_Watched], inputs: Arrays, counted: Arrays) -> None:
        """Add calls to their version's window.

        Args:
            calls: of one version, each of N candidates.
            inputs: of all of them.
            counted: what their version counted.
        """
        ranker, rows = calls[0].ranker, calls[0].rows
        model = ranker.model
        window = self._windows.setdefault(ranker, _Window(time.monotonic()))
        window.calls += len(calls)
        window.rows += len(calls) * rows
        if (experts := counted.get(EXPERTS)) is not None:
            self._metrics.row_experts.observe_all(experts, model)
        for name, feature in ranker.contract.of_side("user", "context", "item"):
            # The user's one value counts for each of the call's N items.
            times = 1 if feature.side == "item" else rows
            count = window.features.setdefault(name, _Count())
            count.missing += times * _missing(name, inputs)
            if (unseen_count := counted.get(UNSEEN + name)) is None:
                continue
            unseen = int(unseen_count)
            values = len(inputs[name])
            if isinstance(feature, IdListFeature):
                values = int(inputs[name + LENGTH].sum())
            count.values += times * values
            count.unseen += times * unseen
            self._metrics.ids.add(model, name, "unseen", by=unseen)
            self._metrics.ids.add(model, name, "seen", by=values - unseen)
        for task in ranker.contract.tasks:
            scores = np.concatenate([call.outputs[task] for call in calls])
            self._metrics.scores.observe_all(scores, model, task)
            if ranker.reference is not None and task in ranker.reference.scores:
                counts = ranker.reference.scores[task].count(scores)
                window.scores[task] = window.scores.get(task, 0) + counts
        if (
            ranker.reference is not None
            and time.monotonic() - window.since >= self._seconds
            and window.calls >= _LEAST_CALLS
            and window.rows >= _LEAST_ROWS
        ):
            self._compare(model, ranker.reference, window)
            del self._windows[ranker]

    def _counted(self, calls: Sequence[_Watched]) -> tuple[Arrays, Arrays]:
        """The inputs of all calls, and what their version counts in them.

        That is nothing where it has no such signature, or is gone.
        """
        ranker, inputs = calls[0].ranker, calls[0].inputs
        if len(calls) > 1:
            rank = ranker.signature(RANK)
            assert rank is not None  # every ranker has it
            assert rank.layout is not None
            inputs = join_calls([call.inputs for call in calls], rank.layout)
        signature = ranker.signature(WATCH)
        if signature is None or not ranker.saved_model.acquire():
            return inputs, {}
        try:
            return inputs, signature(inputs)
        finally:
            ranker.saved_model.release()

    def _compare(self, model: str, reference: Reference, window: _Window) -> None:
        """Compare a window with the test split; log where they differ."""
        differing: dict[str, str] = {}
        for name, shares in reference.features.items():
            count = window.features.get(name)
            if count is None:
                continue
            found: dict[str, tuple[float, float]] = {
                "missing": (count.missing / window.rows, shares.missing)
            }
            if shares.unseen is not None and count.values:
                found["unseen"] = (count.unseen / count.values, shares.unseen)
            for what, (now, then) in found.items():
                self._metrics.share_shift.set(now - then, model, name, what)
                if abs(now - then) > self._share_threshold:
                    differing[f"{what} {name}"] = (
                        f"feature {name!r}: {what} {now:.3f}, was {then:.3f}"
                    )
        for task, counts in window.scores.items():
            index = stability_index(reference.scores[task].counts, counts)
            self._metrics.score_shift.set(index, model, task)
            if index > self._psi_threshold:
                differing[f"task {task}"] = f"task {task!r}: stability index of scores {index:.3f}"
        self._warn(model, window, differing)

    def _warn(self, model: str, window: _Window, differing: dict[str, str]) -> None:
        """Log at most one line per window; one that says nothing new waits for `_REPEAT_AFTER`."""
        now = time.monotonic()
        before, at = self._warned.get(model, (frozenset(), now))
        if now - at >= _REPEAT_AFTER:
            before, at = frozenset(), now
        if differing.keys() <= before:
            return
        self._warned[model] = before | differing.keys(), at
        LOG.warning(
            "model %s: %d calls with %d candidates differ from the test split: %s",
            model,
            window.calls,
            window.rows,
            "; ".join(differing.values()),
        )


def _alike(calls: Iterable[_Watched]) -> list[list[_Watched]]:
    """Calls that can be counted together: of one version, and of as many candidates.

    A user counts once per candidate, and the counts of a run do not tell one user from another.
    """
    found: dict[tuple[int, int], list[_Watched]] = {}
    for call in calls:
        found.setdefault((id(call.ranker), call.rows), []).append(call)
    return list(found.values())


def _missing(name: str, inputs: Arrays) -> int:
    """Rows without a value of the feature; for a list, rows where it is empty."""
    lengths: Any = inputs.get(name + LENGTH)
    if lengths is not None:
        return len(lengths) - int(np.count_nonzero(lengths))
    present = inputs.get(name + PRESENT)
    return 0 if present is None else len(present) - int(np.count_nonzero(present))
