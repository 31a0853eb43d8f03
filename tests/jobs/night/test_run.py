"""The nightly run: once through, again, with guards, with a full disk and a read-only folder."""

import json
import shutil
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import ConfigError, MultigateError, RunError
from multigate.configs.files import SPLITS
from multigate.configs.sections.run import STAGES, Guards
from multigate.jobs.lock import locked
from multigate.jobs.night import listing
from multigate.jobs.night.folder import LOCK, RunFolder
from multigate.jobs.night.night import Night
from multigate.jobs.night.nightly import _message, outcome_of, run
from multigate.jobs.night.stages import guards, objections_to_first_version, pipeline
from multigate.jobs.publication.base_folder import Base
from multigate.model.training.loop import TrainingLoop
from multigate.serving.versions.folders import missing_files
from multigate.serving.versions.saved_model import SavedModel
from multigate.verbs.command import main

DAY = date(2026, 1, 30)


def base_of(runs):
    return Base(runs / "models/night")


def golden(version: Path) -> dict:
    return json.loads((version / "assets.extra/golden.json").read_text())


def same_answers(version: Path, other: Path) -> bool:
    """Whether two versions have the same weights: the same inputs and answers, to the last bit."""
    return golden(version) == golden(other)


def test_a_night_from_the_log_to_production(finished):
    result, run_folder = finished.result, RunFolder(finished.runs, DAY)
    assert (result["state"], result["version"], result["production"]) == ("published", 1, 1)
    assert list(result["seconds"]) == list(STAGES)
    assert set(result["tasks"]) == {"click", "rating"}
    version = base_of(finished.runs).versions()[1]
    assert missing_files(version) == []
    saved_model = SavedModel.load(1, version, (1, 1))  # serves as any other
    saved_model.retire()
    lineage = base_of(finished.runs).lineage(1)
    assert (lineage["run"], lineage["parent"], lineage["start"]) == ("2026-01-30", None, "full")
    inputs = run_folder.record("export")["inputs"]
    assert inputs["training"] == run_folder.record("training")["output"]
    assert inputs["pipeline"] == run_folder.record("pipeline")["output"]
    manifest = json.loads((run_folder.examples / "manifest.json").read_text())
    assert manifest["cut_off"] == "2026-01-31T00:00:00+00:00"


@pytest.mark.slow
def test_a_night_reads_its_log_from_a_store(finished, nights, bucket, tmp_path):
    for path in finished.logs.iterdir():
        (bucket.address / "logs" / path.name).upload(path)
    result = run(nights.config(), DAY, bucket.address / "logs", tmp_path)
    assert (result["state"], result["version"]) == ("published", 1)
    assert same_answers(base_of(tmp_path).versions()[1], base_of(finished.runs).versions()[1])


def test_people_are_told_once(finished):
    (line,) = finished.told.read_text().splitlines()
    told = json.loads(line)
    assert (told["event"], told["date"], told["version"]) == ("published", "2026-01-30", 1)


def test_a_finished_night_is_not_repeated(finished, nights, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in finished.runs.rglob("*") if path.is_file()}
    assert run(nights.config(), DAY, tmp_path / "no logs", finished.runs) == finished.result
    after = {path: path.stat().st_mtime_ns for path in finished.runs.rglob("*") if path.is_file()}
    assert {p.name for p in before if before[p] != after[p]} <= {LOCK}
    assert before.keys() == after.keys()


def test_the_command_says_by_its_status(finished, nights, tmp_path, capsys):
    """0: finished; 2: a guard stopped the run, and production is as it was."""
    options = ["--data", str(finished.logs), "--date", str(DAY)]
    good = nights.write_config(tmp_path / "good.yaml")
    done = ["run", "--config", str(good), *options, "--out", str(finished.runs), "--json"]
    assert main(done) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == finished.result
    assert "click: AUC" in printed.err
    strict = nights.write_config(tmp_path / "strict.yaml", guards={"min_rows": 100_000})
    runs = finished.copy(tmp_path / "runs")
    RunFolder(runs, DAY).invalidate("guards")
    before = base_of(runs).history()
    assert main(["run", "--config", str(strict), *options, "--out", str(runs)]) == 2
    assert "error: guard min_rows: expected at least 100000" in capsys.readouterr().err
    assert (base_of(runs).production(), base_of(runs).history()) == (1, before)


