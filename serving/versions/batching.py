"""Dynamic batching: concurrent calls of one signature share runs of the model.

No call waits for a time to pass.  A call that finds a free slot runs at once.  The others queue,
and a slot that becomes free runs what is queued, up to a number of rows.  So an idle server adds no
wait, and batches grow with the load.

Where runs and the event loop share a core, a run that begins delays the reading of the calls that
have come, which would then need runs of their own.  So there a run begins once the loop has had
some turns without another call, or where enough calls wait.

Queue and slots belong to the event loop (`serving.core.loop`) and need no lock; only the runs are
in threads.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from multigate.configs.contract import LENGTH
from multigate.runtime.errors import RunTimeoutError
from multigate.runtime.threads import run_threads
from multigate.serving.core.layout import Arrays, Layout, empty_like
from multigate.serving.core.logs import say_run
from multigate.serving.core.loop import ended, for_future
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import (
    LOG,
    Call,
    OverloadedError,
    RequestError,
    TooLateError,
)
from multigate.serving.core.tracing import current

TURNS = 4
"""Turns of the event loop without another call before a run begins on a shared core.  gRPC hands a
call over in several."""
ENOUGH = 8
"""Calls that wait for none of these turns: a run of eight costs half as much a call as one alone,
and larger ones no less."""

Run = Callable[[Arrays, float | None], Arrays]
"""Inputs, and seconds after which nobody waits for the run; None: not known."""
Outcome = Arrays | Exception


class _Entry:
    """A call, or one part of a large call, in the queue or in a run."""

    def __init__(self, inputs: Arrays, rows: int, call: Call) -> None:
        self.inputs = inputs
        self.rows = rows
        self.call = call
        self.arrived = time.perf_counter()
        self.answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        self.trace = current()
        self.run: asyncio.Future[list[Outcome]] | None = None
        """The run that it is part of; None while it is queued."""
        self.run_seconds = 0.0
        """Of its runs that have ended."""

    def resolve(self, outcome: Outcome) -> None:
        """Give the call its outcome, if it still waits."""
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Batcher:
    """Runs one signature of one version, many calls at a time."""

    def __init__(
        self,
        run: Run,
        layout: Layout,
        name: tuple[str, str],
        metrics: ServerMetrics,
        *,
        max_rows: int = 800,
        slots: int = 2,
        max_queued: int = 64,
        turns: int = 0,
    ) -> None:
        """Make a batcher without queued calls.

        Args:
            run: the signature.
            layout: its inputs.
            name: of the model and of the signature, for metrics.
            metrics: records queue time and batch size.
            max_rows: most rows of one run; larger calls are split.
            slots: most runs at once.
            max_queued: most calls that wait.
            turns: of the loop without another call before a run begins; 0: it begins at once.
        """
        self._run = for_future(run)
        self._turns = turns
        self._counts_turns = False
        self._layout = layout
        self._lists = [key for key, what in layout.inputs.items() if what.role == "list"]
        self._name = name
        self._metrics = metrics
        self._max_rows = max_rows
        self._max_queued = max_queued
        self._free = slots
        self._queue: deque[_Entry] = deque()
        self._threads = run_threads()

    async def run(self, inputs: Arrays, rows: int, call: Call) -> Arrays:
        """Outputs for one call's validated inputs.

        A cancelled call leaves the queue.  If it is part of a run, the run goes on, and the
        cancellation waits for it.

        Args:
            inputs: arrays of the signature.
            rows: N.
            call: whose deadline counts.

        Raises:
            OverloadedError: the queue is full.
            TooLateError: the deadline passed before the model ran, or TensorFlow ended the run as
                the deadlines of all its calls had passed.
        """
        if rows <= self._max_rows:
            return await self._enqueue(_Entry(inputs, rows, call))
        # One part after the other, so that other callers' runs come in between.
        parts = [
            await self._enqueue(_Entry(part, part_rows, call))
            for part, part_rows in split_call(inputs, rows, self._max_rows, self._layout)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    async def _enqueue(self, entry: _Entry) -> Arrays:
        entry.call.check("before the call was queued")
        if self._free == 0 and len(self._queue) >= self._max_queued:
            model, signature = self._name
            raise OverloadedError(
                f"model {model!r}, signature {signature!r}: {self._max_queued} calls wait "
                "already; try again later, or call another server"
            )
        self._queue.append(entry)
        self._start_soon()
        try:
            answer = await entry.answer
            say_run(entry.run_seconds)
            return answer
        except asyncio.CancelledError:
            if entry.run is not None:
                await ended(entry.run)
            elif entry in self._queue:
                self._queue.remove(entry)
            raise

    def _start_soon(self) -> None:
        """Run queued calls, at once or after some turns of the loop without another call."""
        if self._counts_turns:
            return
        if self._turns == 0 or not self._queue or self._has_enough():
            self._start_runs()
        elif self._free:
            self._counts_turns = True
            self._after_turn(len(self._queue), self._turns)

    def _after_turn(self, queued: int, left: int) -> None:
        """Run queued calls if none has come for long; otherwise look again after a turn.

        Args:
            queued: how many calls waited the turn before.
            left: turns without another call that are still to be had.
        """
        if len(self._queue) > queued:
            left = self._turns
        if left and self._queue and not self._has_enough():
            loop = asyncio.get_running_loop()
            loop.call_soon(self._after_turn, len(self._queue), left - 1)
        else:
            self._counts_turns = False
            self._start_runs()

    def _has_enough(self) -> bool:
        """Whether a run would gain nothing by another call, or has no room for one like the last.

        Example: with at most 800 rows a run, and two queued calls of 300.
        """
        if len(self._queue) >= ENOUGH:
            return True
        return sum(e.rows for e in self._queue) + self._queue[-1].rows > self._max_rows

    def _start_runs(self) -> None:
        """Run queued calls while slots are free."""
        while self._free and (batch := self._next_batch()):
            try:
                run = asyncio.wrap_future(self._threads.submit(self._execute, batch))
            except RuntimeError as error:  # no thread can be started
                for entry in batch:
                    entry.resolve(error)
                continue
            self._free -= 1
            for entry in batch:
                entry.run = run
            run.add_done_callback(partial(self._finish, batch))

    def _next_batch(self) -> list[_Entry]:
        """Take the next run's entries from the queue; fail those that are past their deadline."""
        batch: list[_Entry] = []
        rows = 0
        while self._queue and (not batch or rows + self._queue[0].rows <= self._max_rows):
            entry = self._queue.popleft()
            try:
                entry.call.check("in the queue")
            except RequestError as error:
                entry.resolve(error)
                continue
            now = time.perf_counter()
            self._metrics.queue_time.observe(now - entry.arrived, *self._name)
            if entry.trace is not None:
                entry.trace.add("queue", entry.arrived, now)
            batch.append(entry)
            rows += entry.rows
        return batch

    def _finish(self, batch: Sequence[_Entry], run: "asyncio.Future[list[Outcome]]") -> None:
        """Free the slot, and give each call its outcome."""
        self._free += 1
        self._start_soon()  # first: calls wait for the model
        for entry, outcome in zip(batch, run.result(), strict=True):
            entry.resolve(outcome)

    def _execute(self, batch: Sequence[_Entry]) -> list[Outcome]:
        """Run entries together; if that fails or gives a value that is not finite, each alone."""
        if len(batch) > 1:
            try:
                outputs = self._run_and_count(
                    join_calls([entry.inputs for entry in batch], self._layout), batch
                )
                if all(_finite(values) for values in outputs.values()):
                    return [*divide(outputs, [entry.rows for entry in batch])]
            except TooLateError as error:
                return [error] * len(batch)
            except Exception as error:
                LOG.warning("a batched run failed; running its calls one by one: %s", error)
        return [self._run_alone(entry) for entry in batch]

    def _run_alone(self, entry: _Entry) -> Outcome:
        try:
            entry.call.check("in the queue")
            return self._run_and_count(entry.inputs, [entry])
        except Exception as error:
            return error

    def _run_and_count(self, inputs: Arrays, batch: Sequence[_Entry]) -> Arrays:
        self._metrics.batch_rows.observe(sum(entry.rows for entry in batch), *self._name)
        self._metrics.batch_calls.observe(len(batch), *self._name)
        if self._lists:
            places = sum(inputs[name].size for name in self._lists)
            held = sum(int(inputs[name + LENGTH].sum()) for name in self._lists)
            self._metrics.list_places.add(*self._name, "value", by=held)
            self._metrics.list_places.add(*self._name, "padding", by=places - held)
        began = time.perf_counter()
        try:
            return self._run(inputs, _longest_wait(batch))
        except RunTimeoutError:
            raise TooLateError("the deadline passed during the run") from None
        finally:
            ended = time.perf_counter()
            for entry in batch:
                entry.run_seconds += ended - began
                if entry.trace is not None:
                    entry.trace.add("run", began, ended, rows=entry.rows, calls=len(batch))


