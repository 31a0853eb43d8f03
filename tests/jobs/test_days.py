"""Examples of consecutive days, read as one folder, are those of one run over all of the days."""

import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from multigate.configs import FrozenContract
from multigate.configs.config import Config
from multigate.configs.contract import Contract
from multigate.configs.errors import DataError
from multigate.configs.files import SPLITS, ExamplesFolder
from multigate.configs.sections.base import parse
from multigate.jobs.days import joined, newest
from multigate.model.training import admission
from multigate.pipeline.job import run
from multigate.verbs.command import main

DAYS = [datetime(2026, 11, 10 + day, tzinfo=UTC) for day in range(8)]
CONFIG = """
name: days
contract:
  user: user_id
  item: item_id
  features:
    user_id: {kind: id, side: user, column: user}
    item_id: {kind: id, side: item, column: item, min_count: 9}
    device: {kind: id, side: context, missing: indicator, max_size: 3}
    recent:
      {kind: id_list, side: user, share: item_id, history: {events: [VIEW], last: 3, within: 2d}}
    item_likes:
      kind: number
      side: item
      scale: buckets
      count: {of: item, events: [LIKE], within: 1d}
    item_rest:
      {kind: number, side: item, since: {of: item, events: [VIEW], within: 4d}, missing: indicator}
    listed: {kind: number, side: item, age: s, missing: indicator}
    point: {kind: vector, side: context, size: 2, missing: indicator}
  tasks:
    view: {group: engagement, type: binary, label: {rule: impression}}
    like: {group: satisfaction, type: binary, label: {rule: event, events: [LIKE], within: 6h}}
    value:
      group: satisfaction
      type: regression
      label: {rule: event, events: [LIKE], within: 1d, aggregate: sum}
      transform: log1p
pipeline:
  log:
    shape: events
    files: ["date=*/part.csv"]
    impression: VIEW
    columns: {time: time, user: user, item: item, event: event, value: value}
  negatives: {per_positive: 1, recent: 1d, exclude_within: 1d}
  split: {by: random, validation: 0.2, test: 0.2}
model: {embedding_dim: 4, experts: {count: 2, units: [4]}, towers: {units: [4]}}
train: {epochs: 1, batch_size: 64}
"""


def make_config(**pipeline) -> Config:
    values = yaml.safe_load(CONFIG)
    values["pipeline"] |= pipeline
    return parse(Config, values, "days.yaml")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    data, rng = tmp_path_factory.mktemp("days") / "log", random.Random(0)
    for day in DAYS:
        lines = ["time,event,item,user,value,device,point,listed"]
        for _ in range(120):
            time = int(day.timestamp()) + rng.randint(0, 86_399)
            item, user = f"i{rng.randint(0, 19)}", f"u{rng.randint(0, 9)}"
            kind = rng.choice(["VIEW", "VIEW", "LIKE"])
            value = rng.randint(1, 9)
            device = rng.choice(["", "a", "b", "c", "d"])
            point = rng.choice(["", f'"{value},{rng.random():.3f}"'])
            listed = int(DAYS[0].timestamp()) - 1000 * int(item[1:])
            lines.append(f"{time},{kind},{item},{user},{value},{device},{point},{listed}")
        path = data / f"date={day:%Y-%m-%d}" / "part.csv"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(lines) + "\n")
    return data


