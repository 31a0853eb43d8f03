"""An operator's day on one machine, with the commands of docs/operations.md as they stand there.

The chart is rendered.  A server, Redis, Prometheus, a collector and an S3 server are processes.  A
night publishes version 2.  It is tried on half of the users, found safe and promoted.  Version 3 is
tried; its users click less, and it is stopped.  No call fails.  What the chart starts runs too.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.ports import free_port

from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.upload import upload
from multigate.serving.client import RankClient
from multigate.verbs.command import main

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operations.md").read_text()
DAY = PAGE.partition("\n## A day on one machine\n")[2].partition("\n## ")[0]
COMMAND = [sys.executable, "-m", "multigate"]
CLICKS = {1: 0.4, 2: 0.4, 3: 0.15}
"""How readily the users click what each version shows."""
USERS, CALLS, OFFERED, SHOWN = 200, 3, 8, 3


PATIENCE = {
    "MULTIGATE_STORE_POLL_WAIT_SECONDS": "0.2",
    "MULTIGATE_FILE_SYSTEM_POLL_WAIT_SECONDS": "0.1",
    "MULTIGATE_IMPRESSION_LOG_SECONDS": "0.2",
    # No call is late on a busy machine.
    "MULTIGATE_FEATURE_STORE_TIMEOUT_MS": "1000",
    "MULTIGATE_CANARY_TIMEOUT_MS": "30000",
}
"""Of the server: a day of minutes."""


class Machine:
    """Runs lines of the page with paths and ports of the test's own, and processes till its end."""

    def __init__(self, places, held, programs=()):
        self.places = places
        self.ran = []
        self._held = held
        folders = [str(Path(program).parent) for program in programs]
        self._path = os.pathsep.join([*folders, os.environ["PATH"]])

    def said(self, line):
        """A line of the page, which must stand there, with the test's places."""
        assert f"\n{line}\n" in PAGE, line
        self.ran.append(line)
        names = "|".join(map(re.escape, sorted(self.places, key=len, reverse=True)))
        return re.sub(names, lambda found: str(self.places[found[0]]), line)

    def run(self, line, status=0):
        """Run a line that calls multigate, in this process."""
        assert main(shlex.split(self.said(line))[1:]) == status, line

    def shell(self, line, status=0):
        """Run any other line in the repository's folder; what it prints."""
        command = ["bash", "-c", self.said(line)]
        environment = os.environ | {"PATH": self._path}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
        )
        assert status is None or done.returncode == status, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout if status is not None else done.returncode

    def start(self, line, log, program=(), **environment):
        """Start the line's process, with other words in place of its first."""
        words = shlex.split(self.said(line))
        return self.process([*(program or words[:1]), *words[1:]], log, **environment)

    def process(self, command, log, **environment):
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=os.environ | environment,
            )

        def stop():
            process.terminate()
            assert process.wait(60) in (0, -15), log.read_text()[-3000:]

        self._held.callback(stop)
        return process


def listens(port):
    with suppress(OSError), socket.create_connection(("localhost", port)):
        return True
    return False


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


@pytest.fixture(params=["receiver", pytest.param("collector", marks=pytest.mark.long)])
def collector(request, go_build):
    """The words that start a collector: one of ours, or OpenTelemetry's, built anew."""
    here = Path(__file__).parent
    if request.param == "receiver":
        return [sys.executable, str(here / "receiver.py")]
    return [str(go_build(here / "collector"))]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm is built, where no earlier test has done so
