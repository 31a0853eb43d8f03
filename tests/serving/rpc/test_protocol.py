"""The behaviour table of TensorFlow Serving's protocol, row by row, through its stubs."""

import asyncio
import shutil
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import wrappers_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from multigate.serving.core.layout import default_layout
from multigate.serving.core.loop import CALLS
from multigate.serving.core.status import Call
from multigate.serving.protos import ranking_pb2
from multigate.serving.rpc import inference
from multigate.serving.rpc.prediction import check_inputs


@pytest.fixture
def valid(contract, helpers):
    inputs = helpers.sample_inputs(contract, 5, seed=3)
    return helpers.predict_request(inputs)


def refused(method, request, code, says=None):
    with pytest.raises(grpc.RpcError, match=says) as raised:
        method(request, timeout=120)
    assert raised.value.code() == code, raised.value.details()
    return raised.value.details()


def set_input(request, name, values):
    request.inputs[name].CopyFrom(tf.make_tensor_proto(values))


def texts(*values):
    return np.array(values, object)


INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND

PREDICT_TABLE = {
    "no model": (lambda r: r.model_spec.ClearField("name"), INVALID, "model name: required"),
    "unknown model": (lambda r: setattr(r.model_spec, "name", "x"), NOT_FOUND, "model 'x'"),
    "unknown version": (
        lambda r: r.model_spec.version.CopyFrom(wrappers_pb2.Int64Value(value=9)),
        NOT_FOUND,
        "version 9 is not available; available: 1",
    ),
    "unknown label": (
        lambda r: setattr(r.model_spec, "version_label", "stable"),
        INVALID,
        "version label 'stable'",
    ),
    "unknown signature": (
        lambda r: setattr(r.model_spec, "signature_name", "x"),
        grpc.StatusCode.FAILED_PRECONDITION,
        "signature 'x': .* expected one of .*rank.*serving_default",
    ),
    "missing and extra input": (
        lambda r: (r.inputs.pop("hour"), r.inputs.pop("age"), set_input(r, "shoe", [1])),
        INVALID,
        "missing: age, hour; extra: shoe",
    ),
    "unknown output": (lambda r: r.output_filter.append("x"), INVALID, "output_filter: .*x"),
    "repeated output": (
        lambda r: r.output_filter.extend(["click", "click"]),
        INVALID,
        "output_filter: an output is repeated",
    ),
    "more outputs than there are": (
        lambda r: r.output_filter.extend(["click"] * 9),
        INVALID,
        "output_filter: expected at most 4 outputs, each once, received 9",
    ),
    "wrong dtype": (
        lambda r: set_input(r, "hour", np.ones(5, np.int32)),
        INVALID,
        "input 'hour': expected dtype int64, received int32",
    ),
    "wrong shape": (
        lambda r: set_input(r, "hour", np.ones((5, 1), np.int64)),
        INVALID,
        r"input 'hour': expected shape \[\?\], received \[5, 1\]",
    ),
    "other number of rows": (
        lambda r: set_input(r, "hour", np.ones(4, np.int64)),
        INVALID,
        "input 'hour': expected 5 rows as in 'user_id', received 4",
    ),
    "NaN": (
        lambda r: set_input(r, "length", np.array([1, 2, np.nan, 4, 5], np.float32)),
        INVALID,
        "input 'length': expected finite numbers, received nan in row 2",
    ),
    "infinity": (
        lambda r: set_input(r, "length", np.array([1, np.inf, 3, 4, 5], np.float32)),
        INVALID,
        "received inf in row 1",
    ),
    "missing text whose rule is error": (
        lambda r: set_input(r, "item_id", texts(b"a", b"b", b"c", b"", b"e")),
        INVALID,
        "input 'item_id': expected a text .*row 3",
    ),
    "length beyond the list": (
        lambda r: set_input(r, "recent__length", np.array([0, 99, 0, 0, 0])),
        INVALID,
        "input 'recent__length': expected 0 to .* received 99 in row 1",
    ),
    "shape without values": (
        lambda r: r.inputs["hour"].CopyFrom(
            tf.make_tensor_proto(np.zeros(0, np.int64), shape=[0]),
        ),
        INVALID,
        "expected 5 rows as in 'user_id', received 0",
    ),
    "claimed size": (
        lambda r: r.inputs["hour"].tensor_shape.dim[0].__setattr__("size", 1 << 40),
        INVALID,
        "input 'hour': expected at most",
    ),
    "negative size": (
        lambda r: r.inputs["hour"].tensor_shape.dim[0].__setattr__("size", -5),
        INVALID,
        "input 'hour': expected shape",
    ),
    "content of another size": (
        lambda r: setattr(r.inputs["hour"], "tensor_content", b"123"),
        INVALID,
        "input 'hour': expected 40 bytes of tensor_content, received 3",
    ),
    "unknown dtype number": (
        lambda r: setattr(r.inputs["hour"], "dtype", 9999),
        INVALID,
        "input 'hour': expected dtype int64, received number 9999",
    ),
}


