"""Shadow: the other version of a trial scores the calls that one version answered.

A call only puts references into a bounded queue, after its answer is made.  A thread of low
priority reads the request again, with the features that the other version's store has, runs it, and
compares the scores.  Calls that do not fit are dropped and counted; no call waits, and what fails
here fails no call.

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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from multigate.serving.core.background import SupervisedThread, lower_priority
from multigate.serving.core.layout import RANK, SCORE, Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG
from multigate.serving.observe.impressions import Ranked, rows_of
from multigate.serving.observe.row_files import RowFiles
from multigate.serving.request.order import rank_order
from multigate.serving.request.rank_request import ParsedRequest
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion

_QUEUED_CALLS = 64
_COMPARED_ITEMS = 200
"""Items of a call, the best first, whose pairs are compared: 20,000 pairs take a millisecond."""
_WARN_AGAIN = 60.0
"""Seconds."""
_CLOSING_SECONDS = 5.0
"""How long a server that stops waits for the thread, whose run may hang."""


@dataclass(frozen=True)
class _Call:
    """An answered call that the other version is to score."""

    ranked: Ranked
    parsed: ParsedRequest
    read: Callable[[RankerVersion], ParsedRequest]
    """Reads the request for another version."""


class Shadow:
    """Scores calls of all models on the other version of their trial."""

    def __init__(self, options: ServerOptions, models: Models, metrics: ServerMetrics) -> None:
        """Start the thread.

        Raises:
            ServingError: the impression log cannot be written to.
        """
        self._models = models
        self._metrics = metrics
        self._files: RowFiles | None = None
        if options.impression_log is not None:
            self._files = RowFiles(
                options.impression_log,
                "shadow/shadow",
                options.impression_log_rows,
                options.impression_log_seconds,
                lambda model, result, rows: metrics.shadow_rows.add(model, result, by=rows),
            )
        self._changed = threading.Condition()
        self._queue: deque[_Call] = deque()
        self._closed = False
        self._warned: dict[str, float] = {}
        """Monotonic seconds of the last warning, by model."""
        self._thread = SupervisedThread("shadow", self._run, metrics.thread_failed)
        self._thread.start()

    def add(
        self,
        ranked: Ranked,
        parsed: ParsedRequest,
        read: Callable[[RankerVersion], ParsedRequest],
    ) -> None:
        """Queue a call, if its side says so and there is room; never waits."""
        if ranked.side is None or not ranked.side.shadowed or not len(ranked.order):
            return
        with self._changed:
            full = self._closed or len(self._queue) >= _QUEUED_CALLS
            if not full:
                self._queue.append(_Call(ranked, parsed, read))
                self._changed.notify()
        if full:
            self._count(ranked, "dropped")

    def close(self) -> None:
        """Score what is queued and write it, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSING_SECONDS)

    def _count(self, ranked: Ranked, result: str) -> None:
        assert ranked.side is not None
        self._metrics.shadow_calls.add(ranked.model, str(ranked.side.trial.version), result)

    def _run(self) -> None:
        lower_priority()
        while True:
            call = None
            with self._changed:
                if not self._queue and not self._closed:
                    pause = 1.0 if self._files is None else min(self._files.seconds_per_file, 1.0)
                    self._changed.wait(pause)
                if self._queue:
                    call = self._queue.popleft()
                ended = self._closed and call is None
            if call is not None:
                try:
                    self._process(call)
                    self._count(call.ranked, "scored")
                except Exception as error:
                    self._warn(call.ranked, error)
                    self._count(call.ranked, "failed")
            if self._files is not None:
                self._files.finish_old(all_of_them=ended)
            if ended:
                return

    def _warn(self, ranked: Ranked, error: Exception) -> None:
        """Log a failure, of many in a row one a minute."""
        now = time.monotonic()
        if now - self._warned.get(ranked.model, -_WARN_AGAIN) < _WARN_AGAIN:
            return
        self._warned[ranked.model] = now
        LOG.warning(
            "model %s: shadow: request %s cannot be scored by the other version: %s",
            ranked.model,
            ranked.request_id,
            error,
        )

    def _process(self, call: _Call) -> None:
        ranked = call.ranked
        assert ranked.side is not None
        trial = ranked.side.trial.version
        manager = self._models.manager(ranked.model)
        other = manager.acquire(None if ranked.version == trial else trial)
        try:
            if other.number == ranked.version:
                raise LookupError(f"version {trial} is no longer on trial")
            parsed = call.read(other)
            outputs = other.saved_model.signatures[RANK](parsed.inputs)
            if not np.isfinite(outputs[SCORE]).all():
                raise ValueError("a score is not finite")
            number, contract = other.number, other.contract
        finally:
            other.saved_model.release()
        rows, positions = aligned(call.parsed, ranked.order, parsed, outputs)
        pairs = pairs_agreement(call.parsed, ranked.outputs, parsed, outputs)
        overlap = overlap_of(call.parsed, ranked.order, parsed, rank_order(outputs, parsed))
        if pairs is not None:
            self._metrics.shadow_pairs.observe(pairs, ranked.model, str(trial))
        self._metrics.shadow_overlap.observe(overlap, ranked.model, str(trial))
        if self._files is None:
            return
        pa, known = self._files.pyarrow, rows >= 0
        table = rows_of(pa, ranked, {contract.user, contract.item})
        size = len(table)
        added = {
            "shadow/version": pa.array([number] * size, pa.int64()),
            "shadow/position": pa.array(positions, pa.int64(), mask=~known),
            "shadow/pairs": pa.array([pairs] * size, pa.float64()),
            "shadow/overlap": pa.array([overlap] * size, pa.float64()),
        }
        for name in (SCORE, *contract.tasks):
            column = "shadow/score" if name == SCORE else f"shadow/score/{name}"
            added[column] = pa.array(outputs[name][rows], pa.float32(), mask=~known)
        for name, values in added.items():
            table = table.append_column(name, values)
        self._files.add(ranked.model, ranked.schema, table)