def turns_on(cores: float) -> int:
    """Turns for which a run waits on so many cores of a worker, see `TURNS`."""
    return TURNS if cores < 2 else 0


def _longest_wait(batch: Sequence[_Entry]) -> float | None:
    """Seconds until no call of a run waits any longer; None if one has no deadline."""
    longest = 0.0
    for entry in batch:
        remaining = entry.call.remaining()
        if remaining is None:
            return None
        longest = max(longest, remaining)
    return longest


def join_calls(calls: Sequence[Arrays], layout: Layout) -> Arrays:
    """Concatenate the inputs of several calls.

    Lists are padded at the end to the longest L.  A call's user indices are raised by the number of
    users in the calls before it.  Example: two calls of one user and two rows each, with indices
    [0, 0] and [0, 0], join to [0, 0, 1, 1].

    Args:
        calls: arrays of each call, (N_i, ...) or (M_i, ...).
        layout: the signature's inputs.

    Returns:
        Arrays of (sum of N_i, ...) or (sum of M_i, ...).
    """
    joined: Arrays = {}
    for name, what in layout.inputs.items():
        arrays = [call[name] for call in calls]
        if what.role == "list":
            width = max(array.shape[1] for array in arrays)
            arrays = [_widen(array, width, what.dtype) for array in arrays]
        elif what.role == "index":
            arrays = [
                array + np.int32(offset)
                for array, offset in zip(arrays, _users_before(calls, layout), strict=True)
            ]
        joined[name] = np.concatenate(arrays)
    return joined