@pytest.mark.parametrize("case", PREDICT_TABLE)
def test_predict_table(running, valid, case):
    change, code, says = PREDICT_TABLE[case]
    running.prediction.Predict(valid, timeout=120)
    change(valid)
    refused(running.prediction.Predict, valid, code, says)


def test_no_rows_at_all(running, contract, helpers):
    inputs = helpers.sample_inputs(contract, 5)
    request = helpers.predict_request({name: values[:0] for name, values in inputs.items()})
    refused(running.prediction.Predict, request, INVALID, "expected at least one row")


def test_rank_signature_refuses_users_out_of_range(running, contract, helpers):
    inputs = helpers.sample_inputs(contract, 5, users=2)
    running.prediction.Predict(helpers.predict_request(inputs, "rank"), timeout=120)
    for wrong in (2, -1):
        inputs["user_index"] = np.array([0, 1, wrong, 0, 0], np.int32)
        request = helpers.predict_request(inputs, "rank")
        says = f"input 'user_index': expected 0 to 1, received {wrong} in row 2"
        refused(running.prediction.Predict, request, INVALID, says)


def test_output_filter_and_model_spec_of_the_answer(running, valid):
    valid.output_filter.extend(["like", "score"])
    valid.model_spec.version.value = 1
    response = running.prediction.Predict(valid, timeout=120)
    assert sorted(response.outputs) == ["like", "score"]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("small", 1, "serving_default")
    assert response.outputs["like"].tensor_shape.dim[0].size == 5
    assert len(tf.make_ndarray(response.outputs["like"])) == 5


def test_tensor_content_and_typed_fields_are_the_same(running, contract, helpers):
    inputs = helpers.sample_inputs(contract, 6, seed=5)
    packed = helpers.predict_request(inputs)
    assert packed.inputs["hour"].tensor_content
    spread = predict_pb2.PredictRequest()
    spread.CopyFrom(packed)
    fields = {"hour": "int64_val", "length": "float_val", "age__present": "bool_val"}
    for name, field in fields.items():
        spread.inputs[name].tensor_content = b""
        del getattr(spread.inputs[name], field)[:]
        getattr(spread.inputs[name], field).extend(inputs[name].tolist())
    first = running.prediction.Predict(packed, timeout=120)
    second = running.prediction.Predict(spread, timeout=120)
    assert list(first.outputs["score"].float_val) == list(second.outputs["score"].float_val)


def test_a_short_tensor_repeats_its_last_value(running, contract, helpers):
    inputs = helpers.sample_inputs(contract, 4)
    inputs["hour"] = np.array([3, 8, 8, 8])
    full = helpers.predict_request(inputs)
    short = helpers.predict_request(inputs)
    short.inputs["hour"].tensor_content = b""
    short.inputs["hour"].int64_val.extend([3, 8])
    first = running.prediction.Predict(full, timeout=120)
    second = running.prediction.Predict(short, timeout=120)
    assert list(first.outputs["score"].float_val) == list(second.outputs["score"].float_val)


