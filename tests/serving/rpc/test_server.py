"""The server as a process: start, health, reflection, drain; and a client without TensorFlow."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tensorflow_serving.apis import (
    model_management_pb2,
    model_service_pb2_grpc,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

from multigate.serving.core.background import SupervisedThread
from multigate.serving.rpc import server as server_module
from multigate.serving.rpc.server import BACKGROUND, LIVENESS
from multigate.serving.versions.folders import WARMUP

ROOT = Path(__file__).parents[3]
STATUS = health_pb2.HealthCheckResponse

# The drain waits for the test, and so does the run for HELD: both last however long the test looks.
HOLD = """
import os, sys, threading
from multigate.serving.rpc.server import Server
from multigate.serving.versions.saved_model import ServedSignature
run, drain_calls = ServedSignature.__call__, Server._drain_calls
told = {"drain": threading.Event(), "run": threading.Event()}
def listen():
    while said := os.read(0, 100).decode():
        for word in said.split():
            told[word].set()
    for one in told.values():
        one.set()
def wait(word, what):
    print(what, flush=True)
    while not told[word].wait(0.5):
        pass
def held_run(self, inputs, timeout=None):
    if HELD in inputs.get("hour", ()):
        wait("run", "runs")
    return run(self, inputs, timeout)
def held_drain(self, grace, force):
    wait("drain", "drains")
    drain_calls(self, grace, force)