@pytest.fixture(scope="module")
def days(log, tmp_path_factory):
    """Runs of three days, one day each."""
    out = tmp_path_factory.mktemp("runs")
    for at in (4, 5, 6):
        run(make_config(), log, out / f"{DAYS[at]:%Y-%m-%d}", span=(DAYS[at], DAYS[at + 1]))
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def whole(log, tmp_path_factory):
    """One run of the same three days."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(make_config(), log, out, span=(DAYS[4], DAYS[7]))
    return out


def read(folder: Path, split: str) -> pl.DataFrame:
    paths = sorted(ExamplesFolder(folder).split(split).glob("*.parquet"))
    return pl.concat([pl.read_parquet(path) for path in paths])


def test_days_join_to_one_run(days, whole):
    files = ExamplesFolder(whole)
    repeated = pl.concat([read(day, "train") for day in days])["meta/impression"].is_duplicated()
    assert repeated.sum() > 50  # rows whose labels close on two days
    with joined(days) as folder:
        made = ExamplesFolder(folder)
        for name in ("user_id", "item_id", "device"):
            expected = pl.read_parquet(files.vocabulary(name))
            assert pl.read_parquet(made.vocabulary(name)).equals(expected), name
            assert len(expected) > 2
        assert json.loads(made.statistics.read_text()) == json.loads(files.statistics.read_text())
        assert FrozenContract.read(made.contract) == FrozenContract.read(files.contract)
        for split in SPLITS:
            once = (
                read(folder, split).group_by("meta/impression").agg(pl.all().drop_nulls().first())
            )
            assert once.sort("meta/impression").equals(
                read(whole, split).sort("meta/impression").select(once.columns)
            )
        last = json.loads(ExamplesFolder(days[-1]).manifest.read_text())
        assert json.loads(made.manifest.read_text())["cut_off"] == last["cut_off"]
    assert not folder.exists()


@pytest.mark.parametrize("name", ["item_id", "recent"])
def test_ids_are_seen_as_often_as_in_one_run(days, whole, name):
    """Impressions that stand in two days' runs would reach `min_count` twice as fast."""
    feature = make_config().contract.features[name].model_copy(update={"max_age": timedelta(30)})
    with joined(days) as folder:
        found = admission.seen(folder, name, feature)
    assert found.equals(admission.seen(whole, name, feature))
    assert len(found) > 10


def test_the_order_of_folders_does_not_matter(days):
    found = set()
    for order in (days, days[::-1], [days[1], days[0], days[2]]):
        with joined(order) as folder:
            files = sorted(p for p in folder.rglob("*") if p.is_file())
            found.add(tuple((str(p.relative_to(folder)), p.read_bytes()) for p in files))
    assert len(found) == 1


def test_the_snapshot_takes_each_row_from_its_newest_run(days, tmp_path):
    newest_run = tmp_path / "newest"
    shutil.copytree(days[-1], newest_run)
    for path in ExamplesFolder(newest_run).snapshot("items").glob("*.parquet"):
        rows = pl.read_parquet(path)
        rows.filter(pl.col("item_id") != "i3").write_parquet(path)

    def snapshot(folder, source):
        paths = sorted(ExamplesFolder(folder).snapshot(source).glob("*.parquet"))
        return pl.concat([pl.read_parquet(path) for path in paths])

    with joined([*days[:-1], newest_run]) as folder:
        users, items = snapshot(folder, "users"), snapshot(folder, "items")
    assert users.sort("user_id").equals(snapshot(newest_run, "users").sort("user_id"))
    others = items.filter(pl.col("item_id") != "i3").sort("item_id")
    assert others.equals(snapshot(newest_run, "items").sort("item_id"))
    [row] = items.filter(pl.col("item_id") == "i3").to_dicts()
    [before] = snapshot(days[1], "items").filter(pl.col("item_id") == "i3").to_dicts()
    # Its cut-off was a day earlier: the last view is a day longer ago, if still in the 4 days.
    assert row["item_likes"] == before["item_likes"]
    assert row["item_rest"] == before["item_rest"] + 86_400
    assert row["listed"] == before["listed"] + 86_400


@pytest.mark.slow
def test_shares_of_time_leave_the_newest_run_its_splits(log, tmp_path):
    shares = make_config(split={"by": "time", "validation": 0.2, "test": 0.2})
    for at in (4, 5):
        run(shares, log, tmp_path / str(at), span=(DAYS[at], DAYS[at + 1]))
    with joined([tmp_path / "5", tmp_path / "4"]) as folder:
        for split in ("validation", "test"):
            assert read(folder, split).equals(read(tmp_path / "5", split))
        early = sum(len(read(tmp_path / "4", split)) for split in SPLITS)
        training = read(folder, "train")
        assert len(training) == early + len(read(tmp_path / "5", "train"))
        statistics = json.loads(ExamplesFolder(folder).statistics.read_text())
        assert statistics["rows"]["train"] == training["meta/impression"].n_unique()
        assert statistics["tasks"]["like"]["count"] == len(training["label/like"].drop_nulls())