def test_the_size_of_a_run_is_limited_and_a_small_message_cannot_ask_for_a_large_one(
    running, contract, helpers
):
    says = "expected at most 10000 rows, received 10001; split the call"
    for rows, users in ((10_001, 1), (1, 10_001)):
        request = helpers.predict_request(helpers.sample_inputs(contract, rows, users), "rank")
        refused(running.prediction.Predict, request, INVALID, says)
    request = helpers.predict_request(helpers.sample_inputs(contract, 1, users=1), "rank")
    request.inputs["item_id"].tensor_shape.dim[0].size = 1 << 21  # of one value, repeated
    says = "'item_id': expected each of 2097152 values, received 1; up to 1048576 may be left"
    refused(running.prediction.Predict, request, INVALID, says)
    request.inputs["item_id"].tensor_shape.dim[0].size = 800  # of one large text
    request.inputs["item_id"].tensor_content = b""
    request.inputs["item_id"].string_val[:] = [b"x" * (1 << 16)]
    says = "'item_id': .* the last one, of 65536 bytes, may stand for 16777216 bytes"
    refused(running.prediction.Predict, request, INVALID, says)
    for shape in ((1 << 62, 0), (0, 1 << 62)):  # no value, however large the other one is
        request = helpers.predict_request(helpers.sample_inputs(contract, 1, users=1), "rank")
        request.inputs["tags"].CopyFrom(tf.make_tensor_proto([], tf.string, [0, 0]))
        del request.inputs["tags"].tensor_shape.dim[:]
        for size in shape:
            request.inputs["tags"].tensor_shape.dim.add(size=size)
        refused(running.prediction.Predict, request, INVALID, "'tags': expected at most 16777216")


def test_a_large_context_of_many_examples_is_refused(running):
    request = with_examples(regression_pb2.RegressionRequest, "regress")
    request.input.Clear()
    held = request.input.example_list_with_context
    held.context.features.feature["topic"].bytes_list.value.append(b"x" * (1 << 16))
    for _ in range(300):
        held.examples.add()
    says = (
        r"input: the context, in each of 300 tf\.Examples, has \d+ bytes; expected at most 16777216"
    )
    refused(running.prediction.Regress, request, INVALID, says)


def test_predict_reads_missing_values_and_long_lists_as_rank_does(contract, helpers):
    inputs = helpers.sample_inputs(contract, 3, seed=1)
    inputs["topic"] = texts(b"a", b"", b"c")
    inputs["topic__present"] = np.array([True, True, False])
    inputs["age"] = np.array([1, np.nan, 3], np.float32)
    inputs["age__present"] = np.array([True, False, True])
    inputs["tags"] = np.array([list("abcde"), list("fghij"), list("klmno")], object)
    inputs["tags"][1, 0] = inputs["tags"][1, 2] = b""  # of the list's four values
    inputs["tags__length"] = np.array([5, 4, 4])
    inputs["recent"] = np.empty((3, 0), object)
    inputs["recent__length"] = np.zeros(3, np.int64)
    checked, rows = check_inputs(inputs, default_layout(contract), contract, 3)
    assert rows == 3
    assert checked["topic__present"].tolist() == [True, False, False]
    assert checked["age"].tolist() == [1, 0, 3]
    kept = zip(checked["tags"].tolist(), checked["tags__length"], strict=True)
    assert [values[:length] for values, length in kept] == [list("cde"), list("gi"), list("lmn")]
    assert checked["recent"].shape == (3, 1)


def test_metadata_holds_the_signatures(running):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "small"
    response = running.prediction.GetModelMetadata(request, timeout=120)
    assert response.model_spec.version.value == 1
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert {"rank", "serving_default"} <= signatures.signature_def.keys()
    assert "user_index" in signatures.signature_def["rank"].inputs
    method = running.prediction.GetModelMetadata
    del request.metadata_field[:]
    refused(method, request, INVALID, "metadata_field: expected 'signature_def', received none")
    request.metadata_field.append("weights")
    refused(method, request, INVALID, "metadata_field: .* received 'weights'")
    request.metadata_field[:] = ["signature_def"]
    request.model_spec.name = "x"
    refused(method, request, NOT_FOUND)


def test_model_status(running):
    request = get_model_status_pb2.GetModelStatusRequest()
    method = running.models.GetModelStatus
    refused(method, request, INVALID, "model name: required")
    request.model_spec.name = "x"
    refused(method, request, NOT_FOUND)
    request.model_spec.name = "small"
    (status,) = method(request, timeout=120).model_version_status
    states = get_model_status_pb2.ModelVersionStatus.State
    assert (status.version, status.state) == (1, states.AVAILABLE)
    assert status.status.error_code == 0
    request.model_spec.version.value = 7
    refused(method, request, NOT_FOUND, "version 7")
    request.model_spec.version_label = "stable"
    refused(method, request, INVALID, "version label 'stable'")


def test_a_reload_request_without_models_is_refused(running):
    request = model_management_pb2.ReloadConfigRequest()
    with pytest.raises(grpc.RpcError) as raised:
        running.models.HandleReloadConfigRequest(request, timeout=120)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "expected at least one config" in raised.value.details()


