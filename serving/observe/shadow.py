"""Shadow: the other version of a trial scores the calls that one version answered.

A call only puts references into a bounded queue, after its answer is made.  A thread of low
priority reads the request again, with the features that the other version's store has, runs it, and
compares the scores.  No call waits for it, and what fails here fails no call.

It gives way to calls.  While any is in flight, the thread works a small share of the time and rests
for the remainder: after each step, and none is long, because large requests are run in parts and
small ones are joined, which costs less.  What does not fit into that is dropped and counted.

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
from typing import Literal

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
from multigate.serving.versions.batching import divide, join_calls, split_call
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion

ShadowResult = Literal["scored", "dropped", "failed"]
"""What became of a call that two versions are to score."""
_QUEUED_CALLS = 64
_BUSY_SHARE = 0.1
"""Of the time that the thread works while calls are in flight."""
_RUN_ROWS = 400
"""Most rows of one run, which nothing interrupts."""
_LOOK_SECONDS = 0.005
"""Between two looks, in a rest, whether calls are still in flight."""
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

    @property
    def answered_by(self) -> tuple[str, int, int]:
        """Model, version, and version on trial: calls that agree in them have one other version."""
        assert self.ranked.side is not None
        return self.ranked.model, self.ranked.version, self.ranked.side.trial.version


class Shadow:
    """Scores calls of all models on the other version of their trial."""

    def __init__(
        self,
        options: ServerOptions,
        models: Models,
        metrics: ServerMetrics,
        in_flight: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start the thread.

        Args:
            options: of the server.
            models: of the server.
            metrics: counts the calls.
            in_flight: how many calls the server handles now.

        Raises:
            ServingError: the impression log cannot be written to.
        """
        self._models = models
        self._metrics = metrics
        self._in_flight = in_flight
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
        self._ending = threading.Event()
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
        self._ending.set()
        self._thread.join(_CLOSING_SECONDS)

    def _count(self, ranked: Ranked, result: ShadowResult) -> None:
        assert ranked.side is not None
        self._metrics.shadow_calls.add(ranked.model, str(ranked.side.trial.version), result)

    def _run(self) -> None:
        lower_priority()
        while True:
            with self._changed:
                if not self._queue and not self._closed:
                    pause = 1.0 if self._files is None else min(self._files.seconds_per_file, 1.0)
                    self._changed.wait(pause)
                calls = self._next_calls()
                ended = self._closed and not calls
            self._process(calls)
            if self._files is not None:
                self._files.finish_old(all_of_them=ended)
            if ended:
                return

    def _next_calls(self) -> list[_Call]:
        """Take calls from the queue that one run can score: of one model, and one other version."""
        calls: list[_Call] = []
        rows = 0
        while self._queue:
            first, rows = self._queue[0], rows + self._queue[0].parsed.rows
            if calls and (rows > _RUN_ROWS or first.answered_by != calls[0].answered_by):
                break
            calls.append(self._queue.popleft())
        return calls

    def _rest(self, began: float) -> None:
        """Give way after a step that began then: rest as long as the busy share asks for."""
        now = time.monotonic()
        until = now + (now - began) * (1 / _BUSY_SHARE - 1)
        while self._in_flight() and (left := until - time.monotonic()) > 0:
            if self._ending.wait(min(left, _LOOK_SECONDS)):
                return

    def _failed(self, call: _Call, error: Exception) -> None:
        """Count a failure, and log it: of many in a row one a minute."""
        ranked = call.ranked
        self._count(ranked, "failed")
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

    def _process(self, calls: list[_Call]) -> None:
        """Score calls together; if that fails, each alone."""
        if not calls:
            return
        try:
            scored = self._score(calls)
        except Exception as error:
            if len(calls) == 1:
                self._failed(calls[0], error)
            else:
                for call in calls:
                    self._process([call])
            return
        for call, one in zip(calls, scored, strict=True):
            began = time.monotonic()
            try:
                self._compare(call, *one)
                self._count(call.ranked, "scored")
            except Exception as error:
                self._failed(call, error)
            self._rest(began)

    def _score(self, calls: list[_Call]) -> list[tuple[RankerVersion, ParsedRequest, Arrays]]:
        """The other version, and for each call what it reads and scores."""
        ranked = calls[0].ranked
        assert ranked.side is not None
        trial = ranked.side.trial.version
        manager = self._models.manager(ranked.model)
        other = manager.acquire(None if ranked.version == trial else trial)
        try:
            if other.number == ranked.version:
                raise LookupError(f"version {trial} is no longer on trial")
            requests = []
            for call in calls:
                began = time.monotonic()
                requests.append(call.read(other))
                self._rest(began)
            outputs = self._run_in_parts(other, requests)
        finally:
            other.saved_model.release()
        if not np.isfinite(outputs[SCORE]).all():
            raise ValueError("a score is not finite")
        each = divide(outputs, [one.rows for one in requests])
        return [(other, one, its) for one, its in zip(requests, each, strict=True)]

    def _run_in_parts(self, other: RankerVersion, requests: list[ParsedRequest]) -> Arrays:
        """Outputs for the rows of all requests."""
        signature = other.saved_model.signatures[RANK]
        assert signature.layout is not None
        joined = join_calls([one.inputs for one in requests], signature.layout)
        rows, parts = sum(one.rows for one in requests), []
        for part, _ in split_call(joined, rows, _RUN_ROWS, signature.layout):
            began = time.monotonic()
            parts.append(signature(part))
            self._rest(began)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _compare(
        self, call: _Call, other: RankerVersion, parsed: ParsedRequest, outputs: Arrays
    ) -> None:
        """Compare the scores of both versions, and write the rows of the other one."""
        ranked = call.ranked
        assert ranked.side is not None
        trial = ranked.side.trial.version
        number, contract = other.number, other.contract
        rows, positions = aligned(call.parsed, ranked.order, parsed, outputs)
        pairs = pairs_agreement(call.parsed, ranked.outputs, parsed, outputs)
        overlap = overlap_of(call.parsed, ranked.order, parsed, rank_order(outputs, parsed))
        if pairs is not None:
            self._metrics.shadow_pairs.observe(pairs, ranked.model, str(trial))
        self._metrics.shadow_overlap.observe(overlap, ranked.model, str(trial))
        if self._files is None:
            return
        pa, known = self._files.pyarrow, rows >= 0
        table = rows_of(pa, [ranked], {contract.user, contract.item})
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
    # Each pair stands there twice, and each item beside itself.
    count = len(best)
    return float(np.count_nonzero(same) - count) / (count * (count - 1))


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
