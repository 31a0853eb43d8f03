"""TensorFlow Serving's Predict and GetModelMetadata."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import any_pb2

from multigate.configs.contract import LENGTH, PRESENT, Contract
from multigate.runtime.tensorflow_messages import get_model_metadata_pb2, predict_pb2
from multigate.serving.core.layout import (
    DEFAULT,
    SCORE,
    TASK_WEIGHTS,
    USER_INDEX,
    Arrays,
    Layout,
)
from multigate.serving.core.logs import say
from multigate.serving.core.loop import Threads
from multigate.serving.core.status import Call, InvalidRequestError, WrongStateError
from multigate.serving.core.tensors import decode, encode
from multigate.serving.core.tracing import step
from multigate.serving.rpc.overflow import refuse_overflow
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion
from multigate.serving.versions.saved_model import ServedSignature

CLASSIFIED, REGRESSED = "scores", "outputs"
"""The outputs of signatures for Classify and Regress."""
_METADATA = "signature_def"


class Prediction:
    """Predict and GetModelMetadata; failures are exceptions of `serving.core.status`."""

    def __init__(self, models: Models, threads: Threads) -> None:
        self._models = models
        self._threads = threads

    async def predict(self, request: Any, context: Any) -> Any:
        """Run one signature on the tensors of a PredictRequest."""
        with self._models.use(*read_tf_model_spec(request.model_spec)) as ranker:
            return await self.predict_of(ranker, request, context)

    async def predict_of(self, ranker: RankerVersion, request: Any, context: Any) -> Any:
        """The same of a version that the caller holds, whatever version the request names."""
        call = Call(context)
        call.check("before the request was read")
        name = request.model_spec.signature_name or DEFAULT
        signature = ranker.signature(name)
        if signature is None:
            raise WrongStateError(
                f"signature {name!r}: not in version {ranker.number}; expected one "
                f"of {', '.join(ranker.saved_model.signatures)}"
            )
        say(signature=name)
        wanted = _filter(request.output_filter, signature)
        if signature.layout is None:
            async with ranker.run_slots.hold(call):
                outputs = await self._threads.run(_run, request.inputs, signature, ranker)
        else:
            slow = ranker.is_slow_to_read(request)
            with step("read"):
                inputs, rows = await self._threads.run_if(
                    slow, _read, request.inputs, signature, ranker
                )
            outputs = await ranker.batchers[name].run(inputs, rows, call)
        refuse_overflow(scores_of(outputs, ranker.contract), what="row")
        response = predict_pb2.PredictResponse()
        response.model_spec.name = ranker.model
        response.model_spec.version.value = ranker.number
        response.model_spec.signature_name = name
        for output in wanted:
            response.outputs[output].CopyFrom(encode(outputs[output]))
        return response

    def get_model_metadata(self, request: Any) -> Any:
        """The signatures of a version."""
        if not request.metadata_field:
            raise InvalidRequestError(f"metadata_field: expected {_METADATA!r}, received none")
        for field in request.metadata_field:
            if field != _METADATA:
                raise InvalidRequestError(
                    f"metadata_field: expected {_METADATA!r}, received {field!r}"
                )
        with self._models.use(*read_tf_model_spec(request.model_spec)) as ranker:
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = ranker.model
            response.model_spec.version.value = ranker.number
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for name, definition in ranker.saved_model.definitions.items():
                signatures.signature_def[name].CopyFrom(definition)
            packed = any_pb2.Any()
            packed.Pack(signatures)
            response.metadata[_METADATA].CopyFrom(packed)
            return response


def _run(tensors: Any, signature: ServedSignature, ranker: RankerVersion) -> Arrays:
    """Run a signature that has no layout, such as `classify` or `rank_items`.

    Those of its inputs that the contract describes are checked as those of `rank`.
    """
    inputs = read_inputs(tensors, signature)
    for name, values in inputs.items():
        if values.ndim:
            refuse_too_many(f"input {name!r}", len(values), ranker.max_rows)
    return signature(_check_features(inputs, ranker.contract))


def scores_of(outputs: Arrays, contract: Contract) -> Arrays:
    """The outputs that are scores: of the tasks, combined, and of `classify` and `regress`."""
    names = {*contract.tasks, SCORE, CLASSIFIED, REGRESSED}
    return {name: one for name, one in outputs.items() if name in names}


def _read(tensors: Any, signature: ServedSignature, ranker: RankerVersion) -> tuple[Arrays, int]:
    """Read and check the inputs of a signature that the contract describes; also returns N."""
    assert signature.layout is not None
    inputs = read_inputs(tensors, signature)
    return check_inputs(inputs, signature.layout, ranker.contract, ranker.max_rows)


def read_tf_model_spec(spec: Any) -> tuple[str, int | None, str]:
    """Name, version and label in TensorFlow Serving's ModelSpec."""
    which = spec.WhichOneof("version_choice")
    return (
        spec.name,
        spec.version.value if which == "version" else None,
        spec.version_label if which == "version_label" else "",
    )