ServedSignature.__call__, Server._drain_calls = held_run, held_drain
threading.Thread(target=listen, daemon=True).start()
"""
HELD = 77  # an hour

# The exported version must need nothing but TensorFlow's runtime: Keras cannot be imported here.
SERVE = """
import argparse, sys
sys.modules["keras"] = None
from multigate.serving.core import options
from multigate.serving.rpc import server
parser = argparse.ArgumentParser()
options.add_arguments(parser)
server.serve(options.from_arguments(parser.parse_args()))
assert sys.modules["keras"] is None
assert not set(sys.modules) & {"multigate.model", "multigate.pipeline", "tf_keras"}
assert not set(sys.modules) & {"tensorflow", "tensorflow.python"}
"""


class Process:
    """A server in a process of its own."""

    def __init__(self, base, *flags, hold=False):
        environment = os.environ | {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "MODEL_NAME": "small",
            "MODEL_BASE_PATH": str(base),
            "PYTHONPATH": str(ROOT / "src"),
        }
        code = f"HELD = {HELD}{HOLD}{SERVE}" if hold else SERVE
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "--port", "0", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self):
        self.line = self.process.stdout.readline()
        if not self.line:
            pytest.fail(f"the server did not start: {self.process.communicate(timeout=120)[1]}")
        self.target = self.line.split()[-1]
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=120)

    def says(self):
        return self.process.stdout.readline().strip()

    def tell(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def signal_and_wait(self, *numbers):
        for number in numbers:
            self.process.send_signal(number)
        said, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        return said


def request_of(contract, helpers, hour):
    inputs = helpers.sample_inputs(contract, 2, users=1)
    inputs["hour"] = np.array([hour])
    return helpers.predict_request(inputs, "rank")


def without_end(contract, helpers):
    """Gives a version a warm-up that takes many minutes."""

    def change(folder):
        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.CopyFrom(request_of(contract, helpers, helpers.slow_from + 20_000))
        with tf.io.TFRecordWriter(str(folder / WARMUP)) as writer:
            for _ in range(2_000):
                writer.write(log.SerializeToString())

    return change


def warms_up(process, folder):
    """Whether the process reads the warm-up requests of a version."""
    opened = {one.path for one in psutil.Process(process.pid).open_files()}
    return str(folder / WARMUP) in opened


@pytest.mark.slow
def test_sigterm_drains_in_spite_of_loads_and_the_process_runs_without_keras(
    tmp_path, publish, contract, helpers, until
):
    base, other = tmp_path / "small", tmp_path / "other"
    base.mkdir()
    other.mkdir()
    publish(base, 1)
    tokens = tmp_path / "admin"
    tokens.write_text("admin\n")
    flags = ("--drain_grace_seconds", "600", "--admin_token_file", str(tokens))
    with (
        Process(base, *flags, hold=True) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        assert server.line.startswith("serving small version 1 on 127.0.0.1:")
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        quick, held = (request_of(contract, helpers, hour) for hour in (9, HELD))
        stub.Predict(quick, timeout=120)
        # Two loads are under way: the poller's, and that of a reload request.
        forever = without_end(contract, helpers)
        versions = [publish(base, 2, forever), publish(other, 1, forever)]
        request = model_management_pb2.ReloadConfigRequest()
        for name, folder in (("small", base), ("other", other)):
            request.config.model_config_list.config.add(name=name, base_path=str(folder))
        models = model_service_pb2_grpc.ModelServiceStub(helpers.as_admin(channel))
        reload = models.HandleReloadConfigRequest.future(request, timeout=300)
        until(lambda: all(warms_up(server.process, folder) for folder in versions), "both loads")
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=120).status == STATUS.SERVING
        watched = health.Watch(health_pb2.HealthCheckRequest())  # has no end of its own
        assert next(watched).status == STATUS.SERVING
        in_flight = stub.Predict.future(held, timeout=240)
        assert server.says() == "runs"
        server.process.send_signal(signal.SIGTERM)
        assert server.says() == "drains"
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=120)
        assert answer.status == STATUS.NOT_SERVING
        assert next(watched).status == STATUS.NOT_SERVING
        with pytest.raises(grpc.RpcError, match="the server is stopping") as raised:
            stub.Predict(quick, timeout=120)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not in_flight.done()
        server.tell("drain")
        server.tell("run")
        assert len(in_flight.result().outputs["score"].float_val) == 2
        assert reload.exception().code() == grpc.StatusCode.UNAVAILABLE
        assert reload.exception().details() == "the server is stopping; nothing was changed"
        server.signal_and_wait()


@pytest.mark.slow
def test_sigterm_ends_a_server_that_has_not_loaded_yet(tmp_path, publish, contract, helpers, until):
    folder = publish(tmp_path, 1, without_end(contract, helpers))
    server = Process(tmp_path)
    try:
        until(lambda: warms_up(server.process, folder), "the load")
        server.process.send_signal(signal.SIGTERM)
        said, told = server.process.communicate(timeout=120)
        assert (server.process.returncode, said) == (0, "")  # it never said that it serves
        assert "cancelled: the server stops" in told
        assert re.findall(r",\d{3} ERROR .*", told) == []  # none of our lines
    finally:
        server.__exit__()


@pytest.mark.slow
def test_a_second_signal_ends_calls_in_flight(tmp_path, publish, contract, helpers):
    publish(tmp_path, 1)
    flags = ("--drain_grace_seconds", "600")
    with (
        Process(tmp_path, *flags, hold=True) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        in_flight = stub.Predict.future(request_of(contract, helpers, HELD), timeout=240)
        assert server.says() == "runs"
        server.process.send_signal(signal.SIGINT)
        assert server.says() == "drains"
        server.tell("drain")
        server.process.send_signal(signal.SIGTERM)
        assert in_flight.exception().code() in {
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        }
        server.signal_and_wait()


HANGS = """
import sys, time
from multigate.serving.core.signals import ends_within
with ends_within(60):
    pass
with ends_within(0.1):
    time.sleep(600)
