"""A run that is killed continues from its finished stages, and makes the same examples."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
import pytest
import yaml
from tests.pipeline.random_log import write_log

from multigate.configs.files import SPLITS
from multigate.pipeline.job import run

ROOT = Path(__file__).parents[3]
CHANGES = {
    "contract.features.seen": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"]},
    },
    "contract.features.of_user": {
        "kind": "number",
        "side": "user",
        "label_rate": {"of": "user", "task": "like"},
    },
    "pipeline.split": {"by": "time", "validation": 0.2, "test": 0.2, "embargo": False},
    "pipeline.buckets": 24,
}


@pytest.fixture(scope="module")
def expected(event_config, tmp_path_factory):
    """What an undisturbed run makes; the log lies beside it."""
    folder = tmp_path_factory.mktemp("records")
    run(
        event_config(**CHANGES),
        write_log(folder / "log", files=4, rows=300, users=60),
        folder / "out",
    )
    return folder / "out"


def records(folder, stage=""):
    return sorted(folder.glob(f".*.partial/.work/stages/{stage}*.pickle"))


KILLED = """
import os, signal, sys
from contextlib import contextmanager
from multigate.pipeline.stages import records
from multigate.verbs.command import main

stage, new_part = sys.argv.pop(1), records.new_part

@contextmanager
def part(path):
    with new_part(path) as temporary:
        yield temporary
    if len(list(path.parent.glob(stage + "*.pickle"))) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)

records.new_part = part
sys.exit(main(sys.argv[1:]))
"""


def kill(config, log, out, stage, folder):
    """Do a run that works below a folder, and kills itself once a stage has left two records."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    (folder / "model.yaml").write_text(text)
    arguments = ["--config", folder / "model.yaml", "--data", log, "--out", out]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, stage, "examples", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{folder}", "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert len(records(folder, stage)) >= 2
    return records(folder)


def spoil(log):
    """Make the log unreadable, in a way that sizes and times do not tell."""
    for path in log.iterdir():
        times = path.stat()
        path.write_bytes(b"\0" * times.st_size)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture
def log(expected, tmp_path):
    folder = write_log(tmp_path / "log", files=4, rows=300, users=60)
    for path in folder.iterdir():
        os.utime(path, ns=(0, 1_700_000_000 * 10**9))
    return folder


@pytest.mark.slow
@pytest.mark.sweep(0, slow=2)
@pytest.mark.parametrize("stage", ["finish_bucket", "label_bucket", "sample_bucket", "count_items"])
def test_a_killed_run_continues(stage, log, expected, event_config, same_folders, tmp_path):
    config, out = event_config(**CHANGES), tmp_path / "out"
    left = kill(config, log, out, stage, tmp_path)
    assert not out.exists()
    assert len([path for path in left if path.name.startswith("read_shard")]) == 4
    spoil(log)  # what was read is not read again
    run(config, log, out)
    same_folders(out, expected)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize("what", ["log", "configuration", "forgotten"])
def test_a_run_of_something_else_begins_anew(what, log, expected, event_config, tmp_path):
    config, out = event_config(**CHANGES), tmp_path / "out"
    kill(config, log, out, "label_bucket", tmp_path)
    if what == "log":
        with (log / "log-0.csv").open("a") as file:
            file.write("1700000001,VIEW,i1,new,s,,phone\n")
    elif what == "configuration":
        config = event_config(**CHANGES, **{"pipeline.seed": 7})
    (tmp_path / "gone.txt").write_text("u1\n")
    more = {"forget": tmp_path / "gone.txt"} if what == "forgotten" else {}
    made = run(config, log, out, **more)
    run(config, log, tmp_path / "anew", **more)
    for path in (tmp_path / "anew").rglob("*.*"):
        name = path.relative_to(tmp_path / "anew")
        assert (out / name).read_bytes() == path.read_bytes(), name
    assert made["rows"]["rows_in"] == 1204 + (what == "log")


ENCODED = {
    "contract.features.cover": {
        "kind": "vector",
        "side": "item",
        "source": "items",
        "size": 1,
        "missing": "indicator",
    },
    "pipeline.items": {
        "files": ["items.csv"],
        "key": "item",
        "encode": {"cover": {"text": "title", "by": "encoder_of_items:encode"}},
    },
}
ENCODER = """
from pathlib import Path

def encode(texts):
    weight = float(Path(__file__).with_name("weight.txt").read_text())
    return [[weight * len(text)] for text in texts]
"""


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1, 2])
def test_a_run_goes_on_with_the_same_vectors_only(
    weight, log, event_config, monkeypatch, caplog, tmp_path
):
    """No file of the run says that an encoder has learnt something else since."""
    config, out = event_config(**CHANGES, **ENCODED), tmp_path / "out"
    titles = [f"i{at},title-{'x' * at}" for at in range(40)]
    (log / "items.csv").write_text("\n".join(["item,title", *titles]) + "\n")
    (tmp_path / "encoder_of_items.py").write_text(ENCODER)
    (tmp_path / "weight.txt").write_text("1")
    kill(config, log, out, "finish_bucket", tmp_path)
    (tmp_path / "weight.txt").write_text(str(weight))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "encoder_of_items", raising=False)
    run(config, log, out)
    paths = [path for split in SPLITS for path in (out / split).glob("*.parquet")]
    rows = pl.concat(map(pl.read_parquet, paths)).select("item_id", "cover").drop_nulls()
    assert len(rows) > 100
    lengths = {f"i{at}": 6.0 + at for at in range(40)}
    assert all(cover == [weight * lengths[item]] for item, cover in rows.iter_rows())
    assert ("going on with a run" in caplog.text) == (weight == 1)


@pytest.mark.slow
def test_a_run_into_a_store_continues(
    log, expected, event_config, same_folders, bucket, monkeypatch, tmp_path
):
    config, out, work = event_config(**CHANGES), bucket.address / "out", tmp_path / "work"
    work.mkdir()
    kill(config, log, out, "finish_bucket", work)
    assert list(out.files()) == [".writing"]
    spoil(log)
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    run(config, log, out)
    assert records(work) == []
    for name, file in out.files().items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        file.download(tmp_path / "copy" / name)
    same_folders(tmp_path / "copy", expected)