def test_a_run_keeps_the_parent_that_it_began_with(finished, nights, tmp_path):
    """Whatever goes into production between its first start and the next."""
    runs = finished.copy(tmp_path / "runs")
    base, config = base_of(runs), nights.config(full_retrain_days=7)
    days = [DAY + timedelta(days=n) for n in (1, 2)]
    first = Night(config, days[0], finished.logs, runs, base)
    assert first.starting_point() == (base.checkpoint(1), "from version 1")
    lineage = {"run": str(DAY), "candidate": "another", "full_since": str(DAY)}
    folder = RunFolder(runs, DAY)
    assert base.publish(folder.export, folder.checkpoint, lineage, 1) == 2
    again, other = (Night(config, day, finished.logs, runs, base) for day in days)
    assert again.starting_point() == (base.checkpoint(1), "from version 1")
    assert other.starting_point() == (base.checkpoint(2), "from version 2")
    assert json.loads((RunFolder(runs, days[0]).root / "run.json").read_text())["parent"] == 1


def test_another_configuration_must_be_forced(finished, nights, tmp_path):
    config = nights.config()
    train = config.train.model_copy(update={"seed": 1})
    other = config.model_copy(update={"train": train})
    with pytest.raises(RunError, match=r"stage training .* with --force training to repeat it"):
        run(other, DAY, finished.logs, finished.copy(tmp_path / "runs"))


@pytest.mark.slow
def test_options_of_the_export_need_no_other_training(finished, nights, tmp_path):
    """As after an export that was refused, by somebody who then allows more."""
    runs = finished.unfinished(tmp_path / "runs", "export")
    config = nights.config()
    export = config.export.model_copy(update={"parity_rows": 77})
    changed = config.model_copy(update={"export": export})
    before = RunFolder(runs, DAY).record("training")
    assert run(changed, DAY, finished.logs, runs)["version"] == 1
    assert RunFolder(runs, DAY).record("training") == before
    report = RunFolder(runs, DAY).export / "assets.extra/sparsity.json"
    assert json.loads(report.read_text())["parity"]["rows"] == 2 * 77  # of two signatures


@pytest.mark.slow
def test_forced_from_the_export_on_it_is_the_same_version(finished, nights, tmp_path):
    """Production is the run's own version by then; what is forced is compared with it."""
    runs = finished.copy(tmp_path / "runs")
    before = RunFolder(runs, DAY).record("training")
    first = base_of(runs).versions()[1]
    result = run(nights.config(), DAY, finished.logs, runs, force="export")
    assert result["reasons"][0] == "No task loses more than is allowed."
    assert RunFolder(runs, DAY).record("training") == before
    assert same_answers(RunFolder(runs, DAY).export, first)


def test_a_second_run_is_told_who_holds_the_lock(finished, nights, tmp_path):
    told = tmp_path / "told"
    config = nights.config(notify=f"sh -c 'cat > {told}'")
    with (
        locked(finished.runs / LOCK, "multigate run --date 2026-01-29"),
        pytest.raises(RunError, match=r"held by multigate run --date 2026-01-29 \(process \d+ on"),
    ):
        run(config, DAY, finished.logs, finished.runs)
    assert json.loads(told.read_text())["stage"] == "lock"
    assert RunFolder(finished.runs, DAY).state()["state"] == "published"  # not the second one's


def test_a_later_version_is_never_replaced_by_an_earlier_date(finished, nights, tmp_path):
    runs = finished.unfinished(tmp_path / "runs", "decision")
    export, checkpoint = RunFolder(runs, DAY).export, RunFolder(runs, DAY).checkpoint
    lineage = {"run": "2026-02-01", "candidate": "later", "full_since": "2026-02-01"}
    base_of(runs).publish(export, checkpoint, lineage, None)
    result = run(nights.config(), DAY, finished.logs, runs)
    assert (result["state"], result["production"]) == ("refused", 1)
    assert result["reasons"] == ["version 1 in production is of a later date, 2026-02-01"]