"""


def test_a_process_that_hangs_while_it_drains_ends_all_the_same():
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "the server does not end within 0.1 s and is killed\n",
    )


def test_health_tells_liveness_from_readiness(running):
    health = health_pb2_grpc.HealthStub(running.channel)
    services = (
        "",
        LIVENESS,
        "multigate.RankingService",
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
    )
    for service in services:
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request, timeout=120).status == STATUS.SERVING
    with pytest.raises(grpc.RpcError) as raised:
        health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=120)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_health_says_that_a_background_thread_failed(running, monkeypatch):
    """For a time that each failure begins anew; what takes calls stays SERVING."""
    health = health_pb2_grpc.HealthStub(running.channel)
    watched = health.Watch(health_pb2.HealthCheckRequest(service=BACKGROUND), timeout=120)

    def fail(seconds):
        monkeypatch.setattr(server_module, "_FAILED_SECONDS", seconds)
        failing = iter([OSError("no room")])

        def work():
            for error in failing:
                raise error

        thread = SupervisedThread("odd", work, running.server.metrics.thread_failed)
        thread.start()
        return thread

    assert next(watched).status == STATUS.SERVING
    threads = [fail(3600.0)]
    assert next(watched).status == STATUS.NOT_SERVING
    for service in "", LIVENESS:
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request, timeout=30).status == STATUS.SERVING
    threads.append(fail(0.1))
    assert next(watched).status == STATUS.SERVING
    watched.cancel()
    for thread in threads:
        thread.join()


def test_streams_leave_calls_their_room_and_are_limited(running, until):
    until(lambda: not running.server._interceptor.streams, "the end of earlier tests' streams")
    health = health_pb2_grpc.HealthStub(running.channel)
    ask = health_pb2.HealthCheckRequest()
    reflect = reflection_pb2_grpc.ServerReflectionStub(running.channel).ServerReflectionInfo
    streams = [health.Watch(ask) for _ in range(56)]
    ended = threading.Event()

    def one_question():
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        ended.wait(120)

    streams += [reflect(one_question()) for _ in range(8)]
    for stream in streams:
        next(stream)
    assert health.Check(ask, timeout=120).status == STATUS.SERVING
    for one_too_many in (health.Watch(ask), reflect(iter([]))):
        with pytest.raises(grpc.RpcError, match="already") as raised:
            next(one_too_many)
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for stream in streams:
        stream.cancel()
    ended.set()

    def there_is_room():
        try:
            stream = health.Watch(ask)
            next(stream)
        except grpc.RpcError:
            return False
        return stream.cancel()

    until(there_is_room)


def never_read(channel, until):
    """A reflection stream whose answers fill a connection that nobody reads."""
    reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    asked = []

    def questions():
        for number in itertools.count():  # until the answers are more than a connection takes
            asked.append(number)
            yield reflection_pb2.ServerReflectionRequest(file_by_filename="x" * 100_000)

    def waits():
        before = len(asked)
        threading.Event().wait(0.1)
        return before == len(asked) > 0

    stream = reflect(questions())
    until(waits)
    return stream


def test_a_stream_whose_reader_never_reads_gives_its_place_back(running, until):
    held = running.server._interceptor.streams
    until(lambda: not held)
    stream = never_read(running.channel, until)
    until(lambda: len(held) == 1)
    stream.cancel()
    until(lambda: not held)


def test_a_stream_whose_reader_never_reads_holds_no_drain_up(tmp_path, publish, run_server, until):
    publish(tmp_path, 1)
    with run_server(tmp_path, drain_grace_seconds=600) as running:
        stream = never_read(running.channel, until)  # kept: a call that nobody has is cancelled
        until(lambda: len(running.server._interceptor.streams) == 1)
        stopping = threading.Thread(target=running.server.stop)
        stopping.start()
        until(lambda: not stopping.is_alive(), "the end of the drain")
        stream.cancel()


def test_all_who_watch_are_told_whoever_leaves(tmp_path, publish, run_server, helpers):
    publish(tmp_path, 1)
    ask = health_pb2.HealthCheckRequest()
    delay = helpers.Delay()
    with run_server(tmp_path) as running:
        watch = health_pb2_grpc.HealthStub(running.channel).Watch
        watching, leaving, live = (
            watch(ask),
            watch(ask),
            watch(health_pb2.HealthCheckRequest(service=LIVENESS)),
        )
        for stream in (watching, leaving, live):
            assert next(stream).status == STATUS.SERVING
        leaving.cancel()
        stopping = threading.Thread(target=running.server.stop, kwargs={"force": delay})
        stopping.start()
        assert next(watching).status == STATUS.NOT_SERVING
        delay.over.set()
        for stream in (watching, live):  # liveness has not changed until the end
            with pytest.raises(grpc.RpcError, match="the server is stopping") as raised:
                next(stream)
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        stopping.join()


def test_reflection_finds_a_method_by_its_name(running):
    """The question of load generators such as ghz."""
    reflect = reflection_pb2_grpc.ServerReflectionStub(running.channel).ServerReflectionInfo
    names = ("multigate.RankingService.Rank", "multigate.RankingService.Rang")
    questions = (
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names
    )
    found, lost = reflect(questions, timeout=120)
    (file,) = found.file_descriptor_response.file_descriptor_proto
    assert b"multigate/serving/protos/ranking.proto" in file
    assert lost.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_rank_by_reflection_alone(running):
    database = ProtoReflectionDescriptorDatabase(running.channel)
    assert set(database.get_services()) == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "multigate.RankingService",
        "tensorflow.serving.ModelService",
        "tensorflow.serving.PredictionService",
    }
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName("multigate.RankingService").methods_by_name["Rank"]
    request_type = message_factory.GetMessageClass(method.input_type)
    response_type = message_factory.GetMessageClass(method.output_type)
    call = running.channel.unary_unary(
        "/multigate.RankingService/Rank",
        request_serializer=request_type.SerializeToString,
        response_deserializer=response_type.FromString,
    )
    request = json_format.ParseDict(
        {
            "model": {"name": "small"},
            "user": {"user_id": {"text": "u1"}},
            "context": {"hour": {"integer": "9"}},
            "candidates": {
                "itemId": {"texts": {"values": ["i1", "i2", "i3"]}},
                "columns": {"length": {"numbers": {"values": [1, 2, 3]}}},
            },
        },
        request_type(),
    )
    answer = json_format.MessageToDict(call(request, timeout=120))
    assert sorted(answer["itemId"]["texts"]["values"]) == ["i1", "i2", "i3"]
    assert len(answer["taskScores"]["click"]["values"]) == 3


CLIENT = """
import sys
from multigate.serving.client.rank_client import RankClient
with RankClient(sys.argv[1], timeout=120) as client:
    ranked = client.rank("small", user={"user_id": "u"}, context={"hour": 1},
                         item_ids=["a", "b"], columns={"length": [1, 2]}, limit=1)
