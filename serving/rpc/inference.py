"""TensorFlow Serving's Classify, Regress and MultiInference over tf.Example."""

from typing import Any

import numpy as np
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from multigate.serving.core.layout import DEFAULT, Arrays
from multigate.serving.core.loop import Threads
from multigate.serving.core.status import Call, InvalidRequestError
from multigate.serving.rpc.prediction import Prediction, requested
from multigate.serving.versions.loaded import Served
from multigate.serving.versions.models import Models
from multigate.serving.versions.saved_model import Signature

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
_SCORES, _CLASSES, _OUTPUTS = "scores", "classes", "outputs"


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The whole of TensorFlow Serving's PredictionService."""

    def __init__(self, models: Models, threads: Threads) -> None:
        self._models = models
        self._threads = threads
        self._prediction = Prediction(models, threads)

    async def Predict(self, request: Any, context: Any) -> Any:
        """Raw tensors of any signature."""
        return await self._prediction.predict(request, context)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """The signatures of a version."""
        return await self._threads.run(self._prediction.get_model_metadata, request)

    async def Classify(self, request: Any, context: Any) -> Any:
        """Classes with scores, for each tf.Example."""
        Call(context).check("before the request was read")
        return await self._threads.run(self._classify, request)

    async def Regress(self, request: Any, context: Any) -> Any:
        """One value for each tf.Example."""
        Call(context).check("before the request was read")
        return await self._threads.run(self._regress, request)

    async def MultiInference(self, request: Any, context: Any) -> Any:
        """Several Classify and Regress calls over the same examples."""
        Call(context).check("before the request was read")
        return await self._threads.run(self._infer, request)

    def _classify(self, request: Any) -> Any:
        with self._models.use(*requested(request.model_spec)) as served:
            name, outputs = _run(served, request.model_spec, request.input, CLASSIFY)
            response = classification_pb2.ClassificationResponse()
            response.result.CopyFrom(_classifications(outputs))
            _say_which(response.model_spec, served, name)
            return response

    def _regress(self, request: Any) -> Any:
        with self._models.use(*requested(request.model_spec)) as served:
            name, outputs = _run(served, request.model_spec, request.input, REGRESS)
            response = regression_pb2.RegressionResponse()
            response.result.CopyFrom(_regressions(outputs))
            _say_which(response.model_spec, served, name)
            return response

    def _infer(self, request: Any) -> Any:
        if not request.tasks:
            raise InvalidRequestError("tasks: expected at least one, received none")
        response = inference_pb2.MultiInferenceResponse()
        for task in request.tasks:
            if task.method_name not in {CLASSIFY, REGRESS}:
                raise InvalidRequestError(
                    f"tasks: expected method {CLASSIFY} or {REGRESS}, received {task.method_name!r}"
                )
            with self._models.use(*requested(task.model_spec)) as served:
                name, outputs = _run(served, task.model_spec, request.input, task.method_name)
                result = response.results.add()
                if task.method_name == CLASSIFY:
                    result.classification_result.CopyFrom(_classifications(outputs))
                else:
                    result.regression_result.CopyFrom(_regressions(outputs))
                _say_which(result.model_spec, served, name)
        return response


def _say_which(spec: Any, served: Served, signature: str) -> None:
    spec.name = served.model
    spec.version.value = served.servable.version
    spec.signature_name = signature


def _run(served: Served, spec: Any, given: Any, method: str) -> tuple[str, Arrays]:
    """Run a signature over serialised examples; its name and outputs."""
    name = spec.signature_name or DEFAULT
    signature = served.signature(name)
    if signature is None or not _offers(signature, method):
        offered = [s.name for s in served.servable.signatures.values() if _offers(s, method)]
        raise InvalidRequestError(
            f"signature {name!r}: expected one that serves {method}, which are "
            f"{', '.join(offered) or 'none of this version'}"
        )
    (key,) = signature.inputs
    examples = _serialised(given)
    return name, signature({key: examples})


def _offers(signature: Signature, method: str) -> bool:
    """Whether a signature takes tf.Examples and gives what the method answers.

    Told by inputs and outputs: TensorFlow 2 writes Predict's method name into every signature.
    """
    needed = {_SCORES} if method == CLASSIFY else {_OUTPUTS}
    return (
        [spec.dtype for spec in signature.inputs.values()] == ["string"]
        and needed <= signature.outputs.keys()
        and signature.layout is None
    )


def _serialised(given: Any) -> np.ndarray:
    """The examples of an Input, (N,) bytes, each with its context's features."""
    kind = given.WhichOneof("kind")
    held = getattr(given, kind) if kind else None
    if held is None or not held.examples:
        raise InvalidRequestError("input: expected at least one tf.Example, received none")
    texts = []
    for example in held.examples:
        if kind == "example_list_with_context":
            merged = type(example)()
            merged.CopyFrom(held.context)
            merged.MergeFrom(example)
            texts.append(merged.SerializeToString())
        else:
            texts.append(example.SerializeToString())
    values = np.empty(len(texts), object)
    values[:] = texts
    return values


def _classifications(outputs: Arrays) -> Any:
    """Scores (N, C) or (N,), and classes of the same shape where the signature names them."""
    scores = outputs[_SCORES].reshape(len(outputs[_SCORES]), -1)
    names = outputs.get(_CLASSES)
    labels = None if names is None else np.broadcast_to(names, scores.shape)
    result = classification_pb2.ClassificationResult()
    for row, values in enumerate(scores.tolist()):
        one = result.classifications.add()
        for column, score in enumerate(values):
            label = "" if labels is None else labels[row, column].decode()
            one.classes.add(label=label, score=score)
    return result


def _regressions(outputs: Arrays) -> Any:
    """Values (N,) or (N, 1)."""
    result = regression_pb2.RegressionResult()
    for value in outputs[_OUTPUTS].reshape(-1).tolist():
        result.regressions.add(value=value)
    return result
