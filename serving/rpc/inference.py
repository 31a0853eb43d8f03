"""TensorFlow Serving's Classify, Regress and MultiInference over tf.Example."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from multigate.runtime.tensorflow_messages import (
    classification_pb2,
    inference_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)
from multigate.serving.core.layout import DEFAULT, Arrays
from multigate.serving.core.logs import say
from multigate.serving.core.loop import Threads
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import Call, InvalidRequestError
from multigate.serving.core.tensors import MOST_REPEATED_BYTES
from multigate.serving.rpc.overflow import refuse_overflow
from multigate.serving.rpc.prediction import (
    CLASSIFIED,
    REGRESSED,
    Prediction,
    read_tf_model_spec,
    refuse_too_many,
    scores_of,
)
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion
from multigate.serving.versions.saved_model import ServedSignature

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
_CLASSES = "classes"


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """TensorFlow Serving's PredictionService, all five methods."""

    def __init__(self, models: Models, threads: Threads, metrics: ServerMetrics) -> None:
        self._models = models
        self._metrics = metrics
        self._threads = threads
        self._prediction = Prediction(models, threads)
        self.predict_of = self._prediction.predict_of

    async def Predict(self, request: Any, context: Any) -> Any:
        """Raw tensors of any signature."""
        return await self._prediction.predict(request, context)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """The signatures of a version."""
        return await self._threads.run(self._prediction.get_model_metadata, request)

    async def Classify(self, request: Any, context: Any) -> Any:
        """Classes with scores for each tf.Example."""
        call = Call(context)
        [inferred] = await self._infer([(request.model_spec, CLASSIFY)], request.input, call)
        self._count(inferred, request.input)
        return classification_pb2.ClassificationResponse(
            result=inferred.classification_result, model_spec=inferred.model_spec
        )

    async def Regress(self, request: Any, context: Any) -> Any:
        """One value for each tf.Example."""
        call = Call(context)
        [inferred] = await self._infer([(request.model_spec, REGRESS)], request.input, call)
        self._count(inferred, request.input)
        return regression_pb2.RegressionResponse(
            result=inferred.regression_result, model_spec=inferred.model_spec
        )

    async def MultiInference(self, request: Any, context: Any) -> Any:
        """Several Classify and Regress calls over the same examples."""
        call = Call(context)
        if not request.tasks:
            raise InvalidRequestError("tasks: expected at least one, received none")
        for task in request.tasks:
            if task.method_name not in {CLASSIFY, REGRESS}:
                raise InvalidRequestError(
                    f"tasks: expected method {CLASSIFY} or {REGRESS}, received {task.method_name!r}"
                )
        tasks = [(task.model_spec, task.method_name) for task in request.tasks]
        results = await self._infer(tasks, request.input, call)
        self._count(results[-1], request.input)
        return inference_pb2.MultiInferenceResponse(results=results)

    def _count(self, inferred: Any, given: Any) -> None:
        """Count the tf.Examples of an Input: once, however many tasks ran over them."""
        examples = getattr(given, given.WhichOneof("kind")).examples
        self._metrics.inferred(inferred.model_spec.name, len(examples))

    async def _infer(self, tasks: Sequence[tuple[Any, str]], given: Any, call: Call) -> list[Any]:
        """The InferenceResult of each task over tf.Examples, each once there is a slot for its run.

        Args:
            tasks: of the call, each what names its model and signature, and `CLASSIFY` or
                `REGRESS`. The limit of rows is for all of them together.
            given: the request's Input.
            call: whose deadline counts.
        """
        call.check("before the request was read")
        results = []
        with ExitStack() as held:
            # All are held before the first run, so that no version is replaced between the tasks.
            named = [read_tf_model_spec(spec) for spec, _ in tasks]
            rankers: dict[Any, RankerVersion] = {}
            for one in dict.fromkeys(named):
                rankers[one] = held.enter_context(self._models.use(*one))
            for one, (spec, method) in zip(named, tasks, strict=True):
                ranker = rankers[one]
                async with ranker.run_slots.hold(call):
                    results.append(
                        await self._threads.run(_result, ranker, spec, given, method, len(tasks))
                    )
        return results


def _result(ranker: RankerVersion, spec: Any, given: Any, method: str, tasks: int) -> Any:
    """Run a signature over tf.Examples; its InferenceResult."""
    name = spec.signature_name or DEFAULT
    signature = ranker.signature(name)
    if signature is None or not _supports(signature, method):
        offered = [s.name for s in ranker.saved_model.signatures.values() if _supports(s, method)]
        raise InvalidRequestError(
            f"signature {name!r}: expected one that supports {method}: "
            f"{', '.join(offered) or 'this version has none'}"
        )
    say(signature=name)
    (key,) = signature.inputs
    outputs = signature({key: _serialised(given, tasks, ranker.max_rows)})
    refuse_overflow(scores_of(outputs, ranker.contract), what="example")
    result = inference_pb2.InferenceResult()
    if method == CLASSIFY:
        result.classification_result.CopyFrom(_classifications(outputs))
    else:
        result.regression_result.CopyFrom(_regressions(outputs))
    result.model_spec.name = ranker.model
    result.model_spec.version.value = ranker.number
    result.model_spec.signature_name = name
    return result


def _supports(signature: ServedSignature, method: str) -> bool:
    """Whether a signature takes tf.Examples and has the outputs that the method needs.

    A signature's method name does not help: TensorFlow 2 writes Predict's into every signature.
    """
    needed = {CLASSIFIED} if method == CLASSIFY else {REGRESSED}
    return (
        [spec.dtype for spec in signature.inputs.values()] == ["string"]
        and needed <= signature.outputs.keys()
        and signature.layout is None
    )


def _serialised(given: Any, tasks: int, max_rows: int) -> np.ndarray:
    """The tf.Examples of an Input as (N,) bytes, each merged with the Input's context."""
    kind = given.WhichOneof("kind")
    chosen = getattr(given, kind) if kind else None
    if chosen is None or not chosen.examples:
        raise InvalidRequestError("input: expected at least one tf.Example, received none")
    where = "input" if tasks == 1 else f"input, for each of {tasks} tasks"
    refuse_too_many(where, tasks * len(chosen.examples), max_rows)
    if kind == "example_list_with_context":
        size = len(chosen.examples) * chosen.context.ByteSize()
        if size > MOST_REPEATED_BYTES:
            raise InvalidRequestError(
                f"input: the context, in each of {len(chosen.examples)} tf.Examples, has {size} "
                f"bytes; expected at most {MOST_REPEATED_BYTES}: send fewer examples at a time"
            )
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
    scores = outputs[CLASSIFIED].reshape(len(outputs[CLASSIFIED]), -1)
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
    for value in outputs[REGRESSED].reshape(-1).tolist():
        result.regressions.add(value=value)
    return result
