"""Warm-up: replays recorded requests, and checks the golden request, before a version serves.

TensorFlow optimises a graph on its first runs, and again for new shapes.  Without warm-up, the
first callers would wait for that.
"""

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from multigate.configs.errors import one_line
from multigate.runtime.tensorflow_messages import prediction_log_pb2
from multigate.serving.core.layout import DEFAULT, RANK, Arrays
from multigate.serving.core.tensors import decode
from multigate.serving.versions.folders import GOLDEN, WARMUP
from multigate.serving.versions.records import read_records
from multigate.serving.versions.saved_model import LoadError, SavedModel, ServedSignature

_REQUESTS = ("predict_log", "classify_log", "regress_log")
RUNS = 2  # the first run of a signature makes its executor
RELATIVE, ABSOLUTE = 1e-4, 1e-5  # tolerances of golden scores: CPUs differ in the order of sums
SAME_IDS = 0.9  # share of golden items: almost equal scores may swap places


def warm_up(
    saved_model: SavedModel,
    folder: Path,
    replay: bool = True,
    check_stop: Callable[[], None] = lambda: None,
    only: Collection[str] | None = None,
    rest: Callable[[float], None] = lambda seconds: None,
) -> int:
    """Warm a version up and check its golden request.

    TensorFlow holds all runs of a version up while it prepares a signature's first one, some 40 ms
    for Deskdrop: each signature that calls may run is to have run before the version takes calls.

    Args:
        saved_model: the loaded version.
        folder: its folder.
        replay: whether to replay the recorded requests.
        check_stop: called between requests; raises LoadError to cancel.
        only: the signatures to run, besides the golden request's; None: all, which takes a second
            longer: too long where versions replace each other quickly.
        rest: called after each request with the seconds that it took, so that the calls of other
            versions get their turn.

    Returns:
        Number of requests replayed.

    Raises:
        LoadError: a recorded request fails, or the answer to the golden request differs from the
            recorded one.
    """
    check_golden(saved_model, folder / GOLDEN)
    path = folder / WARMUP
    if not replay or not path.exists():
        return 0
    count = 0
    wanted = saved_model.signatures.keys() if only is None else only
    cold = {name: one for name, one in saved_model.signatures.items() if name in wanted}
    last: dict[str, Arrays] = {}
    """By signature, the inputs recorded last."""

    def run(name: str, inputs: Arrays) -> None:
        check_stop()
        began = time.monotonic()
        for _ in range(RUNS):
            saved_model.signatures[name](inputs)
        cold.pop(name, None)
        rest(time.monotonic() - began)

    try:
        for record in read_records(path):
            log = prediction_log_pb2.PredictionLog.FromString(record)
            recorded = _recorded(log, saved_model)
            if recorded is not None and recorded[0] in wanted:
                run(*recorded)
                count += 1
                last.update([recorded])
        # `watch` and `gates` are in no record; they take features as the default or `rank` does.
        default = saved_model.signatures.get(DEFAULT)
        for name, signature in list(cold.items()):
            by_row = default is not None and signature.inputs.keys() <= default.inputs.keys()
            given = last.get(DEFAULT if by_row else RANK, {})
            if signature.inputs.keys() <= given.keys():
                run(name, {one: given[one] for one in signature.inputs})
    except LoadError:
        raise
    except Exception as error:
        reason = one_line(error)
        raise LoadError(f"{path}: request {count}: cannot be replayed: {reason}") from error
    for signature in saved_model.signatures.values():
        signature.called = False
    return count


def _recorded(log: Any, saved_model: SavedModel) -> tuple[str, Arrays] | None:
    """Signature and inputs of a recorded request; None where it is of another kind."""
    kind = log.WhichOneof("log_type")
    if kind not in _REQUESTS:
        return None
    request = getattr(log, kind).request
    name = request.model_spec.signature_name or DEFAULT
    specs = saved_model.signatures[name].inputs
    if kind == "predict_log":
        return name, {one: decode(one, value, specs[one]) for one, value in request.inputs.items()}
    examples = [one.SerializeToString() for one in request.input.example_list.examples]
    (given,) = specs
    return name, {given: np.array(examples, object)}


def check_golden(saved_model: SavedModel, path: Path) -> None:
    """Run the golden request and compare its outputs.

    Raises:
        LoadError: the file is damaged, or an output differs.
    """
    try:
        golden = json.loads(path.read_text(encoding="utf-8"))
        signature = saved_model.signatures[golden["signature"]]
        inputs = _arrays(golden["inputs"])
        expected = _arrays(golden["outputs"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{path}: cannot be read as a golden request: {error!r}") from None
    for _ in range(RUNS):
        received = _run(signature, inputs, path)
    for name, values in expected.items():
        if name not in received:
            raise LoadError(
                f"{path}: output {name!r}: expected one, received none: the signature lacks it"
            )
        answer = received[name]
        if answer.shape != values.shape or not _matches(answer, values):
            raise LoadError(
                f"{path}: output {name!r}: expected {np.ravel(values)[:3]}... of shape "
                f"{values.shape}, the loaded version answers {np.ravel(answer)[:3]}... of shape "
                f"{answer.shape}; the version is damaged: export it again"
            )


def _matches(answer: np.ndarray, expected: np.ndarray) -> bool:
    if expected.dtype.kind == "f":
        return np.allclose(answer, expected, rtol=RELATIVE, atol=ABSOLUTE)
    return not expected.size or float(np.mean(answer == expected)) >= SAME_IDS


def _run(signature: ServedSignature, inputs: Arrays, path: Path) -> Arrays:
    try:
        return signature(inputs)
    except Exception as error:
        raise LoadError(
            f"{path}: the golden request fails: {' '.join(str(error).split()):.300}"
        ) from None


def _arrays(described: dict[str, Any]) -> Arrays:
    """Arrays from their JSON form: dtype, shape, and values in row-major order."""
    arrays = {}
    for name, array in described.items():
        values = np.array(array["values"], dtype=object).ravel()
        if array["dtype"] == "string":
            flat = np.array([str(value).encode() for value in values] or [b""], dtype=object)
            flat = flat[: len(values)]
        else:
            flat = values.astype(array["dtype"])
        arrays[name] = flat.reshape(array["shape"])
    return arrays
