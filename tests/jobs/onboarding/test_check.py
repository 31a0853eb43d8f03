"""`multigate check`: what it finds is what a run over the log would meet."""

import json
import random
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import yaml

from multigate.configs import DataError
from multigate.configs.config import Config
from multigate.configs.files import LABEL, SPLITS
from multigate.configs.sections.base import parse
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.findings import Checked
from multigate.jobs.simulate import simulate
from multigate.pipeline import job
from multigate.verbs.command import main

PRESETS = Path(__file__).parents[3] / "configs/presets"


def demo(**changes: object) -> Config:
    """The preset demo, with changes by dotted key."""
    values = yaml.safe_load((PRESETS / "demo.yaml").read_text())
    for key, value in changes.items():
        *above, last = key.split(".")
        place = values
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return parse(Config, values, "demo")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check") / "log"
    simulate(folder, seed=2, users=120, items=60, exposures=12_000)
    return folder


def messages(found: Checked, fails: bool) -> list[str]:
    return [f"{one.where}: {one.message}" for one in found.findings if one.fails == fails]


@pytest.mark.slow
def test_counts_are_those_of_the_examples(log, tmp_path):
    found = check(demo(), log)
    assert not found.fails, found.findings
    assert found.facts["rows"] == {"sample": 12_000, "log": 12_000, "whole": True, "rejected": 0}
    job.run(demo(), log, tmp_path / "examples")
    for part in SPLITS:
        made = pl.read_parquet(tmp_path / "examples" / part / "*.parquet")
        for name, task in found.facts["tasks"].items():
            label = made[LABEL + name]
            assert task["labels_by_split"][part] == label.count(), (name, part)
            if "positives" in task:
                assert task["positives"][part] == int((label == 1).sum()), (name, part)


def test_a_sample_estimates_the_rows_of_the_log(log):
    found = check(demo(), log, rows=2_000)
    assert found.facts["rows"]["sample"] == 2_000
    assert not found.facts["rows"]["whole"]
    assert found.facts["rows"]["log"] == pytest.approx(12_000, rel=0.1)
    cost = found.facts["cost"]
    assert 1 < cost["pipeline"]["seconds"] < 600
    assert cost["training"]["how"].startswith(f"{cost['training']['how'].split()[0]} rows, ")


def test_a_teacher_costs_time_and_memory(log):
    """As many fits as folds and settings ask for, over the rows that have labels."""
    plain, taught, more = (
        check(demo(**changes), log, rows=2_000).facts["cost"]["training"]
        for changes in ({}, {"train.teacher": {}}, {"train.teacher": {"folds": 8}})
    )
    assert plain["seconds"] < taught["seconds"] < more["seconds"]
    assert plain["gib"] < taught["gib"]
    assert "the teacher" not in plain["how"]
    assert "before them the teacher: 9 fits for each of 8 tasks" in taught["how"]
    ratio = (more["seconds"] - plain["seconds"]) / (taught["seconds"] - plain["seconds"])
    assert ratio == pytest.approx((13 * 7 / 8) / (9 * 3 / 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"contract.features.country.column": "contry"},
            "pipeline.log: log-0.jsonl: no column 'contry'; did you mean 'country'? the ",
        ),
        ({"pipeline.log.columns.time": "user_id"}, "time: expected a number of s since 1970"),
        (
            {"contract.features.country.missing": "error"},
            "set contract.features.country.missing: indicator",
        ),
        ({"contract.features.topic.source": "items"}, "source: items needs pipeline.items"),
        (
            {"contract.tasks.click.given": "like"},
            "contract.tasks.click: task 'click' is given 'like', and its label is 1 in ",
        ),
    ],
)
def test_what_fails_a_run_is_found(changes, message, log):
    found = check(demo(**changes), log)
    assert found.fails
    assert any(message in one for one in messages(found, fails=True)), found.findings


