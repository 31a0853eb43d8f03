"""Batches made by a thread ahead of the step that consumes them, by Python or by `tf.data`."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

T = TypeVar("T")

DEPTH = 2
"""Batches that are ready or in the making, besides the one that is consumed."""


def ahead(batches: Generator[T, None, None], depth: int = DEPTH) -> Iterator[T]:
    """The same batches in the same order; a thread makes the next ones meanwhile.

    An error in the thread is raised where its batch is asked for.  The thread ends with the last
    batch, with an error, and when this iterator is closed or nobody refers to it any more.

    Args:
        batches: a generator; only the thread runs it, and it is closed at the end.
        depth: of the queue, at least 1.
    """
    # The thread ends before the generator is closed.
    with closing(batches), ThreadPoolExecutor(1, "batches") as maker:
        queue = deque(maker.submit(next, batches, None) for _ in range(depth))
        while (batch := queue.popleft().result()) is not None:
            queue.append(maker.submit(next, batches, None))
            yield batch


def prefetched(batches: Any) -> Any:
    """A `tf.data.Dataset` with the same batches; its thread makes the next ones meanwhile.

    `tf.data` tunes nothing here: the queue's size is fixed, and one thread gathers faster than a
    model trains.  Its tuning thread would make the end of an epoch wait: it looks at the times T,
    2 T, 4 T, ... and the end waits for its next look, at most a minute (docs/results/input.md).

    Args:
        batches: a `tf.data.Dataset`.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.prefetch(2 * DEPTH).with_options(options)
