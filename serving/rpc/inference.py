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
from multigate.serving.rpc.prediction import Prediction, read_tf_model_spec
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion
from multigate.serving.versions.saved_model import Signature

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
_SCORES, _CLASSES, _OUTPUTS = "scores", "classes", "outputs"


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """TensorFlow Serving's PredictionService, all five methods."""

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
        """Classes with scores for each tf.Example."""
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
        with self._models.use(*read_tf_model_spec(request.model_spec)) as ranker:
            name, outputs = _run(ranker, request.model_spec, request.input, CLASSIFY)
            response = classification_pb2.ClassificationResponse()
            response.result.CopyFrom(_classifications(outputs))
            _fill_model_spec(response.model_spec, ranker, name)
            return response

    def _regress(self, request: Any) -> Any:
        with self._models.use(*read_tf_model_spec(request.model_spec)) as ranker:
            name, outputs = _run(ranker, request.model_spec, request.input, REGRESS)
            response = regression_pb2.RegressionResponse()
            response.result.CopyFrom(_regressions(outputs))
            _fill_model_spec(response.model_spec, ranker, name)
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
            with self._models.use(*read_tf_model_spec(task.model_spec)) as ranker:
                name, outputs = _run(ranker, task.model_spec, request.input, task.method_name)
                result = response.results.add()
                if task.method_name == CLASSIFY:
                    result.classification_result.CopyFrom(_classifications(outputs))
                else:
                    result.regression_result.CopyFrom(_regressions(outputs))
                _fill_model_spec(result.model_spec, ranker, name)
        return response


def _fill_model_spec(spec: Any, ranker: RankerVersion, signature: str) -> None:
    spec.name = ranker.model
    spec.version.value = ranker.number
    spec.signature_name = signature


def _run(ranker: RankerVersion, spec: Any, given: Any, method: str) -> tuple[str, Arrays]:
    """Run a signature over tf.Examples; returns its name and outputs."""
    name = spec.signature_name or DEFAULT
    signature = ranker.signature(name)
    if signature is None or not _supports(signature, method):
        offered = [s.name for s in ranker.saved_model.signatures.values() if _supports(s, method)]
        raise InvalidRequestError(
            f"signature {name!r}: expected one that supports {method}: "
            f"{', '.join(offered) or 'this version has none'}"
        )
    (key,) = signature.inputs
    examples = _serialised(given)
    return name, signature({key: examples})


def _supports(signature: Signature, method: str) -> bool:
    """Whether a signature takes tf.Examples and has the outputs that the method needs.

    A signature's method name does not help: TensorFlow 2 writes Predict's into every signature.
    """
    needed = {_SCORES} if method == CLASSIFY else {_OUTPUTS}
    return (
        [spec.dtype for spec in signature.inputs.values()] == ["string"]
        and needed <= signature.outputs.keys()
        and signature.layout is None
    )


def _serialised(given: Any) -> np.ndarray:
    """The tf.Examples of an Input as (N,) bytes, each merged with the Input's context."""
    kind = given.WhichOneof("kind")
    chosen = getattr(given, kind) if kind else None
    if chosen is None or not chosen.examples:
        raise InvalidRequestError("input: expected at least one tf.Example, received none")
    texts = []
    for example in chosen.examples:
        if kind == "example_list_with_context":
            merged = type(example)()
            merged.CopyFrom(chosen.context)
            merged.MergeFrom(example)
            texts.append(merged.SerializeToString())
        else:
            texts.append(example.SerializeToString())
    values = np.empty(len(texts), object)
    values[:] = texts
    return values


def _classifications(outputs: Arrays) -> Any:
    """Outputs as a ClassificationResult: scores (N, C) or (N,), classes of that shape or none."""
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
    """Outputs as a RegressionResult: values (N,) or (N, 1)."""
    result = regression_pb2.RegressionResult()
    for value in outputs[_OUTPUTS].reshape(-1).tolist():
        result.regressions.add(value=value)
    return result
