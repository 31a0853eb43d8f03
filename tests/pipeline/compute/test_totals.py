"""Counters without a window go on from the previous run's totals, and give what one run gives."""

import json
import logging
import random
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.configs.files import ExamplesFolder
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.compute import totals
from multigate.pipeline.core.runner import BEAMS_RUNNER
from multigate.pipeline.job import run

DAYS = [datetime(2026, 11, 10 + day, tzinfo=UTC) for day in range(8)]
VIEWS, LIKES = ["VIEW"], ["LIKE"]


def counter(side, missing="indicator", **rule):
    (name, values), *_ = rule.items()
    values = {"of": side} | values
    return {"kind": "number", "side": side, name: values, "missing": missing}


EVENTS = {
    **{
        f"contract.features.{side}_{name}": counter(side, **rule)
        for side in ("user", "item")
        for name, rule in {
            "views": {"count": {"events": VIEWS}},
            "likes_lately": {"count": {"events": LIKES, "within": "1d"}},
            "rate": {"rate": {"events": LIKES, "per": VIEWS}},
            "rest": {"since": {"events": VIEWS}},
            "age": {"since": {"events": VIEWS, "which": "first"}},
            "best": {"max": {"events": ["RATE"]}},
        }.items()
    },
    "contract.features.recent.history.within": "1d",
    "contract.features.liked.history.within": "1d",
    "pipeline.log.files": ["date=*/part.csv"],
    "pipeline.negatives": {"per_positive": 1, "recent": "1d", "exclude_within": "1d"},
    "pipeline.attribution": "6h",
    "pipeline.clock_skew": "2s",
    "pipeline.collapse": "30s",
    "pipeline.hold_back": True,
    "pipeline.buckets": 3,
}
IMPRESSIONS = {
    **{
        f"contract.features.{side}_{name}": counter(side, **rule)
        for side in ("user", "item")
        for name, rule in {
            "clicks": {"count": {"events": ["click"]}},
            "ctr": {"rate": {"events": ["click"], "per": ["impression"]}},
            "stars": {"max": {"events": ["stars"]}},
        }.items()
    },
    "contract.features.clicked.history.within": "1d",
    "pipeline.log.files": ["date=*/part.csv"],
    "pipeline.log.known_after": "3h",
    "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    "pipeline.hold_back": True,
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Eight days of events, and of impressions, a folder each."""
    data, rng = tmp_path_factory.mktemp("totals"), random.Random(0)
    kinds = ["VIEW"] * 6 + ["LIKE"] * 2 + ["DISLIKE", "BUY", "RATE"]
    for day in DAYS:
        lines = {
            "events": ["time,event,item,user,session,value,device"],
            "impressions": ["time,user_id,item_id,request,price,tags,place,click,stars"],
        }
        for _ in range(120):
            time = int(day.timestamp()) + rng.randint(0, 86_399)
            item, user, value = rng.randint(0, 24), rng.randint(0, 11), rng.randint(-5, 5)
            kind = rng.choice(kinds)
            lines["events"].append(f"{time},{kind},i{item},u{user},s,{value},")
            if kind == "LIKE":  # shortly before a view: a clock that is wrong
                lines["events"].append(f"{time + 1},VIEW,i{item},u{user},s,1,")
            click = rng.randint(0, 1)
            stars = rng.choice(["", f"{value}"])
            lines["impressions"].append(f"{time},{user},{item},r{time},,,,{click},{stars}")
        for name, rows in lines.items():
            path = data / name / f"date={day:%Y-%m-%d}" / "part.csv"
            path.parent.mkdir(parents=True)
            path.write_text("\n".join(rows) + "\n")
    return data


@pytest.fixture(scope="module", params=["events", "impressions"])
def made(request, logs, event_config, impression_config, tmp_path_factory):
    """Three nights, each from the one before, and the same nights from the whole log."""
    changes = {"events": EVENTS, "impressions": IMPRESSIONS}[request.param]
    config = (event_config if request.param == "events" else impression_config)(**changes)
    out, log = tmp_path_factory.mktemp("nights"), logs / request.param
    previous = None
    for day in (3, 4, 5):
        span = (DAYS[day], DAYS[day + 1])
        run(config, log, out / f"whole-{day}", span=span)
        run(config, log, out / f"next-{day}", span=span, previous=previous)
        previous = out / f"next-{day}"
    return config, log, out


def test_nights_give_the_rows_of_runs_over_the_whole_log(made, read_examples):
    _, _, out = made
    for day in (3, 4, 5):
        found, expected = (read_examples(out / f"{kind}-{day}") for kind in ("next", "whole"))
        assert found.equals(expected)
        assert len(found) > 60
        for source, key in (("users", "user_id"), ("items", "item_id")):
            tables = [
                pl.concat(
                    pl.read_parquet(path)
                    for path in ExamplesFolder(out / f"{kind}-{day}").snapshot(source).glob("*")
                ).sort(key)
                for kind in ("next", "whole")
            ]
            numbers = [n for n, t in tables[0].schema.items() if t == pl.Float32 and n != "price"]
            assert len(numbers) >= 3
            read = tables[1].filter(pl.col(key).is_in(tables[0][key].implode()))
            assert tables[0].select(key, *numbers).equals(read.select(key, *numbers))
            for name in numbers:
                assert tables[0][name].null_count() < len(tables[0])


def test_only_the_last_days_are_read(made):
    _, _, out = made
    first, *later = (
        json.loads((out / f"next-{day}" / "manifest.json").read_text()) for day in (3, 4, 5)
    )
    assert first["window"]["begin"] is None
    for day, manifest in zip((4, 5), later, strict=True):
        begin = datetime.fromisoformat(manifest["window"]["begin"])
        assert begin >= DAYS[day] - timedelta(days=3, hours=12)
        assert manifest["window"]["files_skipped"] > len(DAYS) - 6


def test_totals_are_those_of_the_whole_log(made):
    _, _, out = made
    for source, key in (("users", "user"), ("items", "item")):
        found, expected = (
            pl.concat(
                pl.read_parquet(path)
                for path in sorted((out / f"{kind}-5" / "totals" / source).glob("*.parquet"))
            )
            for kind in ("next", "whole")
        )
        assert found.sort(key, "set").equals(expected.sort(key, "set"))
        assert len(found) > 20


@pytest.mark.sweep(1)
def test_totals_travel_through_beam_as_well(made, tmp_path, read_examples):
    config, log, out = made
    span = (DAYS[5], DAYS[6])
    beams = [f"--runner={BEAMS_RUNNER}"]  # which encodes what travels
    run(config, log, tmp_path / "out", beams, span=span, previous=out / "next-4", shuffle="beam")
    assert read_examples(tmp_path / "out").equals(read_examples(out / "next-5"))
    for path in sorted((out / "next-5" / "totals").rglob("*.*")):
        again = tmp_path / "out" / path.relative_to(out / "next-5")
        assert again.read_bytes() == path.read_bytes()


def test_the_audit_reads_the_whole_log_and_agrees(made):
    config, log, out = made
    assert audit(config, log, out / "next-5", 60)["examples"] == 60


@pytest.mark.sweep(1)
def test_totals_that_do_not_fit_are_not_used(made, caplog, tmp_path, read_examples):
    config, log, out = made
    span = (DAYS[4], DAYS[5])
    with caplog.at_level(logging.WARNING):
        manifest = run(config, log, tmp_path / "again", span=span, previous=out / "next-5")
    assert "later than this run's first row; the log is read from its beginning" in caplog.text
    assert manifest["window"]["begin"] is None
    forget = tmp_path / "forget"
    user = read_examples(out / "next-4")["user_id"][0]
    forget.write_text(f"{user}\n")
    with caplog.at_level(logging.WARNING):
        run(config, log, tmp_path / "less", span=span, previous=out / "next-3", forget=forget)
    assert "another configuration of log, counters or users to forget" in caplog.text
    run(config, log, tmp_path / "whole", span=span, forget=forget)
    assert read_examples(tmp_path / "less").equals(read_examples(tmp_path / "whole"))


def test_damaged_totals_are_one_line(made, tmp_path):
    config, log, _ = made
    (tmp_path / "old" / "totals").mkdir(parents=True)
    (tmp_path / "old" / "totals" / "totals.json").write_text("{")
    (tmp_path / "old" / "report.json").write_text("{}")
    span = (DAYS[4], DAYS[5])
    with pytest.raises(DataError, match=r"totals\.json: damaged: "):
        run(config, log, tmp_path / "out", span=span, previous=tmp_path / "old")


def test_totals_end_where_no_feedback_may_still_move(event_config):
    """Under `clock_skew` a like may belong to a view that comes later, of the next run."""
    config = event_config(**{"pipeline.hold_back": False, "pipeline.clock_skew": "5s"})
    assert totals.as_of(config, DAYS[1]) == DAYS[1] - timedelta(seconds=5)


def test_a_day_without_training_rows_has_the_prior_of_the_day_before(
    logs, impression_config, tmp_path, caplog
):
    """Its rates would else lie near 0, for rows without labels at 0: the model learnt the mean."""
    changes = {name: None for name in IMPRESSIONS if name.endswith(("_clicks", "_ctr", "_stars"))}
    split = {"by": "time", "validation": DAYS[4].isoformat(), "test": DAYS[5].isoformat()}
    rates = {"of": ["user"], "tasks": ["click"], "within": "1d"}
    own = {"contract.rates": rates, "pipeline.split": split}
    config = impression_config(**(IMPRESSIONS | own | changes))
    priors, previous = {}, None
    for day in (3, 4, 5):
        span, out = (DAYS[day], DAYS[day + 1]), tmp_path / f"{day}"
        run(config, logs / "impressions", out, span=span, previous=previous)
        priors[day] = json.loads(ExamplesFolder(out).statistics.read_text())["priors"]
        previous = out
        audit(config, logs / "impressions", out)
    assert 0.3 < priors[3]["user_click_rate"] < 0.7
    assert priors[3] == priors[4] == priors[5]
    assert not any("prior" in line for line in caplog.messages)
    run(config, logs / "impressions", tmp_path / "alone", span=(DAYS[4], DAYS[5]))
    (line,) = [line for line in caplog.messages if "prior" in line]
    assert line.startswith("user_click_rate: the prior is 0, because no training row has a label")
