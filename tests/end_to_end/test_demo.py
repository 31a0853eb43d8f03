"""The whole job: what `multigate demo` leaves behind and says."""

import json
import subprocess
import sys

import pytest

from multigate.configs import DataError, load
from multigate.jobs import demo


def test_every_stage_left_its_folder(small_run):
    left = sorted(path.name for path in (small_run.root / "run").iterdir())
    assert left == ["checkpoint", "examples", "models", "report.csv", "report.html", "report.json"]


def test_the_result_names_tasks_lists_export_and_report(small_run):
    result = small_run.result
    assert sorted(result) == ["export", "ranked", "report", "seconds", "tasks"]
    assert set(result["tasks"]) == set(small_run.config.contract.tasks)
    for task in result["tasks"].values():
        assert set(task) == {"group", "metric", "value", "best_possible"}
        assert 0 < task["value"] < (1 if task["metric"] == "auc" else 1e3)
    assert len(result["ranked"]) == 3
    for ranked in result["ranked"]:
        scores = [item["score"] for item in ranked]
        assert len(scores) > 1
        assert scores == sorted(scores, reverse=True)
        assert sorted(item["index"] for item in ranked) == list(range(len(ranked)))
    assert (small_run.root / "run/models/demo/1/saved_model.pb").exists()
    json.dumps(result)


def test_evaluation_file_is_what_was_reported(small_run):
    stored = json.loads((small_run.root / "run/report.json").read_text())
    for name, task in small_run.result["tasks"].items():
        assert stored["tasks"][name]["value"] == task["value"]


def test_best_possible_bounds_and_orders_the_scores(small_run):
    """The truth cannot be beaten but by luck: on 600 rows, by 0.05 of AUC at most."""
    from multigate.configs.files import ExamplesFolder

    root = small_run.root
    best = demo.best_possible(
        small_run.config.contract,
        ExamplesFolder(root / "run/examples"),
        root / "logs/truth.parquet",
    )
    for name, task in small_run.result["tasks"].items():
        if task["metric"] == "auc":
            assert task["value"] < best[name] + 0.05, name
    assert best["click"] > 0.7


def test_a_folder_that_holds_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="already exists; choose another output folder"):
        demo.run(load("demo"), None, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_real_configurations_need_their_data(tmp_path):
    with pytest.raises(DataError, match=r"--data: .* required for 'deskdrop'"):
        demo.run(load("deskdrop"), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "multigate", *arguments], capture_output=True, text=True, check=False
    )


def test_the_verb_says_where_its_report_is(small_run):
    assert "oneDNN" not in small_run.shown  # what TensorFlow says of the processor
    report = small_run.root / "run/report.html"
    assert f"report {report}" in small_run.shown.replace("\n", " ")


@pytest.mark.long  # a night's model is compared with another's to the bit among the slow tests
def test_a_second_run_finds_the_same(small_run, tmp_path):
    result = demo.run(small_run.config, small_run.root / "logs", tmp_path / "out")
    for name, task in result["tasks"].items():  # the seed is the configuration's
        assert task["value"] == pytest.approx(small_run.result["tasks"][name]["value"], abs=1e-4)


@pytest.mark.long
def test_the_embedded_default_needs_nothing_but_the_package(tmp_path):
    """`multigate demo --out DIR`, as a new user runs it, on its own simulated logs."""
    done = run("demo", "--out", str(tmp_path / "demo"), "--json")
    assert done.returncode == 0, done.stderr
    assert "best possible" in done.stderr
    assert f"report {tmp_path / 'demo/report.html'}" in done.stderr.replace("\n", " ")
    result = json.loads(done.stdout)
    assert sorted(result) == ["export", "ranked", "report", "seconds", "tasks"]
    tasks = result["tasks"]
    assert sorted(task["metric"] for task in tasks.values()) == ["auc"] * 6 + ["rmse"] * 2
    assert {task["group"] for task in tasks.values()} == {"engagement", "satisfaction"}
    for name, task in tasks.items():
        if task["metric"] == "auc":  # learnt, and not better than the truth on 20,000 rows
            assert 0.7 < task["value"] < task["best_possible"] < 0.9, name
        else:
            assert task["best_possible"] < task["value"], name
    first, second, third = ([item["item_id"] for item in items] for items in result["ranked"])
    assert first != second != third, "each user has an order of their own"


VERBS = ("demo", "examples", "audit", "train", "evaluate", "export", "serve", "rank")


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(verb):
    done = run(verb, "--help")
    assert done.returncode == 0
    assert f"example:\n  multigate {verb} " in done.stdout


def test_bad_input_is_one_line_and_a_status(tmp_path):
    done = run("examples", "--config", "nothing.yaml", "--data", ".", "--out", str(tmp_path / "o"))
    assert done.returncode == 2
    assert done.stderr == (
        "error: nothing.yaml: no such configuration file; presets are demo, deskdrop, movielens, "
        "movielens_time\n"
    )
    assert not (tmp_path / "o").exists()
