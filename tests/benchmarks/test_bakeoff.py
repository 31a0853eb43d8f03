"""The bake-off: identical rows for all, resumed row by row, tuned on validation alone."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from multigate.jobs.simulate import simulate
from multigate.model.data.rows import read_rows
from multigate.pipeline import job

slow = pytest.mark.slow  # trains small models in processes of their own
pytestmark = pytest.mark.timeout(900)

PATH = Path(__file__).parents[2] / "benchmarks/bakeoff.py"


@pytest.fixture(scope="module")
def bakeoff() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("bakeoff", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PATH.parent)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def folder(small_config: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of the demo, and the configuration of a small model."""
    root = tmp_path_factory.mktemp("bakeoff")
    config = small_config("demo")
    simulate(root / "logs", seed=3, users=60, items=30, exposures=2_000)
    job.run(config, root / "logs", root / "examples")
    (root / "small.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return root


@pytest.fixture(scope="module")
def made(bakeoff: Any, folder: Path) -> Any:
    """LightGBM with two seeds, and our model with one."""
    made = bakeoff.Bakeoff(
        str(folder / "small.yaml"), folder / "examples", folder / "work", None, 1
    )
    made.run("lightgbm", 2)
    made.run("ours", 1)
    return made


@pytest.fixture(scope="module")
def judging(bakeoff: Any) -> Any:
    """The module that measures; bakeoff's fixture says where it is."""
    return importlib.import_module("contenders.judge")


def scores_of(made: Any, contender: str, seed: int) -> Path:
    """The scores that a contender's row names."""
    (found,) = [
        line["scores"]
        for line in made.finished(made.rows)
        if (line["contender"], line["seed"]) == (contender, seed)
    ]
    return Path(made.work / found)


@slow
def test_every_contender_is_measured_on_the_same_rows(judging: Any, made: Any) -> None:
    found = made.measure(["ours", "lightgbm"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    rows = read_rows(made.examples, "test")
    labels = rows.labels(made.contract)
    assert found["rows"] == len(rows)
    task = next(iter(made.contract.tasks))
    known = ~np.isnan(labels[:, 0])
    areas = []
    for seed in (0, 1):
        with np.load(scores_of(made, "lightgbm", seed)) as scores:
            areas.append(roc_auc_score(labels[known, 0], scores[f"test/{task}"][known]))
    assert areas[0] != areas[1]
    entry = found["tasks"][task]["auc"]
    assert entry["lightgbm"]["production"]["value"] == pytest.approx(np.mean(areas))
    assert entry["lightgbm"]["candidate"] == entry["ours"]["candidate"]
    assert entry["ours"]["production"] is None
    assert found["cost"]["lightgbm"]["seeds"] == 2
    means = found["tasks"].pop("mean of binary tasks")
    assert set(means) == {"auc", "gauc"}
    for metric, mean in means.items():
        each = [one[metric] for one in found["tasks"].values() if metric in one]
        values = [one["lightgbm"]["production"]["value"] for one in each]
        assert mean["lightgbm"]["production"]["value"] == pytest.approx(np.mean(values))
    text = judging.markdown(found, by_hand="ours")
    assert text.startswith("| demo, test | ours | lightgbm |\n| --- | --- | --- |\n")
    assert f"| {task}, AUC | {entry['ours']['candidate']['value']:.4f} | " in text


@slow
def test_the_table_holds_no_test_label(made: Any) -> None:
    with np.load(made.table) as table:
        about = json.loads(str(table["about"]))
        parts = ["x", *(f"list/{name}" for name in about["lists"])]
        wanted = [f"{split}/{part}" for split in ("train", "validation", "test") for part in parts]
        assert sorted(table.files) == sorted([*wanted, "about", "train/y", "validation/y"])


@slow
def test_finished_rows_are_not_trained_again(made: Any) -> None:
    before = (made.work / "rows.jsonl").read_text()
    scores = scores_of(made, "lightgbm", 0)
    written = scores.stat().st_mtime_ns
    made.run("lightgbm", 2)
    assert (made.work / "rows.jsonl").read_text() == before
    assert scores.stat().st_mtime_ns == written


@pytest.mark.long  # the default tests read lines of other tables
@pytest.mark.parametrize("change", ["train.learning_rate=0.2", "contract.tasks.click.weight=9"])
def test_rows_of_another_configuration_do_not_count(
    bakeoff: Any, made: Any, folder: Path, tmp_path: Path, change: str
) -> None:
    """Whether they were made before or after: neither their measures nor their files."""
    shutil.copytree(folder / "work", tmp_path / "work")
    given = (str(folder / "small.yaml"), folder / "examples", tmp_path / "work", None, 1)
    this, other = bakeoff.Bakeoff(*given), bakeoff.Bakeoff(*given, changes=[change])
    before = this.measure(["ours"])
    assert list(other.measure(["ours", "lightgbm"])["cost"]) == ["lightgbm"]
    other.run("ours", 1)
    assert other.measure(["ours"])["tasks"] != before["tasks"]
    lines = this.rows.read_text()
    this.run("ours", 1)
    assert this.rows.read_text() == lines
    assert this.measure(["ours"]) == before


@slow
def test_a_table_of_other_examples_is_refused(
    bakeoff: Any, made: Any, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "examples", tmp_path / "others")
    with (tmp_path / "others/manifest.json").open("a") as manifest:
        manifest.write("\n")
    with pytest.raises(SystemExit, match=r"holds the table of other examples than .*--work"):
        bakeoff.Bakeoff(str(folder / "small.yaml"), tmp_path / "others", folder / "work", None, 1)


@pytest.mark.parametrize("change", ["train.epochs", "train.epochs=two", "train.epochs:4"])
def test_a_change_is_a_name_and_a_value(bakeoff: Any, change: str) -> None:
    assert bakeoff.parsed('train.teacher={"share": 0.5}') == ("train.teacher", {"share": 0.5})
    with pytest.raises(SystemExit, match=r"--set: expected NAME=VALUE .* received train.epochs"):
        bakeoff.parsed(change)


@slow
def test_calibration_is_the_same_for_all_and_changes_no_order(judging: Any, made: Any) -> None:
    rows = read_rows(made.examples, "test")
    labels = rows.labels(made.contract)
    for name in ("lightgbm", "ours"):
        scores = scores_of(made, name, 0)
        served, means = judging.Judge(made.examples, made.contract).calibrated(scores)
        with np.load(scores) as stored:
            for t, task in enumerate(made.contract.tasks):
                raw, known = stored[f"test/{task}"], ~np.isnan(labels[:, t])
                if made.contract.tasks[task].type == "binary":
                    of_raw, of_served = (
                        roc_auc_score(labels[known, t], p[known]) for p in (raw, served[task])
                    )
                    assert of_served == pytest.approx(of_raw, abs=1e-4)
                else:
                    assert (
                        np.corrcoef(
                            np.argsort(np.argsort(raw)), np.argsort(np.argsort(means[task]))
                        )[0, 1]
                        > 0.999
                    )


def test_lines_of_other_tables_and_one_that_a_kill_cut_off_do_not_count(
    bakeoff: Any, tmp_path: Path
) -> None:
    made = bakeoff.Bakeoff.__new__(bakeoff.Bakeoff)
    path = tmp_path / "rows.jsonl"
    made.name, made.identity = "demo", "another"
    made.finish(path, {"seed": 9})
    made.identity = "this"
    assert made.finished(path) == []
    for seed in (0, 1):
        made.finish(path, {"seed": seed})
    with path.open("a") as file:
        file.write('{"seed": ')
    assert [line["seed"] for line in made.finished(path)] == [0, 1]
    made.finish(path, {"seed": 2})
    assert [line["seed"] for line in made.finished(path)] == [0, 1, 2]


@slow
def test_tuning_keeps_the_best_on_validation_by_task(
    bakeoff: Any, made: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(bakeoff, "SETTINGS", tmp_path / "settings.json")
    monkeypatch.setattr(bakeoff, "TRIALS", tmp_path / "trials.jsonl")
    made.tune("lightgbm", 2)
    trials = made.finished(bakeoff.TRIALS)
    assert [line["setting"] for line in trials] == [
        bakeoff.FIRST["lightgbm"],
        bakeoff.draw("lightgbm", 1),
    ]
    stored = json.loads((tmp_path / "settings.json").read_text())["demo"]["lightgbm"]
    assert stored["trials"] == 2
    for task in made.contract.tasks:
        best = max(trials, key=lambda line, task=task: line["validation"][task])
        assert stored["tasks"][task] == best["setting"]
    made.tune("lightgbm", 2)
    assert made.finished(bakeoff.TRIALS) == trials  # no trial is repeated
    old = [line | {"setting": {"num_leaves": 31}} for line in trials[1:]]
    bakeoff.TRIALS.write_text("".join(json.dumps(line) + "\n" for line in [trials[0], *old]))
    made.tune("lightgbm", 2)  # the second trial was another draw, so it is run again
    assert [line["setting"] for line in made.finished(bakeoff.TRIALS)] == [
        trials[0]["setting"],
        {"num_leaves": 31},
        trials[1]["setting"],
    ]


def test_trees_without_ids_split_on_numbers_alone(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(PATH.parent / "contenders")
    import trees

    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 20, 1500).astype(float), rng.normal(size=1500)], axis=1)
    y = (x[:, 0] % 2 + x[:, 1] + rng.normal(size=1500) > 0.5).astype(float)
    data: Any = SimpleNamespace(
        tasks={"click": "binary"},
        columns=["item_id", "age"],
        categories=[0],
        of_task=lambda task, split: (x, y),
    )
    blank = x.copy()
    blank[:, 0] = np.nan
    for ids in (True, False):
        scores = trees.lightgbm(data, "click", {"ids": ids}, 0, 1)
        assert (scores(x) != scores(blank)).any() == ids
        assert len(np.unique(scores(x))) > 100


@slow
def test_a_contender_that_fails_says_why(made: Any, bakeoff: Any) -> None:
    with pytest.raises(SystemExit, match=r"lightgbm, seed 0: .*num_leaves"):
        made.train("lightgbm", {"num_leaves": -1}, 0, made.work / "failed.npz")


def test_draws_are_the_same_every_time(bakeoff: Any) -> None:
    for contender, space in bakeoff.SPACES.items():
        assert bakeoff.draw(contender, 5) == bakeoff.draw(contender, 5)
        assert set(bakeoff.draw(contender, 1)) == set(space)
        drawn = [json.dumps(bakeoff.draw(contender, trial)) for trial in range(16)]
        assert len(set(drawn)) > 12