@pytest.mark.slow
def test_a_model_that_learnt_nothing_is_no_first_version(finished, nights, tmp_path):
    runs = finished.unfinished(tmp_path / "runs", "training")
    config = nights.config()
    train = config.train.model_copy(update={"epochs": 1, "learning_rate": 1e-9})
    untrained = config.model_copy(update={"train": train})
    result = run(untrained, DAY, finished.logs, runs)
    assert (result["state"], result["version"], result["production"]) == ("refused", None, None)
    assert result["reasons"]


@pytest.mark.slow
def test_another_architecture_trains_from_scratch(finished, nights, tmp_path, monkeypatch):
    """As another contract does; also where the first night of it is cut off."""
    runs = finished.unfinished(tmp_path / "runs", "training")
    parent = RunFolder(finished.runs, DAY)
    lineage = {"run": "2026-01-29", "candidate": "another", "full_since": "2026-01-29"}
    (RunFolder(runs, DAY).root / "run.json").unlink()
    base_of(runs).publish(parent.export, parent.checkpoint, lineage, None)
    config = nights.config(full_retrain_days=7)
    other = config.model_copy(
        update={"model": config.model.model_copy(update={"embedding_dim": 4})}
    )
    epochs = []

    def cut_off(loop):
        epochs.append(loop.state.epoch)
        save(loop)
        if len(epochs) == 1:
            raise KeyboardInterrupt

    save = TrainingLoop.save
    monkeypatch.setattr(TrainingLoop, "save", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run(other, DAY, finished.logs, runs)
    result = run(other, DAY, finished.logs, runs)
    assert epochs == [2, 3, 4]  # it went on
    assert result["start"].startswith("from scratch: ")
    assert "expected shape" in result["start"]
    trained = RunFolder(runs, DAY).result("training")
    assert (trained["start"], trained["full_since"]) == ("full", str(DAY))
    assert Night(config, DAY, finished.logs, runs, base_of(runs)).starting_point()[0] is not None


@pytest.mark.slow
def test_a_night_that_is_worse_beyond_its_bound_is_refused_by_default(finished, nights, tmp_path):
    """In production: the same night, trained as it should be."""
    runs = finished.unfinished(tmp_path / "runs", "training")
    good = RunFolder(finished.runs, DAY)
    lineage = {"run": "2026-01-29", "candidate": "good", "full_since": "2026-01-29"}
    base_of(runs).publish(good.export, good.checkpoint, lineage, None)
    config = nights.config()
    train = config.train.model_copy(update={"epochs": 1, "learning_rate": 1e-9})
    result = run(config.model_copy(update={"train": train}), DAY, finished.logs, runs)
    assert (result["state"], result["production"]) == ("refused", 1)
    lost = [
        one for one in result["reasons"] if one.startswith("click: the candidate is worse: AUC")
    ]
    assert "; 0.02 is allowed (evaluation.rules.largest_loss)." in lost[0]


@pytest.mark.slow
def test_a_night_that_lightgbm_beats_is_refused(finished, nights, tmp_path):
    runs = finished.unfinished(tmp_path / "runs", "training")
    config = nights.config()
    train = config.train.model_copy(update={"epochs": 1, "learning_rate": 1e-9})
    rules = config.evaluation.rules.model_copy(update={"beats": "lightgbm"})
    evaluation = config.evaluation.model_copy(update={"rules": rules})
    untrained = config.model_copy(update={"train": train, "evaluation": evaluation})
    result = run(untrained, DAY, finished.logs, runs)
    assert (result["state"], result["production"]) == ("refused", None)
    assert any(reason.startswith("click: worse than LightGBM ") for reason in result["reasons"])
    decided = RunFolder(runs, DAY).record("decision")["result"]
    assert decided["baseline"]["tasks"]["click"]["measures"]["auc"]["wins"] is False
    report = json.loads(RunFolder(runs, DAY).report.with_suffix(".json").read_text())
    assert report["baseline"] == decided["baseline"], "trained once, and shown in the report"


def test_an_absent_library_is_told_before_the_night_begins(nights, tmp_path, monkeypatch):
    config = nights.config()
    rules = config.evaluation.rules.model_copy(update={"beats": "lightgbm"})
    evaluation = config.evaluation.model_copy(update={"rules": rules})
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ConfigError, match=r"run `pip install multigate\[baseline\]`"):
        run(config.model_copy(update={"evaluation": evaluation}), DAY, tmp_path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_what_a_first_version_has_to_beat():
    """A rate of 0.25: -0.25 log 0.25 - 0.75 log 0.75 = 0.5623; a deviation of 2: 4."""
    binary = {"type": "binary", "rows": 100, "rate": 0.25, "log_loss": 0.5624}
    regression = {"type": "regression", "rows": 100, "mse": 4.1, "label_std": 2.0}
    masked = {"type": "binary", "rows": 0}
    tasks = {"click": binary, "rating": regression, "like": masked}
    (reason,) = objections_to_first_version(tasks)
    assert reason == "No task's loss on the test split is below that of a constant score."
    assert objections_to_first_version(tasks | {"click": binary | {"log_loss": 0.5622}}) == []
    assert objections_to_first_version(tasks | {"rating": regression | {"mse": 3.9}}) == []
    assert objections_to_first_version({"click": binary | {"log_loss": float("nan")}})
    quantile = {"type": "regression", "rows": 100, "q": 0.9, "pinball": 0.5, "label_std": 2.0}
    assert objections_to_first_version({"wait": quantile | {"pinball_of_constant": 0.4}})
    assert objections_to_first_version({"wait": quantile | {"pinball_of_constant": 0.6}}) == []


@pytest.mark.slow
def test_an_export_that_was_damaged_is_not_published(finished, nights, tmp_path):
    runs = finished.unfinished(tmp_path / "runs", "publication")
    graph = RunFolder(runs, DAY).export / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"files changed since they were exported; .* --force expo"):
        run(nights.config(), DAY, finished.logs, runs)
    assert base_of(runs).production() is None
    assert run(nights.config(), DAY, finished.logs, runs, force="export")["version"] == 1


