"""JSON over HTTP against a live server: every answer is compared with gRPC's."""

import asyncio
import base64
import json
import re
import shlex
import shutil
import subprocess
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import json_format
from prometheus_client.parser import text_string_to_metric_families

from multigate.runtime.tensorflow_messages import (
    get_model_metadata_pb2,
    get_model_status_pb2,
)
from multigate.serving.protos import ranking_pb2


@pytest.fixture(scope="module")
def served(tmp_path_factory, publish, publish_candidates, with_items, run_server, rest):
    base = tmp_path_factory.mktemp("models")
    candidates = tmp_path_factory.mktemp("candidates")
    publish(base, 1, with_items)
    publish_candidates(candidates, 1)
    with run_server(
        base, rest_api_port=0, metrics_port=0, candidates_base_path=candidates
    ) as running:
        running.rest = rest(running.server.rest_port)
        yield running


def rank_request(items, **others):
    return ranking_pb2.RankRequest(
        model=ranking_pb2.ModelSpec(name="small"),
        user={"user_id": ranking_pb2.Value(text="u7")},
        context={"hour": ranking_pb2.Value(integer=3)},
        candidates=ranking_pb2.Candidates(
            item_id=ranking_pb2.ItemIds(texts=ranking_pb2.Texts(values=items)),
            columns={
                "length": ranking_pb2.Column(
                    numbers=ranking_pb2.Numbers(values=np.linspace(0.1, 7, len(items)))
                )
            },
        ),
        request_id="r1",
        **others,
    )


def as_json(request):
    values = json_format.MessageToDict(request, preserving_proto_field_name=True)
    values.pop("model", None)
    return values


def same(answer, message):
    """Whether JSON is a message bit by bit, read back by protobuf."""
    return json_format.ParseDict(answer, type(message)()) == message


def outputs_of(response):
    return {
        name: np.array(tensor.float_val, np.float64) for name, tensor in response.outputs.items()
    }


@pytest.mark.parametrize("count", [3, 4000], ids=["small", "read in the other process"])
def test_rank_is_grpcs(served, count):
    request = rank_request([f"i{n}" for n in range(count)], limit=count - 1)
    status, answer = served.rest.post("small:rank", as_json(request))
    assert status == 200, answer
    expected = served.ranking.Rank(request)
    assert same(answer, expected)
    assert answer["score"] == list(expected.score)
    assert answer["model_version"] == "1"


def test_recommend_is_grpcs(served):
    request = ranking_pb2.RecommendRequest(
        model=ranking_pb2.ModelSpec(name="small"),
        user={"user_id": ranking_pb2.Value(text="u7")},
        context={"hour": ranking_pb2.Value(integer=3)},
        limit=4,
        request_id="r2",
    )
    status, answer = served.rest.post("small:recommend", as_json(request))
    assert status == 200, answer
    assert same(answer, served.ranking.Recommend(request))


def test_explain_is_grpcs(served):
    ranking = rank_request(["i1", "i2", "i3"])
    request = ranking_pb2.ExplainRequest(
        ranking=ranking, candidate=1, against=ranking_pb2.CANDIDATES, pairs=2, seed=3
    )
    body = as_json(request)
    del body["ranking"]["model"]
    status, answer = served.rest.post("small:explain", body)
    assert status == 200, answer
    assert same(answer, served.ranking.Explain(request))


@pytest.mark.parametrize("rows", [1, 2, 700])
def test_columns_are_predicted_as_by_grpc(served, contract, helpers, as_columns, rows):
    inputs = helpers.sample_inputs(contract, rows, users=2, seed=rows)
    request = helpers.predict_request(inputs, "rank")
    status, answer = served.rest.post(
        "small:predict", {"signature_name": "rank", "inputs": as_columns(inputs)}
    )
    assert status == 200, answer
    expected = outputs_of(served.prediction.Predict(request))
    assert answer["outputs"].keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(np.array(answer["outputs"][name]), values)


def test_a_version_that_is_replaced_while_its_call_is_read_answers_it(
    tmp_path, publish, run_server, rest, contract, helpers, as_columns, until, monkeypatch
):
    """The call names no version; a long body is read in another process meanwhile."""
    publish(tmp_path, 1)
    inputs = helpers.sample_inputs(contract, 3)
    with run_server(tmp_path, rest_api_port=0) as running:
        manager = running.server.models.manager("small")
        reader = running.server._rest._reader
        read = reader.predict

        async def read_and_swap(body, signatures):
            found = await read(body, signatures)
            publish(tmp_path, 2)
            await asyncio.to_thread(until, lambda: list(manager._loaded) == [2])
            return found

        monkeypatch.setattr(reader, "predict", read_and_swap)
        status, answer = rest(running.server.rest_port).post(
            "small:predict", {"inputs": as_columns(inputs)}
        )
    assert status == 200, answer


