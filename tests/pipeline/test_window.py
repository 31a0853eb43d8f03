"""Runs of some days: what they read, and that together they make what one run over all makes."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml

from multigate.configs import ConfigError, DataError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run
from multigate.pipeline.read.sources import Shard
from multigate.pipeline.window import Window, look_back, needed, parse_instant
from multigate.verbs.command import main

DAYS = [datetime(2026, 11, 10 + day, tzinfo=UTC) for day in range(12)]
HEADER = "time,event,item,user,session,value,device"
WINDOWED = {
    "contract.features.recent.history.within": "2d",
    "contract.features.liked.history.within": "1d",
    "contract.features.item_ctr": {
        "kind": "number",
        "side": "item",
        "rate": {"of": "item", "events": ["LIKE"], "per": ["VIEW"], "within": "2d"},
        "missing": "indicator",
    },
    "contract.features.user_rest": {
        "kind": "number",
        "side": "user",
        "since": {"of": "user", "events": ["VIEW"], "within": "1d"},
        "missing": "indicator",
    },
    "contract.features.topic": {
        "kind": "id",
        "side": "item",
        "source": "items",
        "missing": "indicator",
    },
    "pipeline.items": {"files": ["items.csv"], "key": "id", "time": "since", "time_unit": "iso"},
    "pipeline.log.files": ["date=*/part.csv"],
    "pipeline.negatives": {"per_positive": 2, "recent": "2d", "exclude_within": "1d"},
    "pipeline.attribution": "6h",
    "pipeline.hold_back": True,
    "pipeline.buckets": 2,
}


# A dwell waits for a day, rated for like; the attribution's 6 hours limit the others.
WAITS = {
    "view": timedelta(0),
    "like": timedelta(hours=1),
    "rated": timedelta(hours=6),
    **dict.fromkeys(("dislike", "good", "bought"), timedelta(hours=6)),
    **dict.fromkeys(("dwell", "long"), timedelta(days=1)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve days of events, a folder each."""
    data, rng = tmp_path_factory.mktemp("window") / "log", random.Random(0)
    kinds = ["VIEW"] * 6 + ["LIKE"] * 2 + ["DISLIKE", "BUY", "RATE"]
    for day in DAYS:
        lines = [HEADER]
        for _ in range(90):
            time = int(day.timestamp()) + rng.randint(0, 86_399)
            item, user, kind = f"i{rng.randint(0, 19)}", f"u{rng.randint(0, 7)}", rng.choice(kinds)
            lines.append(f"{time},{kind},{item},{user},s{rng.randint(0, 2)},1,")
        path = data / f"date={day:%Y-%m-%d}" / "part.csv"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(lines + rng.choices(lines[1:], k=3)) + "\n")
    rows = [f"i{n},{day.isoformat()},t{rng.randint(0, 3)}" for n in range(15) for day in DAYS[::3]]
    (data / "items.csv").write_text("\n".join(["id,since,topic", *rows]) + "\n")
    return data


@pytest.fixture(scope="module")
def config(event_config):
    return event_config(**WINDOWED)


