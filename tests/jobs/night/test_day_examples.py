"""Nights that make the examples of their day and join those of the last days."""

import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml

from multigate.configs.config import Config
from multigate.configs.errors import ConfigError, RunError
from multigate.configs.files import IMPRESSION, LABEL, SPLITS, ExamplesFolder
from multigate.configs.sections.base import parse
from multigate.jobs.night.folder import RunFolder
from multigate.jobs.night.night import Night
from multigate.jobs.night.nightly import run
from multigate.jobs.night.stages import guards, pipeline
from multigate.jobs.publication.base_folder import Base
from multigate.pipeline import job

FIRST = date(2026, 11, 10)
DAYS = 7
CONFIG = """
name: night
contract:
  user: user_id
  item: item_id
  features:
    user_id: {kind: id, side: user, column: user}
    item_id: {kind: id, side: item, column: item}
    recent:
      {kind: id_list, side: user, share: item_id, history: {events: [LIKE], last: 3, within: 2d}}
    user_views: {kind: number, side: user, count: {of: user, events: [VIEW]}}
    item_rate:
      {kind: number, side: item, missing: indicator, rate: {of: item, events: [LIKE], per: [VIEW]}}
  tasks:
    like:
      group: satisfaction
      type: binary
      label: {rule: event, events: [LIKE], within: 6h}
      score_weight: 1
    value:
      group: satisfaction
      type: regression
      label: {rule: event, events: [LIKE], within: 1d, aggregate: sum}
pipeline:
  log:
    shape: events
    files: ["date=*/part.csv"]
    impression: VIEW
    columns: {time: time, user: user, item: item, event: event, value: value}
  split: {by: random, validation: 0.2, test: 0.2}
model: {embedding_dim: 4, experts: {count: 2, units: [4]}, towers: {units: [4]}}
train: {epochs: 1, batch_size: 64}
run: {days: 3, daily: true, keep_runs: 2, guards: {min_rows: 10, min_test_rows: 10}}
"""


def make_config(**changes):
    values = yaml.safe_load(CONFIG)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        values[section][key] = value
    return parse(Config, values, "night.yaml")


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def write_day(data: Path, number: int, share: int = 1) -> None:
    """The log of a day, or of every so many of its events."""
    rng = random.Random(number)
    start = int(datetime.combine(day(number), datetime.min.time(), UTC).timestamp())
    lines = []
    for _ in range(150):
        item, user = f"i{rng.randint(0, 19)}", f"u{rng.randint(0, 29)}"
        kind = rng.choice(["VIEW", "VIEW", "LIKE"])
        lines.append(f"{start + rng.randint(0, 86_399)},{kind},{item},{user},{rng.randint(1, 9)}")
    path = data / f"date={day(number)}" / "part.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["time,event,item,user,value", *lines[::share]]) + "\n")


@pytest.fixture
def log(tmp_path):
    for number in range(DAYS):
        write_day(tmp_path / "log", number)
    return tmp_path / "log"


def night_of(number, log, config=None):
    runs = log.parent / "runs"
    night = Night(config or make_config(), day(number), log, runs, Base(runs / "models/night"))
    night.folder.set_state("running", stage="pipeline")
    return night


def examples_of(night):
    """Do the first stage; what it told."""
    night.folder.invalidate("pipeline")
    night.folder.remove_output("pipeline")
    result = pipeline(night)
    configuration = {"configuration": night.configuration_of("pipeline")}
    night.folder.write_record(
        {
            "stage": "pipeline",
            "inputs": configuration,
            "output": result.output,
            "result": dict(result.values),
            "started": "",
            "seconds": 0.0,
        }
    )
    return result.values


def labels_of(folder: Path) -> pl.DataFrame:
    """Features and one label a row: an impression has a label in the run in which it closed."""
    rows = [
        pl.read_parquet(path).with_columns(split=pl.lit(split))
        for split in SPLITS
        for path in ExamplesFolder(folder).split(split).glob("*.parquet")
    ]
    table = pl.concat(rows)
    names = ["user_id", "item_id", "recent", "user_views", "item_rate", "split"]
    parts = [
        table.filter(pl.col(LABEL + task).is_not_null()).select(
            IMPRESSION,
            *names,
            task=pl.lit(task),
            label=pl.col(LABEL + task).cast(pl.Float64),
        )
        for task in ("like", "value")
    ]
    return pl.concat(parts).sort(IMPRESSION, "task")