@pytest.mark.parametrize("rows", [1, 400])
def test_rows_are_predicted_as_by_grpc(served, contract, helpers, as_columns, rows):
    inputs = helpers.sample_inputs(contract, rows, seed=rows)
    request = helpers.predict_request(inputs)
    columns = as_columns(inputs)
    instances = [{name: values[row] for name, values in columns.items()} for row in range(rows)]
    status, answer = served.rest.post("small:predict", {"instances": instances})
    assert status == 200, answer
    expected = outputs_of(served.prediction.Predict(request))
    for name, values in expected.items():
        assert np.array_equal([one[name] for one in answer["predictions"]], values)


def test_a_single_input_needs_no_name_and_bytes_come_in_base64(served):
    from tensorflow.core.example import example_pb2

    example = example_pb2.Example()
    example.features.feature["item_id"].bytes_list.value.append(b"i3")
    text = {"b64": base64.b64encode(example.SerializeToString()).decode()}
    body = {"signature_name": "regress", "instances": [text, text]}
    status, answer = served.rest.post("small:predict", body)
    assert status == 200, answer
    first, second = answer["predictions"]
    assert first == second
    assert len(first) == 1
    status, columnar = served.rest.post(
        "small/versions/1:predict", {"signature_name": "regress", "inputs": [text, text]}
    )
    assert columnar == {"outputs": answer["predictions"]}