def test_an_operators_day(nights, bucket, tmp_path, lacking, helm_program, collector, capsys):
    for program in ("redis-server", "prometheus", "curl"):
        if shutil.which(program) is None:
            lacking(f"{program} is not installed: Debian has a package of that name")
    helm = helm_program()
    runs, data = tmp_path / "runs", tmp_path / "data"
    base = Base(runs / "models/night")
    model, shown = tmp_path / "model.yaml", tmp_path / "shown.yaml"
    settings = nights.settings()
    # A few hundred users: smaller differences are chance.
    rules = {"largest_loss": 0.5, "judge": "estimate", "largest_ranking_loss": None}
    rules |= {"calibration": None, "least_auc": 0.0, "largest_outcome_loss": 0.5}
    settings["evaluation"] = {"rules": rules}
    settings["run"] = {"guards": {"max_row_drop": None}}
    model.write_text(yaml.safe_dump(settings))
    (text,) = re.findall(r"^```yaml\n(name: shown\n.*?)^```", DAY, re.MULTILINE | re.DOTALL)
    shown.write_text(text.replace("NAME", "night"))
    assert max(nights.days) == date(2026, 1, 30)  # the day of the page's second night
    names = ("8500", "8501", "6379", "9090", "4317")
    ports = {name: free_port() for name in names}
    text = (ROOT / "deploy/monitoring/collector.yaml").read_text()
    (tmp_path / "collector.yaml").write_text(text.replace("4317", str(ports["4317"])))
    places = {
        "/tmp": tmp_path,
        "/runs": runs,
        "/logs": nights.write_log(tmp_path / "logs"),
        "/data": data,
        "NAME": "night",
        "model.yaml": model,
        "shown.yaml": shown,
        "s3://bucket": bucket.address,
        "deploy/monitoring/collector.yaml": tmp_path / "collector.yaml",
        "python -m": f"{sys.executable} -m",
        "localhost:8501": f"localhost:{ports['8501']}",  # not the compose file's server:8501
        "--metrics_port 8501": f"--metrics_port {ports['8501']}",
        **{name: ports[name] for name in names if name != "8501"},
    }
    with ExitStack() as held:
        machine = Machine(places, held, programs=[helm])
        assert machine.said(f"go install {helm_program.args[0]}@{helm_program.args[1]}")
        machine.shell("helm lint --strict deploy/chart")
        machine.shell(
            "helm template multigate deploy/chart --kube-version 1.31.0 --set model.name=NAME "
            "--set model.basePath=s3://bucket/models/NAME --set impressions.claim=shown "
            "--set-file nightly.config=model.yaml > /tmp/rendered.yaml"
        )
        rendered = list(yaml.safe_load_all((tmp_path / "rendered.yaml").read_text()))
        (pod,) = (one for one in rendered if one["kind"] == "Deployment")
        (server,) = pod["spec"]["template"]["spec"]["containers"]
        assert {"name": "MODEL_BASE_PATH", "value": f"{bucket.address}/models/night"} in (
            server["env"]
        )
        assert "--impression_log=/data/shown" in server["args"]

        machine.shell(
            'sed "s|server:8501|localhost:8501|; '
            's|/etc/prometheus|$PWD/deploy/chart/monitoring|" '
            "deploy/monitoring/prometheus.yml > /tmp/prometheus.yml"
        )
        config = tmp_path / "prometheus.yml"
        config.write_text(config.read_text().replace("15s", "1s"))
        machine.start('redis-server --port 6379 --save "" --dir /tmp', tmp_path / "redis.log")
        machine.start(
            "prometheus --config.file=/tmp/prometheus.yml --storage.tsdb.path=/tmp/prometheus "
            "--web.listen-address=localhost:9090",
            tmp_path / "prometheus.log",
        )
        spans = tmp_path / "collector.log"
        machine.start("otelcol --config deploy/monitoring/collector.yaml", spans, collector)

        # The first version goes to the store, and a server pulls it from there.
        machine.run("multigate run --config model.yaml --data /logs --out /runs --date 2026-01-29")
        publish_to_store = "multigate publish --base /runs/models/NAME --to s3://bucket/models/NAME"
        machine.run(publish_to_store)
        for name in ("6379", "9090", "4317"):
            until(lambda name=name: listens(ports[name]), f"a process at {name}")
        machine.run(
            "multigate features load --snapshot /runs/2026-01-29/examples "
            "--to redis://localhost:6379/0"
        )
        log = tmp_path / "server.log"
        process = machine.start(
            "multigate serve --model_name NAME --model_base_path s3://bucket/models/NAME "
            "--port 8500 --metrics_port 8501 --feature_store redis://localhost:6379/0 "
            "--impression_log /data/shown --otlp_endpoint http://localhost:4317 "
            "--otlp_sampling_rate 0.05",
            log,
            COMMAND,
            **PATIENCE,
        )
        client = held.enter_context(RankClient(f"127.0.0.1:{ports['8500']}", timeout=30))
        probe = "python -m multigate.serving.client.probe --target localhost:8500"

        def ready():
            assert process.poll() is None, log.read_text()
            return machine.shell(probe, status=None) == 0

        until(ready, "a server that serves")
        assert machine.shell(probe) == "SERVING\n"
        states = "multigate models --target localhost:8500"
        machine.run(states)
        machine.run(
            "multigate rank --target localhost:8500 --model NAME "
            """--user '{"user_id": "u0001"}' --items i0001,i0002,i0003 --limit 2"""
        )
        crowd = Crowd(client, data / "feedback")
        assert crowd.version() == 1

        # A night; its version is tried on half of the users before all have it.
        machine.run("multigate run --config model.yaml --data /logs --out /runs --date 2026-01-30")
        assert base.production() == 2
        machine.run("multigate publish --base /runs/models/NAME --version 2 --canary 50 --shadow 8")
        machine.run(publish_to_store)
        until(lambda: any(one.trial.version == 2 for one in client.models().models), "a trial")
        machine.run(states)
        crowd.call("first")
        assert set(crowd.versions) == {1, 2}
        until(lambda: logged(data, "first"), "the logs of all calls")
        machine.run("multigate examples --config shown.yaml --data /data --out /runs/shown-2")
        trial = "multigate trial --base /runs/models/NAME --log /data/shown/NAME "
        machine.run(f"{trial}--examples /runs/shown-2 --config model.yaml --settle 0")
        machine.run("multigate publish --base /runs/models/NAME --promote")
        machine.run(publish_to_store)
        until(lambda: crowd.version() == 2, "version 2 for all")

        # Version 3 is tried too; its users click less, and its verdict stops it.
        shutil.copytree(base.root / "2", base.root / "3")
        machine.run("multigate publish --base /runs/models/NAME --version 3 --canary 50 --shadow 8")
        machine.run(publish_to_store)
        until(lambda: any(one.trial.version == 3 for one in client.models().models), "a trial")
        crowd.call("second")
        assert set(crowd.versions[USERS * CALLS :]) == {2, 3}
        until(lambda: logged(data, "second"), "the logs of all calls")
        machine.run("multigate examples --config shown.yaml --data /data --out /runs/shown-3")
        machine.run(
            f"{trial}--examples /runs/shown-3 --config model.yaml --settle 0 --stop", status=1
        )
        assert (base.production(), list(base.withdrawn())) == (2, [3])
        machine.run(publish_to_store)
        until(lambda: not client.models().models[0].HasField("trial"), "the end of the trial")
        assert {crowd.version(f"u{number:04d}") for number in range(20)} == {2}

        # What watches the server has seen it.
        machine.run("multigate publish --base /runs/models/NAME")
        asked = (
            "curl --silent --get http://localhost:9090/api/v1/query --data-urlencode "
            '"query=sum by (version, result) (multigate_canary_calls_total)"'
        )

        def counted():
            found = json.loads(machine.shell(asked))["data"]["result"]
            return {tuple(one["metric"].values()): float(one["value"][1]) for one in found}

        until(lambda: sum(counted().values()) >= USERS, "the canary's calls in Prometheus")
        assert {result for labels in counted() for result in labels} == {"2", "3", "answered"}
        until(lambda: "multigate.RankingService/Rank" in spans.read_text(), "spans")
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", DAY, re.MULTILINE | re.DOTALL)
        assert set(machine.ran) == {
            line for language, block in blocks if not language for line in block.splitlines()
        }
        capsys.readouterr()
    actions = [(entry["action"], entry["version"]) for entry in base.history()]
    assert actions == [
        *(("published", 1), ("published", 2), ("tried", 2), ("published", 2)),
        *(("tried", 3), ("withdrawn", 3)),
    ]


