"""Batches for training and evaluation, epoch after epoch, from memory or from disk.

The order of the rows depends on seed and epoch only, so an interrupted epoch can continue where it
stopped: `epoch(number, skip)` gives the batches after the first `skip`.

Examples that know their requests are shuffled by request, and then within each: a batch holds the
rows of a request together, but for one that it cuts at its end.  A stream does so within its
blocks.

The shuffle of `tf.data` was considered: to continue an epoch it must read again all rows that it
skips.  So the order is computed here, and on TensorFlow `tf.data` gathers the rows.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import keras
import numpy as np

from multigate.configs.contract import Contract, IdListFeature, TextFeature, VectorFeature
from multigate.configs.errors import MultigateError
from multigate.configs.files import REQUEST
from multigate.configs.sections.model import TrainConfig
from multigate.configs.statistics import Statistics
from multigate.model import backend
from multigate.model.backend.workers import Workers
from multigate.model.data.ahead import DEPTH, ahead, prefetched
from multigate.model.data.examples import Examples, Lesson, RowGroup, Split, concatenate, targets

Arrays = Any
"""(features, targets (N, T)) or (features, targets, weights (N,)): nested arrays of N rows."""


class Feed(Protocol):
    """One split as input of `fit` and `evaluate`.

    Attributes:
        rows: number of rows of the split.
        size: B, rows of a batch; the last batch of an epoch may have fewer.
        steps: number of batches of an epoch.
        failure: the error while reading, if TensorFlow's own error hides it.
    """

    rows: int
    size: int
    steps: int
    failure: MultigateError | None

    def epoch(self, number: int | None = None, skip: int = 0) -> Any:
        """The batches of an epoch after the first `skip`.

        Args:
            number: of the epoch, which decides the order; None for the order of the files.
            skip: number of batches to leave out.
        """

    def teach(self, lessons: Mapping[str, Lesson]) -> None:
        """From the next epoch on, targets have a teacher's part, by task that is taught."""

    def sample(self, limit: int) -> Examples:
        """At most `limit` rows, spread evenly over the split."""

    def labelled(self, steps: Mapping[int, int]) -> Examples:
        """Of each of some tasks every n-th row that has its label, in the order of the files.

        Args:
            steps: n by the task's place in the contract.
        """