def test_status_and_metadata_are_as_tensorflow_serving_documents_them(served):
    status, answer = served.rest.get("small")
    assert status == 200
    assert answer == {
        "model_version_status": [
            {
                "version": "1",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "small"
    assert same(answer, served.models.GetModelStatus(request))
    status, answer = served.rest.get("small/versions/1/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "small", "version": "1", "signature_name": ""}
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "small"
    packed = served.prediction.GetModelMetadata(request).metadata["signature_def"]
    expected = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(expected)
    assert same(answer["metadata"]["signature_def"], expected)
    inputs = answer["metadata"]["signature_def"]["signature_def"]["classify"]["inputs"]
    assert inputs["examples"]["dtype"] == "DT_STRING"
    assert inputs["examples"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]


LISTENER = {"user": {"user_id": {"text": "u7"}}, "context": {"hour": {"integer": 3}}}
VALUE = "expected an object with text, integer, number, texts, integers, numbers"
REFUSED = [
    ("small:rank", b"{", 400, "expected JSON"),
    ("small:rank", b"[1]", 400, "expected a JSON object, received a list"),
    ("small:rank", b'{"limit": 1, "limit": 2}', 400, "key 'limit': expected once"),
    ("small:rank", b"\xff\xfe", 400, "expected UTF-8"),
    ("small:rank", b"[" * 20_000, 400, "nested less deeply"),
    ("small:rank", b"[" * 100_000, 400, "nested less deeply"),
    ("small:rank", b'{"user": {"a": {"integer": ' + b"9" * 5000 + b"}}}", 400, "4300 digits"),
    ("small:rank", b'{"a": [' + b'"",' * (1 << 18) + b"1]}", 400, "at most 262144 texts"),
    ("small:rank", b'{"a": [' + b"{}," * (1 << 15) + b"1]}", 400, "at most 32768 objects"),
    ("small:rank", {"nothing": 1}, 400, "nothing"),
    ("small:rank", {"limit": "many"}, 400, "limit"),
    ("small:rank", {"user": {"user_id": {"text": 5}}}, 400, "expected a RankRequest as JSON"),
    (
        "small:rank",
        {"user": {"user_id": "u7"}},
        400,
        f'user.user_id: {VALUE}, such as {{"text": "u7"}}, received a string',
    ),
    (
        "small:rank",
        {"user": {"user_id": {"value": "u7"}}},
        400,
        f'user.user_id: {VALUE}, such as {{"text": "u7"}}, received one with \'value\'',
    ),
    ("small:rank", {"user": {"user_id": None}}, 400, f"user.user_id: {VALUE}, received null"),
    (
        "small:rank",
        {"context": {"hour": 3}},
        400,
        f'context.hour: {VALUE}, such as {{"integer": 3}}, received a number',
    ),
    (
        "small:rank",
        {"user": {"tags": ["a", "b"]}},
        400,
        f'user.tags: {VALUE}, such as {{"texts": {{"values": ["a"]}}}}, received a list',
    ),
    ("small:rank", {"floors": {"like": 1}}, 400, "floors.like: expected an object with min, max"),
    (
        "small:rank",
        {"candidates": {"itemId": {"texts": ["i1"]}}},
        400,
        "candidates.itemId.texts: expected an object with values, such as "
        '{"values": ["i1"]}, received a list',
    ),
    (
        "small:explain",
        {"ranking": {"candidates": {"columns": {"length": [1, 2]}}}},
        400,
        "ranking.candidates.columns.length: expected an object with texts, integers, numbers",
    ),
    ("small:rank", b'{"request_id": "\\ud800"}', 400, "expected a RankRequest as JSON"),
    ("small:rank", b'{"\\ud800": 1}', 400, "expected a RankRequest as JSON"),
    ("small:predict", b'{"\\ud800": 1}', 400, "received '\\ud800'"),
    ("small:rank", {"model": {"name": "small"}}, 400, "expected in the path"),
    ("small:rank", {}, 400, "candidates"),
    ("other:rank", {}, 404, "model 'other': unknown"),
    ("small/versions/9:rank", {}, 404, "version 9 is not available"),
    (f"small/versions/{2**63 - 1}:rank", {}, 404, f"version {2**63 - 1} is not available"),
    (f"small/versions/{2**63}:rank", {}, 400, f"versions/{2**63}: expected a number (int64)"),
    ("small/versions/one:rank", {}, 400, "versions/one: expected a number"),
    ("small/labels/gold:rank", {}, 400, "version label 'gold'"),
    ("small:recommend", {**LISTENER, "limit": -1}, 400, "limit: expected 0"),
    ("small:predict", {}, 400, "instances or inputs, received neither"),
    ("small:predict", {"instances": [1], "inputs": [1]}, 400, "received both"),
    ("small:predict", {"instances": []}, 400, "an empty one"),
    ("small:predict", {"instances": [1]}, 400, "expected an object in each row"),
    ("small:predict", {"instances": [{"hour": 1}, {}]}, 400, "row 1: expected the inputs of row 0"),
    ("small:predict", {"instances": [{"hour": 1}, 2]}, 400, "received a number in row 1"),
    ("small:predict", {"inputs": {"size": [1]}}, 400, "'size': unknown"),
    ("small:predict", {"inputs": {"hour": [1.5]}}, 400, "expected a whole number (int64)"),
    ("small:predict", {"inputs": {"hour": [None]}}, 400, "received null"),
    ("small:predict", {"inputs": {"hour": [True]}}, 400, "received true or false"),
    ("small:predict", {"inputs": {"hour": [2**63]}}, 400, "in the range of int64"),
    ("small:predict", {"inputs": {"length": [1e39]}}, 400, "in the range of float32"),
    ("small:predict", {"inputs": {"hour": [[1], [2, 3]]}}, 400, "lists of one length"),
    ("small:predict", {"inputs": {"hour": [1, [2]]}}, 400, "at one level"),
    ("small:predict", {"inputs": {"hour": [[1]]}}, 400, "expected shape [?], received [1, 1]"),
    ("small:predict", {"inputs": {"item_id": [{"b64": "?"}]}}, 400, "base64"),
    ("small:predict", {"inputs": {"hour": [1]}}, 400, "missing: "),
    ("small:predict", {"signature_name": 1, "inputs": 1}, 400, "signature_name: expected a string"),
    ("small:predict", {"signature_name": "no", "inputs": 1}, 400, "signature 'no': not in version"),
    ("small:predict", {"predict": 1, "inputs": 1}, 400, "received 'predict'"),
    ("small:train", {}, 404, "expected /v1/models/NAME"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), REFUSED)
def test_bad_requests_get_one_clear_line(served, path, body, status, text):
    received, answer = served.rest.post(path, body)
    assert received == status, answer
    assert list(answer) == ["error"]
    assert text in answer["error"]
    assert "\n" not in answer["error"]


def test_nan_is_a_number_that_the_contract_refuses_as_it_does_over_grpc(
    served, contract, helpers, as_columns
):
    inputs = helpers.sample_inputs(contract, 1)
    inputs["length"][0] = np.nan
    with pytest.raises(grpc.RpcError) as raised:
        served.prediction.Predict(helpers.predict_request(inputs))
    status, answer = served.rest.post("small:predict", {"inputs": as_columns(inputs)})
    assert (status, answer) == (400, {"error": raised.value.details()})
    assert "expected finite numbers, received nan" in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/models/small:rank", 405, "POST"),
        ("POST", "/v1/models/small", 405, "GET, HEAD"),
        ("DELETE", "/v1/models/small/metadata", 405, "GET, HEAD"),
        ("POST", "/metrics", 405, "GET, HEAD"),
        ("GET", "/v2/health/ready", 404, None),
        ("GET", "/", 404, None),
    ],
)
def test_other_paths_and_methods_are_refused(served, method, path, status, allow):
    received, headers, answer = served.rest(method, path)
    assert (received, headers["allow"], list(answer)) == (status, allow, ["error"])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models/small", 200),
        ("/metrics", 200),
        ("/v1/models/b", 404),
        ("/v1/models/b:rank", 405),
    ],
)
def test_monitors_may_ask_for_the_head_of_an_answer(served, path, status):
    with served.rest.connect() as connection:
        lines = [f"HEAD {path} HTTP/1.1", "Host: x", "Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        head = connection.makefile("rb").read().decode()
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert int(re.search(r"content-length: (\d+)", head)[1]) > 0
    assert head.endswith("\r\n\r\n")
    assert head.count("\r\n\r\n") == 1


PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
EXAMPLES = re.findall(r"^curl .*?(?=^curl|^```)", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory, publish, run_server):
    """A server as the page has it."""
    base = tmp_path_factory.mktemp("demo")
    publish(base, 1)
    models = base / "models.txt"
    models.write_text(
        f'model_config_list {{ config {{ name: "demo" base_path: "{base}" '
        'version_labels { key: "stable" value: 1 } } }'
    )
    with run_server(base, model_config_file=models, rest_api_port=0) as running:
        yield running


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_pages_examples_are_answered(demo, example, lacking):
    if shutil.which("curl") is None:
        lacking("curl is not installed")
    command = shlex.split(example.replace("localhost:8501", f"127.0.0.1:{demo.server.rest_port}"))
    done = subprocess.run([*command, "--silent"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer
    assert "error" not in answer, answer


def test_a_label_names_a_version(demo, rest, contract, helpers, as_columns):
    client = rest(demo.server.rest_port)
    assert client.get("demo/labels/stable") == client.get("demo/versions/1")
    body = {"inputs": as_columns(helpers.sample_inputs(contract, 2))}
    status, answer = client.post("demo/labels/stable:predict", body)
    assert status == 200, answer
    assert answer == client.post("demo:predict", body)[1]


def test_metrics_have_tensorflow_servings_names_and_stand_on_both_pages(served, until):
    samples = {}
    for port in (served.rest.port, served.server.metrics_port):
        url = f"http://127.0.0.1:{port}/monitoring/prometheus/metrics"
        request = rank_request(["i1", "i2"])
        served.ranking.Rank(request)
        served.rest.post("small:rank", as_json(request))
        served.rest.post("small/versions/1:rank", {})
        # A call ends a moment after its answer has arrived.
        until(lambda: served.metric("multigate_calls_in_flight") == 0)
        with urllib.request.urlopen(url, timeout=120) as page:
            assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = page.read().decode()
        for family in text_string_to_metric_families(text):
            samples |= {
                (one.name, *sorted(one.labels.items())): one.value for one in family.samples
            }
        # The parser completes counters' names.
        for entrypoint in ("GRPC", "REST"):
            assert samples[
                ":tensorflow:serving:request_latency_count",
                ("API", "Rank"),
                ("entrypoint", entrypoint),
                ("model_name", "small"),
                ("status", "OK"),
            ]
        labels = [("API", "Rank"), ("model_name", "small"), ("runtime", "TF1")]
        assert samples[":tensorflow:serving:runtime_latency_count", *labels]
        for status in ("OK", "INVALID_ARGUMENT"):
            labels = [("method", "Rank"), ("model_name", "small"), ("status", status)]
            assert samples[":tensorflow:serving:request_count_total", *labels]
        ranked = {"model": "small", "version": "1", "signature": "rank"}
        labels = sorted((ranked | {"method": "Rank", "status": "OK"}).items())
        assert samples["multigate_requests_total", *labels]
        assert samples[("multigate_calls_in_flight",)] == 0