def read_inputs(tensors: Any, signature: ServedSignature) -> Arrays:
    """Decode the inputs of a request.

    Raises:
        InvalidRequestError: an input is missing, unknown, or malformed.
    """
    absent = signature.inputs.keys() - tensors.keys()
    extra = tensors.keys() - signature.inputs.keys()
    if absent or extra:
        raise InvalidRequestError(
            f"signature {signature.name!r}: expected exactly its inputs; "
            f"missing: {', '.join(sorted(absent)) or 'none'}; "
            f"extra: {', '.join(sorted(extra)) or 'none'}"
        )
    return {name: decode(name, tensors[name], spec) for name, spec in signature.inputs.items()}


def refuse_too_many(where: str, rows: int, max_rows: int) -> None:
    """Refuse a call with too many rows.

    Raises:
        InvalidRequestError: says what to do.
    """
    if rows > max_rows:
        raise InvalidRequestError(
            f"{where}: expected at most {max_rows} rows, received {rows}; split the call"
        )


def check_inputs(
    inputs: Arrays, layout: Layout, contract: Contract, max_rows: int
) -> tuple[Arrays, int]:
    """Check decoded inputs against the contract.

    As in Rank, an empty text is a missing value, a list loses its empty texts, and a list that is
    longer than the contract allows keeps its last values.

    Args:
        inputs: arrays of the signature's dtypes and shapes.
        layout: the signature's inputs.
        contract: gives the rules for missing values.
        max_rows: most rows of items, and of users.

    Returns:
        The inputs, and N.

    Raises:
        InvalidRequestError: different numbers of rows, no rows or too many; NaN or infinity; a
            missing value under the rule `error`; a length or an index out of range; another number
            of values for the entries of a history than it has.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for name, spec in layout.inputs.items():
        rows = len(inputs[name])
        first, expected = sizes.setdefault(spec.axis, (name, rows))
        if rows != expected:
            raise InvalidRequestError(
                f"input {name!r}: expected {expected} rows as in {first!r}, received {rows}"
            )
        if rows == 0:
            raise InvalidRequestError(f"input {name!r}: expected at least one row, received none")
        refuse_too_many(f"input {name!r}", rows, max_rows)
    checked = _check_features(inputs, contract)
    for name, spec in layout.inputs.items():
        if spec.role == "index":
            values, users = inputs[name], sizes["users"][1]
            outside = (values < 0) | (values >= users)
            if outside.any():
                row = int(np.argmax(outside))
                raise InvalidRequestError(
                    f"input {USER_INDEX!r}: expected 0 to {users - 1}, received {values[row]} "
                    f"in row {row}"
                )
    return checked, sizes["rows"][1]


def _check_features(inputs: Arrays, contract: Contract) -> Arrays:
    """Check the inputs that the contract describes; returns all, with what those of it mean.

    An input that no feature has, such as lengths or tf.Examples, stays as it is.
    """
    checked = dict(inputs)
    lists = [name for name in inputs if name + LENGTH in inputs and name in contract.features]
    for name in lists:
        _check_lengths(name, inputs)
    for name in lists:
        empty = _empty_entries(inputs[name], inputs[name + LENGTH])
        # As sent: to drop values, or to cut lists to their last ones, would hide that they differ.
        for other in contract.entries_of(name).values():
            if other + LENGTH in inputs:
                _check_entries(name, other, inputs, empty)
        feature: Any = contract.features[name]
        if feature.entry is None and empty.any():  # else it stands in a history entry's place
            _drop_empty(name, checked, empty)
    for name in inputs:
        if name in lists:
            _cut_list(name, contract.features[name], checked)
        elif name in contract.features:
            _check_values(name, checked)
        elif name == TASK_WEIGHTS:
            _refuse_non_finite(name, inputs[name])
    return checked


def _check_values(name: str, inputs: Arrays) -> None:
    values = inputs[name]
    present = inputs.get(name + PRESENT)
    if values.dtype.kind == "f":
        if present is not None:
            there = present.reshape(-1, *[1] * (values.ndim - 1))  # (N,), of vectors (N, 1)
            inputs[name] = values = np.where(there, values, np.float32(0))
        _refuse_non_finite(name, values)
    elif values.dtype.kind == "O":
        empty = values == b""
        if not empty.any():
            return
        if present is not None:
            inputs[name + PRESENT] = present & ~empty
        else:
            raise InvalidRequestError(
                f"input {name!r}: expected a text (missing: error), received an empty one in row "
                f"{int(np.argmax(empty))}"
            )


def _check_lengths(name: str, inputs: Arrays) -> None:
    values, lengths = inputs[name], inputs[name + LENGTH]
    width = values.shape[1]
    if len(lengths) != len(values):
        raise InvalidRequestError(
            f"input {name + LENGTH!r}: expected {len(values)} rows as in {name!r}, received "
            f"{len(lengths)}"
        )
    outside = (lengths < 0) | (lengths > width)
    if outside.any():
        row = int(np.argmax(outside))
        raise InvalidRequestError(
            f"input {name + LENGTH!r}: expected 0 to {width}, the width of {name!r}, received "
            f"{lengths[row]} in row {row}"
        )


def _drop_empty(name: str, inputs: Arrays, empty: np.ndarray) -> None:
    """Leave out the empty texts of lists; `empty` (N, L) says which values they are."""
    values, lengths = inputs[name], inputs[name + LENGTH]
    kept = _inside(values, lengths) & ~empty
    order = np.argsort(~kept, axis=1, kind="stable")
    inputs[name] = np.take_along_axis(values, order, axis=1)
    inputs[name + LENGTH] = kept.sum(axis=1, dtype=lengths.dtype)


def _check_entries(name: str, other: str, inputs: Arrays, empty: np.ndarray) -> None:
    """What is sent of a history's entries must have a value for each, or none; as in Rank.

    Args:
        name: of the history.
        other: of the list that describes its entries.
        inputs: as they were sent.
        empty: (N, L) which of the history's values are empty texts.
    """
    expected, received = inputs[name + LENGTH], inputs[other + LENGTH]
    if len(received) != len(expected):
        raise InvalidRequestError(
            f"input {other!r}: expected {len(expected)} rows as in {name!r}, received "
            f"{len(received)}"
        )
    wrong = (received != 0) & (received != expected)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidRequestError(
            f"input {other!r}: expected {expected[row]} values, one for each entry of {name!r}, "
            f"received {received[row]} in row {row}"
        )
    described = empty & (received != 0)[:, None]
    if described.any():
        row, place = (int(at) for at in np.argwhere(described)[0])
        raise InvalidRequestError(
            f"input {name!r}: value {place + 1} of row {row} is an empty text, and {other!r} "
            "describes its entries; leave the entry out of both"
        )


def _inside(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which of the values (N, L) belong to the lists, of lengths (N,)."""
    return np.arange(values.shape[1]) < lengths[:, None]


