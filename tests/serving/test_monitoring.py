"""The dashboard and the alerts ask for what a live server has: each metric, label and value."""

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import get_args

import grpc
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyarrow import fs
from tensorflow_serving.apis import (
    classification_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from multigate.configs.errors import ServingError
from multigate.configs.storage import place
from multigate.configs.version_folders import VersionFile, write_manifest
from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.upload import upload
from multigate.runtime.child import Child, ChildError
from multigate.runtime.start import start_runtime
from multigate.serving.client import RankClient
from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.feature_store.snapshot_writer import write_snapshot
from multigate.serving.observe.exporter import PATH
from multigate.serving.observe.shadow import ShadowResult
from multigate.serving.rpc.canary import CanaryResult
from multigate.serving.versions.saved_model import ServedSignature
from multigate.serving.workers.supervisor import Supervisor

ITEMS = [f"i{n}" for n in range(1, 5)]
DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = yaml.safe_load((DEPLOY / "chart/monitoring/alerts.yaml").read_text())
BOARD = json.loads((DEPLOY / "chart/monitoring/dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
HANDBOOK = (DEPLOY.parent / "docs" / "operations.md").read_text()
(ADAPTER,) = yaml.safe_load(re.findall(r"^```yaml\n(rules:.*?)^```", HANDBOOK, re.M | re.S)[0])[
    "rules"
]["custom"]
QUERIES = {
    **{rule["alert"]: [rule["expr"]] for rule in RULES},
    **{panel["title"]: [target["expr"] for target in panel["targets"]] for panel in PANELS},
}

# Of Prometheus itself: it makes `up`, and adds these labels to every series.
PROMETHEUS = {"up": {"job", "instance"}}
ADDED = {"job", "instance"}
# Values that the code declares, whether or not the servers below come to show them.
DECLARED = {
    ("multigate_canary_calls_total", "result"): get_args(CanaryResult),
    ("multigate_shadow_calls_total", "result"): get_args(ShadowResult),
    (":tensorflow:serving:request_count", "status"): [code.name for code in grpc.StatusCode],
}
# Metrics that neither a panel nor an alert asks for, and why.
UNWATCHED = {
    "process_virtual_memory_bytes": "TensorFlow reserves more than it ever uses; resident counts",
}
SAMPLES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
FUNCTIONS = {
    *("abs", "histogram_quantile", "increase", "max", "min", "rate", "sum", "time", "topk"),
    *("absent", "by", "offset", "or", "unless", "without"),
}


def selected(query):
    """Each metric of a query, with its matchers' labels and values, and the labels of its `by`s."""
    plain = re.sub(r"\[[^]]*\]", "", query)
    by = {one for group in re.findall(r"\bby \(([^)]*)\)", plain) for one in group.split(", ")}
    plain = re.sub(r"\bby \([^)]*\)", "", plain)
    return [
        (name, dict(re.findall(r'(\w+)=~?"([^"]*)"', matchers)), by)
        for name, matchers in re.findall(r"(?<!\w)([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?", plain)
        if name not in FUNCTIONS
    ]


def test_the_metrics_of_a_query_are_found():
    query = 'sum by (le, a) (rate(:x:y_bucket{b=~"c|d", e="f"}[5m])) / time() > 1 or g offset 15m'
    by = {"le", "a"}
    assert selected(query) == [(":x:y_bucket", {"b": "c|d", "e": "f"}, by), ("g", {}, by)]


def worker_options(base, workers=1):
    """Of a server with processes of its own."""
    options = {"model_name": "small", "model_base_path": base, "port": 0, "metrics_port": 0}
    return ServerOptions(**options, workers=workers)


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """By metric: the labels of each of its samples, as the code declares them."""
    metrics = ServerMetrics()
    supervisor = Supervisor(worker_options(tmp_path_factory.mktemp("none")), lambda: None)
    labels = {"multigate_worker_deaths_total": {"worker"}}
    for metric in vars(metrics).values():
        if hasattr(metric, "labels"):
            labels |= {family.name: set(metric.labels) for family in metric.collect()}
    found = {}
    for family in (*metrics.registry.collect(), *supervisor.collect()):
        has = labels.get(family.name, set())
        found[family.name] = {
            family.name + suffix: has | ({"le"} if suffix == "_bucket" else set())
            for suffix in SAMPLES[family.type]
        }
    supervisor._held.close()
    return found


def test_no_metric_of_the_server_is_forgotten(declared):
    asked = {name for queries in QUERIES.values() for query in queries
             for name, _, _ in selected(query)}  # fmt: skip
    forgotten = {name for name, samples in declared.items() if not asked & set(samples)}
    assert forgotten == set(UNWATCHED), "neither a panel, nor an alert, nor a reason above"


@pytest.mark.parametrize("title", QUERIES)
def test_the_code_declares_what_is_asked_for(declared, title):
    labels = {name: has for samples in declared.values() for name, has in samples.items()}
    for name, matchers, by in (one for query in QUERIES[title] for one in selected(query)):
        has = PROMETHEUS.get(name) or labels[name] | ADDED
        assert set(matchers) | by <= has, f"{title}: {name} has {', '.join(sorted(has))}"


@pytest.fixture(scope="module")
def base(watched, contract, tmp_path_factory):
    """A folder with a version that has all that export gives it to be watched by."""
    base = tmp_path_factory.mktemp("monitored")
    extra = base / "1" / "assets.extra"
    shutil.copytree(watched, base / "1")
    scores = {task: {"edges": [0.0, 0.5, 1.0], "counts": [1, 1]} for task in contract.tasks}
    shares = {"item_id": {"missing": 0.0, "unseen": 0.5}}
    reference = {"rows": 1000, "features": shares, "scores": scores}
    (extra / "reference.json").write_text(json.dumps(reference))
    (extra / "sparsity.json").write_text('{"experts_per_row": 2.5}')
    examples = tmp_path_factory.mktemp("examples")
    count, floats = len(ITEMS), np.float32
    tables = {
        "users": {
            "user_id": ["u1"],
            "country": ["BR"],
            "age": np.array([30], floats),
            "segment": [1],
            "recent": [["i1"]],
        },
        "items": {
            "item_id": ITEMS,
            "topic": ["news"] * count,
            "length": np.ones(count, floats),
            "tags": [["a"]] * count,
        },
    }
    for side, columns in tables.items():
        (examples / "snapshot" / side).mkdir(parents=True)
        pq.write_table(pa.table(columns), examples / "snapshot" / side / "part.parquet")
    shutil.copy(extra / "contract.json", examples)
    (examples / "manifest.json").write_text(
        '{"name": "small", "cut_off": "2026-01-30T00:00:00+00:00"}'
    )
    write_snapshot(examples, extra / "snapshot")
    return base


ROWS, SHADOWED = "multigate_shadow_rows_total", "multigate_shadow_calls_total"


@pytest.fixture(scope="module")
def stored(base, s3_endpoint, tmp_path_factory):
    """A base path in a store, in a bucket of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-shown")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("MULTIGATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        server = fs.S3FileSystem(endpoint_override=s3_endpoint, allow_bucket_creation=True)
        server.create_dir("monitored")
        address = place("s3://monitored/models")
        upload(Base(base), address)
        yield address


def remove_files(address):
    """Remove a bucket, as far as a server can tell."""
    server = fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_deletion=True
    )
    server.delete_dir(address.parent.key)


@pytest.fixture(scope="module")
def pair(publish, publish_candidates, with_items, tmp_path_factory):
    """Base folders of a ranker, which classifies too, and of its candidate model."""
    ranker, candidates = (tmp_path_factory.mktemp(name) for name in ("ranker", "candidates"))
    publish(ranker, 1, with_items)
    publish_candidates(candidates, 1)
    return ranker, candidates


@pytest.fixture(scope="module")
def page(base, pair, stored, run_server, tmp_path_factory, until):
    """Samples of the pages of five servers after calls, good and bad: labels by name.

    One has its features from the version, watches its calls and cannot write its impression log;
    the store in Redis of another is not there.  The third has a candidate model, the fourth a
    worker.  The last has a version on trial that fails, a damaged version in a bucket, then no
    bucket, and a file of models that is none.
    """
    samples = {}

    def read(server):
        port = server.metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{PATH}") as answer:
            text = answer.read().decode()
        # prometheus-client's own parser renames counters without `_total`.
        for name, labels in re.findall(r"^([^#\s{]+)(?:\{(.*)\})? ", text, re.MULTILINE):
            found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            samples.setdefault(name, []).append(found)

    def call(client, count):
        for number in range(count):
            client.rank(
                "small", user={"user_id": f"u{number}"}, context={"hour": 9}, item_ids=ITEMS
            )

    log = tmp_path_factory.mktemp("impressions")
    pause = "multigate.serving.feature_store.circuit_breaker.PAUSE_SECONDS"
    watching = {"watch_rate": 1.0, "watch_seconds": 0.0}
    tracing = {"otlp_endpoint": "http://127.0.0.1:1", "otlp_sampling_rate": 1.0}  # nobody is there
    writing = {"impression_log": log, "impression_log_rows": 1}
    with (
        pytest.MonkeyPatch.context() as patch,
        run_server(base, metrics_port=0, **watching, **writing, **tracing) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        patch.setattr("multigate.serving.observe.drift._LEAST_CALLS", 30)
        patch.setattr("multigate.serving.observe.drift._LEAST_ROWS", 30)
        call(client, 1)
        until(lambda: any(log.rglob("*.parquet")))
        shutil.rmtree(log / "small")
        (log / "small").write_text("in the way")
        call(client, 40)
        with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
            client.rank("small", user={"user_id": "u1"}, item_ids=ITEMS, columns={"odd": [1] * 4})
        with pytest.raises(grpc.RpcError):  # without inputs; it counts as a call all the same
            stub = prediction_service_pb2_grpc.PredictionServiceStub(running.channel)
            stub.Predict(predict_pb2.PredictRequest())
        (base / "2").mkdir()  # a version without anything in it
        failing = iter([RuntimeError("once")])

        def work():
            for error in failing:
                raise error

        thread = SupervisedThread("odd", work, running.server.metrics.thread_failed)
        thread.start()
        thread.join()
        wanted = {
            *("multigate_share_shift", "multigate_score_stability_index"),
            *("multigate_thread_failures_total", "multigate_spans_total"),
        }

        def all_there():
            samples.clear()
            read(running.server)
            results = [labels["result"] for labels in samples["multigate_version_loads_total"]]
            rows = [labels["result"] for labels in samples["multigate_impression_rows_total"]]
            return wanted <= set(samples) and "failed" in results and "dropped" in rows

        until(all_there)
    shutil.rmtree(base / "2")
    with (
        pytest.MonkeyPatch.context() as patch,
        run_server(base, metrics_port=0, feature_store="redis://127.0.0.1:1/0") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        patch.setattr(pause, 3600.0)
        for _ in range(5):  # after three failures in a row, requests are no longer sent
            with suppress(ServingError):  # where a feature must not be missing
                call(client, 1)
        read(running.server)
    ranker, candidates = pair
    with (
        run_server(ranker, metrics_port=0, candidates_base_path=candidates) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        user = {"user_id": "u7"}
        new = {"item_ids": ["i1", "new"], "columns": {"length": [1.0, None]}}
        assert client.rank("small", user=user, context={"hour": 9}, **new).unscored == [1]
        assert len(client.recommend("small", user=user, context={"hour": 9})) > 1
        request = classification_pb2.ClassificationRequest()
        request.model_spec.name, request.model_spec.signature_name = "small", "classify"
        feature = request.input.example_list.examples.add().features.feature
        feature["item_id"].bytes_list.value.append(b"i1")
        feature["length"].float_list.value.append(1.0)
        prediction_service_pb2_grpc.PredictionServiceStub(running.channel).Classify(request)
        read(running.server)
    supervisor = Supervisor(worker_options(ranker), start_runtime)
    supervisor.start()
    read(supervisor)
    supervisor.stop()
    shutil.copytree(base / "1", base / "2")
    trials.begin(Base(base), 2, 100.0, 100.0)
    models = base.parent / "models.txt"
    models.write_text(
        f'model_config_list {{ config {{ name: "small" base_path: "{base}" }}'
        f' config {{ name: "stored" base_path: "{stored}" }} }}'
    )
    file = {"model_config_file": models, "model_config_file_poll_wait_seconds": 0.05}
    store = {"store_poll_wait_seconds": 0.05}
    shutil.rmtree(log)
    with (
        pytest.MonkeyPatch.context() as patch,
        run_server(None, metrics_port=0, **file, **store, **writing) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        small = {"model": "small", "version": "2"}
        call(client, 1)
        until(lambda: any(log.rglob("shadow-*.parquet")))
        until(lambda: running.metric(SHADOWED, **small, result="scored") == 1)
        run, ask, tried = (
            ServedSignature.__call__,
            Child.ask,
            running.server.models.trial("small")[1],
        )
        broken = tried.saved_model.signatures["rank"]

        def fail(signature, inputs, timeout=None):
            if signature is broken:
                raise RuntimeError("planted")
            return run(signature, inputs, timeout)

        def end(child, question):
            raise ChildError("has ended: planted")

        patch.setattr(pause, 3600.0)
        patch.setattr(ServedSignature, "__call__", fail)
        patch.setattr(Child, "ask", end)
        call(client, 5)
        # All of them, so that no file of rows appears in the folder that is about to go.
        until(lambda: running.metric(SHADOWED, **small, result="failed") == 5)
        shutil.rmtree(log / "small/shadow")
        (log / "small/shadow").write_text("in the way")
        patch.setattr(ServedSignature, "__call__", run)
        patch.setattr(Child, "ask", ask)
        until(lambda: call(client, 1) or running.metric(ROWS, model="small", result="dropped"))
        models.write_text("nonsense")
        (stored / "2/saved_model.pb").write_bytes(b"damaged")
        write_manifest(stored / "2", {"saved_model.pb": VersionFile(1, "0")})
        failed = {"model": "stored", "result": "failed"}
        until(lambda: running.metric("multigate_store_copies_total", **failed))
        remove_files(stored)
        until(lambda: running.metric("multigate_store_looks_total", **failed))
        until(lambda: running.metric("multigate_config_reloads_total", result="failed"))
        read(running.server)
    return samples


@pytest.mark.slow
@pytest.mark.parametrize("title", QUERIES)
def test_a_live_server_has_what_is_asked_for(page, title):
    metrics = [one for query in QUERIES[title] for one in selected(query)]
    assert metrics
    for name, matchers, by in metrics:
        if name in PROMETHEUS:
            assert set(matchers) | by <= PROMETHEUS[name]
            continue
        assert name in page, f"{title}: no server has {name}"
        labels = set().union(*page[name]) | ADDED
        assert set(matchers) | by <= labels, f"{title}: {name} has {', '.join(sorted(labels))}"
        for label, value in matchers.items():
            if label in ADDED:
                continue
            found = {sample[label] for sample in page[name]} | set(DECLARED.get((name, label), ()))
            assert set(value.split("|")) <= found, f"{title}: {name} has {label} {found}"


@pytest.mark.slow
def test_the_autoscaler_asks_for_a_metric_that_a_live_server_has(page):
    """The adapter's rule in the handbook, the chart's HorizontalPodAutoscaler, and the server."""
    ((_, matchers, _),) = selected(ADAPTER["seriesQuery"].replace("!=", "="))
    assert set(matchers) == set(ADAPTER["resources"]["overrides"])  # Kubernetes' own labels
    template = (DEPLOY / "chart/templates/autoscaling.yaml").read_text()
    (asked,) = re.findall(r"metric: \{name: (\w+)\}", template)
    assert ADAPTER["seriesQuery"].partition("{")[0] == asked
    assert asked in page


def test_the_adapters_rule_makes_a_query(lacking, tmp_path):
    query = ADAPTER["metricsQuery"]
    for name, value in {
        "<<.GroupBy>>": "pod",
        "<<.Series>>": ADAPTER["seriesQuery"].partition("{")[0],
        "<<.LabelMatchers>>": 'namespace="ranking",pod=~"multigate-a|multigate-b"',
    }.items():
        assert name in query
        query = query.replace(name, value)
    rule = {"record": "calls", "expr": query}
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "adapter", "rules": [rule]}]}))
    done = promtool(lacking, "check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_explained():
    tests = yaml.safe_load((DEPLOY / "monitoring/alerts_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    for rule in RULES:
        assert rule["alert"] in fires
        assert f"`{rule['alert']}`" in HANDBOOK


def promtool(lacking, *arguments):
    if shutil.which("promtool") is None:
        lacking("promtool is not installed: Debian's package prometheus has it")
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def test_the_alerts_fire_when_they_should(lacking):
    done = promtool(lacking, "check", "rules", DEPLOY / "chart/monitoring/alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout
    done = promtool(lacking, "test", "rules", DEPLOY / "monitoring/alerts_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_its_configuration_and_the_dashboards_queries(lacking, tmp_path):
    text = (DEPLOY / "monitoring/prometheus.yml").read_text()
    rules = {"groups": [{"name": "board", "rules": []}]}
    for number, query in enumerate(query for panel in PANELS for query in QUERIES[panel["title"]]):
        expr = query.replace("$__rate_interval", "5m")
        rules["groups"][0]["rules"].append({"record": f"query_{number}", "expr": expr})
    (tmp_path / "board.yaml").write_text(yaml.safe_dump(rules))
    alerts = DEPLOY / "chart/monitoring/alerts.yaml"
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/alerts.yaml", f"{alerts}, {tmp_path}/board.yaml")
    )
    done = promtool(lacking, "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rules found") == 2


@pytest.fixture
def prometheus(lacking, tmp_path, until):
    """Start a Prometheus with the compose file's configuration and another target; ask it."""
    if shutil.which("prometheus") is None:
        lacking("prometheus is not installed: Debian has a package of that name")
    processes = []

    def start(target):
        text = (DEPLOY / "monitoring/prometheus.yml").read_text()
        alerts = str(DEPLOY / "chart/monitoring/alerts.yaml")
        text = text.replace("server:8501", target).replace("/etc/prometheus/alerts.yaml", alerts)
        (tmp_path / "prometheus.yml").write_text(text.replace("15s", "1s"))
        options = (f"config.file={tmp_path}/prometheus.yml", f"storage.tsdb.path={tmp_path}/data")
        command = ["prometheus", "--web.listen-address=127.0.0.1:0"]
        with (tmp_path / "prometheus.log").open("w") as log:
            processes.append(
                subprocess.Popen([*command, *(f"--{one}" for one in options)], stderr=log)
            )
        process, ports = psutil.Process(processes[-1].pid), []

        def listens():
            found = process.net_connections("tcp")
            ports[:] = [one.laddr.port for one in found if one.status == psutil.CONN_LISTEN]
            return ports

        until(listens, "a port of its own")
        (port,) = ports

        def ask(path, **query):
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return json.loads(answer.read())["data"]
            except OSError:
                return None

        return ask

    yield start
    for process in processes:
        process.terminate()
        process.wait(120)


@pytest.mark.long  # promtool, and the names on live servers, are among the slow tests
def test_a_prometheus_reads_a_server_and_judges_it(running, prometheus, until):
    ask = prometheus(f"127.0.0.1:{running.server.metrics_port}")

    def value(query):
        data = ask("query", query=query)
        return float(data["result"][0]["value"][1]) if data and data["result"] else None

    def called():
        with RankClient(running.target, timeout=120) as client:
            client.rank("small", user={"user_id": "u"}, context={"hour": 9}, item_ids=ITEMS,
                        columns={"length": [1.0] * len(ITEMS)})  # fmt: skip
        return (value('sum(rate(:tensorflow:serving:request_count{status="OK"}[1m]))') or 0) > 0

    until(lambda: value('up{job="multigate"}') == 1, "a scrape")
    until(called, "a rate of calls")
    for panel in PANELS:
        for query in QUERIES[panel["title"]]:
            assert ask("query", query=query.replace("$__rate_interval", "1m")) is not None, query

    def rules():
        groups = (ask("rules") or {"groups": []})["groups"]
        return [rule for group in groups for rule in group["rules"]]

    until(lambda: {rule["health"] for rule in rules()} == {"ok"}, "an evaluation of all rules")
    found = {rule["name"]: rule["state"] for rule in rules()}
    assert set(found) == {rule["alert"] for rule in RULES}
    assert "firing" not in found.values()
    running.server.metrics.impressions.add("small", "dropped")  # an alert that needs no `for`
    until(lambda: "firing" in {rule["state"] for rule in rules()}, "an alert")


@pytest.mark.parametrize("title", [panel["title"] for panel in PANELS])
def test_a_panel_says_what_it_shows(title):
    (panel,) = [panel for panel in PANELS if panel["title"] == title]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert all(target["legendFormat"] for target in panel["targets"])


def test_the_dashboards_panels_have_places_and_names_of_their_own():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    titles = [panel["title"] for panel in BOARD["panels"]]
    assert len(set(titles)) == len(titles)
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def kept_of(ours, kept, place="dashboard"):
    """Places of our values that are not among those that were kept, or are others there."""
    if isinstance(ours, dict) and isinstance(kept, dict):
        return [
            lost
            for key, value in ours.items()
            for lost in kept_of(value, kept.get(key), f"{place}.{key}")
        ]
    if isinstance(ours, list) and isinstance(kept, list) and len(ours) == len(kept):
        pairs = enumerate(zip(ours, kept, strict=True))
        return [lost for n, (a, b) in pairs for lost in kept_of(a, b, f"{place}[{n}]")]
    return [] if ours == kept or (ours == [] and kept is None) else [place]


@pytest.mark.long  # the default tests read it as JSON
@pytest.mark.timeout(1800)  # Grafana's types have to be built
def test_grafanas_types_hold_the_dashboard(go_module, go_build):
    """Nothing is unknown to them, lacking, of another type, out of range, or dropped."""
    sdk = go_module("github.com/grafana/grafana-foundation-sdk/go", "0.0.22")
    program = go_build(Path(__file__).parent / "board")

    def refused(board):
        done = subprocess.run(
            [program], input=json.dumps(board), capture_output=True, text=True, check=False
        )
        return done.stderr if done.returncode else kept_of(board, json.loads(done.stdout))

    assert not refused(BOARD)
    units = set(re.findall(r'^const \w+ = "(.*)"', (sdk / "units/types_gen.go").read_text(), re.M))
    for panel in PANELS:
        assert (sdk / panel["type"] / "panel_builder_gen.go").exists(), panel["type"]
        assert panel["fieldConfig"]["defaults"]["unit"] in units, panel["title"]
    # They would notice, panel by panel.
    for steps, key, value in (
        ((), "descripton", "x"),
        (("gridPos",), "w", 25),
        (("targets", 0), "expr", 1),
        (("targets", 0), "legend", "x"),
        (("fieldConfig", "defaults"), "units", "s"),
        (("fieldConfig", "defaults"), "custom", {"stacked": True}),
    ):
        board = json.loads(json.dumps(BOARD))
        part = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
        for step in steps:
            part = part[step]
        part[key] = value
        assert refused(board), f"{steps} {key}"
