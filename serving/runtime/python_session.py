"""A SavedModel loaded through TensorFlow's Python, for `--runtime python`.

Starting takes 8 s and 0.6 GB more than through the C interface (`serving.runtime.session`).  It
remains while the C interface is new.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from multigate.serving.protos.tensorflow_messages import config_pb2
from multigate.serving.runtime.errors import ModelRuntimeError, error_of
from multigate.serving.runtime.session import GraphRun, session_config


class PythonSession:
    """A loaded SavedModel, like `serving.runtime.session.Session`.

    Attributes:
        definitions: its SignatureDefs, by name.
        session: tf.compat.v1.Session.
    """

    def __init__(self, folder: Path, parallelism: tuple[int, int] = (1, -1)) -> None:
        """Load a version folder, and initialise its tables and variables.

        Raises:
            ModelRuntimeError: the folder has no SavedModel, or it is damaged.
        """
        graph = tf.Graph()
        self.session = tf.compat.v1.Session(graph=graph, config=session_config(parallelism))
        self._closed = False
        try:
            with graph.as_default(), _our_errors():
                meta_graph = tf.compat.v1.saved_model.load(self.session, ["serve"], str(folder))
        except BaseException:
            self.close()
            raise
        self.definitions: dict[str, Any] = dict(meta_graph.signature_def)

    def runner(self, definition: Any) -> GraphRun:
        """A function that runs a signature.

        Args:
            definition: its SignatureDef.

        Raises:
            ModelRuntimeError: the graph lacks one of its tensors.
        """
        options = config_pb2.CallableOptions()
        options.feed.extend(info.name for _, info in sorted(definition.inputs.items()))
        options.fetch.extend(info.name for _, info in sorted(definition.outputs.items()))
        with _our_errors():
            # Session.run, and Session.make_callable with feeds, look up every feed in every call:
            # 590 us with 28 inputs and 9 outputs.  This private method's callable takes 83 us.
            run = self.session._make_callable_from_options(options)

        def call(*arrays: np.ndarray, timeout: float | None = None) -> list[np.ndarray]:
            del timeout  # of the C interface alone
            with _our_errors():
                return list(run(*arrays))

        return call

    def close(self) -> None:
        """Free the graph, once the runs in progress have ended."""
        self._closed = True
        self.session.close()


@contextmanager
def _our_errors() -> Iterator[None]:
    """Raise TensorFlow's exceptions as ours."""
    try:
        yield
    except tf.errors.OpError as error:
        raise error_of(error.error_code, error.message) from error
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise ModelRuntimeError(str(error)) from error