def test_a_bad_value_names_row_column_and_value(log, tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    rows = [json.loads(line) for line in (log / "log-0.jsonl").read_text().splitlines()[:500]]
    for row in rows[40:60]:
        row["length"] = "long"
    (folder / "log-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = check(demo(), folder)
    [line] = [one for one in messages(found, fails=True) if "length" in one]
    assert line == (
        "log-0.jsonl: line 41: length: expected a number; received 'long' in column 'length'; 20 "
        "of 500 rows (4.0%)"
    )


def test_another_unit_of_time_is_suggested(log):
    found = check(demo(**{"pipeline.log.time_unit": "iso"}), log)
    [line] = [one for one in messages(found, fails=True) if "time:" in one]
    assert "pipeline.log.time_unit is iso: s reads it as 2026-01-" in line


def test_odd_features_are_noted(log):
    changes = {
        "contract.features.knows": {"kind": "number", "side": "context", "column": "click"},
        "contract.features.request": {"kind": "id", "side": "context", "column": "request_id"},
    }
    found = check(demo(**changes), log)
    assert not found.fails
    notes = messages(found, fails=False)
    assert any(
        one.startswith("contract.features.knows: leak suspect")
        and "ranks click with AUC 1.000" in one
        for one in notes
    )
    assert 1190 <= found.facts["features"]["request"]["distinct"] <= 1200  # some are held back
    assert not any("country: leak" in one for one in notes)


def test_what_differs_within_a_request_is_no_context(log):
    length = {"kind": "number", "side": "context", "column": "length"}
    found = check(demo(**{"contract.features.of_item": length}), log)
    [note] = [one for one in messages(found, fails=False) if ".of_item: " in one]
    assert "rows of one request differ in it in " in note
    assert "if it is known of each candidate, set side: item" in note
    length["side"] = "item"
    notes = messages(check(demo(**{"contract.features.of_item": length}), log), fails=False)
    assert not any(".of_item: " in one for one in notes)


def test_a_number_that_every_positive_has_is_a_suspect(log, tmp_path):
    """Too weak to rank the label, since others have it too, yet no click is without it."""
    folder = tmp_path / "log"
    folder.mkdir()
    draw = random.Random(0)
    rows = [json.loads(line) for line in (log / "log-0.jsonl").read_text().splitlines()]
    for row in rows:
        paid = row["click"] or draw.random() < 0.3
        row |= {"paid": draw.uniform(1, 9) if paid else 0, "bid": draw.uniform(0, 9)}
    (folder / "log-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    number = {"kind": "number", "side": "item"}
    features = {"contract.features.paid": number, "contract.features.bid": number}
    notes = messages(check(demo(**features), folder), fails=False)
    [note] = [one for one in notes if ".paid: " in one and "of click " in one]
    assert "leak suspect: 100% of the positives of click have a value above 0, of all rows " in note
    assert not any(".bid: " in one for one in notes)


def test_a_number_that_counts_its_requests_positives_is_a_suspect(log, tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    rows = [json.loads(line) for line in (log / "log-0.jsonl").read_text().splitlines()]
    counts = Counter(row["request_id"] for row in rows if row["click"])
    sizes = Counter(row["request_id"] for row in rows)
    for row in rows:
        row |= {"plays": counts[row["request_id"]], "shown": sizes[row["request_id"]]}
    (folder / "log-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    number = {"kind": "number", "side": "context"}
    features = {"contract.features.plays": number, "contract.features.shown": number}
    notes = messages(check(demo(**features), folder), fails=False)
    assert any(".plays: leak suspect: it goes with how many positives of click" in n for n in notes)
    assert not any(".shown: leak" in one for one in notes)


def test_a_constant_feature_and_ids_seen_once_are_noted(log, tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    rows = [json.loads(line) for line in (log / "log-0.jsonl").read_text().splitlines()]
    for at, row in enumerate(rows):
        row |= {"always": 3, "unique": f"u{at}"}
    (folder / "log-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = check(
        demo(
            **{
                "contract.features.always": {"kind": "number", "side": "context"},
                "contract.features.unique": {"kind": "id", "side": "context"},
            }
        ),
        folder,
    )
    notes = messages(found, fails=False)
    assert any(one.startswith("contract.features.always: 100.0% of the values") for one in notes)
    assert any(
        one.startswith("contract.features.unique: ") and "ids occur once" in one for one in notes
    )


def test_an_event_type_that_does_not_occur_is_named(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    lines = ["timestamp,eventType,contentId,personId,sessionId,userRegion,userCountry"]
    for at in range(400):
        kind = "VIEW" if at % 2 == 0 else "LIKED"
        lines.append(f"{1_460_000_000 + at * 4000},{kind},i{at % 7},u{at % 5},s,,")
    (folder / "a.csv").write_text("\n".join(lines))
    (folder / "b.csv").write_text("\n".join(lines[:200]))
    values = yaml.safe_load((PRESETS / "deskdrop.yaml").read_text())
    values["pipeline"]["log"]["files"] = ["*.csv"]
    found = check(parse(Config, values, "deskdrop"), folder)
    assert any(
        "event type 'LIKE' does not occur in the sample; did you mean 'LIKED'? it holds "
        "VIEW (300), LIKED (299)" in one
        for one in messages(found, fails=True)
    ), found.findings


def priced(log: str, items: str, folder: Path, **price: str) -> Config:
    """A log with a table of items and their prices."""
    folder.mkdir()
    (folder / "log.csv").write_text("time,user,item,click\n" + log)
    (folder / "items.csv").write_text("id,price\n" + items)
    values = {
        "name": "x",
        "contract": {
            "user": "user",
            "item": "item",
            "features": {
                "user": {"kind": "id", "side": "user"},
                "item": {"kind": "id", "side": "item"},
                "price": {"kind": "number", "side": "item", **price},
            },
            "tasks": {
                "click": {
                    "group": "engagement",
                    "type": "binary",
                    "label": {"rule": "column", "column": "click"},
                }
            },
        },
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["log.csv"],
                "columns": {"time": "time", "user": "user", "item": "item"},
            },
            "items": {"files": ["items.csv"], "key": "id"},
            "split": {"by": "random", "validation": 0.2, "test": 0.2},
        },
    }
    return parse(Config, values, "x")


@pytest.mark.parametrize("missing", ["error", "indicator"])
def test_a_feature_that_can_be_missing_is_told_beforehand(missing, tmp_path):
    """Rows that a side table leaves without a value are dropped, and so are new items' scores."""
    rows = [f"{at},u{at % 9},{'xyz'[at % 3]},{at % 2}" for at in range(60)]
    folder, log = tmp_path / "log", "\n".join(rows)
    config = priced(log, "x,3\ny,\n", folder, source="items", missing=missing)
    found = check(config, folder)
    job.run(config, folder, tmp_path / "examples")
    rows_of = json.loads((tmp_path / "examples/manifest.json").read_text())["rows"]
    assert found.facts["dropped"] == rows_of["dropped"] == (40 if missing == "error" else 0)
    notes = [one for one in messages(found, fails=False) if "missing is error" in one]
    if missing == "indicator":
        assert notes == []
        return
    assert found.facts["lacking"] == {"price": pytest.approx(2 / 3)}
    assert found.facts["needed"] == {"item": ["price"], "user": []}
    dropped, new = notes
    assert dropped.startswith(
        "contract.features.price: 66.7% of the impressions have no value in pipeline.items"
    )
    assert new.startswith("contract.features: price: of the item, and missing is error: a new item")


def test_a_feature_of_the_log_that_new_items_lack_is_named(log):
    [note] = [one for one in messages(check(demo(), log), fails=False) if "not scored" in one]
    assert "topic" in note
    assert "length" in note
    assert "country" not in note


def test_a_column_of_a_side_table_is_hinted_at(tmp_path):
    folder = tmp_path / "log"
    config = priced("10,a,x,1\n" * 5, "x,3\n", folder)
    [line] = messages(check(config, folder), fails=True)
    hint = "no column 'price'; the file has time, user, item, click; table pipeline.items has it: "
    assert hint + "set source: items" in line
    with pytest.raises(DataError, match=r"table pipeline\.items has it: set source: items"):
        job.run(config, folder, tmp_path / "out")


def call(capfd, *arguments: object) -> tuple[int, str, str]:
    status = main(["check", *map(str, arguments)])
    printed = capfd.readouterr()
    return status, printed.out, printed.err


def test_the_exit_status_says_whether_a_run_would_fail(log, tmp_path, capfd):
    status, out, _ = call(capfd, "--config", "demo", "--data", log)
    assert status == 0
    assert "0 findings would fail a run" in out
    wrong = tmp_path / "wrong.yaml"
    text = (PRESETS / "demo.yaml").read_text().replace("time_unit: s", "time_unit: iso")
    wrong.write_text(text)
    status, out, _ = call(capfd, "--config", wrong, "--data", log, "--json")
    assert status == 1
    assert json.loads(out)["fails"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "no.yaml"], "no.yaml: no such configuration file"),
        (["--config", "demo", "--data", "nowhere"], "nowhere: no such folder"),
        (["--config", "demo", "--data", "."], "no file matches"),
        (["--config", "broken.yaml"], "not valid YAML"),
        (["--config", "demo", "--rows", "0"], "--rows: expected 1 or more, received 0"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broken.yaml").write_text("a: [")
    status, out, err = call(capfd, *arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
