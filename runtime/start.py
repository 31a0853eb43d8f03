"""Loads TensorFlow at the start of a process, without the notices that it prints."""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from multigate.runtime.memory import keep_freed


def start_runtime() -> None:
    """Load TensorFlow's library, and look for devices; for a process that runs versions.

    Raises:
        ModelRuntimeError: the library cannot be used.
    """
    # oneDNN's kernels take longer to start than a product of a few hundred rows takes.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    keep_freed()
    with _no_notices():
        from multigate.runtime.devices import has_gpu

        has_gpu()


def import_backend() -> None:
    """Import what Keras trains on, if that is TensorFlow; JAX starts without notices.

    `~/.keras/keras.json` is not read: with JAX in it, TensorFlow is imported for nothing.
    """
    if (os.environ.get("KERAS_BACKEND") or "tensorflow") == "tensorflow":
        import_tensorflow()


def import_tensorflow() -> None:
    """Import TensorFlow's Python, and look for devices; for a process that trains or exports."""
    with _no_notices():
        tensorflow = importlib.import_module("tensorflow")
        tensorflow.config.list_physical_devices()
        tensorflow.get_logger().setLevel("ERROR")


@contextmanager
def _no_notices() -> Iterator[None]:
    """Drop what is written to the standard error stream; no setting silences all notices."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notices:
        os.dup2(notices.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
