"""Data-parallel training on TensorFlow: every process (a worker) trains on its share of each batch.

Every worker holds the whole model and computes the loss and the gradients
of its share of each batch; TensorFlow's collectives (a ring on CPUs, NCCL on GPUs) add them up.
Losses are divided by the number of labels in the whole batch, so that the step is that of one
process on the whole batch, to rounding, wherever the row's loss depends on the row alone.  What
gates take over the batch (balance losses, capacities) is taken over each worker's share, and every
worker draws noise of its own (`Workers.spread_noise`).

The workers are told of one another as TensorFlow wants it, by the environment variable TF_CONFIG:

    {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}

Worker 0 writes the checkpoint.  All must see its folder, to continue from the same snapshot.  A
host with several GPUs runs one worker for each, with CUDA_VISIBLE_DEVICES.

A worker that dies ends the others within seconds (TensorFlow's workers watch one another's
heartbeats), and they can all be started again from the last snapshot.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from multigate.configs.errors import ModelError
from multigate.model.backend.peers import meet

Tensor = Any

_GROUP = 1_000  # the collectives' key of all workers; TensorFlow's own start from 0


class Workers:
    """The process's place among the workers.

    To be made before TensorFlow runs anything: it starts the collectives' server.

    Attributes:
        rank: number of the worker; 0 writes.
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

            with meet(cluster["cluster"]["worker"], self.rank):
                pass
            # Connects the workers; its variables and replicas are not used.
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        """TensorFlow ends its server with the process."""

    def share(self, rows: int) -> slice:
        """The worker's rows of a batch of so many."""
        return slice(self.rank * rows // self.size, (self.rank + 1) * rows // self.size)

    def spread_noise(self, model: keras.Model) -> None:
        """Give the model's random generators (of gates and dropout) this worker's own seeds.

        The workers build and restore equal models, so that without this all would draw the same
        noise for their different rows.  Initial weights are not touched.  Worker 0, and so a
        worker that trains alone, keeps its seeds.
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

    def sum(self, values: Sequence[Tensor], key: int) -> list[Tensor]:
        """Add up tensors over all workers, in one message; no gradient flows through.

        Args:
            values: of the same shapes on every worker, float32.
            key: number of the message in a step, from 1; its own for every place in the code.
        """
        import tensorflow as tf

        if self.size == 1:
            return list(values)
        dense = [tf.convert_to_tensor(value) for value in values]  # adds up rows seen twice
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

    def shares(self, counts: Sequence[Tensor]) -> list[Tensor]:
        """The worker's share in each sum of counts (scalars) over all workers; 0 of nothing."""
        import tensorflow as tf

        totals = self.sum(counts, key=1)
        return [tf.math.divide_no_nan(n, total) for n, total in zip(counts, totals, strict=True)]
