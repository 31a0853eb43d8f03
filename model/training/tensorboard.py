"""TensorBoard logs, on either backend: losses per task and gate diagnostics, once per epoch.

Written with TensorBoard's own records instead of `tf.summary`, which would import TensorFlow into a
training on JAX: half a gigabyte, and on a GPU most of its memory.
"""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class Logs:
    """Writes event files for training and validation, side by side in TensorBoard.

    Args:
        folder: of the logs; gets `train/` and `validation/`.

    Raises:
        OSError: the files cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        # TensorBoard takes several files in a folder as one log.
        started = time.time_ns()
        name = f"{started // 10**9}.{socket.gethostname()}.{os.getpid()}.{started % 10**9}"
        self._files = {
            split: folder / split / f"events.out.tfevents.{name}"
            for split in ("train", "validation")
        }
        for split, path in self._files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._add(split, Event(file_version="brain.Event:2"))

    def write(self, split: str, epoch: int, values: Mapping[str, Any]) -> None:
        """Write the numbers of one epoch; a list becomes one scalar per index.

        Raises:
            OSError: the files cannot be written.
        """
        scalars = [
            Summary.Value(tag=name, simple_value=float(number)) for name, number in _flat(values)
        ]
        self._add(split, Event(step=epoch, summary=Summary(value=scalars)))

    def _add(self, split: str, event: Event) -> None:
        event.wall_time = time.time()
        # Opened each time: a full disk is told at once, and nothing has to be closed.
        with self._files[split].open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if np.ndim(value):
            yield from ((f"{name}/{index}", number) for index, number in enumerate(value))
        else:
            yield name, value
