"""Opens a SavedModel with the runtime that an option names."""

from pathlib import Path
from typing import Any, Literal

Runtime = Literal["c", "python"]
"""c: TensorFlow's C interface; python: a session of TensorFlow's Python."""


def open_session(runtime: Runtime, folder: Path, parallelism: tuple[int, int]) -> Any:
    """A `Session` or a `PythonSession`.

    Args:
        runtime: which one.
        folder: the version's.
        parallelism: threads within an operation, and threads across operations; -1 for the latter
            means the calling thread.

    Raises:
        ModelRuntimeError: the folder cannot be loaded.
    """
    if runtime == "python":
        from multigate.serving.runtime.python_session import PythonSession

        return PythonSession(folder, parallelism)
    from multigate.serving.runtime.session import Session

    return Session(folder, parallelism)
