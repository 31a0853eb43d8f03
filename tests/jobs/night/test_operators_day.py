"""An operator's day on one machine, with the commands of docs/operations.md as they stand there.

A server, Redis, Prometheus and an S3 server are processes of their own; spans go to a collector.  A
night publishes version 2.  It is tried on half of the users, found safe and promoted.  Version 3 is
tried; its users click less, and it is stopped.  No call fails.  Where Helm is there, the chart is
rendered, and what it says runs too.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from concurrent import futures
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from multigate.jobs.publication.base_folder import Base
from multigate.serving.client import RankClient
from multigate.serving.client.rank_client import CallError
from multigate.verbs.command import main

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operations.md").read_text()
COMMAND = [sys.executable, "-c", "import sys\nfrom multigate.verbs.command import main\nmain()"]
CLICKS = {1: 0.4, 2: 0.4, 3: 0.15}
"""How readily the users click what each version shows."""
SPLIT = {"by": "random", "validation": 0.1, "test": 0.1}
USERS, CALLS, OFFERED, SHOWN = 200, 3, 8, 3


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Counts the spans that it receives."""

    spans = 0

    def Export(self, request, context):
        self.spans += sum(
            len(scope.spans) for one in request.resource_spans for scope in one.scope_spans
        )
        return trace_service_pb2.ExportTraceServiceResponse()


class Machine:
    """Runs commands of the page with paths of the test's own, and processes until the test ends."""

    def __init__(self, places, held):
        self.places = places
        self._held = held

    def words(self, line, *more):
        """A line of the page, which must stand there, with the test's places and more options."""
        assert f"\n{line}" in PAGE, line
        names = "|".join(map(re.escape, sorted(self.places, key=len, reverse=True)))
        said = re.sub(names, lambda found: str(self.places[found[0]]), line)
        return [*shlex.split(said)[1:], *more]

    def run(self, line, *more, status=0):
        assert main(self.words(line, *more)) == status, line

    def start(self, command, log, **environment):
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
            )

        def stop():
            process.terminate()
            assert process.wait(60) in (0, -15), log.read_text()[-3000:]

        self._held.callback(stop)
        return process


def until(condition, what):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about")


class Crowd:
    """Users who call the server and click what they like; their feedback names the request."""

    def __init__(self, client, folder):
        self.client, self.folder, self.versions = client, folder, []
        self.random = np.random.default_rng(5)
        folder.mkdir(parents=True)

    def call(self, prefix):
        """Each user calls a few times."""
        clicked = []
        for number in range(USERS * CALLS):
            user, request = f"u{number % USERS:04d}", f"{prefix}-{number}"
            items = [f"i{n:04d}" for n in self.random.choice(60, OFFERED, replace=False)]
            ranked = self.client.rank(
                "night",
                user={"user_id": user},
                item_ids=items,
                limit=SHOWN,
                request_id=request,
            )
            self.versions.append(ranked.model_version)
            event = {"time": int(time.time()) + 1, "event": "click", "request_id": request}
            clicked += [
                event | {"user_id": user, "item_id": item["item_id"]}
                for item in ranked
                if self.random.random() < CLICKS[ranked.model_version]
            ]
        (self.folder / f"{prefix}.jsonl").write_text("\n".join(map(json.dumps, clicked)))

    def version(self, user="u0001"):
        return self.client.rank("night", user={"user_id": user}, item_ids=["i0001"]).model_version


def shown_config(path, contract):
    """The configuration of what was shown: ids, and clicks that name their request."""
    ids = {"user": "user_id", "item": "item_id"}
    features = {name: contract["features"][name] for name in ids.values()}
    click = contract["tasks"]["click"] | {"label": {"rule": "event", "events": ["click"]}}
    log = {
        "shape": "events",
        "impression": "impression",
        "files": ["shown/night/*.parquet"],
        "format": {"type": "parquet"},
        "time_unit": "us",
        "columns": {"time": "ranked/time", "request": "ranked/request_id", **ids},
        "feedback": {
            "files": ["feedback/*.jsonl"],
            "format": {"type": "jsonl"},
            "time_unit": "s",
            "columns": {"time": "time", "event": "event", "request": "request_id", **ids},
        },
    }
    values = {
        "name": "shown",
        "contract": {**ids, "features": features, "tasks": {"click": click}},
        "pipeline": {"log": log, "attribute_by": "request", "split": SPLIT},
    }
    path.write_text(yaml.safe_dump(values))


