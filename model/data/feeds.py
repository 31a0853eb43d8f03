"""Batches for training and evaluation, epoch after epoch, from memory or from disk.

The order of the rows is a function of seed and epoch alone, so that an interrupted epoch goes on
where it stopped: `epoch(number, skip)` gives what would have come after `skip` batches.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import keras
import numpy as np

from multigate.configs.contract import Contract, IdListFeature
from multigate.configs.errors import MultigateError
from multigate.configs.sections.model import TrainConfig
from multigate.configs.statistics import Statistics
from multigate.model import backend
from multigate.model.backend.workers import Workers
from multigate.model.data.examples import Examples, Group, Split, concatenate, targets

Arrays = Any
"""(features, targets (N, T)), or the same and weights (N,): nested arrays of N rows."""


class Feed(Protocol):
    """One split as input of `fit` and `evaluate`.

    Attributes:
        rows: of the split.
        size: B, rows of a batch; the last of an epoch may have fewer.
        steps: batches of an epoch.
        failure: what went wrong while reading, where TensorFlow's own error hides it.
    """

    rows: int
    size: int
    steps: int
    failure: MultigateError | None

    def epoch(self, number: int | None = None, skip: int = 0) -> Any:
        """Batches of all rows but those of the first `skip` batches.

        Args:
            number: of the epoch, which decides the order; the files' order where None.
            skip: batches that are left out.
        """

    def sample(self, limit: int) -> Examples:
        """At most `limit` rows, spread evenly over the split."""


class MemoryFeed:
    """A split in memory, shuffled row by row.

    On TensorFlow batches are gathered in C++ ahead of the model (`tf.data`), some ten times as
    fast as training consumes them; on other backends by NumPy, between two steps.

    Args:
        examples: N rows.
        contract: whose tasks' targets are made.
        statistics: of the training split.
        size: B.
        seed: of the order.
        workers: who share each batch; this process has all of it where None.
    """

    def __init__(
        self,
        examples: Examples,
        contract: Contract,
        statistics: Statistics,
        size: int,
        seed: int = 0,
        workers: Workers | None = None,
    ) -> None:
        self.rows, self.size = len(examples), size
        self.steps = -(-self.rows // size)
        self.failure: MultigateError | None = None
        self._examples, self._seed, self._workers = examples, seed, workers
        self._arrays = to_arrays(examples, contract, statistics)
        if backend.name() == "tensorflow":
            import tensorflow as tf

            # Tensors once and for all: every epoch's pipeline refers to them, none copies them.
            self._arrays = tf.nest.map_structure(tf.constant, self._arrays)

    def epoch(self, number: int | None = None, skip: int = 0) -> Any:
        """See `Feed`."""
        order = np.arange(self.rows) if number is None else shuffled(self.rows, self._seed, number)
        order, size = order[skip * self.size :], self.size
        arrays = self._arrays
        if backend.name() != "tensorflow":
            return (
                take(arrays, order[start : start + size]) for start in range(0, len(order), size)
            )
        import tensorflow as tf

        if self._workers is not None:
            order, size = self._shared(order)
        rows = tf.constant(order)
        # By step, not by row: a worker's share of the last batch may be empty, and still counts.
        return (
            tf.data.Dataset.range(self.steps - skip)
            .map(lambda step: rows[step * size : (step + 1) * size])
            .map(lambda index: tf.nest.map_structure(lambda a: tf.gather(a, index), arrays))
            .prefetch(4)
        )

    def _shared(self, order: np.ndarray) -> tuple[np.ndarray, int]:
        """The worker's rows of every batch, and how many it has of a whole one."""
        assert self._workers is not None
        whole = len(order) // self.size * self.size
        mine = order[:whole].reshape(-1, self.size)[:, self._workers.share(self.size)]
        rest = order[whole:][self._workers.share(len(order) - whole)]
        return np.concatenate([mine.ravel(), rest]), mine.shape[1]

    def sample(self, limit: int) -> Examples:
        """See `Feed`."""
        return self._examples.take(slice(None, None, -(-self.rows // limit)))


class StreamFeed:
    """A split that is read from disk as training goes on, because memory does not hold it.

    An epoch reads the row groups in a random order.  Groups are put together until they hold
    `buffer` rows, which are shuffled among themselves; the next ones are read and encoded
    meanwhile.  Memory holds two such blocks.

    Args:
        split: what to read.
        contract: whose tasks' targets are made.
        statistics: of the training split.
        size: B.
        seed: of the order.
        buffer: rows that are shuffled together, at least; a row group is never split.
        workers: who share each batch; this process has all of it where None.  Each reads all
            rows, and keeps its own.
    """

    def __init__(
        self,
        split: Split,
        contract: Contract,
        statistics: Statistics,
        size: int,
        seed: int = 0,
        buffer: int = 1 << 18,
        workers: Workers | None = None,
    ) -> None:
        self.rows, self.size = split.rows, size
        self.steps = -(-self.rows // size)
        self.failure: MultigateError | None = None
        self._split, self._seed, self._buffer, self._workers = split, seed, buffer, workers
        self._signature: Any = None
        self._convert: Callable[[Examples], Arrays] = lambda examples: to_arrays(
            examples, contract, statistics
        )

    def epoch(self, number: int | None = None, skip: int = 0) -> Any:
        """See `Feed`."""
        if backend.name() != "tensorflow":
            return (
                keras.tree.map_structure(lambda a, i=index: a[i], chunk)
                for chunk in self._chunks(number, skip)
                for index in range(len(chunk[1]))
            )
        import tensorflow as tf

        if self._signature is None:
            first = self._convert(next(self._split.read(self._split.groups[:1])).take(slice(1)))
            self._signature = tf.nest.map_structure(
                lambda a: tf.TensorSpec((None, None, *a.shape[1:]), a.dtype), first
            )

        def cut(*chunk: Any) -> Any:
            # Not `unbatch`, which crashes on a batch without rows, as a worker may have.
            numbers = tf.data.Dataset.range(tf.shape(chunk[1], tf.int64)[0])
            return numbers.map(lambda n: tf.nest.map_structure(lambda a: a[n], chunk))

        # Whole chunks cross from Python: a call costs as much for a batch as for a thousand.
        return (
            tf.data.Dataset.from_generator(
                lambda: self._chunks(number, skip), output_signature=self._signature
            )
            .flat_map(cut)
            .prefetch(4)
        )

    def sample(self, limit: int) -> Examples:
        """See `Feed`."""
        step = -(-self.rows // limit)
        parts, passed = [], 0
        for part in self._split.read(self._split.groups):
            parts.append(part.take(slice(-passed % step, None, step)))
            passed += len(part)
        return concatenate(parts)

    def _chunks(self, number: int | None, skip: int) -> Iterator[Arrays]:
        """An epoch as arrays (batches, B, ...); what is left at its end comes as (1, rows, ...)."""
        B, left = self.size, None
        for block in self._blocks(number, skip * self.size):
            rows = block if left is None else keras.tree.map_structure(_join, left, block)
            whole = len(rows[1]) // B * B
            if whole:
                yield self._share(
                    keras.tree.map_structure(
                        lambda a, n=whole: a[:n].reshape(n // B, B, *a.shape[1:]), rows
                    )
                )
            # Copied, so that the rest does not hold the block in memory.
            left = keras.tree.map_structure(lambda a, n=whole: a[n:].copy(), rows)
        if left is not None and len(left[1]):
            yield self._share(keras.tree.map_structure(lambda a: a[None], left))

    def _share(self, chunk: Arrays) -> Arrays:
        """The worker's rows of batches (batches, B, ...)."""
        if self._workers is None:
            return chunk
        mine = self._workers.share(chunk[1].shape[1])
        return keras.tree.map_structure(lambda a: a[:, mine], chunk)

    def _blocks(self, number: int | None, skip: int) -> Iterator[Arrays]:
        """An epoch's rows but the first `skip`, block by block, each read while another is used."""
        plan = []
        for index, groups in enumerate(self._plan(number)):
            rows = sum(group.rows for group in groups)
            if skip < rows:
                plan.append((index, groups, skip))
            skip = max(skip - rows, 0)
        with ThreadPoolExecutor(1) as reader:
            ahead = None
            for entry in [*plan, None]:
                ready, ahead = ahead, entry and reader.submit(self._load, number, *entry)
                if ready is not None:
                    yield ready.result()

    def _plan(self, number: int | None) -> list[list[Group]]:
        """The epoch's row groups in order, those together that are shuffled together."""
        groups = self._split.groups
        if number is not None:
            groups = [groups[i] for i in shuffled(len(groups), self._seed, number)]
        blocks: list[list[Group]] = []
        rows = self._buffer
        for group in groups:
            if rows >= self._buffer:
                blocks.append([])
                rows = 0
            blocks[-1].append(group)
            rows += group.rows
        return blocks

    def _load(self, number: int | None, block: int, groups: list[Group], skip: int) -> Arrays:
        try:
            arrays = self._convert(concatenate(list(self._split.read(groups))))
        except MultigateError as error:
            self.failure = error
            raise
        if number is None:
            return take(arrays, slice(skip, None))
        return take(arrays, shuffled(len(arrays[1]), self._seed, number, block)[skip:])


def make_feed(
    split: Split,
    contract: Contract,
    statistics: Statistics,
    size: int,
    options: TrainConfig,
    workers: Workers | None = None,
) -> Feed:
    """A feed from memory where `train.memory` holds the split, else from disk."""
    if split.rows * row_bytes(contract) <= options.memory * 2**30:
        examples = concatenate(list(split.read(split.groups)))
        return MemoryFeed(examples, contract, statistics, size, options.seed, workers)
    return StreamFeed(
        split, contract, statistics, size, options.seed, options.shuffle_rows, workers
    )


def row_bytes(contract: Contract) -> int:
    """Bytes of an encoded row: four for each number, id, list entry, label and the user's hash."""
    words = len(contract.tasks) + 1
    for feature in contract.features.values():
        words += feature.max_length if isinstance(feature, IdListFeature) else 1
        words += getattr(feature, "missing", "") == "indicator"
    return 4 * words


def shuffled(rows: int, *seeds: int) -> np.ndarray:
    """A random order of the rows (N,): a function of the seeds alone."""
    return np.random.default_rng(list(seeds)).permutation(rows)


def to_arrays(examples: Examples, contract: Contract, statistics: Statistics) -> Arrays:
    """Features, targets and, where rows have them, weights."""
    aims = targets(examples, contract, statistics)
    if examples.weights is None:
        return examples.features, aims
    return examples.features, aims, examples.weights


def take(arrays: Arrays, rows: np.ndarray | slice) -> Arrays:
    """Some rows of every array."""
    return keras.tree.map_structure(lambda a: a[rows], arrays)


def _join(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate([first, second])
