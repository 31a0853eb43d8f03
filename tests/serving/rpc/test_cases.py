"""Cases of docs/serving.md's table that other tests do not try; `serving/test_table.py` has all."""

import grpc
import pytest
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from multigate.serving.protos import ranking_pb2

CODE = grpc.StatusCode
EXAMPLES = {"example_list": {"examples": [{"features": {"feature": {}}}]}}


def rank_request(**model):
    request = ranking_pb2.RankRequest(model=model, context={"hour": {"integer": 9}})
    request.user["user_id"].text = "u1"
    request.candidates.item_id.texts.values.extend(["i1", "i2", "i3"])
    request.candidates.columns["length"].numbers.values.extend([1, 2, 3])
    return request


def calls_of(running, **spec):
    """A call of each method that names a model, by the method's name.

    Args:
        running: the server.
        spec: of the model, with the fields of our ModelSpec.
    """
    ours, theirs = spec, dict(spec)
    if "version" in spec:
        theirs["version"] = {"value": spec["version"]}
    predict = predict_pb2.PredictRequest(model_spec=theirs)
    classify = classification_pb2.ClassificationRequest(
        model_spec=theirs | {"signature_name": "classify"}, input=EXAMPLES
    )
    regress = regression_pb2.RegressionRequest(
        model_spec=theirs | {"signature_name": "regress"}, input=EXAMPLES
    )
    multi = inference_pb2.MultiInferenceRequest(input=EXAMPLES)
    multi.tasks.add(model_spec=classify.model_spec, method_name="tensorflow/serving/classify")
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=theirs, metadata_field=["signature_def"]
    )
    status = get_model_status_pb2.GetModelStatusRequest(model_spec=theirs)
    ranking, prediction, models = running.ranking, running.prediction, running.models
    return {
        "Rank": (ranking.Rank, rank_request(**ours)),
        "Explain": (ranking.Explain, ranking_pb2.ExplainRequest(ranking=rank_request(**ours))),
        "GetContract": (ranking.GetContract, ranking_pb2.GetContractRequest(model=ours)),
        "Predict": (prediction.Predict, predict),
        "Classify": (prediction.Classify, classify),
        "Regress": (prediction.Regress, regress),
        "MultiInference": (prediction.MultiInference, multi),
        "GetModelMetadata": (prediction.GetModelMetadata, metadata),
        "GetModelStatus": (models.GetModelStatus, status),
    }


def code_of(method, request):
    try:
        method(request, timeout=120)
    except grpc.RpcError as error:
        return error.code()
    return CODE.OK


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({}, CODE.INVALID_ARGUMENT),
        ({"name": "x"}, CODE.NOT_FOUND),
        ({"name": "small", "version": 9}, CODE.NOT_FOUND),
        ({"name": "small", "version_label": "stable"}, CODE.INVALID_ARGUMENT),
    ],
    ids=["no name", "unknown model", "unknown version", "unknown label"],
)
def test_every_method_says_what_is_wrong_with_the_model(running, spec, code):
    calls = calls_of(running, **spec)
    assert {name: code_of(*one) for name, one in calls.items()} == dict.fromkeys(calls, code)


def test_recommend_says_what_is_wrong_with_the_model(running):
    for model, code in ({}, CODE.INVALID_ARGUMENT), ({"name": "x"}, CODE.NOT_FOUND):
        request = ranking_pb2.RecommendRequest(model=model, user={"user_id": {"text": "u1"}})
        assert code_of(running.ranking.Recommend, request) == code


@pytest.mark.parametrize("signature", ["x", "serving_default"])
def test_methods_of_examples_refuse_other_signatures(running, signature):
    calls = calls_of(running, name="small")
    for name in ("Classify", "Regress", "MultiInference"):
        method, request = calls[name]
        spec = request.tasks[0].model_spec if name == "MultiInference" else request.model_spec
        spec.signature_name = signature
        assert code_of(method, request) == CODE.INVALID_ARGUMENT
    assert code_of(*calls["Predict"]) == CODE.INVALID_ARGUMENT  # it lacks its inputs


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"candidate": 3}, "candidate: expected 0 to 2, a place among the candidates, received 3"),
        ({"candidate": -1}, "candidate: expected 0 to 2, .* received -1"),
        ({"pairs": 1}, "pairs: expected 2 or more, received 1"),
        ({"pairs": 1 << 30}, "pairs: expected at most"),
        ({"seed": -1}, "seed: expected 0 or more, received -1"),
        ({"against": 7}, "against: expected "),
    ],
)
def test_explain_refuses_what_is_out_of_range(running, changes, says):
    request = ranking_pb2.ExplainRequest(ranking=rank_request(name="small"), **changes)
    if "pairs" in changes or "seed" in changes:
        request.against = ranking_pb2.CANDIDATES  # this version has no example rows
    with pytest.raises(grpc.RpcError, match=says) as raised:
        running.ranking.Explain(request, timeout=120)
    assert raised.value.code() == CODE.INVALID_ARGUMENT


def test_explain_refuses_one_candidate_against_the_others(running):
    request = ranking_pb2.ExplainRequest(ranking=rank_request(name="small"))
    request.against = ranking_pb2.CANDIDATES
    assert code_of(running.ranking.Explain, request) == CODE.OK
    del request.ranking.candidates.item_id.texts.values[1:]
    del request.ranking.candidates.columns["length"].numbers.values[1:]
    with pytest.raises(grpc.RpcError, match="expected others to compare with") as raised:
        running.ranking.Explain(request, timeout=120)
    assert raised.value.code() == CODE.INVALID_ARGUMENT


def test_a_deadline_that_passes_during_the_run_leaves_the_run(
    tmp_path, publish, run_server, contract, helpers, hold, until
):
    """In the default runtime: the caller is told, and the run goes on to its end."""
    publish(tmp_path, 1)
    request = helpers.predict_request(helpers.sample_inputs(contract, 2, users=1), "rank")
    labels = {"model": "small", "signature": "rank"}
    with run_server(tmp_path, num_batch_threads=1) as running:
        predict, gate = running.prediction.Predict, running.server.gate
        batcher = running.server.models.manager("small")._loaded[1].batchers["rank"]
        expected = predict(request, timeout=120).outputs
        runs = running.metric("multigate_batch_calls_count", **labels)
        with hold("rank") as held:
            for seconds in (0.5, 4, 32, 240):  # until the run has begun before the deadline
                late = predict.future(request, timeout=seconds)
                assert late.exception().code() == CODE.DEADLINE_EXCEEDED
                if held.begun.is_set():
                    break
            assert held.begun.is_set()
            waiting = predict.future(request, timeout=240)
            until(lambda: len(batcher._queue) == 1, "the next call, which waits for the run")
            assert batcher._free == 0
            assert len(gate.admitted) == 2  # the late call holds its version until the run's end
            held.let_go.set()
        assert waiting.result().outputs == expected
        until(lambda: not gate.admitted)
        assert batcher._free == 1
        assert running.metric("multigate_batch_calls_count", **labels) == runs + 2
        answered = {"model_name": "small", "method": "Predict"}
        name = ":tensorflow:serving:request_count"
        assert running.metric(name, status="OK", **answered) == 2
        statuses = ("CANCELLED", "DEADLINE_EXCEEDED")
        late = [running.metric(name, status=status, **answered) or 0 for status in statuses]
        assert sum(late) == 1