@pytest.mark.slow
def test_an_operators_day(finished, nights, bucket, free_port, tmp_path, lacking, capsys):
    for program in ("redis-server", "prometheus"):
        if shutil.which(program) is None:
            lacking(f"{program} is not installed: Debian has a package of that name")
    runs, data = finished.copy(tmp_path / "runs"), tmp_path / "data"
    base = Base(runs / "models/night")
    model, shown = tmp_path / "model.yaml", tmp_path / "shown.yaml"
    settings = nights.settings()
    # A few hundred users: smaller differences are chance.
    rules = {"largest_loss": 0.5, "judge": "estimate", "largest_ranking_loss": None}
    rules |= {"calibration": None, "least_auc": 0.0, "largest_outcome_loss": 0.5}
    settings["evaluation"] = {"rules": rules}
    settings["run"] = {"guards": dict.fromkeys(("max_delay", "max_row_drop"))}
    model.write_text(yaml.safe_dump(settings))
    shown_config(shown, settings["contract"])
    night = max(nights.days) + timedelta(days=1)
    ports = {name: free_port() for name in ("grpc", "metrics", "redis", "prometheus")}
    target = f"127.0.0.1:{ports['grpc']}"
    places = {
        "/runs": runs,
        "/runs/shown": tmp_path / "shown-first",
        "/logs": finished.logs,
        "/data": data,
        "NAME": "night",
        "model.yaml": model,
        "shown.yaml": shown,
        "s3://bucket": bucket.address,
        "2026-01-30": night,
        "8500": ports["grpc"],
        "8501": ports["metrics"],
        "--version 8": "--version 2",
    }
    with ExitStack() as held:
        machine = Machine(places, held)
        collector = Collector()
        receiver = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, receiver)
        endpoint = f"http://127.0.0.1:{receiver.add_insecure_port('127.0.0.1:0')}"
        receiver.start()
        held.callback(receiver.stop, None)

        redis = f"redis://127.0.0.1:{ports['redis']}/0"
        options = ["--port", str(ports["redis"]), "--save", "", "--dir", str(tmp_path)]
        machine.start(["redis-server", *options], tmp_path / "redis.log")
        configuration = (ROOT / "deploy/monitoring/prometheus.yml").read_text()
        configuration = configuration.replace("server:8501", f"127.0.0.1:{ports['metrics']}")
        alerts = ROOT / "deploy/chart/monitoring/alerts.yaml"
        configuration = configuration.replace("/etc/prometheus/alerts.yaml", str(alerts))
        (tmp_path / "prometheus.yml").write_text(configuration.replace("15s", "1s"))
        machine.start(
            [
                "prometheus",
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/prometheus",
                f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
            ],
            tmp_path / "prometheus.log",
        )

        # The first version goes to the store, and a server pulls it from there.
        publish_to_store = "multigate publish --base /runs/models/NAME --to s3://bucket/models/NAME"
        machine.run(publish_to_store)
        examples = next(iter(runs.glob("*/examples")))
        assert main(["features", "load", "--snapshot", str(examples), "--to", redis]) == 0
        serve = machine.words(
            "multigate serve --model_name NAME --model_base_path s3://bucket/models/NAME "
            "--port 8500 --metrics_port 8501",
            *("--store_poll_wait_seconds", "0.2", "--feature_store", redis),
            *("--file_system_poll_wait_seconds", "0.1", "--feature_store_timeout_ms", "1000"),
            *("--impression_log", str(data / "shown"), "--impression_log_seconds", "0.2"),
            *("--canary_timeout_ms", "30000"),  # no call is late on a busy machine
            *("--otlp_endpoint", endpoint, "--otlp_sampling_rate", "0.05"),
        )
        server = machine.start([*COMMAND, *serve], tmp_path / "server.log")
        client = held.enter_context(RankClient(target, timeout=30))

        def ready():
            assert server.poll() is None, (tmp_path / "server.log").read_text()
            try:
                return client.health() == "SERVING"
            except CallError:
                return False

        until(ready, "a server that serves")
        crowd = Crowd(client, data / "feedback")
        assert crowd.version() == 1

        # A night; its version is tried on half of the users before all have it.
        machine.run("multigate run --config model.yaml --data /logs --out /runs --date 2026-01-30")
        assert base.production() == 2
        begin = "multigate publish --base /runs/models/NAME --version 8 --canary 10 --shadow 25"
        machine.places |= {"--canary 10": "--canary 50", "--shadow 25": "--shadow 8"}
        machine.run(begin)
        machine.run(publish_to_store)
        until(lambda: any(one.trial.version == 2 for one in client.models().models), "a trial")
        crowd.call("first")
        assert set(crowd.versions) == {1, 2}
        judge(machine, data, "first", status=0)
        machine.run("multigate publish --base /runs/models/NAME --promote")
        machine.run(publish_to_store)
        until(lambda: crowd.version() == 2, "version 2 for all")

        # Version 3 is tried too; its users click less, and its verdict stops it.
        shutil.copytree(base.root / "2", base.root / "3")
        machine.places["--version 8"] = "--version 3"
        machine.run(begin)
        machine.run(publish_to_store)
        until(lambda: any(one.trial.version == 3 for one in client.models().models), "a trial")
        crowd.call("second")
        assert set(crowd.versions[USERS * CALLS :]) == {2, 3}
        machine.places["/runs/shown"] = tmp_path / "shown-second"
        judge(machine, data, "second", "--stop", status=1)
        assert (base.production(), list(base.withdrawn())) == (2, [3])
        machine.run(publish_to_store)
        until(lambda: not client.models().models[0].HasField("trial"), "the end of the trial")
        assert {crowd.version(f"u{number:04d}") for number in range(20)} == {2}

        # What watches the server has seen it.
        def asked(query):
            words = urllib.parse.urlencode({"query": query})
            url = f"http://127.0.0.1:{ports['prometheus']}/api/v1/query?{words}"
            with urllib.request.urlopen(url) as answer:
                found = json.load(answer)["data"]["result"]
            return float(found[0]["value"][1]) if found else 0.0

        answered = 'sum(multigate_canary_calls_total{result="answered"})'
        until(lambda: asked(answered) >= USERS, "the canary's calls in Prometheus")
        assert asked("sum(multigate_canary_calls_total)") == asked(answered)
        assert asked('sum(:tensorflow:serving:request_count{status="INTERNAL"})') == 0
        until(lambda: collector.spans > 0, "spans")
        capsys.readouterr()
    actions = [(entry["action"], entry["version"]) for entry in base.history()]
    assert actions == [
        *(("published", 1), ("published", 2), ("tried", 2), ("published", 2)),
        *(("tried", 3), ("withdrawn", 3)),
    ]


