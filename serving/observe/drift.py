"""What a sample of the calls looks like, and how far it has parted from the test split.

A call only puts references into a bounded queue, after its answer is made; what does not fit is
dropped and counted.  A thread of low priority does the rest, also the model's `watch` signature.
Features of the user and the context count once per candidate, as they do in examples.
"""

import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multigate.configs.contract import LENGTH, PRESENT, IdListFeature
from multigate.serving.core.background import lower_priority
from multigate.serving.core.layout import SCORE, Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG
from multigate.serving.versions.loaded import Served
from multigate.serving.versions.reference import Reference, stability_index

WATCH = "watch"
UNSEEN, EXPERTS = "unseen/", "experts"
"""The signature, how the names of its counts begin, and its other output, which older exports lack:
the experts that were evaluated for each candidate, (N,)."""

_QUEUED_CALLS = 64
_LEAST_CALLS, _LEAST_ROWS = 300, 1000
"""What a window needs before it is judged: the candidates of a call share its user, so that it is
calls that have to be many, or chance alone passes the thresholds."""
_SAY_AGAIN = 600.0
"""Seconds before a warning that says nothing new."""


@dataclass
class _Count:
    """Of one feature in a window."""

    missing: int = 0
    values: int = 0
    """Of which the unseen are a part: rows, or values of lists."""
    unseen: int = 0


@dataclass
class _Window:
    """What one version's calls looked like since `since`."""

    since: float
    calls: int = 0
    rows: int = 0
    features: dict[str, _Count] = field(default_factory=dict)
    scores: dict[str, np.ndarray] = field(default_factory=dict)


class Watch:
    """Observes sampled calls of all models."""

    def __init__(self, options: ServerOptions, metrics: ServerMetrics) -> None:
        self._rate = options.watch_rate
        self._seconds = options.watch_seconds
        self._most_index = options.watch_psi
        self._most_shift = options.watch_share
        self._metrics = metrics
        self._changed = threading.Condition()
        self._queue: deque[tuple[Served, Arrays, Arrays]] = deque()
        self._closed = False
        self._windows: dict[tuple[str, int], _Window] = {}
        self._said: dict[str, tuple[frozenset[str], float]] = {}
        self._thread: threading.Thread | None = None
        if self._rate > 0:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def add(self, served: Served, inputs: Arrays, outputs: Arrays) -> None:
        """Take notice of a call, if it is sampled and there is room; never waits."""
        if random.random() >= self._rate:
            return
        with self._changed:
            full = self._closed or len(self._queue) >= _QUEUED_CALLS
            if not full:
                self._queue.append((served, inputs, outputs))
                self._changed.notify()
        if full:
            self._metrics.watched.add(served.model, "dropped")

    def close(self) -> None:
        """Look at what is queued and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        lower_priority()
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                served, inputs, outputs = self._queue.popleft()
            try:
                self._look(served, inputs, outputs)
                self._metrics.watched.add(served.model, "watched")
            except Exception:
                LOG.exception("model %s: a call cannot be watched", served.model)
                self._metrics.watched.add(served.model, "failed")

    def _look(self, served: Served, inputs: Arrays, outputs: Arrays) -> None:
        model, rows = served.model, len(outputs[SCORE])
        window = self._window(served)
        window.calls += 1
        window.rows += rows
        counted = self._counted(served, inputs)
        if (experts := counted.get(EXPERTS)) is not None:
            self._metrics.row_experts.observe_all(experts, model)
        for name, feature in served.servable.contract.of_side("user", "context", "item"):
            # The user's one value stands beside each of the N items.
            times = 1 if feature.side == "item" else rows
            count = window.features.setdefault(name, _Count())
            count.missing += times * _missing(name, inputs)
            if (held := counted.get(UNSEEN + name)) is None:
                continue
            found = int(held)
            values = len(inputs[name])
            if isinstance(feature, IdListFeature):
                values = int(inputs[name + LENGTH].sum())
            count.values += times * values
            count.unseen += times * found
            self._metrics.ids.add(model, name, "unseen", by=found)
            self._metrics.ids.add(model, name, "seen", by=values - found)
        for task in served.servable.contract.tasks:
            self._metrics.scores.observe_all(outputs[task], model, task)
            if served.reference is not None and task in served.reference.scores:
                counts = served.reference.scores[task].count(outputs[task])
                window.scores[task] = window.scores.get(task, 0) + counts
        if (
            served.reference is not None
            and time.monotonic() - window.since >= self._seconds
            and window.calls >= _LEAST_CALLS
            and window.rows >= _LEAST_ROWS
        ):
            self._judge(model, served.reference, window)
            del self._windows[model, served.servable.version]

    def _window(self, served: Served) -> _Window:
        key = served.model, served.servable.version
        if key not in self._windows:
            if len(self._windows) > 100:  # of versions that are long gone
                self._windows.clear()
            self._windows[key] = _Window(time.monotonic())
        return self._windows[key]

    def _counted(self, served: Served, inputs: Arrays) -> Arrays:
        """What the version counts; nothing where it cannot, or is gone."""
        signature = served.signature(WATCH)
        if signature is None or not served.servable.acquire():
            return {}
        try:
            return signature(inputs)
        finally:
            served.servable.release()

    def _judge(self, model: str, reference: Reference, window: _Window) -> None:
        """Compare a window with the test split; say where they part."""
        parted: dict[str, str] = {}
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
                if abs(now - then) > self._most_shift:
                    parted[f"{what} {name}"] = f"feature {name!r}: {what} {now:.3f}, was {then:.3f}"
        for task, counts in window.scores.items():
            index = stability_index(reference.scores[task].counts, counts)
            self._metrics.score_shift.set(index, model, task)
            if index > self._most_index:
                parted[f"task {task}"] = f"task {task!r}: stability index of scores {index:.3f}"
        self._warn(model, window, parted)

    def _warn(self, model: str, window: _Window, parted: dict[str, str]) -> None:
        """One line per window at most, and none that says nothing new for a while."""
        now = time.monotonic()
        before, at = self._said.get(model, (frozenset(), now))
        if now - at >= _SAY_AGAIN:
            before, at = frozenset(), now
        if parted.keys() <= before:
            return
        self._said[model] = before | parted.keys(), at
        LOG.warning(
            "model %s: %d calls with %d candidates differ from the test split: %s",
            model,
            window.calls,
            window.rows,
            "; ".join(parted.values()),
        )


def _missing(name: str, inputs: Arrays) -> int:
    """Rows of a feature without a value; of a list, where it is empty."""
    lengths: Any = inputs.get(name + LENGTH)
    if lengths is not None:
        return len(lengths) - int(np.count_nonzero(lengths))
    present = inputs.get(name + PRESENT)
    return 0 if present is None else len(present) - int(np.count_nonzero(present))