def example(item, length):
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "item_id": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[item.encode()]),
                ),
                "length": tf.train.Feature(float_list=tf.train.FloatList(value=[length])),
            }
        )
    )


def with_examples(kind, signature):
    request = kind()
    if signature is not None:  # MultiInference names models by its tasks
        request.model_spec.name = "small"
        request.model_spec.signature_name = signature
    for one in (example("i1", 0.5), example("i2", 1)):
        request.input.example_list.examples.add().MergeFromString(one.SerializeToString())
    return request


def test_classify_regress_and_multi_inference_agree(running):
    classify = with_examples(classification_pb2.ClassificationRequest, "classify")
    classified = running.prediction.Classify(classify, timeout=120)
    first = classified.result.classifications[0].classes
    assert [c.label for c in first] == ["no", "yes"]
    assert sum(c.score for c in first) == pytest.approx(1)
    regress = with_examples(regression_pb2.RegressionRequest, "regress")
    regressed = running.prediction.Regress(regress, timeout=120)
    assert len(regressed.result.regressions) == 2
    multi = inference_pb2.MultiInferenceRequest(input=classify.input)
    for signature in ("classify", "regress"):
        multi.tasks.add(
            model_spec={"name": "small", "signature_name": signature},
            method_name=f"tensorflow/serving/{signature}",
        )
    both = running.prediction.MultiInference(multi, timeout=120)
    assert both.results[0].classification_result == classified.result
    assert both.results[1].regression_result == regressed.result


def test_one_version_answers_all_tasks_of_a_call(tmp_path, publish, run_server, until, monkeypatch):
    """The call names no version; another one replaces the first between its tasks."""
    publish(tmp_path, 1)
    with run_server(tmp_path) as running:
        manager = running.server.models.manager("small")
        run = inference._result

        def run_and_swap(*given):
            found = run(*given)
            if list(manager._loaded) == [1]:
                publish(tmp_path, 2)
                until(lambda: list(manager._loaded) == [2])
            return found

        monkeypatch.setattr(inference, "_result", run_and_swap)
        multi = with_examples(inference_pb2.MultiInferenceRequest, None)
        for signature in ("classify", "regress"):
            multi.tasks.add(
                model_spec={"name": "small", "signature_name": signature},
                method_name=f"tensorflow/serving/{signature}",
            )
        answers = [running.prediction.MultiInference(multi, timeout=120) for _ in range(2)]
    versions = [[one.model_spec.version.value for one in both.results] for both in answers]
    assert versions == [[1, 1], [2, 2]]


def test_runs_and_examples_have_tensorflow_servings_metrics(running, valid, until):
    def seen():
        def value(name, **labels):
            return running.metric(f":tensorflow:serving:{name}", **labels) or 0

        return {
            **{
                api: value("runtime_latency_count", model_name="small", API=api, runtime="TF1")
                for api in ("Predict", "Classify", "Regress", "MultiInference")
            },
            "calls": value("request_example_counts_count", model="small"),
            "of two": value("request_example_counts_bucket", model="small", le="2"),
            "of one": value("request_example_counts_bucket", model="small", le="1"),
            "examples": value("request_example_count_total", model="small"),
        }

    before = seen()
    classify = with_examples(classification_pb2.ClassificationRequest, "classify")
    running.prediction.Predict(valid, timeout=120)
    running.prediction.Classify(classify, timeout=120)
    regress = with_examples(regression_pb2.RegressionRequest, "regress")
    running.prediction.Regress(regress, timeout=120)
    multi = inference_pb2.MultiInferenceRequest(input=classify.input)
    for signature in ("classify", "regress"):
        multi.tasks.add(
            model_spec={"name": "small", "signature_name": signature},
            method_name=f"tensorflow/serving/{signature}",
        )
    running.prediction.MultiInference(multi, timeout=120)
    classify.model_spec.signature_name = "regress"
    refused(running.prediction.Classify, classify, INVALID)  # has no run
    grown = dict.fromkeys(before, 1) | {"calls": 3, "of two": 3, "of one": 0, "examples": 6}
    # A call ends a moment after its answer has arrived.
    until(lambda: running.metric("multigate_calls_in_flight") == 0)
    after = seen()
    assert {name: after[name] - before[name] for name in before} == grown