@pytest.mark.slow
def test_what_the_chart_starts(finished, nights, helm_program, free_port, tmp_path, capsys):
    """The server's flags and variables, and the nightly command, on this machine."""
    helm, model = helm_program(anew=False), nights.write_config(tmp_path / "model.yaml")
    line = (
        "helm install multigate deploy/chart --set model.name=deskdrop "
        "--set model.basePath=/runs/models/deskdrop"
    )
    assert f"\n{line}\n" in PAGE
    values = shlex.split(line.replace("deskdrop", "night"))[2:]
    command = [helm, "template", *values, "--set-file", f"nightly.config={model}"]
    command += ["--kube-version", "1.31.0"]  # as a cluster would say
    text = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    objects = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}
    (server,) = objects["Deployment", "multigate-server"]["spec"]["template"]["spec"]["containers"]
    job = objects["CronJob", "multigate-nightly"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    config = tmp_path / "mounted.yaml"
    config.write_text(objects["ConfigMap", "multigate-config"]["data"]["model.yaml"])
    ports = {one["name"]: one["containerPort"] for one in server["ports"]}
    here = {str(port): str(free_port()) for port in ports.values()}
    here |= {"/runs": str(finished.runs), "/logs": str(finished.logs)}
    here |= {"/config/model.yaml": str(config)}

    def on_this_machine(word):
        return re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], word)

    (night,) = job["containers"]
    assert main([*map(on_this_machine, night["args"]), "--date", "2026-01-30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == finished.result  # it was finished
    variables = {one["name"]: on_this_machine(one["value"]) for one in server["env"]}
    with ExitStack() as held:
        log = tmp_path / "server.log"
        serve = [*COMMAND, "serve", *map(on_this_machine, server["args"])]
        process = Machine({}, held).start(serve, log, **variables)
        url = f"http://127.0.0.1:{here[str(ports['rest'])]}/v1/models/night"

        def serves():
            assert process.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(url) as answer:
                    (one,) = json.load(answer)["model_version_status"]
            except OSError:
                return False
            return (one["version"], one["state"]) == ("1", "AVAILABLE")

        until(serves, "a server that serves")
        target = f"127.0.0.1:{here[str(ports['grpc'])]}"
        with RankClient(target, timeout=60) as client:
            assert client.health() == "SERVING"


def judge(machine, data, prefix, *more, status):
    """Examples of what was shown, and the verdict on the trial."""
    wanted = USERS * CALLS * SHOWN

    def logged():
        import polars as pl

        files = list((data / "shown/night").glob("*.parquet"))
        scored = list((data / "shown/night/shadow").glob("*.parquet"))
        if not files or not scored:
            return False
        request = pl.col("ranked/request_id")
        ours = request.str.starts_with(f"{prefix}-")
        shown = pl.read_parquet(files, columns=["ranked/request_id", "ranked/shadow"]).filter(ours)
        both = pl.read_parquet(scored, columns=["ranked/request_id"]).filter(ours)
        return len(shown) == wanted and len(both) == shown["ranked/shadow"].sum()

    until(logged, "the logs of all calls")
    machine.run("multigate examples --config shown.yaml --data /data --out /runs/shown")
    machine.run(
        "multigate trial --base /runs/models/NAME --log /data/shown/NAME --examples /runs/shown "
        "--config model.yaml",
        *("--settle", "0"),
        *more,
        status=status,
    )
