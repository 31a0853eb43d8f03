"""The same job on other engines: through Beam's portable protocol, and on Apache Flink."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.pipeline.flink.cluster import cluster
from tests.pipeline.random_log import write_log
from tests.ports import free_port

from multigate.pipeline.core.runner import BEAMS_RUNNER
from multigate.pipeline.job import run

ROOT = Path(__file__).parents[2]
POM = Path(__file__).parent / "flink" / "pom.xml"
NUMBERS = {
    "contract.features.seen": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"]},
    },
    "pipeline.buckets": 4,
}


def flink_class_path(folder: Path) -> list[Path]:
    """Jars of Beam's job server with Flink in it; skips where they cannot be had.

    Maven finds them, in its own cache after the first time.
    """
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"Flink was not run: {' and '.join(missing)} not installed")
    listed = folder / "class_path.txt"
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(POM), "dependency:build-classpath"]
    command.append(f"-Dmdep.outputFile={listed}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("Flink was not run: Maven did not get its job server within 400 s")
    if done.returncode:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stdout)
        pytest.skip(f"Flink was not run: Maven did not get its job server: {reason[:300]}")
    return [Path(jar) for jar in listed.read_text().strip().split(os.pathsep)]


def job_server(folder: Path) -> Path:
    """Make a jar that starts Beam's job server with a Flink inside.

    Beam starts a job server by `java -jar`: this jar only names the others and the class to start.
    """
    jars = " ".join(jar.as_uri() for jar in flink_class_path(folder))
    # A line of a manifest has at most 72 bytes; one that goes on begins with a blank.
    named = "\r\n ".join(re.findall(".{1,70}", f"Class-Path: {jars}"))
    jar = folder / "job_server.jar"
    with zipfile.ZipFile(jar, "w") as file:
        first = "Manifest-Version: 1.0\r\nMain-Class: org.apache.beam.runners.flink"
        file.writestr("META-INF/MANIFEST.MF", f"{first}.FlinkJobServerDriver\r\n{named}\r\n")
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


def make_on_flink(config, log, out, folder, *more, master="[local]", parallelism=2, meanwhile=None):
    """As documented, in a process of its own: Beam stops its Flink when that process ends."""
    (folder / "model.yaml").write_text(
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    )
    options = [f"--runner=FlinkRunner --flink_master={master} --parallelism={parallelism}"]
    options = " ".join([*options, f"--flink_job_server_jar={job_server(folder)}", *more])
    command = [sys.executable, "-m", "multigate", "examples", "--config"]
    command += [str(folder / "model.yaml"), "--data", str(log), "--out", str(out)]
    with subprocess.Popen(
        [*command, "--beam", options],
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


@pytest.mark.slow
@pytest.mark.timeout(1200)  # some minutes where Maven's cache is empty, half of one where not
def test_flink_makes_the_same(here, same_folders, tmp_path):
    log, config, expected = here
    make_on_flink(config, log, tmp_path / "out", tmp_path, "--environment_type=LOOPBACK")
    same_folders(tmp_path / "out", expected)


KEPT = "--environment_cache_millis=30000"
"""Python workers wait so long for the next step; else each step starts new ones."""

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


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_workers_that_share_no_disk_make_the_same(here, same_folders, tmp_path):
    """Input, read only, and output are shared; each worker sees a disk of its own beside them."""
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs mount namespaces: unshare --mount is not allowed here")
    log, config, expected = here
    shutil.copytree(log, tmp_path / "log")
    for name in ("output", "disk"):
        (tmp_path / name).mkdir()
    out = tmp_path / "output" / "out"
    with worker_pool(tmp_path) as address:
        environment = f"--environment_type=EXTERNAL --environment_config={address}"
        more = (environment, "--sdk_worker_parallelism=2")
        make_on_flink(config, tmp_path / "log", out, tmp_path, *more)
    assert len((tmp_path / "output" / "workers").read_text().splitlines()) >= 2
    same_folders(out, expected)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("killed", [False, True])
def test_a_cluster_that_shares_a_store_alone_makes_the_same(
    killed, here, bucket, same_folders, tmp_path
):
    """A JobManager and two TaskManagers as processes; input and output on an S3 server.

    Each TaskManager starts its own Python workers, and sees an empty disk of its own.  A killed one
    is replaced, as a cluster's manager would, and changes nothing.
    """
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs mount namespaces: unshare --mount is not allowed here")
    log, config, expected = here
    for path in log.iterdir():
        (bucket.address / "log" / path.name).upload(path)
    class_path = os.pathsep.join(map(str, flink_class_path(tmp_path)))
    out = bucket.address / "examples"
    with cluster(tmp_path / "cluster", class_path) as flink:

        def kill():
            flink.wait(lambda _: flink.finished_steps() >= 20, 400)
            flink.kill("task_manager_0")
            flink.start_task_manager("task_manager_2")

        environment = {"command": str(flink.boot)}
        options = (
            f"--environment_type=PROCESS --environment_config='{json.dumps(environment)}' {KEPT}"
        )
        make_on_flink(
            config,
            bucket.address / "log",
            out,
            tmp_path,
            options,
            master=f"localhost:{flink.port}",
            parallelism=4,
            meanwhile=kill if killed else None,
        )
        assert flink.get("overview")["jobs-finished"] == 1
        assert len(flink.workers_of_finished_job()) >= 2
    local = tmp_path / "out"
    for name in out.files():
        path = local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((out / name).read_bytes())
    same_folders(local, expected)
