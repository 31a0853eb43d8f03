"""Data-parallel training on TensorFlow: every process (a worker) trains on its rows of each batch.

Every worker holds the whole model and computes loss and gradients of its rows.  TensorFlow's
collectives (a ring on CPUs, NCCL on GPUs) add them up.  Losses are divided by the number of labels
in the whole batch.  So where the loss of a row depends on that row alone, the step is that of one
process on the whole batch, apart from rounding.  What gates compute over the batch (balance losses,
capacities), they compute over each worker's rows, and every worker draws its own noise
(`Workers.spread_noise`).

TensorFlow's environment variable TF_CONFIG lists the workers:

    {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}

Worker 0 writes the checkpoint.  All must see its folder, to continue from the same snapshot.
A host with several GPUs runs one worker per GPU, with CUDA_VISIBLE_DEVICES.

When a worker dies, the others end within seconds, because TensorFlow's workers watch each other's
heartbeats.  All of them can then be started again from the last snapshot.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from multigate.configs.errors import ModelError
from multigate.model.backend.peers import wait_for_peers

Tensor = Any

_GROUP = 1_000  # key of the collectives' group of all workers; TensorFlow's own keys start at 0
_ROWS = 1_000  # number of the first message with rows of tables
_LENGTHS = np.ceil(16 * 1.125 ** np.arange(150)).astype(np.int32)  # up to 6e8 rows


class Workers:
    """The process's place among the workers.

    Make it before TensorFlow runs anything, because it starts the server of the collectives.

    Attributes:
        rank: number of this worker; worker 0 writes.
        size: number of workers.

    Raises:
        ModelError: no cluster in TF_CONFIG.
        PeerError: the others have not started within `WAIT_S` seconds.
    """

    def __init__(self) -> None:
        try:
            cluster = json.loads(os.environ["TF_CONFIG"])
            self.size = len(cluster["cluster"]["worker"])
            self.rank = int(cluster["task"]["index"])
        except (KeyError, TypeError, ValueError):
            raise ModelError(
                "train.data_parallel: expected the environment variable TF_CONFIG to hold JSON "
                "with cluster.worker, a list of host:port, and task.index; received "
                f"{os.environ.get('TF_CONFIG', 'none')!r:.200}"
            ) from None
        self._strategy = None
        if self.size > 1:
            import tensorflow as tf

            with wait_for_peers(cluster["cluster"]["worker"], self.rank):
                pass
            # It connects the workers; its variables and replicas are not used.
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: TensorFlow's server ends with the process."""

    def own_rows(self, rows: int) -> slice:
        """The worker's own rows of a batch of so many rows."""
        return slice(self.rank * rows // self.size, (self.rank + 1) * rows // self.size)

    def spread_noise(self, model: keras.Model) -> None:
        """Give the model's random generators (of gates and dropout) this worker's own seeds.

        All workers build and restore the same model, so without this they would draw the same
        noise for different rows.  Initial weights do not change.  Worker 0 keeps its seeds, and so
        does a worker that trains alone.
        """
        if self.rank == 0:
            return
        for layer in model._flatten_layers():
            for generator in layer._seed_generators:
                seed, drawn = (
                    int(number) for number in keras.ops.convert_to_numpy(generator.state)
                )
                own = np.random.SeedSequence([seed, self.rank]).generate_state(1)[0]
                generator.state.assign([int(own), drawn])

    def all_reduce(self, values: Sequence[Tensor], key: int) -> list[Tensor]:
        """Sum tensors over all workers, in one message; no gradient flows through.

        Args:
            values: float32 tensors, of the same shapes on every worker.
            key: number of the message in a step, from 1; every call in the code has its own.
        """
        import tensorflow as tf

        if self.size == 1:
            return list(values)
        dense = [tf.convert_to_tensor(value) for value in values]  # sums repeated rows of a table
        flat = tf.concat([tf.reshape(value, [-1]) for value in dense], 0)
        total = tf.raw_ops.CollectiveReduceV2(
            input=tf.stop_gradient(flat),
            group_size=self.size,
            group_key=_GROUP,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
        parts = tf.split(total, [tf.size(value) for value in dense], num=len(dense))
        return [tf.reshape(part, tf.shape(v)) for part, v in zip(parts, dense, strict=True)]

    def all_gather(
        self, gradients: Sequence[tuple[Tensor, Tensor]], key: int
    ) -> list[tuple[Tensor, Tensor]]:
        """The rows and values of all workers, one worker after the other, for each table.

        A message is as long as that of the worker that has touched most rows, or a little longer:
        TensorFlow wants one shape for each number of a message, so lengths are those of `_LENGTHS`,
        each with a number of its own.

        Args:
            gradients: rows (U,) int32 and values (U, d) float32 of each table; U may differ
                between workers.
            key: of the first message, which tells the workers how many rows there are.
        """
        import tensorflow as tf

        if self.size == 1 or not gradients:
            return list(gradients)
        counts = self._gather(tf.stack([tf.size(rows) for rows, _ in gradients])[None], key)
        found = []
        for index, (rows, values) in enumerate(gradients):
            of_worker = counts[:, index]  # (size,)
            place = tf.searchsorted(_LENGTHS, tf.reduce_max(of_worker)[None])[0]
            length = tf.gather(_LENGTHS, place)
            missing = length - tf.size(rows)
            number = _ROWS + 2 * len(_LENGTHS) * index + place
            all_rows = self._gather(tf.pad(rows, [[0, missing]]), number)
            padded = tf.pad(values, [[0, missing], [0, 0]])
            all_values = self._gather(padded, number + len(_LENGTHS))
            real = tf.reshape(tf.sequence_mask(of_worker, length), [-1])
            found.append((tf.boolean_mask(all_rows, real), tf.boolean_mask(all_values, real)))
        return found

    def _gather(self, value: Tensor, key: Any) -> Tensor:
        """The tensors of all workers, of one shape, joined along their first axis."""
        import tensorflow as tf

        return tf.raw_ops.CollectiveGatherV2(
            input=tf.stop_gradient(value),
            group_size=self.size,
            group_key=_GROUP,
            instance_key=key,
            ordering_token=[],
        )

    def fractions(self, counts: Sequence[Tensor]) -> list[Tensor]:
        """The worker's fraction of each count (a scalar) over all workers; 0 if the sum is 0."""
        import tensorflow as tf

        totals = self.all_reduce(counts, key=1)
        return [tf.math.divide_no_nan(n, total) for n, total in zip(counts, totals, strict=True)]