def _empty_entries(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which of the values (N, L) are empty texts of the lists, of lengths (N,)."""
    if values.dtype.kind != "O":
        return np.zeros(values.shape, bool)
    return _inside(values, lengths) & (values == b"")


def _cut_list(name: str, feature: Any, inputs: Arrays) -> None:
    """Keep the last values of lists that are longer than the contract allows."""
    max_length = feature.max_length
    values, lengths = inputs[name], inputs[name + LENGTH]
    width = values.shape[1]
    if width == 0:
        filler = b"" if values.dtype.kind == "O" else 0
        inputs[name] = np.full((len(values), 1), filler, values.dtype)
    elif width > max_length:
        start = np.maximum(lengths - max_length, 0)
        places = np.minimum(start[:, None] + np.arange(max_length), width - 1)  # (N, max_length)
        inputs[name] = np.take_along_axis(values, places, axis=1)
        inputs[name + LENGTH] = np.minimum(lengths, max_length)


def _refuse_non_finite(name: str, values: np.ndarray) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[0, 0])
        raise InvalidRequestError(
            f"input {name!r}: expected finite numbers, received "
            f"{values[tuple(np.argwhere(~finite)[0])]} in row {row}"
        )


def _filter(wanted: Sequence[str], signature: ServedSignature) -> list[str]:
    """The outputs that the request's filter names; without a filter, all."""
    if len(wanted) > len(signature.outputs):  # checking millions of names would block the loop
        raise InvalidRequestError(
            f"output_filter: expected at most {len(signature.outputs)} outputs, each once, "
            f"received {len(wanted)}"
        )
    unknown = [name for name in wanted if name not in signature.outputs]
    if unknown:
        raise InvalidRequestError(
            f"output_filter: expected some of {', '.join(signature.outputs)}, "
            f"received {', '.join(unknown)}"
        )
    if len(set(wanted)) != len(wanted):
        raise InvalidRequestError(f"output_filter: an output is repeated: {', '.join(wanted)}")
    return list(wanted) or list(signature.outputs)
