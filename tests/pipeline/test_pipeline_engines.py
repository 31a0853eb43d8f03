"""The same job on other engines: through Beam's portable protocol, and on Apache Flink."""

import gc
import os
import random
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest

from pipeline.job import run
from pipeline.runner import import_beam

ROOT = Path(__file__).parents[2]
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


def flink_options() -> list[str]:
    """Beam's options for a Flink in its job server's own process; skips where there is none."""
    if shutil.which("java") is None:
        pytest.skip("no Java here: Flink was not run")
    _, pipeline_options = import_beam()
    from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
    from apache_beam.utils.subprocess_server import JavaJarServer

    options = ["--runner=FlinkRunner", "--flink_master=[local]", "--parallelism=2"]
    url = FlinkJarJobServer(pipeline_options(options)).path_to_jar()
    jar, reason = None, ""
    try:
        jar = JavaJarServer.local_jar(url)
    except (OSError, RuntimeError) as error:  # the latter where its mirror fails as well
        reason = str(error)[:200]
    if jar is None:
        gc.collect()  # the failed download's connection, which Beam leaves open
        jar = _from_maven(Path(url).name)
    if jar is None:
        pytest.skip(f"Flink was not run: no {Path(url).name}: {reason}")
    # The workers are this interpreter, with what is installed in it.
    return [*options, f"--flink_job_server_jar={jar}", "--environment_type=LOOPBACK"]


def _from_maven(name: str) -> str | None:
    """Ask an installed Maven, which may know another way to its registry than Beam does."""
    if shutil.which("mvn") is None:
        return None
    artifact, _, version = name.removesuffix(".jar").rpartition("-")
    folder = Path.home() / ".apache_beam" / "cache" / "jars"
    command = ["mvn", "-q", "-B", "dependency:copy", f"-DoutputDirectory={folder}"]
    command.append(f"-Dartifact=org.apache.beam:{artifact}:{version}")
    done = subprocess.run(command, capture_output=True, timeout=170, check=False)
    return str(folder / name) if done.returncode == 0 and (folder / name).exists() else None


def assert_same(folder: Path, expected: Path) -> None:
    """Row by row, in every file; and the same account."""
    names = [
        {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
        for root in (folder, expected)
    ]
    assert names[0] == names[1]
    assert len(names[0]) > 20
    for name in sorted(names[0]):
        if name.endswith(".parquet"):
            assert pl.read_parquet(folder / name).equals(pl.read_parquet(expected / name)), name
        else:
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
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    options = ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]
    options += ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    run(config, log, tmp_path / "out", options)
    assert_same(tmp_path / "out", expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_flink_makes_the_same(here, tmp_path):
    log, config, expected = here
    run(config, log, tmp_path / "out", flink_options())
    assert_same(tmp_path / "out", expected)