def half_of(nights, logs, day):
    """The log of a day loses every second request."""
    rows = nights.days[day]
    rows[::2].write_ndjson(logs / f"{day}.jsonl")


def test_a_broken_day_stops_before_training(finished, nights, tmp_path, capsys):
    """The day after the first night has half its events."""
    logs = nights.write_log(tmp_path / "logs", list(nights.days)[:-1])
    runs = finished.copy(tmp_path / "runs")
    day_before = DAY - timedelta(days=1)
    (runs / str(DAY)).rename(runs / str(day_before))  # let the last run be the day before's
    half_of(nights, logs, DAY)
    told = tmp_path / "told"
    path = nights.write_config(tmp_path / "night.yaml", notify=f"sh -c 'cat > {told}'")
    arguments = ["run", "--config", path, "--data", logs, "--date", DAY, "--out", runs]
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: guard max_row_drop: the newest day's examples: ")
    assert base_of(runs).production() == 1
    assert not RunFolder(runs, DAY).checkpoint.exists()
    assert json.loads(told.read_text())["stage"] == "guards"
    last = listing.list_runs(runs)[-1]
    assert (last["date"], last["state"], last["stage"]) == ("2026-01-30", "failed", "guards")
    assert "max_row_drop" in last["message"]


def three_times_as_many(runs):
    """Record a run of the day before, with three times as many impressions on its newest day."""
    record = RunFolder(runs, DAY).record("guards")
    record["result"]["facts"]["newest_day"]["impressions"] *= 3
    RunFolder(runs, DAY - timedelta(days=1)).write_record(record)


