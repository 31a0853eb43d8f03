"""TensorBoard logs, on either backend: losses per task and gate diagnostics, once per epoch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


class Logs:
    """Writes event files for training and validation, side by side in TensorBoard.

    Args:
        folder: of the logs; gets `train/` and `validation/`.
    """

    def __init__(self, folder: Path) -> None:
        self._writers = {
            split: tf.summary.create_file_writer(str(folder / split))
            for split in ("train", "validation")
        }

    def write(self, split: str, epoch: int, values: Mapping[str, Any]) -> None:
        """Write the numbers of one epoch; a list becomes one scalar per index.

        Raises:
            OSError: the files cannot be written.
        """
        with _os_error(), self._writers[split].as_default():
            for name, value in values.items():
                if np.ndim(value):
                    for index, number in enumerate(value):
                        tf.summary.scalar(f"{name}/{index}", number, step=epoch)
                else:
                    tf.summary.scalar(name, value, step=epoch)

    def close(self) -> None:
        """Flush and close the files.

        Raises:
            OSError: the files cannot be written.
        """
        with _os_error():
            for writer in self._writers.values():
                writer.close()


@contextmanager
def _os_error() -> Iterator[None]:
    """Raise TensorFlow's errors about files as OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(str(error)) from None
