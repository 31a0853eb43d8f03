"""Dynamic batching: concurrent calls of one signature share runs of the model.

No thread waits for a batch to fill.  A call that finds a free run slot runs at once, in its own
thread; calls that find none queue, and the thread that gives its slot back hands it to the first
of them, which takes along what else is queued, up to a number of rows.  So an idle server adds
nothing, and a busy one joins the more the busier it is.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from configs.contract import LENGTH
from serving.layout import Arrays, Layout, empty_like
from serving.metrics import ServerMetrics
from serving.status import LOG, Call, OverloadedError, TooLateError

Run = Callable[[Arrays], Arrays]

_QUEUED, _LEADS, _TAKEN, _DONE = "queued", "leads", "taken", "done"


class _Entry:
    """One call, or one part of a large one, on its way through the queue."""

    def __init__(self, inputs: Arrays, rows: int, call: Call) -> None:
        self.inputs = inputs
        self.rows = rows
        self.call = call
        self.arrived = time.perf_counter()
        self.state = _QUEUED
        # Of all that one thread can wait for with a time limit, what costs least.
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.outputs: Arrays | None = None
        self.error: Exception | None = None

    def changed(self) -> None:
        """Wake the thread that waits."""
        self._changes.put(None)

    def wait(self) -> None:
        """Return once something has changed, or the deadline has passed."""
        remaining = self.call.remaining()
        with suppress(queue.Empty):
            self._changes.get(timeout=None if remaining is None else max(remaining, 0.0))


class Batcher:
    """Runs one signature of one version for many callers."""

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
    ) -> None:
        """Batch calls of `run`.

        Args:
            run: the signature.
            layout: its inputs.
            name: of the model and of the signature, for metrics.
            metrics: where queue time and batch size are recorded.
            max_rows: most rows of one run; larger calls are split.
            slots: runs at once.
            max_queued: calls that may wait.
        """
        self._run = run
        self._layout = layout
        self._lists = [key for key, what in layout.inputs.items() if what.role == "list"]
        self._name = name
        self._metrics = metrics
        self._max_rows = max_rows
        self._max_queued = max_queued
        self._lock = threading.Lock()
        self._free = slots
        self._queue: deque[_Entry] = deque()

    def run(self, inputs: Arrays, rows: int, call: Call) -> Arrays:
        """Outputs for one call's validated inputs.

        Args:
            inputs: arrays of the signature.
            rows: N.
            call: whose deadline counts.

        Raises:
            OverloadedError: the queue is full.
            TooLateError: the deadline passed before the model ran.
            CancelledError: the caller went away before the model ran.
        """
        if rows <= self._max_rows:
            return self._one(_Entry(inputs, rows, call))
        # One part after the other: other callers' runs come in between.
        parts = [
            self._one(_Entry(part, part_rows, call))
            for part, part_rows in split(inputs, rows, self._max_rows, self._layout)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _one(self, entry: _Entry) -> Arrays:
        entry.call.check("before the call was queued")
        with self._lock:
            leads = self._free > 0
            if leads:
                self._free -= 1
                entry.state = _LEADS
            elif len(self._queue) >= self._max_queued:
                model, signature = self._name
                raise OverloadedError(
                    f"model {model!r}, signature {signature!r}: {self._max_queued} calls wait "
                    "already; try again later or elsewhere"
                )
            else:
                self._queue.append(entry)
        if not leads:
            self._wait(entry)
        if entry.state == _LEADS:
            self._lead(entry)
        if entry.error is not None:
            raise entry.error
        assert entry.outputs is not None
        return entry.outputs

    def _wait(self, entry: _Entry) -> None:
        """Wait until the entry leads a run or is done; leave once nobody waits for it."""
        entry.call.when_over(entry.changed)
        entry.wait()
        with self._lock:
            if entry.state in {_LEADS, _DONE}:
                return
            if entry.state == _QUEUED:
                self._queue.remove(entry)
        entry.call.check("in the queue")
        raise TooLateError("the deadline passed in the queue")

    def _lead(self, first: _Entry) -> None:
        """Run the entry with others of the queue, then hand the slot on."""
        batch: list[_Entry] = [first]
        try:
            with self._lock:
                rows = first.rows
                while self._queue and rows + self._queue[0].rows <= self._max_rows:
                    entry = self._queue.popleft()
                    entry.state = _TAKEN
                    batch.append(entry)
                    rows += entry.rows
            self._execute([entry for entry in batch if self._still_wanted(entry)])
        finally:
            with self._lock:
                if self._queue:
                    heir = self._queue.popleft()
                    heir.state = _LEADS
                    heir.changed()
                else:
                    self._free += 1
                for entry in batch[1:]:
                    entry.state = _DONE
            for entry in batch[1:]:
                entry.changed()

    def _still_wanted(self, entry: _Entry) -> bool:
        try:
            entry.call.check("in the queue")
        except Exception as error:
            entry.error = error
            return False
        self._metrics.queue_time.observe(time.perf_counter() - entry.arrived, *self._name)
        return True

    def _execute(self, batch: Sequence[_Entry]) -> None:
        """Run entries together; where that fails or spoils a row, each alone."""
        if len(batch) > 1:
            try:
                outputs = self._observed(
                    join([entry.inputs for entry in batch], self._layout), batch
                )
                if all(_finite(values) for values in outputs.values()):
                    _hand_out(outputs, batch)
                    return
            except Exception as error:
                LOG.warning("a joined run failed, its calls run alone: %s", error)
        for entry in batch:
            try:
                entry.call.check("in the queue")
                entry.outputs = self._observed(entry.inputs, [entry])
            except Exception as error:
                entry.error = error

    def _observed(self, inputs: Arrays, batch: Sequence[_Entry]) -> Arrays:
        self._metrics.batch_rows.observe(sum(entry.rows for entry in batch), *self._name)
        self._metrics.batch_calls.observe(len(batch), *self._name)
        if self._lists:
            places = sum(inputs[name].size for name in self._lists)
            held = sum(int(inputs[name + LENGTH].sum()) for name in self._lists)
            self._metrics.list_places.add(*self._name, "value", by=held)
            self._metrics.list_places.add(*self._name, "padding", by=places - held)
        return self._run(inputs)


def join(calls: Sequence[Arrays], layout: Layout) -> Arrays:
    """Concatenate the inputs of several calls.

    Lists of different L are padded at the end, which their lengths tell; each call's user indices
    move up by the users of the calls before it.

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


def split(inputs: Arrays, rows: int, most: int, layout: Layout) -> list[tuple[Arrays, int]]:
    """Cut a call into parts of at most `most` rows; every part keeps all users.

    Args:
        inputs: arrays of the call.
        rows: N.
        most: largest N of a part.
        layout: the signature's inputs.

    Returns:
        Arrays and number of rows of each part.
    """
    parts = []
    for start in range(0, rows, most):
        rows_of_part = slice(start, start + most)
        part = {
            name: inputs[name] if name in layout.on_users else inputs[name][rows_of_part]
            for name in layout.inputs
        }
        parts.append((part, min(most, rows - start)))
    return parts


def _users_before(calls: Sequence[Arrays], layout: Layout) -> list[int]:
    """Users of the calls before each call."""
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


def _hand_out(outputs: Arrays, batch: Sequence[_Entry]) -> None:
    """Give each entry its rows of a joined run."""
    start = 0
    for entry in batch:
        end = start + entry.rows
        entry.outputs = {name: values[start:end] for name, values in outputs.items()}
        start = end