def test_an_accepted_guard_stops_nothing_for_one_night(finished, nights, tmp_path, capsys):
    """A day that lacks two thirds is accepted; the next one that lacks as much is not."""
    runs, config = finished.copy(tmp_path / "runs"), nights.config()
    three_times_as_many(runs)

    def night(day, *accepted):
        return Night(config, day, finished.logs, runs, base_of(runs), accepted)

    result = guards(night(DAY, "max_row_drop", "max_delay"))
    (seen,) = result.values["accepted"]["max_row_drop"]
    assert seen.startswith("the newest day's examples: ")
    assert result.values["accepted"]["max_delay"] == []
    folder = RunFolder(runs, DAY)
    folder.write_record(folder.record("export") | {"stage": "guards", "result": result.values})
    assert main(["runs", "--out", str(runs), "--json"]) == 0
    printed = capsys.readouterr()
    assert "accepted max_row_drop: the newest day's examples: " in " ".join(printed.err.split())
    listed = json.loads(printed.out)["runs"][-1]
    assert listed["accepted"] == {"max_row_drop": [seen], "max_delay": []}
    assert outcome_of(night(DAY))["accepted"] == listed["accepted"]
    tomorrow = night(DAY + timedelta(days=1), "max_delay")
    tomorrow.folder.root.mkdir()
    shutil.copytree(folder.examples, tomorrow.folder.examples)
    message = r"run\.guards\.max_row_drop; --accept max_row_drop lifts it for this night"
    for stopped in (tomorrow, night(DAY, "max_delay")):
        with pytest.raises(RunError, match=message):
            guards(stopped)