class MemoryFeed:
    """A split in memory, shuffled row by row, or by requests.

    On TensorFlow `tf.data` gathers batches in C++ ahead of the model, some ten times as fast as
    training consumes them.  On other backends NumPy gathers them, in a thread (`model.data.ahead`).

    Args:
        examples: N rows.
        contract: its tasks give the targets.
        statistics: of the training split.
        size: B.
        seed: of the order.
        workers: the workers that share each batch; None if this process trains alone.
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
        self._targets = functools.partial(targets, examples, contract, statistics)
        self._arrays = _tensors(to_arrays(examples, contract, statistics))

    def epoch(self, number: int | None = None, skip: int = 0) -> Any:
        """See `Feed`."""
        if number is None:
            order = np.arange(self.rows)
        else:
            order = shuffled(self.rows, self._seed, number)
            order = together(order, self._examples.requests)
        order, size = order[skip * self.size :], self.size
        arrays = self._arrays
        if backend.name() != "tensorflow":
            return ahead(
                (take(arrays, order[start : start + size]) for start in range(0, len(order), size)),
                max(DEPTH, backend.steps_at_once()),
            )
        import tensorflow as tf

        if self._workers is not None:
            order, size = self._shared(order)
        rows = tf.constant(order)
        # By step, not by row: a worker must also do a step if it has no rows of the last batch.
        return prefetched(
            tf.data.Dataset.range(self.steps - skip)
            .map(lambda step: rows[step * size : (step + 1) * size])
            .map(lambda index: tf.nest.map_structure(lambda a: tf.gather(a, index), arrays))
        )

    def teach(self, lessons: Mapping[str, Lesson]) -> None:
        """See `Feed`."""
        features, _, *weights = self._arrays
        self._arrays = (features, _tensors(self._targets(lessons)), *weights)

    def _shared(self, order: np.ndarray) -> tuple[np.ndarray, int]:
        """The worker's rows of every batch, and its number of rows of a full batch."""
        assert self._workers is not None
        whole = len(order) // self.size * self.size
        mine = order[:whole].reshape(-1, self.size)[:, self._workers.own_rows(self.size)]
        rest = order[whole:][self._workers.own_rows(len(order) - whole)]
        return np.concatenate([mine.ravel(), rest]), mine.shape[1]

    def sample(self, limit: int) -> Examples:
        """See `Feed`."""
        return self._examples.take(slice(None, None, -(-self.rows // limit)))

    def labelled(self, steps: Mapping[int, int]) -> Examples:
        """See `Feed`."""
        return _labelled([self._examples], steps)


class StreamFeed:
    """A split that is too large for memory and is read from disk during training.

    An epoch reads the row groups in a random order.  Row groups are joined to blocks of at least
    `buffer` rows, and the rows of a block are shuffled.  The next block is read and encoded
    meanwhile, so memory holds two blocks.

    Args:
        split: what to read.
        contract: its tasks give the targets.
        statistics: of the training split.
        size: B.
        seed: of the order.
        buffer: minimum number of rows that are shuffled together; a row group is never divided.
        workers: the workers that share each batch; None if this process trains alone.  Each
            reads all rows and keeps its own.
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
        self._lessons: Mapping[str, Lesson] = {}
        self._convert: Callable[[Examples], Arrays] = lambda examples: to_arrays(
            examples, contract, statistics, self._lessons
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
            # Not `unbatch`: it crashes on a batch without rows, which a worker may have.
            numbers = tf.data.Dataset.range(tf.shape(chunk[1], tf.int64)[0])
            return numbers.map(lambda n: tf.nest.map_structure(lambda a: a[n], chunk))

        # Python hands over whole chunks: a call costs as much for one batch as for a thousand.
        return prefetched(
            tf.data.Dataset.from_generator(
                lambda: self._chunks(number, skip), output_signature=self._signature
            ).flat_map(cut)
        )

    def teach(self, lessons: Mapping[str, Lesson]) -> None:
        """See `Feed`."""
        self._lessons = dict(lessons)

    def sample(self, limit: int) -> Examples:
        """See `Feed`."""
        step = -(-self.rows // limit)
        parts, passed = [], 0
        for part in self._split.read(self._split.groups):
            # Not a slice: its views would keep the whole part in memory.
            parts.append(part.take(np.arange(-passed % step, len(part), step)))
            passed += len(part)
        return concatenate(parts)

    def labelled(self, steps: Mapping[int, int]) -> Examples:
        """See `Feed`."""
        return _labelled(self._split.read(self._split.groups), steps)

    def _chunks(self, number: int | None, skip: int) -> Iterator[Arrays]:
        """An epoch as arrays (batches, B, ...); a smaller last batch comes as (1, rows, ...)."""
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
            # A copy, so that these rows do not keep the block in memory.
            left = keras.tree.map_structure(lambda a, n=whole: a[n:].copy(), rows)
        if left is not None and len(left[1]):
            yield self._share(keras.tree.map_structure(lambda a: a[None], left))

    def _share(self, chunk: Arrays) -> Arrays:
        """The worker's rows of batches (batches, B, ...)."""
        if self._workers is None:
            return chunk
        mine = self._workers.own_rows(chunk[1].shape[1])
        return keras.tree.map_structure(lambda a: a[:, mine], chunk)

    def _blocks(self, number: int | None, skip: int) -> Iterator[Arrays]:
        """An epoch's rows after the first `skip`, in blocks; the next is read ahead."""
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

    def _plan(self, number: int | None) -> list[list[RowGroup]]:
        """The epoch's row groups in order, one list per block."""
        groups = self._split.groups
        if number is not None:
            groups = [groups[i] for i in shuffled(len(groups), self._seed, number)]
        blocks: list[list[RowGroup]] = []
        rows = self._buffer
        for group in groups:
            if rows >= self._buffer:
                blocks.append([])
                rows = 0
            blocks[-1].append(group)
            rows += group.rows
        return blocks

    def _load(self, number: int | None, block: int, groups: list[RowGroup], skip: int) -> Arrays:
        try:
            examples = concatenate(list(self._split.read(groups)))
            arrays = self._convert(examples)
        except MultigateError as error:
            self.failure = error
            raise
        if number is None:
            return take(arrays, slice(skip, None))
        order = shuffled(len(examples), self._seed, number, block)
        return take(arrays, together(order, examples.requests)[skip:])


def make_feed(
    split: Split,
    contract: Contract,
    statistics: Statistics,
    size: int,
    options: TrainConfig,
    workers: Workers | None = None,
) -> Feed:
    """A feed from memory if the split fits into `train.memory`, else from disk."""
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
        if isinstance(feature, IdListFeature | TextFeature):
            words += feature.as_list.max_length
        elif isinstance(feature, VectorFeature):
            words += feature.size
        else:
            words += 1
        words += getattr(feature, "missing", "") == "indicator"
    return 4 * words


def shuffled(rows: int, *seeds: int) -> np.ndarray:
    """A random order of the rows (N,) that depends on the seeds only."""
    return np.random.default_rng(list(seeds)).permutation(rows)


def together(order: np.ndarray, requests: np.ndarray | None) -> np.ndarray:
    """An order (N,) in which the rows of a request follow its first one; as it is without them."""
    if requests is None:
        return order
    _, first, request = np.unique(requests[order], return_index=True, return_inverse=True)
    return order[np.argsort(first[request], kind="stable")]


def to_arrays(
    examples: Examples,
    contract: Contract,
    statistics: Statistics,
    lessons: Mapping[str, Lesson] | None = None,
) -> Arrays:
    """Features, targets (`examples.targets`) and, if the rows have them, weights.

    Requests stand among the features, as int32: neighbours of different requests differ but for
    chance.
    """
    features, aims = examples.features, targets(examples, contract, statistics, lessons)
    if examples.requests is not None:
        features = features | {REQUEST: (examples.requests & 0x7FFFFFFF).astype(np.int32)}
    if examples.weights is None:
        return features, aims
    return features, aims, examples.weights


def take(arrays: Arrays, rows: np.ndarray | slice) -> Arrays:
    """Some rows of every array."""
    return keras.tree.map_structure(lambda a: a[rows], arrays)


def _tensors(arrays: Any) -> Any:
    """On TensorFlow as tensors, so that every epoch's pipeline refers to them and none copies."""
    if backend.name() != "tensorflow":
        return arrays
    import tensorflow as tf

    return tf.nest.map_structure(tf.constant, arrays)


def _join(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate([first, second])


def _labelled(parts: Iterable[Examples], steps: Mapping[int, int]) -> Examples:
    """`Feed.labelled` of a split in parts."""
    found, passed = [], dict.fromkeys(steps, 0)
    for part in parts:
        chosen = [np.zeros(0, np.int64)]
        for task, step in steps.items():
            known = np.flatnonzero(~np.isnan(part.labels[:, task]))
            chosen.append(known[-passed[task] % step :: step])
            passed[task] += len(known)
        found.append(part.take(np.unique(np.concatenate(chosen))))
    return concatenate(found)
