"""SIGKILL at random moments of every stage, then on: the same version, or nothing."""

import json
import random
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from multigate.configs.sections.run import ALL_STAGES, STAGES
from multigate.jobs.night.folder import RunFolder
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.pair import Pair
from multigate.serving.versions.folders import missing_files

ROOT = Path(__file__).parents[3]
DAY = date(2026, 1, 30)


@pytest.fixture(params=[None])
def forks(nights, tmp_path, request):
    """Runs nights in processes of their own; the answer says how each ended.

    The parameter is the configuration's section `candidates`.
    """
    logs = nights.write_log(tmp_path / "logs")
    config = nights.write_config(tmp_path / "night.yaml", candidates=request.param)
    errors = (tmp_path / "stderr").open("w")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("run_forks.py"))],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )

    def ask(runs: Path, **order: object) -> int:
        common = {"config": str(config), "data": str(logs), "date": str(DAY), "out": str(runs)}
        process.stdin.write(json.dumps(common | order) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())["status"]

    with errors, process:
        yield ask
        process.stdin.close()


def published(runs: Path) -> dict | None:
    """What production answers to its golden request; it is whole."""
    base = Base(runs / "models/night")
    version = base.production()
    if version is None:
        return None
    assert version == 1, "a night publishes once"
    folder = base.versions()[version]
    assert missing_files(folder) == []
    assert base.lineage(version)["run"] == str(DAY)
    assert base.checkpoint(version) is not None
    answers = json.loads((folder / "assets.extra/golden.json").read_text())
    candidates = Pair(base).candidates
    if candidates.root.exists():
        assert candidates.production() == 1
        for name in ("golden.json", "metrics.json", "popular.json"):
            path = candidates.versions()[1] / "assets.extra" / name
            answers[f"candidates/{name}"] = json.loads(path.read_text())
        with np.load(candidates.checkpoint(1) / "weights.npz") as weights:
            answers |= {name: values.tobytes() for name, values in weights.items()}
    return answers


def seconds_of(runs: Path) -> dict[str, float]:
    records = {stage: RunFolder(runs, DAY).record(stage) for stage in ALL_STAGES}
    return {stage: record["seconds"] for stage, record in records.items() if record is not None}


def kill_and_go_on(forks, tmp_path: Path, chosen: random.Random, stages: list[str]) -> int:
    """Kill a night in one stage after another, then let it end; returns how many kills hit."""
    undisturbed = tmp_path / "undisturbed"
    if not undisturbed.exists():
        assert forks(undisturbed) == 0
    expected, seconds = published(undisturbed), seconds_of(undisturbed)
    runs = tmp_path / f"runs-{len(list(tmp_path.iterdir()))}"
    hit = 0
    for stage in stages:
        finished = {s for s in ALL_STAGES if RunFolder(runs, DAY).record(s) is not None}
        status = forks(runs, kill=[stage, chosen.uniform(0, 1.1 * seconds[stage])])
        hit += status == -9
        assert status in (-9, 0)
        assert published(runs) in (None, expected)
        assert {s for s in ALL_STAGES if RunFolder(runs, DAY).record(s) is not None} >= finished
    assert forks(runs) == 0
    assert published(runs) == expected
    left = {path.name for path in RunFolder(runs, DAY).root.glob(".*")}
    assert left == set(), "nothing of what was killed is left"
    return hit


@pytest.mark.slow
def test_a_killed_night_goes_on_where_it_was(forks, tmp_path):
    chosen, hit = random.Random(3), 0
    while not hit:  # where the undisturbed night was slower, a kill may come too late
        hit = kill_and_go_on(forks, tmp_path, chosen, ["training", "export"])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_fifty_kills(forks, tmp_path):
    """Every stage, in the order of the stages, so that each kill finds work to interrupt."""
    chosen, hit = random.Random(11), 0
    while hit < 50:
        stages = sorted(chosen.choices(STAGES, k=8), key=STAGES.index)
        hit += kill_and_go_on(forks, tmp_path, chosen, stages)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("forks", [{}], indirect=True)
def test_a_night_that_is_killed_with_its_candidates_goes_on(forks, tmp_path):
    """The same pair in the end, to the last bit; what the killed processes started is gone too."""
    stages = ["candidates_training", "candidates_training", "candidates_export"]
    stages += ["candidates_export", "decision", "publication"]
    chosen, hit = random.Random(8), 0
    while hit < 3:
        hit += kill_and_go_on(forks, tmp_path, chosen, stages)
    runs = next(path for path in tmp_path.glob("runs-*"))
    assert "candidates/golden.json" in published(runs)
