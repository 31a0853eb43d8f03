"""A small version folder built with plain TensorFlow, and servers that serve it."""

import http.client
import json
import shutil
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

from multigate.configs.contract import LENGTH, Contract, FrozenContract
from multigate.configs.sections.base import parse
from multigate.serving.core.layout import default_layout, empty_like, rank_layout, retrieve_layout
from multigate.serving.core.options import ServerOptions
from multigate.serving.feature_store.snapshot_writer import write_snapshot
from multigate.serving.protos import ranking_pb2_grpc
from multigate.serving.rpc.server import Server
from multigate.serving.versions.saved_model import ServedSignature

CONTRACT = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "country": {"kind": "id", "side": "user", "missing": "indicator"},
        "age": {"kind": "number", "side": "user", "missing": "indicator"},
        "segment": {
            "kind": "id",
            "side": "user",
            "dtype": "int",
            "missing": "default",
            "default": 7,
        },
        "recent": {"kind": "id_list", "side": "user", "share": "item_id", "max_length": 4},
        "hour": {"kind": "id", "side": "context", "dtype": "int"},
        "item_id": {"kind": "id", "side": "item"},
        "topic": {"kind": "id", "side": "item", "missing": "default", "default": "none"},
        "length": {"kind": "number", "side": "item"},
        "tags": {"kind": "id_list", "side": "item", "max_length": 3},
        "position": {"kind": "position"},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
            "score_weight": 1,
        },
        "like": {
            "group": "satisfaction",
            "type": "binary",
            "label": {"rule": "column", "column": "like"},
            "score_weight": 2,
        },
        "rating": {
            "group": "satisfaction",
            "type": "regression",
            "label": {"rule": "column", "column": "rating"},
            "score_weight": 0.5,
        },
    },
}
WIDTH = 4  # of every embedding
SLOW_FROM = 10**12  # the first million hours from here make the graph spin, some 10 us each
SLOW_RETRIEVAL = 2 * 10**12  # likewise, of the candidate model's graph
FAILING_RETRIEVAL = 3 * 10**12  # this hour makes it fail
CATALOGUE = [f"i{n}" for n in range(40)]