def divide(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """Divide the outputs of joined calls by call.

    Args:
        outputs: arrays of (sum of N_i, ...).
        rows: N_i of each call.
    """
    ends = np.cumsum(rows).tolist()
    return [
        {name: values[end - count : end] for name, values in outputs.items()}
        for end, count in zip(ends, rows, strict=True)
    ]


def split_call(
    inputs: Arrays, rows: int, max_rows: int, layout: Layout
) -> list[tuple[Arrays, int]]:
    """Split a call into parts of at most `max_rows` rows; every part keeps all users.

    Args:
        inputs: arrays of the call.
        rows: N.
        max_rows: largest N of a part.
        layout: the signature's inputs.

    Returns:
        Arrays and number of rows of each part.
    """
    parts = []
    for start in range(0, rows, max_rows):
        rows_of_part = slice(start, start + max_rows)
        part = {
            name: inputs[name] if name in layout.on_users else inputs[name][rows_of_part]
            for name in layout.inputs
        }
        parts.append((part, min(max_rows, rows - start)))
    return parts


def _users_before(calls: Sequence[Arrays], layout: Layout) -> list[int]:
    """For each call, the number of users in the calls before it."""
    on_users = next(iter(layout.on_users))
    before = np.cumsum([0, *(len(call[on_users]) for call in calls)])
    return [int(count) for count in before[:-1]]


def _widen(array: np.ndarray, width: int, dtype: str) -> np.ndarray:
    """Pad (N, L) to (N, width)."""
    if array.shape[1] == width:
        return array
    padding = empty_like(dtype, (array.shape[0], width - array.shape[1]))
    return np.concatenate([array, padding], axis=1)


def _finite(values: np.ndarray) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())
