"""Freezing: replaces the variables of a SavedModel by constants.

A server loads such a file sooner, as there is no checkpoint to restore, and a call runs fewer
operations: for Deskdrop 775 in place of 980, as no variable is looked up and read.
"""

import logging
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from multigate.configs.errors import one_line

MAX_BYTES = 64 << 20
"""Of the variables.  Each signature that runs has its own copy of the constants in memory, and a
graph can hold 2 GiB at most."""

_GRAPH, _VARIABLES, _FINGERPRINT = "saved_model.pb", "variables", "fingerprint.pb"

_INIT = "__saved_model_init_op"

log = logging.getLogger(__name__)


def freeze(folder: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Replace the variables of a SavedModel by constants, in place, where that is possible.

    The signatures stay as they are.  TensorFlow reads the result as a SavedModel of version 1:
    `tf.saved_model.load` gives its signatures, and no objects.

    Args:
        folder: of the SavedModel.
        max_bytes: most bytes of variables; with more, the file stays as it is.

    Returns:
        Whether the file has no variables now.
    """
    files = (folder / _VARIABLES).glob("variables.data-*")
    size = sum(file.stat().st_size for file in files)
    if size > max_bytes:
        log.info("%s: keeps its variables: %d bytes are over %d", folder, size, max_bytes)
        return False
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        signatures = loaded.signature_def.values()
        tensors = [i for s in signatures for i in (*s.inputs.values(), *s.outputs.values())]
        names = {info.name.partition(":")[0] for info in tensors}
        names |= {operation.name for operation in graph.get_collection("saved_model_main_op")}
        try:
            constants = tf.compat.v1.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(), sorted(names)
            )
            with tf.Graph().as_default():
                tf.import_graph_def(constants, name="")
        except Exception as error:  # such as for a gather from a variable in a nested function
            reason = one_line(error)
            log.info("%s: cannot be frozen, keeps its variables: %s", folder, reason)
            return False
    saved = saved_model_pb2.SavedModel.FromString((folder / _GRAPH).read_bytes())
    (meta_graph,) = saved.meta_graphs
    meta_graph.graph_def.CopyFrom(constants)
    for node in meta_graph.graph_def.node:
        if node.op == "Const":
            _pack_halves(node.attr["value"].tensor)
    # These describe the variables, and functions that are no longer there.
    meta_graph.ClearField("object_graph_def")
    meta_graph.ClearField("saver_def")
    # The collection `saved_model_main_op` names the same operation, which fills the tables.
    meta_graph.signature_def.pop(_INIT, None)
    (folder / _GRAPH).write_bytes(saved.SerializeToString())
    shutil.rmtree(folder / _VARIABLES)
    (folder / _FINGERPRINT).unlink(missing_ok=True)
    return True


def _pack_halves(tensor: Any) -> None:
    """Store 16-bit floats as two bytes each; TensorFlow writes them as numbers of up to three."""
    values = tensor.half_val
    if len(values) == math.prod(dim.size for dim in tensor.tensor_shape.dim) > 1:
        tensor.tensor_content = np.array(values, "<u2").tobytes()
        tensor.ClearField("half_val")
