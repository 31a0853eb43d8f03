"""The same job on other engines: through Beam's portable protocol, on Apache Flink and Spark."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.flink.cluster import Flink
from tests.pipeline.random_log import write_log
from tests.pipeline.spark.cluster import Spark
from tests.pipeline.stores import download, write_config
from tests.ports import free_port

from multigate.pipeline.core.runner import BEAMS_RUNNER
from multigate.pipeline.job import run

ROOT = Path(__file__).parents[2]
NUMBERS = {
    "contract.features.seen": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"]},
    },
    "pipeline.buckets": 4,
}


@pytest.fixture
def mounts(lacking: Any) -> None:
    """A process may mount a disk of its own."""
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        lacking("needs mount namespaces: unshare --mount is not allowed here")


@pytest.fixture
def class_path(tmp_path: Path, lacking: Any) -> Any:
    """Find the jars of Beam's job server with an engine in it, Flink or Spark.

    Maven finds them, in its own cache after the first time.  Some 200 MB: a registry that is slow
    skips the test, as a program that is missing does not with `CI=true`.
    """

    def find(engine: str) -> list[Path]:
        missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
        if missing:
            lacking(f"{engine} was not run: {' and '.join(missing)} not installed")
        listed = tmp_path / "class_path.txt"
        pom = Path(__file__).parent / engine.lower() / "pom.xml"
        command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom)]
        command += ["dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{engine} was not run: Maven did not get its job server within 400 s")
        if done.returncode:
            errors = (line for line in done.stdout.splitlines() if "ERROR" in line)
            reason = next(errors, done.stdout)
            pytest.skip(f"{engine} was not run: Maven did not get its job server: {reason[:300]}")
        return [Path(jar) for jar in listed.read_text().strip().split(os.pathsep)]

    return find


def job_server(engine: str, class_path: list[Path], folder: Path) -> Path:
    """Make a jar that starts Beam's job server with an engine inside.

    Beam starts a job server by `java -jar`: this jar only names the others and the class to start.
    """
    jars = " ".join(jar.as_uri() for jar in class_path)
    # A line of a manifest has at most 72 bytes; one that goes on begins with a blank.
    named = "\r\n ".join(re.findall(".{1,70}", f"Class-Path: {jars}"))
    jar = folder / "job_server.jar"
    with zipfile.ZipFile(jar, "w") as file:
        main = f"org.apache.beam.runners.{engine.lower()}.{engine}JobServerDriver"
        first = f"Manifest-Version: 1.0\r\nMain-Class: {main}"
        file.writestr("META-INF/MANIFEST.MF", f"{first}\r\n{named}\r\n")
    return jar


@pytest.fixture(scope="module")
def here(event_config, tmp_path_factory):
    """The log, its configuration, and what the local runner makes of it."""
    log = write_log(tmp_path_factory.mktemp("engines") / "log", files=3, rows=400, users=20)
    config = event_config(**NUMBERS)
    run(config, log, log.parent / "here")
    return log, config, log.parent / "here"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Beam's own servers
def test_workers_in_processes_of_their_own_make_the_same(here, same_folders, tmp_path, monkeypatch):
    log, config, expected = here
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    )
    options = [f"--runner={BEAMS_RUNNER}"]
    options += ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    run(config, log, tmp_path / "out", options)
    same_folders(tmp_path / "out", expected)


@pytest.fixture
def make_on(class_path: Any, tmp_path: Path) -> Any:
    """Make examples as documented, in a process of its own: Beam stops its job server with it."""

    def make(engine, config, log, out, *options, meanwhile=None):
        jar = job_server(engine, class_path(engine), tmp_path)
        options = [f"--runner={engine}Runner", f"--{engine.lower()}_job_server_jar={jar}", *options]
        command = [sys.executable, "-m", "multigate", "examples", "--data", str(log)]
        command += ["--out", str(out), "--config", str(write_config(config, tmp_path))]
        with subprocess.Popen(
            [*command, "--beam", shlex.join(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                if meanwhile is not None:
                    meanwhile()
                output, _ = process.communicate(timeout=450)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # and the job server's process
        assert process.returncode == 0, output[-3000:]

    return make


@pytest.mark.slow
@pytest.mark.timeout(1200)  # some minutes where Maven's cache is empty, half of one where not
def test_flink_makes_the_same(here, same_folders, make_on, tmp_path):
    log, config, expected = here
    options = ["--flink_master=[local]", "--parallelism=2", "--environment_type=LOOPBACK"]
    make_on("Flink", config, log, tmp_path / "out", *options)
    same_folders(tmp_path / "out", expected)


OWN_DISK = """#!/bin/sh
exec unshare --mount sh -ec '
mount --rbind "{folder}" "{folder}"
mount --bind "{folder}/output" "{folder}/output"
mount -t tmpfs none "{folder}/disk"
mount -o remount,bind,ro "{folder}"
cd "{folder}/disk"
echo worker >> "{folder}/output/workers"
TMPDIR="{folder}/disk" exec {python} "$@"
' sh "$@"
"""
"""Python for a worker that reads a folder, and writes its `output` and a disk of its own."""


@contextmanager
def worker_pool(folder):
    """A pool that starts workers, each of which sees a disk of its own; yields its address."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(OWN_DISK.format(folder=folder, python=sys.executable))
    (folder / "bin" / "python").chmod(0o755)
    port = free_port()
    command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"]
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    with subprocess.Popen(
        [*command, f"--service_port={port}"],
        env=os.environ | {"PATH": path},
        start_new_session=True,
    ) as process:
        try:
            yield f"localhost:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("mounts")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_workers_that_share_no_disk_make_the_same(here, same_folders, make_on, tmp_path):
    """Input, read only, and output are shared; each worker sees a disk of its own beside them."""
    log, config, expected = here
    shutil.copytree(log, tmp_path / "log")
    for name in ("output", "disk"):
        (tmp_path / name).mkdir()
    out = tmp_path / "output" / "out"
    with worker_pool(tmp_path) as address:
        options = ["--flink_master=[local]", "--parallelism=2", "--sdk_worker_parallelism=2"]
        options += ["--environment_type=EXTERNAL", f"--environment_config={address}"]
        make_on("Flink", config, tmp_path / "log", out, *options)
    assert len((tmp_path / "output" / "workers").read_text().splitlines()) >= 2
    same_folders(out, expected)