class SmallRanker(tf.Module):
    """Embeds every feature by lookup or hash and scores with one dense layer."""

    def __init__(self, contract):
        super().__init__()
        self.contract = contract
        random = np.random.default_rng(7)
        features = dict(contract.of_side("user", "context", "item"))
        self.table = tf.Variable(random.normal(size=(997, WIDTH)).astype(np.float32))
        self.weights = tf.Variable(
            random.normal(size=(len(features) * WIDTH, len(contract.tasks))).astype(np.float32)
        )
        known = tf.lookup.KeyValueTensorInitializer(
            [f"i{n}" for n in range(50)], tf.range(1, 51, dtype=tf.int64)
        )
        self.items = tf.lookup.StaticHashTable(known, 0)

    def rows_of(self, values):
        if values.dtype == tf.string:
            hashed = 60 + tf.strings.to_hash_bucket_fast(values, 900)
            found = self.items.lookup(values)
            return tf.where(found > 0, found, hashed)
        return tf.math.floormod(values, 997)

    def embed(self, inputs, names):
        """(rows, WIDTH * len(names))."""
        parts = []
        for name in names:
            values, feature = inputs[name], self.contract.features[name]
            if feature.kind == "number":
                part = tf.math.tanh(values / 10)[:, None] * tf.ones([1, WIDTH])
            elif feature.kind == "id":
                part = tf.gather(self.table.read_value(), self.rows_of(values))
            else:
                start = tf.maximum(inputs[name + LENGTH] - feature.max_length, 0)
                places = tf.range(tf.shape(values, tf.int64)[1])[None, :]
                pooled = (places >= start[:, None]) & (places < inputs[name + LENGTH][:, None])
                rows = tf.gather(self.table.read_value(), self.rows_of(values))
                part = tf.reduce_sum(tf.where(pooled[:, :, None], rows, 0.0), 1)
            if (present := inputs.get(name + "__present")) is not None:
                part = tf.where(present[:, None], part, -0.3)
            parts.append(part)
        return tf.concat(parts, 1)

    def rank(self, **inputs):
        sides = {
            side: [name for name, _ in self.contract.of_side(*side.split())]
            for side in ("user context", "item")
        }
        users = tf.gather(self.embed(inputs, sides["user context"]), inputs["user_index"])
        x = tf.concat([users, self.embed(inputs, sides["item"])], 1)
        logits = x @ self.weights + self.spin(tf.reduce_max(inputs["hour"]))
        scores = {}
        for place, (name, task) in enumerate(self.contract.tasks.items()):
            binary = task.type == "binary"
            logit = logits[:, place]
            scores[name] = tf.sigmoid(logit) if binary else 3 + logit
        weights = tf.gather(inputs["task_weights"], inputs["user_index"])
        stacked = tf.stack(list(scores.values()), 1)
        return scores | {"score": tf.reduce_sum(stacked * weights, 1)}

    def spin(self, hour):
        """Zero, after a time that grows with the hour."""
        spins = tf.where((hour >= SLOW_FROM) & (hour < SLOW_FROM + 10**6), hour - SLOW_FROM, 0)
        _, x = tf.while_loop(
            lambda i, x: i < spins,
            lambda i, x: (i + 1, tf.sin(x) + 0.1),
            (tf.constant(0, tf.int64), tf.constant(0.5)),
        )
        return tf.minimum(x, 0.0)

    def default(self, **inputs):
        rows = tf.shape(inputs["item_id"])[0]
        weights = [task.score_weight for task in self.contract.tasks.values()]
        return self.rank(
            **inputs,
            user_index=tf.range(rows),
            task_weights=tf.tile(tf.constant([weights], tf.float32), [rows, 1]),
        )

    def examples(self, examples):
        parsed = tf.io.parse_example(
            examples,
            {
                "item_id": tf.io.FixedLenFeature([], tf.string, "i0"),
                "length": tf.io.FixedLenFeature([], tf.float32, 0.0),
            },
        )
        rows = self.rows_of(parsed["item_id"])
        return tf.gather(self.table.read_value(), rows)[:, :2] * (1 + parsed["length"][:, None])

    def classify(self, examples):
        scores = tf.nn.softmax(self.examples(examples))
        classes = tf.tile(tf.constant([["no", "yes"]]), [tf.shape(scores)[0], 1])
        return {"scores": scores, "classes": classes}

    def regress(self, examples):
        return {"outputs": self.examples(examples)[:, :1]}


class SmallRetriever(SmallRanker):
    """Embeds the user and finds the items whose vectors are nearest."""

    def __init__(self, contract):
        super().__init__(contract)
        self.names = [name for name, _ in contract.of_side("user", "context")]
        random = np.random.default_rng(8)
        self.projection = tf.Variable(
            random.normal(size=(len(self.names) * WIDTH, WIDTH)).astype(np.float32)
        )
        self.vectors = tf.Variable(random.normal(size=(len(CATALOGUE), WIDTH)).astype(np.float32))
        self.ids = tf.Variable(CATALOGUE)

    def retrieve(self, k, **inputs):
        hour = tf.reduce_max(inputs["hour"])
        users = self.embed(inputs, self.names) @ self.projection
        scores = users @ tf.transpose(self.vectors)
        scores += self.spin(hour - SLOW_RETRIEVAL + SLOW_FROM)
        failing = tf.debugging.assert_none_equal(hour, tf.constant(FAILING_RETRIEVAL, tf.int64))
        with tf.control_dependencies([failing]):
            scores, places = tf.math.top_k(scores, tf.clip_by_value(k, 0, len(CATALOGUE)))
        return {
            "items": tf.gather(self.ids, places),
            "scores": scores,
            "known": (tf.strings.substr(inputs["user_id"], 0, 1) == "u")
            | (inputs["recent__length"] > 0),
        }


def specs_of(layout):
    shapes = {0: [], 1: [None], 2: [None, None]}
    return {
        name: tf.TensorSpec(shapes[what.dimensions], what.dtype, name)
        for name, what in layout.inputs.items()
    }


