"""The bake-off's log of Open Bandit: each impression with the affinity of its own candidate."""

import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from multigate.configs import load
from multigate.pipeline import job

BENCHMARKS = Path(__file__).parents[2] / "benchmarks/data_sets"


def convert(data: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "open_bandit.py"), "--data", str(data), "--out"]
    return subprocess.run([*command, str(out)], capture_output=True, text=True, check=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two policies of 60 rows and three items, in the columns of the campaign's files."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for policy in ("bts", "random"):
        seconds = np.sort(rng.integers(0, 6 * 86_400, 60))
        times = np.datetime64("2019-11-24T00:00:00") + seconds.astype("timedelta64[s]")
        rows = {
            "timestamp": [f"{str(time).replace('T', ' ')}.5+00:00" for time in times],
            "item_id": rng.integers(0, 3, 60),
            "position": rng.integers(1, 4, 60),
            "click": rng.integers(0, 2, 60),
            **{f"user_feature_{n}": rng.choice(["a", "b"], 60) for n in range(4)},
            **{f"user-item_affinity_{n}": rng.integers(0, 5, 60).astype(float) for n in range(3)},
        }
        text = pl.DataFrame(rows).write_csv().encode()
        (folder / f"{policy}.csv.xz").write_bytes(lzma.compress(text))
    items = {"item_id": [0, 1, 2], "item_feature_0": [0.5, -1.0, 0.0]}
    items |= {f"item_feature_{n}": ["x", "y", "z"] for n in (1, 2, 3)}
    pl.DataFrame(items).write_csv(folder / "item_context.csv")
    return folder


def test_an_impression_has_its_candidates_affinity(data: Path, tmp_path: Path) -> None:
    assert convert(data, tmp_path / "log").returncode == 0
    log = pl.read_parquet(tmp_path / "log/bts.parquet")
    raw = pl.read_csv(lzma.decompress((data / "bts.csv.xz").read_bytes()))
    columns = raw.select(f"user-item_affinity_{n}" for n in range(3)).to_numpy()
    assert log["affinity"].to_list() == columns[np.arange(60), raw["item_id"]].tolist()
    assert log["affinities"].to_list() == columns.sum(axis=1).tolist()
    first = "|".join(str(raw[f"user_feature_{n}"][0]) for n in range(4))
    assert log["user"][0] == first
    config = load(str(BENCHMARKS / "open_bandit.yaml"))
    job.run(config, tmp_path / "log", tmp_path / "examples")
    splits = ("train", "validation", "test")
    examples = [pl.read_parquet(tmp_path / f"examples/{split}/*.parquet") for split in splits]
    assert all(one["label/click"].sum() > 0 for one in examples)
    assert 110 < sum(map(len, examples)) <= 120  # without those that close after the split


def test_a_folder_without_the_files_says_so(tmp_path: Path) -> None:
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "no item_context.csv or item_context.csv.xz; expected files of Open Bandit\n"
    )
