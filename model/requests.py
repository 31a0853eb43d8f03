"""Requests that travel with a version: one with its answer, and those that warm a server up."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from configs.contract import Contract
from configs.files import write_json
from model.raw import Raw, raw_values, take
from model.servable import RANK, ROWS

GOLDEN = "golden.json"
WARMUP = "tf_serving_warmup_requests"
"""The name under which TensorFlow Serving looks for it in assets.extra."""

CANDIDATES = (1, 16, 128, 512)
"""Sizes of the warm-up's `rank` requests, each for one user."""
ROW_COUNTS = (1, 32)
"""Sizes of the warm-up's `serving_default` requests."""


def write(
    folder: Path, model: str, contract: Contract, table: pa.Table, signatures: Mapping[str, Any]
) -> None:
    """Write `golden.json` and `tf_serving_warmup_requests`.

    Args:
        folder: assets.extra of the version.
        model: the name under which it is served.
        contract: of the version.
        table: real rows to take requests from.
        signatures: of the loaded SavedModel, which answers the golden request.
    """
    golden = rank_request(contract, table, 8)
    answer = {name: value.numpy() for name, value in signatures[RANK](**golden).items()}
    write_json(
        folder / GOLDEN,
        {
            "signature": RANK,
            "inputs": {name: _as_json(value) for name, value in golden.items()},
            "outputs": {name: _as_json(value) for name, value in answer.items()},
        },
    )
    requests = [(RANK, rank_request(contract, table, count)) for count in CANDIDATES]
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    rows = raw_values(contract, table, names)
    requests += [(ROWS, take(rows, np.arange(count) % table.num_rows)) for count in ROW_COUNTS]
    with tf.io.TFRecordWriter(str(folder / WARMUP)) as writer:
        for signature, raw in requests:
            writer.write(_prediction_log(model, signature, raw).SerializeToString())


def rank_request(contract: Contract, table: pa.Table, candidates: int) -> Raw:
    """Raw inputs of `rank` for the first row's user and the items of the first rows, repeated."""
    user = [name for name, _ in contract.of_side("user", "context")]
    item = [name for name, _ in contract.of_side("item")]
    rows = np.arange(candidates) % table.num_rows
    weights = [task.score_weight for task in contract.tasks.values()]
    return {
        **take(raw_values(contract, table.slice(0, 1), user), slice(1)),
        **raw_values(contract, table.take(rows), item),
        "user_index": np.zeros(candidates, np.int32),
        "task_weights": np.array([weights], np.float32),
    }


def _as_json(value: np.ndarray) -> dict[str, Any]:
    dtype = "string" if value.dtype == object else value.dtype.name
    return {"dtype": dtype, "shape": list(value.shape), "values": value.ravel().tolist()}


def _prediction_log(model: str, signature: str, raw: Raw) -> prediction_log_pb2.PredictionLog:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, value in raw.items():
        dtype = tf.string if value.dtype == object else None
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype, value.shape))
    return prediction_log_pb2.PredictionLog(
        predict_log=prediction_log_pb2.PredictLog(request=request)
    )