@pytest.mark.slow
def test_shares_of_time_whose_validation_reaches_back_are_refused(log, tmp_path):
    """Rows of the earlier run, all for training, would be later than rows of validation."""
    shares = make_config(split={"by": "time", "validation": 0.45, "test": 0.45})
    for at in (4, 5):
        run(shares, log, tmp_path / str(at), span=(DAYS[at], DAYS[at + 1]))
    with (
        pytest.raises(DataError, match=r"its validation begins at 2026-11-1.*name instants"),
        joined([tmp_path / "4", tmp_path / "5"]),
    ):
        pass


@pytest.mark.slow
def test_runs_that_hold_the_same_labels_are_refused(days, whole, log, tmp_path):
    with (
        pytest.raises(DataError, match=r"holds labels from 2026-11-15.*expected runs that do not"),
        joined([whole, days[1]]),
    ):
        pass
    run(make_config(hold_back=False), log, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with (
        pytest.raises(DataError, match=r"impression -?\d+ is also in an earlier folder"),
        joined([tmp_path / "one", tmp_path / "two"]),
    ):
        pass


def edited(source: Path, out: Path, name: str, change: Callable[[Any], None]) -> Path:
    """A copy of a folder of examples in which one JSON file was changed."""
    shutil.copytree(source, out)
    values = json.loads((out / name).read_text())
    change(values)
    (out / name).write_text(json.dumps(values))
    return out


def test_folders_that_differ_are_refused(days, tmp_path, capsys):
    def other_split(manifest):
        manifest["split"]["validation"] = 0.1

    split = edited(days[0], tmp_path / "split", "manifest.json", other_split)
    with (
        pytest.raises(DataError, match=r"split: pipeline.split: expected .*2026-11-16, .*0\.1"),
        joined([*days[1:], split]),
    ):
        pass
    old = edited(days[0], tmp_path / "old", "manifest.json", lambda m: m.pop("split"))
    with (
        pytest.raises(DataError, match="make these examples again to join them with others"),
        joined([old, days[1]]),
    ):
        pass

    def other_tasks(frozen):
        del frozen["contract"]["tasks"]["value"]
        contract = parse(Contract, frozen["contract"], "contract.json")
        frozen["schema_fingerprint"] = contract.schema_fingerprint()

    tasks = edited(days[0], tmp_path / "tasks", "contract.json", other_tasks)
    arguments = ["train", "--config", "demo", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--examples", str(days[0]), str(tasks)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tasks}: its contract is not that of")


def test_a_window_takes_the_newest_runs(days):
    assert newest(days, 2) == days[1:]
    assert newest(days[::-1], 1) == days[-1:]
    assert newest(days, 30) == days


@pytest.mark.sweep(0, slow=2)
@pytest.mark.parametrize("named", ["folders", "window", "glob"])
def test_commands_read_days_together(days, whole, log, tmp_path, capsys, named):
    runs = days[0].parent
    examples = {
        "folders": [str(day) for day in days],
        "glob": [str(runs / "2026-11-1*")],
        "window": [str(runs), "--days", "3"],
    }[named]
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    arguments = ["audit", "--config", str(path), "--data", str(log), "--sample", "40", "--json"]
    assert main([*arguments, "--examples", *examples]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["folders"]) == [str(day) for day in days]
    if named != "window":
        return
    out = tmp_path / "checkpoint"
    assert main(["train", "--config", str(path), "--out", str(out), "--examples", *examples]) == 0
    capsys.readouterr()
    # The fingerprint is that of one run over the three days, so its examples fit too.
    for folder in ([str(whole)], examples):
        assert main(["evaluate", "--checkpoint", str(out), "--json", "--examples", *folder]) == 0
        assert json.loads(capsys.readouterr().out)["tasks"]


def test_a_window_without_runs_is_one_line(tmp_path, capsys):
    arguments = ["train", "--config", "demo", "--out", str(tmp_path / "out")]
    for examples, expected in (
        ([str(tmp_path), "--days", "3"], "no examples in its folders"),
        ([str(tmp_path), "--days", "0"], "--days: expected 1 or more, received 0"),
        ([str(tmp_path / "2026*")], "nothing matches"),
    ):
        assert main([*arguments, "--examples", *examples]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert expected in line
