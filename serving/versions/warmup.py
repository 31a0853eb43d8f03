"""Before a version serves: replay recorded requests, and check a golden one.

TensorFlow optimises a graph on its first runs and once more for new shapes, which would be some
caller's slow call.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from multigate.serving.core.layout import Arrays
from multigate.serving.core.tensors import decode
from multigate.serving.versions.folders import GOLDEN, WARMUP
from multigate.serving.versions.saved_model import LoadError, Servable, Signature

RUNS = 2  # the first run of a shape traces, the second one shows that tracing is over
RELATIVE, ABSOLUTE = 1e-4, 1e-5  # of golden scores: other CPUs sum in another order
SAME_IDS = 0.9  # of golden items: those with almost equal scores may change places


def prepare(
    servable: Servable,
    folder: Path,
    replay: bool = True,
    go_on: Callable[[], None] = lambda: None,
) -> int:
    """Warm a version up and check its golden request.

    Args:
        servable: the loaded version.
        folder: its folder.
        replay: whether to replay the recorded requests.
        go_on: asked between requests; raises LoadError to give up.

    Returns:
        Number of requests replayed.

    Raises:
        LoadError: a recorded request fails, or the golden request's answer is not the recorded
            one.
    """
    check_golden(servable, folder / GOLDEN)
    path = folder / WARMUP
    if not replay or not path.exists():
        return 0
    count = 0
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if log.WhichOneof("log_type") != "predict_log":
                continue
            request = log.predict_log.request
            signature = servable.signatures[request.model_spec.signature_name or "serving_default"]
            inputs = {
                name: decode(name, tensor, signature.inputs[name])
                for name, tensor in request.inputs.items()
            }
            go_on()
            for _ in range(RUNS):
                signature(inputs)
            count += 1
    except LoadError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise LoadError(f"{path}: request {count}: cannot be replayed: {reason:.300}") from error
    return count


def check_golden(servable: Servable, path: Path) -> None:
    """Run the golden request and compare its outputs.

    Raises:
        LoadError: the file is damaged, or an output differs.
    """
    try:
        golden = json.loads(path.read_text(encoding="utf-8"))
        signature = servable.signatures[golden["signature"]]
        inputs = _arrays(golden["inputs"])
        expected = _arrays(golden["outputs"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{path}: not a golden request: {error!r}") from None
    for _ in range(RUNS):
        received = _run(signature, inputs, path)
    for name, values in expected.items():
        if name not in received:
            raise LoadError(f"{path}: output {name!r}: expected, the signature has none")
        answer = received[name]
        if answer.shape != values.shape or not _alike(answer, values):
            raise LoadError(
                f"{path}: output {name!r}: expected {np.ravel(values)[:3]}... of shape "
                f"{values.shape}, the loaded version answers {np.ravel(answer)[:3]}... of shape "
                f"{answer.shape}; the version is damaged: export it anew"
            )


def _alike(answer: np.ndarray, expected: np.ndarray) -> bool:
    if expected.dtype.kind == "f":
        return np.allclose(answer, expected, rtol=RELATIVE, atol=ABSOLUTE)
    return not expected.size or float(np.mean(answer == expected)) >= SAME_IDS


def _run(signature: Signature, inputs: Arrays, path: Path) -> Arrays:
    try:
        return signature(inputs)
    except Exception as error:
        raise LoadError(f"{path}: the request fails: {' '.join(str(error).split()):.300}") from None


def _arrays(described: dict[str, Any]) -> Arrays:
    """Arrays from their JSON form: dtype, shape, and values in row-major order."""
    arrays = {}
    for name, what in described.items():
        values = np.array(what["values"], dtype=object).ravel()
        if what["dtype"] == "string":
            flat = np.array([str(value).encode() for value in values] or [b""], dtype=object)
            flat = flat[: len(values)]
        else:
            flat = values.astype(what["dtype"])
        arrays[name] = flat.reshape(what["shape"])
    return arrays
