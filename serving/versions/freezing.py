"""Freezing: replaces a loaded graph's variables by constants, so that a call runs fewer operations.

For one call of the Deskdrop model, 980 operations become 775, as no variable is looked up and read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

MAX_BYTES = 64 << 20
"""Of the variables.  Each signature copies its constants, and a graph can hold 2 GiB at most."""


def small_enough(folder: Path) -> bool:
    """Whether the version's variables are small enough to become constants."""
    files = (folder / "variables").glob("variables.data-*")
    return sum(file.stat().st_size for file in files) <= MAX_BYTES


def freeze_variables(session: Any, definitions: Iterable[Any], config: Any) -> Any:
    """Make a session with the same signatures, but without variables; closes the given one.

    Args:
        session: of the loaded version, its variables and tables initialised.
        definitions: its SignatureDefs.
        config: ConfigProto of the new session.

    Raises:
        Exception: whatever TensorFlow raises for a graph that cannot be converted.
    """
    outputs = {info.name for definition in definitions for info in definition.outputs.values()}
    tables = [operation.name for operation in session.graph.get_collection("saved_model_main_op")]
    nodes = sorted({name.partition(":")[0] for name in outputs} | set(tables))
    constants = tf.compat.v1.graph_util.convert_variables_to_constants(
        session, session.graph.as_graph_def(), nodes
    )
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(constants, name="")
    pruned = config_pb2.ConfigProto()
    pruned.CopyFrom(config)
    # Otherwise TensorFlow optimises the whole graph once per signature: half a second of CPU each
    # for Deskdrop, to make a batched run 1 % cheaper and a single one 5 %.
    pruned.graph_options.place_pruned_graph = True
    frozen = tf.compat.v1.Session(graph=graph, config=pruned)
    for table in tables:
        frozen.run(graph.get_operation_by_name(table))
    session.close()
    return frozen
