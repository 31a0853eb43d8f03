"""Where the log ends, and clocks that tell it wrong."""

import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.pipeline.audit.recompute import Times
from multigate.pipeline.core.facts import Day
from multigate.pipeline.job import run
from multigate.pipeline.read import ranges
from multigate.pipeline.read.log_end import add, end_of

HEADER = "time,event,item,user,session,value,device"
KINDS = ("VIEW", "VIEW", "LIKE", "DISLIKE", "BUY", "RATE")
T = 1_700_000_000
DAY = 86_400
YEAR_2099 = 4_070_908_800
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CHANGES = {
    "pipeline.hold_back": True,
    "pipeline.negatives": None,
    "pipeline.split": {"by": "time", "validation": 0.2, "test": 0.2},
}


def row(time, kind="VIEW", item="i", user="u"):
    return f"{time},{kind},{item},{user},s,,phone"


def log(rows=600, days=10):
    step = days * DAY // rows
    return [
        row(T + at * step, KINDS[at % 6], f"i{at // 6 % 7}", f"u{at // 6 % 5}")
        for at in range(rows)
    ]


def write(folder, lines):
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return folder


def numbered(rows_by_day):
    return {at: Day(rows, EPOCH + timedelta(days=at)) for at, rows in rows_by_day.items()}


MONTH = dict.fromkeys(range(19_000, 19_030), 1000)


@pytest.mark.parametrize(
    ("later", "ends"),
    [
        ({}, None),
        ({19_030: 1}, None),  # the very next day
        ({19_044: 29}, None),  # a gap of half the span before it
        ({19_045: 29}, 19_030),
        ({19_045: 15, 30_000: 14}, 19_030),
        ({0: 1, 10: 20, 19_045: 8}, 19_030),  # rows dated 1970 do not make the span longer
        ({0: 1, 30_000: 1}, 19_030),
        ({0: 31, 19_045: 8}, None),  # of 30,039 rows: not less than 0.1 %
        ({19_045: 31}, None),  # of 30,031 rows: not less than 0.1 %
        ({19_045: 31, 30_000: 1}, 19_046),
        ({19_045: 1, 19_046: 1000}, None),  # a pause: the log goes on
    ],
)
def test_a_few_rows_after_a_gap_come_after_the_end(later, ends):
    expected = None if ends is None else EPOCH + timedelta(days=ends)
    log = dict(sorted((MONTH | later).items()))
    assert end_of(numbered(log)) == expected
    found = Times()  # the audit's own rule
    for day, rows in log.items():
        found.add(pl.Series([datetime(1970, 1, 1) + timedelta(days=day)] * rows))
    last = max(day for day in log if ends is None or day < ends)
    assert found.last() == datetime(1970, 1, 1) + timedelta(days=last)


def test_however_many_rows_a_log_has_100_are_no_accident():
    large = dict.fromkeys(range(19_000, 19_030), 1_000_000)
    assert end_of(numbered(large | {30_000: 99})) is not None
    assert end_of(numbered(large | {30_000: 100})) is None


def test_a_single_row_ends_no_small_log():
    small = dict.fromkeys(range(19_000, 19_010), 3)
    assert end_of(numbered(small | {19_100: 1})) is None  # a small log may have pauses
    assert end_of(numbered(small | {30_000: 1})) == EPOCH + timedelta(days=19_010)
    assert end_of(numbered({19_000: 1})) is None
    assert end_of({}) is None


