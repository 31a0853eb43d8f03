"""Requests in a version's folder: the golden request with its answer, and warm-up requests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from multigate.configs.contract import Contract, IdListFeature, NumberFeature, VectorFeature
from multigate.configs.files import write_json
from multigate.model.data.raw import Raw, as_json, feature_of, raw_values, take
from multigate.model.export.example_signatures import CLASSIFY, REGRESS
from multigate.model.export.frozen.item_table import ItemTable
from multigate.model.export.graph import RANK, RANK_ITEMS, ROWS
from multigate.runtime.signature import Signature

GOLDEN = "golden.json"
WARMUP = "tf_serving_warmup_requests"
"""Name of the file that TensorFlow Serving reads in assets.extra."""

CANDIDATES = (1, 16, 128, 512)
"""Sizes of the warm-up's `rank` requests, each for one user."""
ROW_COUNTS = (1, 32)
"""Sizes of the warm-up's `serving_default` requests."""


def write(
    folder: Path,
    model: str,
    contract: Contract,
    table: pa.Table,
    signatures: Mapping[str, Signature],
    items: ItemTable | None = None,
    buckets: Sequence[int] = (),
) -> None:
    """Write `golden.json` and `tf_serving_warmup_requests`.

    Args:
        folder: assets.extra of the version.
        model: name under which the version is served.
        contract: of the version.
        table: real rows for the requests.
        signatures: of the loaded SavedModel, for the answer to the golden request.
        items: the item table in the file.
        buckets: sizes to which batches are padded; the warm-up has a batch of each.
    """
    golden = rank_request(contract, table, 8)
    answer = signatures[RANK](golden)
    write_json(
        folder / GOLDEN,
        {
            "signature": RANK,
            "inputs": as_json(golden),
            "outputs": as_json(answer),
        },
    )
    candidates = sorted({*CANDIDATES, *buckets})
    requests = [(RANK, rank_request(contract, table, count)) for count in candidates]
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    rows = raw_values(contract, table, names)
    requests += [
        # Evenly spread: the largest are also the rows that explanations compare with.
        (ROWS, take(rows, np.arange(count) * max(table.num_rows // count, 1) % table.num_rows))
        for count in sorted({*ROW_COUNTS, *buckets})
    ]
    if items is not None and items.complete[: len(items.ids)].any():
        known = np.flatnonzero(items.complete[: len(items.ids)])
        for count in candidates:
            raw = rank_request(contract, table, count)
            raw = {name: v for name, v in raw.items() if feature_of(name) not in items.names}
            ids = items.ids.take(pa.array(known[np.arange(count) % len(known)]))
            raw |= raw_values(contract, pa.table({contract.item: ids}), [contract.item])
            requests.append((RANK_ITEMS, raw))
    logs = [_prediction_log(model, signature, raw) for signature, raw in requests]
    examples = [
        _example(contract, table, row) for row in range(min(table.num_rows, ROW_COUNTS[-1]))
    ]
    for name in sorted(signatures):
        if name == CLASSIFY or name.startswith(REGRESS):
            logs += [_example_log(model, name, examples[:count]) for count in ROW_COUNTS]
    with tf.io.TFRecordWriter(str(folder / WARMUP)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())


def rank_request(contract: Contract, table: pa.Table, candidates: int) -> Raw:
    """Raw inputs of `rank`: the user of the first row, and items of the first rows in turn."""
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


def _example(contract: Contract, table: pa.Table, row: int) -> tf.train.Example:
    """A row as a tf.Example; missing values are left out."""
    made = tf.train.Example()
    for name, feature in contract.of_side("user", "item", "context"):
        value = table[name][row].as_py()
        if value is None:
            continue
        values, held = value if isinstance(value, list) else [value], made.features.feature[name]
        if isinstance(feature, IdListFeature) and feature.entry is not None:
            values = ["" if v is None else v for v in values]  # each belongs to its entry
        if isinstance(feature, NumberFeature | VectorFeature):
            held.float_list.value.extend(float(v) for v in values if np.isfinite(v))
        elif feature.dtype == "string":
            held.bytes_list.value.extend(str(v).encode() for v in values if v is not None)
        else:
            held.int64_list.value.extend(int(v) for v in values if v is not None)
    return made


def _example_log(
    model: str, signature: str, examples: list[tf.train.Example]
) -> prediction_log_pb2.PredictionLog:
    """A Classify or Regress call."""
    log = prediction_log_pb2.PredictionLog()
    kind = log.classify_log if signature == CLASSIFY else log.regress_log
    kind.request.model_spec.name = model
    kind.request.model_spec.signature_name = signature
    kind.request.input.example_list.examples.extend(examples)
    return log