def logged(data, prefix):
    """Whether the impression log and the shadow's have all calls."""
    import polars as pl

    files = list((data / "shown/night").glob("*.parquet"))
    scored = list((data / "shown/night/shadow").glob("*.parquet"))
    if not files or not scored:
        return False
    ours = pl.col("ranked/request_id").str.starts_with(f"{prefix}-")
    shown = pl.read_parquet(files, columns=["ranked/request_id", "ranked/shadow"]).filter(ours)
    both = pl.read_parquet(scored, columns=["ranked/request_id"]).filter(ours)
    return len(shown) == USERS * CALLS * SHOWN and len(both) == shown["ranked/shadow"].sum()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # as above
def test_what_the_chart_starts(finished, nights, bucket, helm_program, tmp_path, capsys):
    """The server's flags and variables, and the nightly command, on this machine."""
    helm, model = helm_program(), nights.write_config(tmp_path / "model.yaml")
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
    here |= {"/config/model.yaml": str(config), "/tmp": str(tmp_path / "scratch")}

    def on_this_machine(word):
        return re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], word)

    (night,) = job["containers"]
    assert main([*map(on_this_machine, night["args"]), "--date", "2026-01-30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == finished.result  # it was finished
    variables = {one["name"]: on_this_machine(one["value"]) for one in server["env"]}
    upload(Base(finished.runs / "models/night"), bucket.address / "models/night")
    of_store = variables | {"MODEL_BASE_PATH": f"{bucket.address}/models/night"}
    of_store["HOME"] = "/proc/self"  # where nobody writes, as in the image
    for environment in (variables, of_store):
        serve_and_stop(server, ports, here, on_this_machine, environment, tmp_path)


def serve_and_stop(server, ports, here, on_this_machine, environment, tmp_path):
    """Start what the chart starts, with these variables; it serves version 1."""
    with ExitStack() as held:
        log = tmp_path / "server.log"
        serve = [*COMMAND, "serve", *map(on_this_machine, server["args"])]
        process = Machine({}, held).process(serve, log, **environment)
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