def test_days_of_several_shards_add_up():
    first, second = datetime(2026, 1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 2, tzinfo=UTC)
    assert add([{7: Day(2, second)}, {5: Day(1, first)}, {7: Day(3, first)}]) == {
        5: Day(1, first),
        7: Day(5, second),
    }


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("rows", "longest"), [(600, 3000), (3000, None)])
def test_one_row_of_2099_is_a_reject_and_moves_nothing(
    rows, longest, event_config, read_examples, tmp_path, monkeypatch
):
    if longest is not None:  # the file is read in ranges of bytes
        monkeypatch.setattr(ranges, "LONGEST", longest)
    config = event_config(**CHANGES, **{"pipeline.log.format": {"type": "csv", "quoted": False}})
    lines = log(rows)
    plain = run(config, write(tmp_path / "plain", lines), tmp_path / "a")
    lines[rows // 2 : rows // 2] = [row(YEAR_2099)]
    wrong = run(config, write(tmp_path / "wrong", lines), tmp_path / "b")
    assert wrong["cut_off"] == plain["cut_off"]
    assert wrong["rows"] == plain["rows"] | {"rows_in": rows + 1, "rejects": 1}
    assert read_examples(tmp_path / "b").equals(read_examples(tmp_path / "a"))
    rejects = pl.read_parquet(tmp_path / "b/rejects/*.parquet").drop("reason")
    assert rejects.rows() == [("log.csv", rows // 2 + 2, row(YEAR_2099))]
    ((reason, count),) = wrong["rejected"].items()
    assert count == 1
    assert reason.startswith("time: later than the end of the log, 2023-11-24; name pipeline.cut")


def test_rows_at_or_after_a_configured_cut_off_are_no_part_of_the_run(
    event_config, read_examples, tmp_path
):
    cut = datetime.fromtimestamp(T + 5 * DAY, UTC)
    config = event_config(**CHANGES, **{"pipeline.cut_off": cut.isoformat()})
    lines = log()
    known = [line for line in lines if int(line.split(",")[0]) < T + 5 * DAY]
    plain = run(config, write(tmp_path / "plain", known), tmp_path / "a")
    more = run(config, write(tmp_path / "more", [*lines, row(YEAR_2099)]), tmp_path / "b")
    later = len(lines) + 1 - len(known)
    assert later > 100
    assert more["rows"] == plain["rows"] | {
        "rows_in": len(lines) + 1,
        "after_cut_off": later,
    }
    assert more["rejected"] == {}
    assert read_examples(tmp_path / "b").equals(read_examples(tmp_path / "a"))
    for name in ("snapshot/users", "snapshot/items"):
        one, two = (pl.read_parquet(tmp_path / out / name / "*.parquet") for out in "ab")
        assert one.equals(two)


@pytest.mark.parametrize(
    ("unit", "advice"),
    [("ms", "time_unit is ms: set it to s"), ("us", "time_unit is us: set it to ms or s")],
)
def test_seconds_read_as_a_smaller_unit_are_refused(unit, advice, event_config, tmp_path):
    folder = write(tmp_path / "log", log(60))
    config = event_config(**CHANGES, **{"pipeline.log.time_unit": unit})
    message = f"log.csv: all times lie in January 1970, the latest at 1970-01-.*; {advice} if that"
    with pytest.raises(DataError, match=message):
        run(config, folder, tmp_path / "out")


def test_of_two_kinds_of_files_each_has_a_unit_of_its_own(event_config, tmp_path):
    rows = [
        {"time": (T + at) * 1000, "user": "u", "item": "i", "session": "s", "device": "x"}
        for at in range(20)
    ]
    kinds = ("LIKE", "DISLIKE", "BUY", "RATE")
    feedback = [
        row | {"time": row["time"] // 1000, "event": kinds[at % 4], "value": 1}
        for at, row in enumerate(rows)
    ]
    columns = {name: name for name in ("time", "user", "item", "session")}
    changes = {
        "pipeline.log.files": ["shown.jsonl"],
        "pipeline.log.format": {"type": "jsonl"},
        "pipeline.log.time_unit": "ms",
        "pipeline.log.columns": columns,
        "pipeline.log.feedback": {
            "files": ["feedback.jsonl"],
            "format": {"type": "jsonl"},
            "time_unit": "ms",
            "columns": {**columns, "event": "event", "value": "value"},
        },
    }
    for name, some in (("shown", rows), ("feedback", feedback)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    with pytest.raises(DataError, match=r"feedback\.jsonl: all times lie in January 1970"):
        run(event_config(**CHANGES | changes), tmp_path, tmp_path / "out")