def sample_inputs(contract, rows, users=None, seed=0):
    """Random inputs of `rank` (with `users`), `retrieve` (without rows) or `serving_default`."""
    random = np.random.default_rng(seed)
    layout = default_layout(contract) if users is None else rank_layout(contract)
    if rows == 0:
        layout = retrieve_layout(contract)
    inputs = {}
    for name, what in layout.inputs.items():
        count = users if users is not None and what.axis == "users" else rows
        width = 2 + seed % 3
        if what.role == "count":
            inputs[name] = np.array(5, np.int32)
        elif what.role == "index":
            inputs[name] = random.integers(0, users, count).astype(np.int32)
        elif what.role == "weights":
            inputs[name] = random.normal(size=(count, 3)).astype(np.float32)
        elif what.role == "length":
            inputs[name] = random.integers(0, width + 1, count)
        elif what.role == "present":
            inputs[name] = random.random(count) < 0.7
        elif what.dtype == "float32":
            inputs[name] = random.normal(size=count).astype(np.float32)
        else:
            shape = (count, width) if what.role == "list" else (count,)
            numbers = random.integers(0, 60, shape)
            values = empty_like(what.dtype, shape)
            values[...] = (
                np.vectorize(lambda n: f"i{n}".encode(), otypes=[object])(numbers)
                if what.dtype == "string"
                else numbers
            )
            inputs[name] = values
    return inputs


def predict_request(inputs, signature="serving_default", model="small"):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return request


def as_json(arrays):
    return {
        name: {
            "dtype": "string" if values.dtype == object else values.dtype.name,
            "shape": list(values.shape),
            "values": [v.decode() if isinstance(v, bytes) else v for v in values.ravel().tolist()],
        }
        for name, values in arrays.items()
    }


def write_extra(extra, contract, signature, function, golden):
    """Contract and golden request of a version."""
    extra.mkdir()
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint="0" * 16,
    )
    (extra / "contract.json").write_text(frozen.model_dump_json())
    answers = function(**{name: tf.constant(values) for name, values in golden.items()})
    outputs = {name: values.numpy() for name, values in answers.items()}
    described = {"signature": signature, "inputs": as_json(golden), "outputs": as_json(outputs)}
    (extra / "golden.json").write_text(json.dumps(described))


@pytest.fixture(scope="session")
def contract():
    return parse(Contract, CONTRACT, "test")


@pytest.fixture(scope="session")
def exported(tmp_path_factory, contract):
    """A complete version folder."""
    folder = tmp_path_factory.mktemp("exported") / "1"
    module = SmallRanker(contract)
    text = {"examples": tf.TensorSpec([None], tf.string, "examples")}
    functions = {
        "serving_default": (module.default, specs_of(default_layout(contract))),
        "rank": (module.rank, specs_of(rank_layout(contract))),
        "classify": (module.classify, text),
        "regress": (module.regress, text),
    }
    signatures = {
        name: tf.function(function, autograph=False).get_concrete_function(**specs)
        for name, (function, specs) in functions.items()
    }
    tf.saved_model.save(module, str(folder), signatures)
    extra = folder / "assets.extra"
    write_extra(extra, contract, "rank", module.rank, sample_inputs(contract, 3, users=2, seed=1))
    with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as writer:
        for rows in (1, 8):
            request = predict_request(sample_inputs(contract, rows, users=1, seed=rows), "rank")
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())
    return folder