def test_a_night_makes_its_day_alone_and_has_the_rows_of_one_run_over_all_days(log, tmp_path):
    assert examples_of(night_of(5, log))["days_made"] == [f"2026-11-{n}" for n in (13, 14, 15)]
    later = night_of(6, log)
    told = examples_of(later)
    assert told["days_made"] == ["2026-11-16"]
    begin, end = (datetime.combine(day(n), datetime.min.time(), UTC) for n in (4, 7))
    manifest = job.run(later.config, log, tmp_path / "whole", span=(begin, end))
    found, expected = labels_of(later.folder.examples), labels_of(tmp_path / "whole")
    assert len(expected) > 100
    # Counters are numbered from the log's beginning in both, whose events lie before these days.
    assert expected["user_views"].max() > 10
    assert found.equals(expected)
    ours, whole = (
        ExamplesFolder(at).contract for at in (later.folder.examples, tmp_path / "whole")
    )
    assert ours.read_text() == whole.read_text()
    assert told["cut_off"] == manifest["cut_off"]


def test_missed_nights_are_made_up_for(log):
    examples_of(night_of(3, log))
    assert examples_of(night_of(6, log))["days_made"] == [f"2026-11-{n}" for n in (14, 15, 16)]


def test_a_day_that_a_guard_stopped_is_read_again(log):
    first = night_of(5, log)
    examples_of(first)
    passed = guards(first).values
    record = first.folder.record("pipeline")
    first.folder.write_record(record | {"stage": "guards", "result": dict(passed)})
    write_day(log, 6, share=5)
    second = night_of(6, log)
    rows = examples_of(second)["examples"]["splits"]
    with pytest.raises(RunError, match=r"guard max_row_drop: the newest day's examples: "):
        guards(second)
    write_day(log, 6)
    assert sum(examples_of(second)["examples"]["splits"].values()) > sum(rows.values())
    guards(second)


def test_an_earlier_night_is_not_made_anew_below_a_later_one(log):
    examples_of(night_of(5, log))
    assert examples_of(night_of(5, log))["days_made"] == ["2026-11-15"]
    examples_of(night_of(6, log))
    assert examples_of(night_of(5, log))["days_made"] == []


def test_a_user_who_is_to_be_forgotten_is_in_no_day(log):
    forget = log / "forget.txt"
    forget.write_text("nobody\n")
    config = make_config(pipeline__forget="forget.txt")
    kept = night_of(5, log, config)
    examples_of(kept)
    assert "u7" in labels_of(kept.folder.examples)["user_id"]
    forget.write_text("u7\n")
    night = night_of(6, log, config)
    assert len(examples_of(night)["days_made"]) == 3
    assert "u7" not in labels_of(night.folder.examples)["user_id"]


def test_another_contract_begins_anew(log):
    examples_of(night_of(5, log))
    values = make_config().model_dump(mode="json", exclude_defaults=True)
    values["contract"]["tasks"]["like"]["label"]["within"] = "2h"
    assert len(examples_of(night_of(6, log, parse(Config, values, "c")))["days_made"]) == 3


def test_days_are_joined_only_where_there_are_several():
    with pytest.raises(ConfigError, match=r"daily: expected days of at least 2.*received days: 1"):
        make_config(run__days=1)


@pytest.mark.slow
def test_nights_train_on_joined_days_and_old_days_go(log):
    runs = log.parent / "runs"
    for number in range(4, 7):
        outcome = run(make_config(), day(number), log, runs)
        assert outcome["state"] in {"published", "refused"}
    (days,) = (runs / "days").iterdir()
    # Two runs are kept, of three days each.
    assert sorted(path.name for path in days.iterdir()) == [f"2026-11-{n}" for n in range(13, 17)]
    kept = RunFolder(runs, day(5)).examples
    assert len(labels_of(kept)) > 100
    assert not RunFolder(runs, day(4)).examples.exists()
