"""The messages of TensorFlow and TensorFlow Serving, imported without executing TensorFlow.

`import tensorflow.core...` would execute the package `tensorflow` first: 8 s and 0.6 GB.  An empty
module takes its place while the messages are imported, and is taken away again: a later
`import tensorflow` works as usual.  All modules of `serving` import these messages from here.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "classification_pb2",
    "config_pb2",
    "get_model_metadata_pb2",
    "get_model_status_pb2",
    "inference_pb2",
    "meta_graph_pb2",
    "model_management_pb2",
    "model_pb2",
    "model_server_config_pb2",
    "model_service_pb2",
    "model_service_pb2_grpc",
    "predict_pb2",
    "prediction_log_pb2",
    "prediction_service_pb2",
    "prediction_service_pb2_grpc",
    "regression_pb2",
    "tensor_pb2",
]

_PACKAGE = "tensorflow"


@contextmanager
def _unexecuted() -> Iterator[None]:
    """The package as an empty module that only knows its folder, unless it is imported already.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    if _PACKAGE in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ImportError("tensorflow: expected the package, received none; install tensorflow")
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]


with _unexecuted():
    from tensorflow.core.framework import tensor_pb2
    from tensorflow.core.protobuf import (
        config_pb2,
        meta_graph_pb2,
    )
    from tensorflow_serving.apis import (
        classification_pb2,
        get_model_metadata_pb2,
        get_model_status_pb2,
        inference_pb2,
        model_management_pb2,
        model_pb2,
        model_service_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_log_pb2,
        prediction_service_pb2,
        prediction_service_pb2_grpc,
        regression_pb2,
    )
    from tensorflow_serving.config import model_server_config_pb2