@pytest.fixture(scope="session")
def watched(exported, contract, tmp_path_factory):
    """A version with the signatures `watch` and `rank_items`, which the exporter's have too."""
    module = tf.saved_model.load(str(exported))
    known = tf.constant([f"i{n}" for n in range(50)])

    def watch(**inputs):
        strangers = tf.reduce_all(inputs["item_id"][:, None] != known[None, :], 1)
        return {
            "unseen/item_id": tf.math.count_nonzero(strangers, dtype=tf.int32),
            "unseen/recent": tf.math.count_nonzero(inputs["recent"] == "new", dtype=tf.int32),
            "experts": tf.strings.length(inputs["item_id"]),
        }

    def rank_items(**inputs):
        weights = tf.reduce_sum(inputs["task_weights"], 1)
        lengths = tf.cast(tf.strings.length(inputs["item_id"]), tf.float32)
        return {"score": lengths * tf.gather(weights, inputs["user_index"])}

    specs = specs_of(rank_layout(contract))
    of_items = {name for name, _ in contract.of_side("item")} - {contract.item}
    ids_alone = {name: spec for name, spec in specs.items() if name.split("__")[0] not in of_items}
    signatures = dict(module.signatures) | {
        "watch": tf.function(watch, autograph=False).get_concrete_function(**specs),
        "rank_items": tf.function(rank_items, autograph=False).get_concrete_function(**ids_alone),
    }
    folder = tmp_path_factory.mktemp("watched") / "1"
    tf.saved_model.save(module, str(folder), signatures)
    for path in (exported / "assets.extra").iterdir():
        (folder / "assets.extra").mkdir(exist_ok=True)
        (folder / "assets.extra" / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def candidates_exported(tmp_path_factory, contract):
    """A complete version folder of a candidate model."""
    folder = tmp_path_factory.mktemp("candidates") / "1"
    module = SmallRetriever(contract)
    specs = specs_of(retrieve_layout(contract))
    signature = tf.function(module.retrieve, autograph=False).get_concrete_function(**specs)
    tf.saved_model.save(module, str(folder), {"retrieve": signature})
    golden = sample_inputs(contract, rows=0, users=1, seed=1)
    write_extra(folder / "assets.extra", contract, "retrieve", module.retrieve, golden)
    popular = {"items": CATALOGUE[::-2], "counts": list(range(20, 0, -1))}
    (folder / "assets.extra" / "popular.json").write_text(json.dumps(popular))
    return folder


def copies(exported):
    """Copy a version under a number, whole or not at all."""

    def copy(base, version, change=lambda folder: None):
        temporary = Path(base) / f".{version}.partial"
        shutil.copytree(exported, temporary)
        change(temporary)
        temporary.rename(Path(base) / str(version))
        return Path(base) / str(version)

    return copy


@pytest.fixture(scope="session")
def publish(exported):
    """Publish the ranker."""
    return copies(exported)


@pytest.fixture(scope="session")
def publish_candidates(candidates_exported):
    """Publish the candidate model."""
    return copies(candidates_exported)


@pytest.fixture(scope="session")
def with_items(tmp_path_factory, contract):
    """Gives a version the features of users and items, for those that calls leave out."""
    folder = tmp_path_factory.mktemp("examples")
    count = len(CATALOGUE)
    tables = {
        "users": {
            "user_id": ["u7"],
            "country": ["fr"],
            "age": pa.array([40.0], pa.float32()),
            "segment": [1],
            "recent": [["i5", "i6"]],
        },
        "items": {
            "item_id": CATALOGUE,
            "topic": ["news"] * count,
            "length": pa.array([float(n) for n in range(count)], pa.float32()),
            "tags": [["a"]] * count,
        },
    }
    for source, columns in tables.items():
        (folder / "snapshot" / source).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "snapshot" / source / "part.parquet")
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint="0" * 16,
    )
    (folder / "contract.json").write_text(frozen.model_dump_json())
    (folder / "manifest.json").write_text('{"name": "small", "cut_off": null}')
    return lambda version: write_snapshot(folder, version / "assets.extra" / "snapshot")


class Rest:
    """The standard library's client; a connection for each request."""

    def __init__(self, port, timeout=240):
        self.port = port
        self.timeout = timeout

    def __call__(self, method, path, body=None, headers=()):
        """Status, headers and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
            connection.request(method, path, data, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())
        finally:
            connection.close()

    def post(self, path, body, headers=()):
        status, _, answer = self("POST", f"/v1/models/{path}", body, headers)
        return status, answer

    def get(self, path):
        status, _, answer = self("GET", f"/v1/models/{path}")
        return status, answer

    def connect(self):
        """A socket for bytes of the test's own."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=self.timeout)


def columns_of(inputs):
    """Inputs of a signature as JSON."""
    return {
        name: np.vectorize(bytes.decode, otypes=[object])(values).tolist()
        if values.dtype == object
        else values.tolist()
        for name, values in inputs.items()
    }


ADMIN = [("authorization", "Bearer admin")]


class ShowAdminToken(grpc.UnaryUnaryClientInterceptor):
    """Adds the admin token to every call."""

    def intercept_unary_unary(self, continuation, details, request):
        metadata = [*(details.metadata or ()), *ADMIN]
        return continuation(details._replace(metadata=metadata), request)


def as_admin(channel):
    """A channel with calls that carry the admin token."""
    return grpc.intercept_channel(channel, ShowAdminToken())