def test_the_command_takes_guards_to_accept(finished, nights, tmp_path, capsys):
    few = {"min_rows": 100_000, "min_test_rows": 100_000}
    path = nights.write_config(tmp_path / "night.yaml", guards=few)
    runs = finished.copy(tmp_path / "runs")
    RunFolder(runs, DAY).invalidate("guards")
    command = ["run", "--config", path, "--data", finished.logs, "--date", DAY, "--out", runs]
    arguments = [str(argument) for argument in command]
    assert main([*arguments, "--accept", "min_rows", "--accept", "max_row_dorp"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: --accept max_row_dorp: expected a guard; did you mean 'max_row_drop'? guards: "
        "min_rows, min_test_rows, "
    )
    assert RunFolder(runs, DAY).state() == RunFolder(finished.runs, DAY).state()  # nothing began
    assert main([*arguments, "--accept", "min_rows"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: guard min_test_rows: expected at least 100000 examples to test")


def test_people_are_told_of_what_was_accepted(finished):
    accepted = {"max_row_drop": ["all examples: 3 impressions"]}
    assert _message({**finished.result, "accepted": accepted}) == (
        "version 1 is in production; accepted max_row_drop: all examples: 3 impressions"
    )


def test_a_late_day_stops_before_training(finished, nights, tmp_path):
    logs = nights.write_log(tmp_path / "logs", list(nights.days)[:-1])
    runs = finished.copy(tmp_path / "runs")
    (runs / str(DAY)).rename(runs / str(DAY - timedelta(days=1)))
    with pytest.raises(RunError, match=r"guard max_delay: .* the date's log is not there"):
        run(nights.config(), DAY, logs, runs)
    assert base_of(runs).production() == 1
    assert RunFolder(runs, DAY).record("pipeline") is None  # the next start reads the log anew


def test_rejects_stop_the_pipeline(finished, nights, tmp_path):
    logs = nights.write_log(tmp_path / "logs")
    with (logs / "broken.jsonl").open("w") as file:
        file.writelines("{\n" for _ in range(100))
    with pytest.raises(MultigateError, match=r"100 of \d+ rows were rejected"):
        run(nights.config(), DAY, logs, tmp_path / "runs")
    assert RunFolder(tmp_path / "runs", DAY).state()["stage"] == "pipeline"


def test_too_few_rows(finished, nights, tmp_path):
    runs = finished.unfinished(tmp_path / "runs", "guards")
    config = nights.config(guards={"min_rows": 100_000})
    with pytest.raises(RunError, match=r"guard min_rows: expected at least 100000 examples to tr"):
        run(config, DAY, finished.logs, runs)
    assert config.run.guards == Guards(min_rows=100_000)


@pytest.mark.parametrize(
    ("stage", "room"),
    [
        ("pipeline", 0),
        ("pipeline", 3000),  # parts of examples do not fit
        ("guards", 400),  # the record does not fit
        ("training", 0),
        ("training", 3000),  # the weights do not fit
        ("export", 3000),
        ("export", 40_000),  # the graph fits, warm-up or variables do not
        ("evaluation", 3000),
        ("decision", 400),
        ("publication", 400),
        ("publication", 20_000),
    ],
)
def test_a_full_disk_publishes_nothing_and_the_night_goes_on(
    finished, nights, tmp_path, full_disk, stage, room
):
    runs = finished.unfinished(tmp_path / "runs", stage)
    with full_disk(room), pytest.raises((MultigateError, OSError)):
        run(nights.config(), DAY, finished.logs, runs)
    assert base_of(runs).production() is None
    assert RunFolder(runs, DAY).record(stage) is None
    if stage in ("evaluation", "publication"):
        assert run(nights.config(), DAY, finished.logs, runs)["version"] == 1
        first = finished.runs / "models/night/1"
        assert same_answers(base_of(runs).versions()[1], first)


@pytest.mark.parametrize("stage", STAGES)
def test_a_read_only_folder_publishes_nothing_and_the_night_goes_on(
    finished, nights, tmp_path, obeys_permissions, stage
):
    runs = finished.unfinished(tmp_path / "runs", stage)
    place = RunFolder(runs, DAY).root
    if stage == "publication":
        (runs / "models/night").mkdir(parents=True)
        place = runs / "models/night"
    for folder in (place, place / "stages"):
        if folder.exists():
            folder.chmod(0o555)
    with obeys_permissions(), pytest.raises((MultigateError, PermissionError)):
        run(nights.config(), DAY, finished.logs, runs)
    for folder in (place, place / "stages"):
        if folder.exists():
            folder.chmod(0o755)
    assert base_of(runs).production() is None
    if stage == "publication":
        assert run(nights.config(), DAY, finished.logs, runs)["version"] == 1


def test_old_runs_lose_their_outputs_and_keep_their_records(finished, nights, tmp_path):
    runs = finished.unfinished(tmp_path / "runs", "publication")
    for number in (1, 2):
        old = runs / str(DAY - timedelta(days=number))
        shutil.copytree(runs / str(DAY), old)
    run(nights.config(keep_runs=2), DAY, finished.logs, runs)
    kept, discarded = (RunFolder(runs, DAY - timedelta(days=number)) for number in (1, 2))
    assert kept.examples.exists()
    for path in (discarded.examples, discarded.checkpoint, discarded.exports):
        assert not path.exists()
    assert discarded.record("evaluation") is not None
    checkpoint = base_of(runs).checkpoint(1)  # the version's own stays
    assert FrozenContract.read(checkpoint / "contract.json")


def test_the_table_of_runs(finished, nights, tmp_path, capsys):
    runs = finished.copy(tmp_path / "runs")
    RunFolder(runs, DAY + timedelta(days=1)).set_state("running", stage="training")
    assert main(["runs", "--out", str(runs), "--json"]) == 0
    printed = capsys.readouterr()
    assert "killed in training" in printed.err
    first, second = json.loads(printed.out)["runs"]
    assert (first["state"], first["version"], second["state"]) == ("published", 1, "killed")
    assert first["tasks"] == finished.result["tasks"]
    assert np.isclose(first["groups"]["engagement"]["auc"], first["tasks"]["click"])
    with locked(runs / LOCK, "a run"):
        assert listing.list_runs(runs)[1]["state"] == "running"
    assert main(["runs", "--out", str(tmp_path / "none")]) == 2


def test_a_night_may_learn_from_the_last_days_only(finished, nights, tmp_path):
    """Ten days up to and with the date; a later file changes nothing."""
    day = DAY - timedelta(days=5)
    night = Night(nights.config(days=10), day, finished.logs, tmp_path / "runs", Base(tmp_path))
    pipeline(night)
    parts = [night.folder.examples / split / "*.parquet" for split in SPLITS]
    examples = pl.concat([pl.read_parquet(part, columns=["meta/time"]) for part in parts])
    assert examples["meta/time"].min().date() == day - timedelta(days=9)
    assert examples["meta/time"].max().date() == day
    assert len(examples) == sum(len(nights.days[day - timedelta(days=n)]) for n in range(10))