def test_context_features_stand_for_those_an_example_lacks(running):
    plain = with_examples(regression_pb2.RegressionRequest, "regress")
    split = with_examples(regression_pb2.RegressionRequest, "regress")
    split.input.Clear()
    held = split.input.example_list_with_context
    held.context.MergeFromString(example("i1", 0.5).SerializeToString())
    held.examples.add()
    held.examples.add().MergeFromString(example("i2", 1).SerializeToString())
    first = running.prediction.Regress(plain, timeout=120)
    assert first.result == running.prediction.Regress(split, timeout=120).result


def test_classify_table(running):
    request = with_examples(classification_pb2.ClassificationRequest, "classify")
    method = running.prediction.Classify
    for signature in ("x", "regress", "serving_default"):
        request.model_spec.signature_name = signature
        says = f"signature '{signature}': expected one that supports .*: classify"
        refused(method, request, INVALID, says)
    request.model_spec.signature_name = "classify"
    request.input.Clear()
    refused(method, request, INVALID, "input: expected at least one tf.Example")
    request.model_spec.name = ""
    refused(method, request, INVALID, "model name: required")
    request.model_spec.name = "x"
    refused(method, request, NOT_FOUND)
    multi = inference_pb2.MultiInferenceRequest()
    refused(running.prediction.MultiInference, multi, INVALID, "tasks: expected at least one")
    multi.tasks.add(model_spec={"name": "small"}, method_name="tensorflow/serving/predict")
    refused(running.prediction.MultiInference, multi, INVALID, "tasks: expected method")


@pytest.fixture(scope="module")
def small_limits(tmp_path_factory, watched, run_server):
    """A server for three rows and one run at once, where one call may wait."""
    base = tmp_path_factory.mktemp("limits")
    shutil.copytree(watched, base / "1")
    with run_server(base, max_candidates=3, num_batch_threads=1, max_queued_calls=1) as running:
        yield running


@pytest.fixture
def calls_alone(small_limits, contract, helpers):
    """A call of each kind that is not joined with others: (method, request) by rows and users."""

    def calls(rows, users=1):
        inputs = helpers.sample_inputs(contract, rows, users=users)
        watch = helpers.predict_request(inputs, "watch")
        items = helpers.predict_request(inputs, "rank_items")
        for name in (
            *(name for name, _ in contract.of_side("item")),
            "topic__present",
            "tags__length",
        ):
            if name != contract.item:
                del items.inputs[name]
        others = [(small_limits.prediction.Predict, request) for request in (watch, items)]
        return calls_of_examples(small_limits, rows) + others

    return calls


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("task_weights", [[np.nan] * 3], r"'task_weights': expected finite numbers, received nan"),
        ("task_weights", [[3e38] * 3], r"row 0: output 'score': expected a finite score"),
        ("user_id", [b""], r"'user_id': expected a text \(missing: error\), received an empty one"),
        ("recent__length", [-1], r"'recent__length': expected 0 to \d+, the width of 'recent'"),
        ("recent__length", [0, 0], r"'recent__length': expected 1 rows as in 'recent', received 2"),
    ],
)
def test_signatures_beside_rank_refuse_what_it_refuses(
    small_limits, contract, helpers, calls_alone, name, values, says
):
    sent = [request for _, request in calls_alone(1)]
    predicts = [one for one in sent if isinstance(one, predict_pb2.PredictRequest)]
    [request] = [one for one in predicts if one.model_spec.signature_name == "rank_items"]
    small_limits.prediction.Predict(request, timeout=120)
    dtype = {"task_weights": np.float32, "user_id": object}.get(name, np.int64)
    values = np.array(values, dtype)
    if name == "task_weights":
        values = np.repeat(values[:, :1], len(contract.tasks), axis=1)
    set_input(request, name, values)
    refused(small_limits.prediction.Predict, request, INVALID, says)


def calls_of_examples(running, count):
    """A call of each method that takes tf.Examples, as (method, request)."""
    texts_ = [example(f"i{place}", 1).SerializeToString() for place in range(count)]
    classify, regress = (
        kind(
            model_spec={"name": "small", "signature_name": signature},
            input={"example_list": {"examples": map(tf.train.Example.FromString, texts_)}},
        )
        for kind, signature in (
            (classification_pb2.ClassificationRequest, "classify"),
            (regression_pb2.RegressionRequest, "regress"),
        )
    )
    multi = inference_pb2.MultiInferenceRequest(input=classify.input)
    multi.tasks.add(model_spec=regress.model_spec, method_name="tensorflow/serving/regress")
    predict = predict_pb2.PredictRequest(model_spec=regress.model_spec)
    set_input(predict, "examples", texts(*texts_))
    prediction = running.prediction
    return [
        (prediction.Classify, classify),
        (prediction.Regress, regress),
        (prediction.MultiInference, multi),
        (prediction.Predict, predict),
    ]