@dataclass
class Running:
    """A server with a channel and all stubs."""

    server: Server
    channel: grpc.Channel

    def __post_init__(self):
        self.ranking = ranking_pb2_grpc.RankingServiceStub(self.channel)
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(as_admin(self.channel))
        self.target = f"127.0.0.1:{self.server.port}"

    def metric(self, name, **labels):
        """The number of one sample; None where there is no such sample."""
        return self.server.metrics.registry.get_sample_value(name, labels)

    def take_up(self):
        """Wait until the server has begun every call of the channel that was sent before."""
        check = health_pb2_grpc.HealthStub(self.channel).Check
        check(health_pb2.HealthCheckRequest(), timeout=120)


# What no test waits for, so that nothing is late on a machine that stands still for a while.
PATIENT = {
    "canary_timeout_ms": 240e3,
    "retrieval_timeout_ms": 240e3,
    "rest_api_timeout_in_ms": 240_000,
    "impression_log_seconds": 3600.0,
    "load_retry_interval_micros": 2_000_000_000,
}


@pytest.fixture(scope="session")
def run_server(tmp_path_factory):
    """Start a server with these options; a context manager of `Running`."""
    tokens = tmp_path_factory.mktemp("tokens") / "admin"
    tokens.write_text("admin\n")

    class Context:
        def __init__(self, base, **options):
            often = {"file_system_poll_wait_seconds": 0.05, "drain_grace_seconds": 5.0}
            options = PATIENT | often | options
            if "model_config_file" not in options:
                options |= {"model_name": "small", "model_base_path": base}
            # An admin token is on, so that `Running.models` may reload.
            options = {"admin_token_file": tokens} | options
            self.server = Server(ServerOptions(port=0, **options))

        def __enter__(self):
            self.server.start()
            self.channel = grpc.insecure_channel(
                f"127.0.0.1:{self.server.port}",
                options=[
                    ("grpc.max_send_message_length", -1),
                    ("grpc.max_receive_message_length", -1),
                    ("grpc.use_local_subchannel_pool", 1),
                ],
            )
            return Running(self.server, self.channel)

        def __exit__(self, *_):
            self.channel.close()
            self.server.stop()

    return Context


@pytest.fixture(scope="session")
def running(tmp_path_factory, publish, run_server):
    """One server for all tests that change nothing."""
    base = tmp_path_factory.mktemp("models")
    publish(base, 1)
    with run_server(base, metrics_port=0) as running:
        yield running


class Held:
    """Runs of a signature: whether one has begun, and what lets them all go on."""

    def __init__(self):
        self.begun, self.let_go = threading.Event(), threading.Event()


@pytest.fixture
def hold(monkeypatch):
    """A context in which the runs of a signature wait until the test lets them go.

    So a call is in flight as long as a test looks at it, however slow the machine is.
    """
    run, holding = ServedSignature.__call__, {}

    def call(signature, inputs, timeout=None):
        held = holding.get(signature.name)
        if held is not None:
            held.begun.set()
            assert held.let_go.wait(240)
        return run(signature, inputs, timeout)

    @contextmanager
    def hold(name):
        held = holding[name] = Held()
        try:
            yield held
        finally:
            del holding[name]
            held.let_go.set()

    monkeypatch.setattr(ServedSignature, "__call__", call)
    return hold


@pytest.fixture
def polled(until):
    """Wait until a server has looked at its model's versions once more, from beginning to end."""

    def wait(running, name="small"):
        manager, looks = running.server.models.manager(name), []
        poll = manager.poll

        def count():
            poll()
            looks.append(1)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manager, "poll", count)
            until(lambda: looks, "a look at the versions")

    return wait


class Delay(threading.Event):
    """The `force` of a server's stop that makes the drain's delay as long as a test needs."""

    def __init__(self):
        super().__init__()
        self.over = threading.Event()

    def wait(self, timeout=None):
        return self.over.wait(240)


@pytest.fixture(scope="session")
def helpers():
    """Functions that tests share."""

    class Helpers:
        sample_inputs = staticmethod(sample_inputs)
        copies = staticmethod(copies)
        as_admin = staticmethod(as_admin)
        admin = ADMIN
        Delay = Delay
        predict_request = staticmethod(predict_request)
        slow_from = SLOW_FROM
        slow_retrieval = SLOW_RETRIEVAL
        failing_retrieval = FAILING_RETRIEVAL
        catalogue = CATALOGUE

    return Helpers


@pytest.fixture(scope="session")
def rest():
    """A client of HTTP that is not ours, for a port."""
    return Rest


@pytest.fixture(scope="session")
def as_columns():
    """Inputs of a signature as JSON."""
    return columns_of