def _places(parsed: ParsedRequest) -> np.ndarray:
    """(N,) where the scored candidates stand in the request."""
    return np.arange(parsed.rows) if parsed.places is None else parsed.places


def _rows_at(places: np.ndarray, other: ParsedRequest) -> np.ndarray:
    """The rows of the other version at places of the request, (K,); -1 where it has none."""
    theirs = _places(other)
    rows = np.full(1 + max(int(places.max(initial=-1)), int(theirs.max(initial=-1))), -1)
    rows[theirs] = np.arange(len(theirs))
    found: np.ndarray = rows[places]
    return found


def aligned(
    parsed: ParsedRequest, order: np.ndarray, other: ParsedRequest, outputs: Arrays
) -> tuple[np.ndarray, np.ndarray]:
    """What the other version has for the items of an answer.

    Args:
        parsed: the request, as the answering version read it.
        order: (K,) its answer.
        other: the request, as the other version read it.
        outputs: (N,) each, of the other version.

    Returns:
        (K,) its rows, -1 where it has none; (K,) their places in its order of all candidates.
    """
    rows = _rows_at(_places(parsed)[order], other)
    positions = np.empty(other.rows, np.int64)
    positions[np.argsort(-outputs[SCORE], kind="stable")] = np.arange(other.rows)
    return rows, positions[rows]


def pairs_agreement(
    parsed: ParsedRequest, outputs: Arrays, other: ParsedRequest, others: Arrays
) -> float | None:
    """Share of the pairs of candidates that two versions put in the same order.

    A tie agrees with a tie alone.  Of many candidates, those count that the first version has best.

    Returns:
        None with fewer than two candidates that both can score.
    """
    best = np.argsort(-outputs[SCORE], kind="stable")
    rows = _rows_at(_places(parsed)[best], other)
    best, rows = best[rows >= 0][:_COMPARED_ITEMS], rows[rows >= 0][:_COMPARED_ITEMS]
    if len(best) < 2:
        return None
    ours, theirs = outputs[SCORE][best], others[SCORE][rows]
    same = np.sign(ours[:, None] - ours) == np.sign(theirs[:, None] - theirs)
    first, second = np.triu_indices(len(best), 1)
    return float(same[first, second].mean())


def overlap_of(
    parsed: ParsedRequest, order: np.ndarray, other: ParsedRequest, others: np.ndarray
) -> float:
    """Share of an answer's items that are in another answer to the same request, too.

    Args:
        parsed: the request, as the first version read it.
        order: (K,) its answer, K > 0.
        other: as the second version read it.
        others: its answer.
    """
    return float(np.isin(_places(parsed)[order], _places(other)[others]).mean())