@pytest.fixture(scope="module")
def whole(folder, config, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    run(config, folder, out)
    return out


@pytest.fixture(scope="module")
def nights(folder, config, tmp_path_factory):
    """Runs of three consecutive days."""
    out = tmp_path_factory.mktemp("nights")
    return {
        day: (out / str(day), run(config, folder, out / str(day), span=(DAYS[day], DAYS[day + 1])))
        for day in (6, 7, 8)
    }


def labels_of(rows, since, until):
    """The rows of a run over all with the labels that close between two instants."""
    closes = {name: pl.col("meta/time") + wait for name, wait in WAITS.items()}
    here = {name: (time >= since) & (time < until) for name, time in closes.items()}
    rows = rows.with_columns(
        pl.when(now).then(pl.col(f"label/{name}")).alias(f"label/{name}")
        for name, now in here.items()
    )
    # Of a sampled negative, only view says something.
    some = pl.when("meta/sampled").then(here["view"]).otherwise(pl.any_horizontal(here.values()))
    return rows.filter(some).sort("meta/impression")


def test_days_make_what_one_run_over_all_makes(whole, nights, read_examples):
    every = read_examples(whole)
    for day, (out, _) in nights.items():
        made = read_examples(out)
        assert made.equals(labels_of(every, DAYS[day], DAYS[day + 1]))
        assert made["meta/sampled"].sum() > 30
        assert made["recent"].list.len().max() == 3
        assert made["item_ctr"].is_not_null().sum() > 30
    made = pl.concat([read_examples(out) for out, _ in nights.values()])
    time = pl.col("meta/time")
    for name, wait in WAITS.items():
        closed = (time + wait >= DAYS[6]) & (time + wait < DAYS[9])
        column = pl.col(f"label/{name}")
        once = every.filter(closed & column.is_not_null()).select("meta/impression", column)
        found = made.filter(column.is_not_null()).select("meta/impression", column)
        assert found.sort("meta/impression").equals(once)
        assert len(found) or name == "rated"


def test_days_leave_out_rows_whose_labels_the_embargo_masks(
    folder, event_config, tmp_path, read_examples
):
    """Labels of the day before validation that close within it are no day's; nor are their rows."""
    split = {"by": "time", "validation": DAYS[7].isoformat(), "test": DAYS[8].isoformat()}
    config = event_config(**WINDOWED | {"pipeline.split": split})
    run(config, folder, tmp_path / "whole")
    every = read_examples(tmp_path / "whole")
    begins = pl.when(pl.col("meta/time") < DAYS[7]).then(DAYS[7])
    begins = begins.when(pl.col("meta/time") < DAYS[8]).then(DAYS[8])
    left_out = 0
    for day in (6, 7, 8):
        account = run(config, folder, tmp_path / str(day), span=(DAYS[day], DAYS[day + 1]))
        made = read_examples(tmp_path / str(day))
        closing = labels_of(every, DAYS[day], DAYS[day + 1])
        own = [
            (pl.col("meta/time") + wait).is_between(DAYS[day], DAYS[day + 1], closed="left")
            & (pl.col("meta/time") + wait < begins).fill_null(True)
            for wait in WAITS.values()
        ]
        expected = closing.filter(pl.col("meta/sampled") | pl.any_horizontal(own))
        assert made.equals(expected)
        left_out += len(closing) - len(expected)
        assert account["examples"]["embargoed"] == len(closing) - len(expected)
    assert left_out > 50
    assert audit(config, folder, tmp_path / "7", sample=10_000)["examples"] > 100


def test_what_the_day_before_held_back_is_labelled_the_next_day(nights, read_examples):
    (_, before), (out, _), _ = nights.values()
    assert before["labels"]["open"]["like"] > 0
    evening = (pl.col("meta/time") >= DAYS[7] - timedelta(hours=1)) & (
        pl.col("meta/time") < DAYS[7]
    )
    late = read_examples(out).filter(evening & ~pl.col("meta/sampled"))
    assert 0 < len(late) <= before["labels"]["open"]["like"]
    assert late["label/like"].null_count() == 0
    assert late["label/view"].null_count() == len(late)


def test_only_what_is_needed_is_read(nights):
    _, manifest = nights[7]
    # From 17 November less the dwell's day less 2 days: 14 November, to the end of the 17th.
    assert manifest["window"] == {
        "begin": "2026-11-14T00:00:00+00:00",
        "first": "2026-11-16T00:00:00+00:00",
        "since": "2026-11-17T00:00:00+00:00",
        "end": "2026-11-18T00:00:00+00:00",
        "files_skipped": 8,
    }
    assert list(manifest["files"]) == [f"date=2026-11-{day}/part.csv" for day in (14, 15, 16, 17)]
    assert manifest["cut_off"] == "2026-11-18T00:00:00+00:00"
    rows = manifest["rows"]
    assert sum(rows.values()) == 2 * rows["rows_in"]
    assert rows["outside"] > 150


def test_a_day_twice_gives_the_same_bytes(folder, config, nights, tmp_path):
    run(config, folder, tmp_path / "again", span=(DAYS[7], DAYS[8]))
    out = nights[7][0]
    names = {path.relative_to(out) for path in out.rglob("*.*") if path.is_file()}
    assert names == {p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*.*")}
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()


def test_the_audit_of_a_day_reads_all_and_agrees(folder, config, nights):
    result = audit(config, folder, nights[7][0], sample=10_000)
    assert result["examples"] == nights[7][1]["examples"]["total"]


def test_its_snapshot_is_as_of_its_end(folder, config, whole, nights, event_config, tmp_path):
    cut = event_config(**WINDOWED, **{"pipeline.cut_off": DAYS[8].isoformat()})
    run(cut, folder, tmp_path / "out")
    for name, key in (("users", "user_id"), ("items", "item_id")):
        full = pl.read_parquet(tmp_path / "out/snapshot" / name / "*.parquet")
        some = pl.read_parquet(nights[7][0] / "snapshot" / name / "*.parquet")
        assert len(some) > 5
        same = full.join(some.select(key), on=key, how="semi")
        assert same.sort(key).equals(some.sort(key))


def test_without_a_window_all_of_the_past_is_read(folder, event_config, whole, tmp_path):
    config = event_config(**WINDOWED | {"contract.features.recent.history.within": None})
    assert look_back(config) is None
    manifest = run(config, folder, tmp_path / "out", span=(DAYS[3], DAYS[4]))
    assert manifest["window"]["begin"] is None
    assert len(manifest["files"]) == 4  # up to the day, and not beyond


def test_each_window_counts(event_config):
    assert look_back(event_config(**WINDOWED)) == timedelta(days=2)
    for name in ("recent", "exclude_within"):
        negatives = {k: v for k, v in WINDOWED["pipeline.negatives"].items() if k != name}
        assert look_back(event_config(**WINDOWED | {"pipeline.negatives": negatives})) is None
    longer = WINDOWED | {"contract.features.liked.history.within": "5d"}
    assert look_back(event_config(**longer)) == timedelta(days=5)


def test_no_day_ends_after_the_cut_off(folder, event_config, tmp_path):
    config = event_config(**WINDOWED, **{"pipeline.cut_off": "2026-11-13T12:00:00Z"})
    with pytest.raises(
        ConfigError, match=r"--to: expected at most pipeline\.cut_off, 2026-11-13T12"
    ):
        run(config, folder, tmp_path / "out", span=(DAYS[3], DAYS[4]))


def test_categories_of_clicks_that_are_known_late_look_back_for_both(impression_config):
    """The click is known after 20 hours, and its topic may be that of an hour before."""
    changes = {
        "contract.features.topic": {"kind": "id", "side": "item", "missing": "indicator"},
        "contract.features.clicked.history": {
            "events": ["click"],
            "last": 5,
            "within": "12h",
            "with": ["topic"],
        },
        "pipeline.log.known_after": "20h",
        "pipeline.attribution": "1h",
    }
    assert look_back(impression_config(**changes)) == timedelta(hours=33)


def test_days_of_a_zone(folder, event_config, tmp_path):
    """A folder holds a local day; so do --from and --to."""
    zone = {"pipeline.log.time_zone": "America/New_York"}
    assert parse_instant("2026-11-17", "America/New_York") == DAYS[7] + timedelta(hours=5)
    config = event_config(**WINDOWED, **zone)
    span = tuple(parse_instant(day, "America/New_York") for day in ("2026-11-17", "2026-11-18"))
    manifest = run(config, folder, tmp_path / "out", span=span)
    assert list(manifest["files"]) == [f"date=2026-11-{day}/part.csv" for day in (14, 15, 16, 17)]


def test_folders_name_days_and_other_files_are_read(event_config):
    names = [
        "date=2026-11-17/part.csv",
        "date=20261117/hour=05/part.csv",
        "all/date=2026-11-16/part.csv",
        "date=2026-11-18/part.csv",  # begins when the window ends
        "date=2026-11-15/part.csv",  # ended when it begins
        "update=2026-11-01/part.csv",  # another key: of no day
        "date=2026-02-30/part.csv",  # of no calendar's day
        "date=2026-11-01.csv",  # a file, not a folder
        "log.csv",
    ]
    shards = [Shard(Path(name), None, name) for name in names]
    window = Window(DAYS[6], DAYS[7], DAYS[7], DAYS[8])
    kept = [shard.name for shard in needed(shards, window, event_config())]
    assert kept == [*names[:3], *names[5:]]
    assert len(needed(shards, Window(None, DAYS[7], DAYS[7], DAYS[8]), event_config())) == 8


REFUSED = [
    ({"pipeline.attribution": None}, "contract.tasks.dislike.label waits without limit"),
    (
        {"pipeline.negatives": {"exclude": "ever"}},
        "pipeline.negatives.exclude: 'ever' looks beyond every day",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_no_day_can_complete_is_refused(changes, message, folder, event_config, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(event_config(**WINDOWED | changes), folder, tmp_path / "out", span=tuple(DAYS[:2]))


def test_a_span_without_data_is_said(folder, config, tmp_path):
    later = [day + timedelta(days=90) for day in DAYS[:2]]
    with pytest.raises(DataError, match=r"no folder date=\.\.\. holds a day of this span"):
        run(config, folder, tmp_path / "out", span=tuple(later))
    assert not (tmp_path / "out").exists()


def test_the_command_makes_a_day(folder, config, nights, capsys, tmp_path):
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True))
    )
    arguments = ["examples", "--config", str(tmp_path / "config.yaml"), "--data", str(folder)]
    arguments += ["--out", str(tmp_path / "out")]
    assert main([*arguments, "--from", "2026-11-17", "--to", "2026-11-18", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == nights[7][1]
    for wrong, message in (
        (["--from", "2026-11-17"], "--from and --to go together"),
        (["--from", "soon", "--to", "2026-11-18"], "expected a day such as 2026-11-20"),
        (["--from", "2026-11-18", "--to", "2026-11-17"], "--from must be before --to"),
        (["--max_reject_rate", "2"], "--max_reject_rate: expected a share from 0 to 1, received 2"),
    ):
        assert main([*arguments, *wrong]) == 2
        assert message in capsys.readouterr().err