def test_rows_of_calls_that_are_not_joined_are_limited(calls_alone):
    says = "input.*: expected at most 3 rows, received 4; split"
    for method, request in calls_alone(3, users=3):
        method(request, timeout=120)
    for method, request in calls_alone(4):
        refused(method, request, INVALID, says)
    for method, request in calls_alone(1, users=4)[-2:]:
        refused(method, request, INVALID, says)
    method, request = calls_alone(2)[2]
    request.tasks.append(request.tasks[0])
    refused(method, request, INVALID, "for each of 2 tasks: expected at most 3 rows, received 4")


def test_calls_that_are_not_joined_and_wait_are_limited(small_limits, calls_alone, until):
    slots = small_limits.server.models.manager("small")._loaded[1].run_slots
    held = threading.Event()

    class Context:
        def time_remaining(self):
            return None

    async def hold():
        async with slots.hold(Call(Context())):
            while not held.is_set():
                await asyncio.sleep(0.01)

    running = CALLS.submit(hold())
    try:
        until(slots._free.locked)
        calls = calls_alone(1)
        for waiting, waiting_request in calls:
            first = waiting.future(waiting_request, timeout=120)
            until(lambda: slots._queued == 1)
            for method, request in calls:
                refused(method, request, grpc.StatusCode.UNAVAILABLE, "1 calls wait already")
            first.cancel()
            until(lambda: slots._queued == 0)
        late = calls[0][0].future(calls[0][1], timeout=0.1)
        assert late.exception().code() == grpc.StatusCode.DEADLINE_EXCEEDED
        small_limits.take_up()  # it may reach the server after its caller has given up
        until(lambda: not small_limits.server.gate.admitted)
        assert slots._queued == 0
        first = calls[0][0].future(calls[0][1], timeout=120)
    finally:
        held.set()
    running.result(120)
    assert len(first.result().result.classifications) == 1


def test_messages_over_the_limit_are_refused(tmp_path, publish, run_server, contract, helpers):
    publish(tmp_path, 1)
    with run_server(tmp_path, max_message_mebibytes=1) as running:
        request = helpers.predict_request(helpers.sample_inputs(contract, 5))
        running.prediction.Predict(request, timeout=120)
        request.model_spec.signature_name = "x" * (1 << 20)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        refused(running.prediction.Predict, request, code, "larger than max")


def test_a_message_of_many_empty_texts_is_refused_before_it_is_parsed(running):
    """Parsing 63 MiB of them took 2.2 s, in which no other call was answered."""
    texts = b"\x0a\x00" * (5 << 19)  # field 1, of length 0: one text
    request = ranking_pb2.RankRequest.FromString(bytes.fromhex("22060a040a020a00"))
    assert list(request.candidates.item_id.texts.values) == [""]
    request.candidates.item_id.texts.ParseFromString(texts)
    with pytest.raises(grpc.RpcError, match="larger than max") as raised:
        running.ranking.Rank(request, timeout=120)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_message_of_too_many_parts_is_refused_before_it_is_parsed(running):
    """Parsing 4 MiB of them took 0.1 s, in which no other call was answered."""
    entry = b"\x12\x06\x0a\x00\x12\x02\x0a\x00"  # field 2, `user`: an empty name, an empty value
    data = entry * 40_000
    assert list(ranking_pb2.RankRequest.FromString(data).user) == [""]
    rank = running.channel.unary_unary("/multigate.RankingService/Rank")
    refused(rank, data, INVALID, "expected at most 32768 objects, received more")
    refused(rank, data[:-1], INVALID, "expected at most 32768 objects, received more")
    refused(rank, data[: 8 * 10_000], INVALID, "model name: required")


def test_bytes_that_are_no_message_are_the_callers_fault(running):
    for path in ("multigate.RankingService/Rank", "tensorflow.serving.PredictionService/Predict"):
        method = running.channel.unary_unary(f"/{path}")
        refused(method, b"\xff\xff\xff", INVALID, "bytes received are not its request message")
