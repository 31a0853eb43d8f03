"""TensorBoard logs: losses per task and what the gates do, once an epoch, on either backend."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


class Logs:
    """Writes event files for training and validation, side by side in TensorBoard.

    Args:
        folder: of the logs; `train/` and `validation/` are made in it.
    """

    def __init__(self, folder: Path) -> None:
        self._writers = {
            split: tf.summary.create_file_writer(str(folder / split))
            for split in ("train", "validation")
        }

    def write(self, split: str, epoch: int, values: Mapping[str, Any]) -> None:
        """Write one epoch's numbers; a list of numbers becomes one scalar for each index."""
        with self._writers[split].as_default():
            for name, value in values.items():
                if np.ndim(value):
                    for index, number in enumerate(value):
                        tf.summary.scalar(f"{name}/{index}", number, step=epoch)
                else:
                    tf.summary.scalar(name, value, step=epoch)

    def close(self) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()
