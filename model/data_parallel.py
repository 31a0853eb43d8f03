"""Data-parallel training: several processes, on one host or many, train one model together.

Every process (a worker) holds the whole model and computes the loss and the gradients of its share
of each batch; TensorFlow's collectives (a ring on CPUs, NCCL on GPUs) add them up.  Losses are
divided by the number of labels in the whole batch, so that the step is that of one process on the
whole batch, to rounding, wherever the row's loss depends on the row alone.  What gates take over
the batch (balance losses, capacities) is taken over each worker's share, and every worker draws
the same noise for its own rows.

The workers are told of one another as TensorFlow wants it, by the environment variable TF_CONFIG:

    {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}

Worker 0 writes the checkpoint.  All must see its folder, to continue from the same snapshot.  A
host with several GPUs runs one worker for each, with CUDA_VISIBLE_DEVICES.

A worker that dies ends the others within seconds (TensorFlow's workers watch one another's
heartbeats), and they can all be started again from the last snapshot.
"""

import json
import os
import threading
from collections.abc import Sequence
from typing import Any

from configs.errors import ModelError
from model import backend

Tensor = Any

_GROUP = 1_000  # the collectives' key of all workers; TensorFlow's own start from 0
WAIT_S = 600.0
"""For the other workers to start."""


class PeerError(ModelError):
    """Another worker ended or did not come; what was saved can be continued."""


def lost_peer(error: Exception) -> PeerError | None:
    """The error of ours for TensorFlow's where another worker is gone; None for any other."""
    import tensorflow as tf

    kinds = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.FailedPreconditionError,
    )
    if not isinstance(error, kinds) and "Collective ops is aborted" not in str(error):
        return None
    return PeerError(
        "train.data_parallel: another worker has ended or cannot be reached; see its own messages, "
        "then start all workers again with --resume"
    )


class Workers:
    """The process's place among the workers.

    To be made before TensorFlow runs anything: it starts the collectives' server.

    Attributes:
        rank: number of the worker; 0 writes.
        size: number of workers.

    Raises:
        ModelError: another backend than TensorFlow, or no cluster in TF_CONFIG.
        PeerError: the others have not started within `WAIT_S` seconds.
    """

    def __init__(self) -> None:
        if backend.name() != "tensorflow":
            raise ModelError(
                f"train.data_parallel: expected Keras on tensorflow, received {backend.name()}; "
                "unset KERAS_BACKEND"
            )
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
        self._strategy = _connect() if self.size > 1 else None

    def share(self, rows: int) -> slice:
        """The worker's rows of a batch of so many."""
        return slice(self.rank * rows // self.size, (self.rank + 1) * rows // self.size)

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


def _connect() -> Any:
    """Connect the workers by a strategy, whose variables and replicas are not used."""
    import tensorflow as tf

    found: list[Any] = []

    def connect() -> None:
        try:
            found.append(tf.distribute.MultiWorkerMirroredStrategy())
        except Exception as error:  # is raised again, below
            found.append(error)

    # TensorFlow waits for an hour and more, and cannot be interrupted.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    if found and not isinstance(found[0], Exception):
        return found[0]
    why = f"after {WAIT_S:g} s" if not found else str(found[0]).partition("\n")[0][:200]
    raise PeerError(
        "train.data_parallel: cannot connect to all workers that TF_CONFIG names: "
        f"{why}; start one process for each, and look whether they reach one another"
    )
