"""The same job on other engines: through Beam's portable protocol, and on Apache Flink."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import polars as pl
import pytest
import yaml

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


def write_log(folder: Path) -> Path:
    rng = random.Random(3)
    folder.mkdir()
    kinds = ["VIEW", "VIEW", "LIKE", "DISLIKE", "BUY", "RATE"]
    for at in range(3):
        rows = [
            f"{1_700_000_000 + 300 * row + at},{rng.choice(kinds)},i{rng.randrange(30)},"
            f"u{rng.randrange(20)},s{row // 50},{rng.choice(['', '2'])},phone"
            for row in range(400)
        ]
        rows.append("never,VIEW,i1,u1,s,,phone")
        text = "\n".join(["time,event,item,user,session,value,device", *rows])
        (folder / f"log-{at}.csv").write_text(text + "\n")
    return folder


def job_server(folder: Path) -> Path:
    """Make a jar that starts Beam's job server with a Flink inside; skips where it cannot be had.

    Maven finds the jars, in its own cache after the first time. Beam starts a job server by
    `java -jar`: this jar only names the others and the class to start.
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
    jars = " ".join(Path(jar).as_uri() for jar in listed.read_text().strip().split(os.pathsep))
    # A line of a manifest has at most 72 bytes; one that goes on begins with a blank.
    named = "\r\n ".join(re.findall(".{1,70}", f"Class-Path: {jars}"))
    jar = folder / "job_server.jar"
    with zipfile.ZipFile(jar, "w") as file:
        first = "Manifest-Version: 1.0\r\nMain-Class: org.apache.beam.runners.flink"
        file.writestr("META-INF/MANIFEST.MF", f"{first}.FlinkJobServerDriver\r\n{named}\r\n")
    return jar


def assert_same(folder: Path, expected: Path) -> None:
    """Row by row, then byte by byte, in every file; and the same account."""
    names = [
        {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
        for root in (folder, expected)
    ]
    assert names[0] == names[1]
    assert len(names[0]) > 20
    for name in sorted(names[0]):
        if name.endswith(".parquet"):
            assert pl.read_parquet(folder / name).equals(pl.read_parquet(expected / name)), name
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.fixture(scope="module")
def here(event_config, tmp_path_factory):
    """The log, its configuration, and what the local runner makes of it."""
    log = write_log(tmp_path_factory.mktemp("engines") / "log")
    config = event_config(**NUMBERS)
    run(config, log, log.parent / "here")
    return log, config, log.parent / "here"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Beam's own servers
def test_workers_in_processes_of_their_own_make_the_same(here, tmp_path, monkeypatch):
    log, config, expected = here
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    )
    options = ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]
    options += ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    run(config, log, tmp_path / "out", options)
    assert_same(tmp_path / "out", expected)


@pytest.mark.slow
@pytest.mark.timeout(600)  # some minutes where Maven's cache is empty, half of one where not
def test_flink_makes_the_same(here, tmp_path):
    """As documented, in a process of its own: Beam stops its Flink when that process ends."""
    log, config, expected = here
    (tmp_path / "model.yaml").write_text(
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    )
    options = "--runner=FlinkRunner --flink_master=[local] --environment_type=LOOPBACK"
    options += f" --parallelism=2 --flink_job_server_jar={job_server(tmp_path)}"
    command = [sys.executable, "-m", "multigate", "examples", "--config"]
    command += [str(tmp_path / "model.yaml"), "--data", str(log), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*command, "--beam", options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=150)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # and the job server's process
    assert process.returncode == 0, output[-3000:]
    assert_same(tmp_path / "out", expected)
