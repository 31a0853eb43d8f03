"""A SavedModel loaded through TensorFlow's Python, to compare the server's runtime with."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from multigate.runtime.session import GraphRun, session_config
from multigate.runtime.tensorflow_messages import config_pb2


class PythonSession:
    """Like `runtime.session.Session`, with the same options.

    Attributes:
        definitions: its SignatureDefs, by name.

    Args:
        folder: the version's.
        records: whether `operations` is to be called: the server's executor records none.
    """

    def __init__(self, folder: Path, records: bool = False) -> None:
        graph = tf.Graph()
        config = session_config((1, -1))
        if records:
            config.experimental.ClearField("executor_type")
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        with graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self._session, ["serve"], str(folder))
        self.definitions: dict[str, Any] = dict(loaded.signature_def)

    def runner(self, definition: Any) -> GraphRun:
        """A function that runs a signature: inputs and outputs in the order of their names."""
        options = config_pb2.CallableOptions()
        options.feed.extend(info.name for _, info in sorted(definition.inputs.items()))
        options.fetch.extend(info.name for _, info in sorted(definition.outputs.items()))
        # Session.run, and Session.make_callable with feeds, look up every feed in every call:
        # 590 us with 28 inputs and 9 outputs.  This private method's callable takes 83 us.
        run: GraphRun = self._session._make_callable_from_options(options)
        return run

    def operations(self, definition: Any, inputs: dict[str, Any]) -> list[Any]:
        """What the runtime recorded of one run: a NodeExecStats for each operation."""
        trace = tf.compat.v1.RunMetadata()
        self._session.run(
            {name: info.name for name, info in definition.outputs.items()},
            {definition.inputs[name].name: value for name, value in inputs.items()},
            options=tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE),
            run_metadata=trace,
        )
        return [node for device in trace.step_stats.dev_stats for node in device.node_stats]

    def close(self) -> None:
        """Free the graph."""
        self._session.close()