assert len(ranked) == 1 and ranked[0]["item_id"] in ("a", "b"), ranked
heavy = {"tensorflow", "tensorflow_serving", "numpy", "keras", "pydantic", "yaml"}
print(sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""


def test_the_client_imports_grpc_and_protobuf_only(running):
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, running.target],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_metrics_over_http(running, contract, helpers):
    request = helpers.predict_request(helpers.sample_inputs(contract, 5))
    running.prediction.Predict(request, timeout=120)
    base = f"http://127.0.0.1:{running.server.metrics_port}"
    with urllib.request.urlopen(f"{base}/monitoring/prometheus/metrics", timeout=120) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = page.read().decode().splitlines()
    assert 'multigate_model_version{model="small"} 1.0' in lines
    assert any(
        line.startswith(
            ':tensorflow:serving:request_count{method="Predict",model_name="small",status="OK"} '
        )
        for line in lines
    )
    assert "# TYPE multigate_request_seconds histogram" in lines
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{base}/", timeout=120)
    with raised.value:
        assert raised.value.code == 404


def test_a_bug_of_ours_is_internal_with_an_id_that_the_log_carries(
    running, contract, helpers, monkeypatch, caplog
):
    def broken(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(running.server.models, "use", broken)
    request = helpers.predict_request(helpers.sample_inputs(contract, 1))
    with pytest.raises(grpc.RpcError) as raised:
        running.prediction.Predict(request, timeout=120)
    assert raised.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in raised.value.details()
    incident = raised.value.details().split()[-1]
    (record,) = [record for record in caplog.records if incident in record.getMessage()]
    assert "secret detail" in str(record.exc_info[1])


def test_an_example_that_does_not_parse_is_refused(running, contract, helpers):
    request = helpers.predict_request(helpers.sample_inputs(contract, 1, users=1, seed=3), "rank")
    request.model_spec.signature_name = "classify"
    request.inputs.clear()
    request.inputs["examples"].CopyFrom(tf.make_tensor_proto([b"no example"]))
    with pytest.raises(grpc.RpcError, match="Could not parse example") as raised:
        running.prediction.Predict(request, timeout=120)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