@pytest.fixture(params=["s3", "gs"])
def store(request):
    """An address in a store that this test alone uses, with what it takes in the environment."""
    if request.param == "s3":
        return request.getfixturevalue("bucket").address
    return request.getfixturevalue("gs_address")


def workers(machines):
    """Beam's options for Python workers that the engine starts, each on its own machine's disk.

    They wait half a minute for the next step; else each step would start new ones.
    """
    config = json.dumps({"command": str(machines.boot)})
    options = ["--environment_type=PROCESS", f"--environment_config={config}"]
    return [*options, "--environment_cache_millis=30000"]


@pytest.mark.usefixtures("mounts")
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("engine", [Flink, Spark])
def test_a_cluster_that_shares_a_store_alone_makes_the_same(
    engine, killed, here, store, same_folders, class_path, make_on, tmp_path
):
    """A master and two workers as processes; input and output in a store.

    Each worker starts its own Python workers, and sees an empty disk of its own.  A killed one is
    replaced, as a cluster's manager would, and changes nothing.
    """
    log, config, expected = here
    for path in log.iterdir():
        (store / "log" / path.name).upload(path)
    out, name = store / "examples", engine.__name__
    with engine(tmp_path / "cluster", class_path(name)).started() as cluster:

        def kill():
            cluster.wait(lambda: cluster.finished() >= 20, 400)
            cluster.kill("worker_0")
            cluster.start_worker("worker_2")

        options = [*cluster.options, *workers(cluster)]
        meanwhile = kill if killed else None
        make_on(name, config, store / "log", out, *options, meanwhile=meanwhile)
        assert len(cluster.used()) >= 2
        assert cluster.lost() == killed
    same_folders(download(out, tmp_path / "out"), expected)
