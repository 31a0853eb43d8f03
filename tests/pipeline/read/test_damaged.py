"""Damaged input through the whole job: rejected with file, line and reason, the rest processed."""

import gzip
import json
import random

import polars as pl
import pyarrow.parquet as pq
import pytest

from multigate.configs import DataError
from multigate.pipeline.job import run
from multigate.pipeline.read import ranges
from multigate.pipeline.stages import reading

HEADER = "time,event,item,user,session,value,device"
KINDS = ("VIEW", "LIKE", "DISLIKE", "BUY", "RATE")
T = 1_700_000_000
CHANGES = {"pipeline.negatives": None, "pipeline.buckets": 2}


def good(rows=40, user="u"):
    """Lines of a whole file, with every type of event."""
    return [f"{T + at},{KINDS[at % 5]},i{at % 7},{user}{at % 4},s,1,phone" for at in range(rows)]


def as_json(line):
    return json.dumps(dict(zip(HEADER.split(","), line.split(","), strict=True)))


def text(*lines):
    return ("\n".join([HEADER, *lines]) + "\n").encode()


def truncated():
    """A gzip that ends in its middle: of what can be read, every whole line is."""
    rng = random.Random(0)
    lines = [f"{T + n},VIEW,i{rng.getrandbits(60)},u{n % 4},s,1,phone" for n in range(5000)]
    packed = gzip.compress(text(*lines), mtime=0)
    return packed[: len(packed) * 3 // 4]


def many_columns(line):
    return ",".join([line] + ["1"] * 1_000_000)


DAMAGE = {
    "truncated gzip": (truncated(), None, "damaged file, the rest of it was not read: "),
    "a binary file": (random.Random(1).randbytes(50_000), 1, "not "),
    "utf-16": (text(*good(3)).decode().encode("utf-16"), 1, "not UTF-8 text"),
    "latin-1": (
        text(good()[0]) + f"{T},VIEW,é,u1,s,1,x\n{good()[1]}\n".encode("latin-1"),
        3,
        "not UTF-8 text",
    ),
    "a million columns": (
        text(good()[0], many_columns(good()[1]), good()[2]),
        3,
        "malformed line: expected 7 fields, received 1000007",
    ),
    "a million columns in the header": (
        many_columns(HEADER).encode() + b"\n1,2\n",
        1,
        "malformed line: a header of 1000007 columns",
    ),
    "an id of a megabyte": (
        text(good()[0], f"{T},VIEW,i1,{'u' * (1 << 20)},s,1,x", good()[1]),
        3,
        "user: longer than 1024 bytes",
    ),
}


def rejects_of(out, file):
    rejects = pl.read_parquet(out / "rejects/*.parquet")
    return rejects.filter(pl.col("file") == file).select("line", "reason", "text").rows()


LOST = {
    "truncated gzip": "what the file held after its end, which is missing",
    "a binary file": "the whole file",
    "utf-16": "the whole file",
    "a million columns in the header": "the whole file",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_among_whole_ones(kind, event_config, tmp_path):
    data, line, reason = DAMAGE[kind]
    (tmp_path / "log-a.csv").write_bytes(text(*good()))
    (tmp_path / "log-b.csv").write_bytes(data)
    (tmp_path / "log-c.csv").write_bytes(text(*good(user="w")))
    allowed = {"pipeline.max_damaged_files": 1} if kind in LOST else {}
    if allowed:
        message = rf"log-b\.csv: {reason}.* rows were read, lost: {LOST[kind]}; 1 file is damaged"
        with pytest.raises(DataError, match=message):
            run(event_config(**CHANGES), tmp_path, tmp_path / "out")
    manifest = run(event_config(**CHANGES, **allowed), tmp_path, tmp_path / "out")
    assert [(d["file"], d["lost"]) for d in manifest["damaged"]] == [
        ("log-b.csv", lost) for name, lost in LOST.items() if name == kind
    ]
    rows = manifest["rows"]
    assert sum(rows.values()) == 2 * rows["rows_in"]
    first, *_ = rejects_of(tmp_path / "out", "log-b.csv")
    assert first[1].startswith(reason)
    assert line is None or first[0] == line
    assert len(first[2]) <= 500
    users = set(pl.read_parquet(tmp_path / "out/snapshot/users/*.parquet")["user_id"])
    assert {"u0", "u1", "u2", "u3", "w0", "w1", "w2", "w3"} <= users
    if kind == "truncated gzip":
        assert manifest["files"]["log-b.csv"] > 2000
        assert manifest["damaged"][0]["rows"] == manifest["files"]["log-b.csv"] - 1
        assert first[0] == manifest["files"]["log-b.csv"] + 1  # after the header and the good ones


TIMES = {
    "0001-01-01T00:00:00Z": "time: outside the years 1970 to 2100",
    "9999-12-31T23:59:59Z": "time: outside the years 1970 to 2100",
    "99999-01-01T00:00:00Z": "time: expected ISO 8601 text",
    "2023-02-30T00:00:00Z": "time: expected ISO 8601 text",
    "2023-03-26T02:30:00": "time: expected ISO 8601 text",  # the clock skips it in Berlin
}


def test_times_that_cannot_be(event_config, read_examples, tmp_path):
    lines = [
        line.replace(str(T + at), f"2023-11-14T10:13:{at}") for at, line in enumerate(good(60))
    ]
    lines = lines[10:]
    bad = [lines[0].replace("2023-11-14T10:13:10", time) for time in TIMES]
    (tmp_path / "log.csv").write_bytes(text(*lines, *bad))
    changes = {"pipeline.log.time_unit": "iso", "pipeline.log.time_zone": "Europe/Berlin"}
    run(event_config(**CHANGES, **changes), tmp_path, tmp_path / "out")
    found = rejects_of(tmp_path / "out", "log.csv")
    assert [reason for _, reason, _ in found] == list(TIMES.values())
    assert [line for line, *_ in found] == list(range(len(lines) + 2, len(lines) + 2 + len(bad)))
    # A quarter past ten in Berlin is a quarter past nine in UTC.
    assert set(read_examples(tmp_path / "out")["meta/time"].dt.hour()) == {9}


def test_json_of_all_kinds_of_damage(event_config, tmp_path):
    lines = [as_json(line) for line in good()]
    whole = json.loads(lines[0])
    deep = "[" * 100_000 + "]" * 100_000
    bad = [
        (
            json.dumps(whole | {"user": {"id": {"value": 1}}}),
            "user: expected a value, received nes",
        ),
        (lines[0][:-1] + f', "more": {deep}}}', "malformed line: not valid JSON"),
        (deep, "malformed line: "),
        (json.dumps(whole | {"user": ["u1", "u2"]}), "user: expected one value, received a list"),
        (json.dumps(whole | {"user": "u" * (1 << 20)}), "user: longer than 1024 bytes"),
        (json.dumps(whole | {"time": -62135596800}), "time: outside the years 1970 to 2100"),
        (json.dumps(whole | {"time": 253402300799}), "time: outside the years 1970 to 2100"),
        (json.dumps(whole | {"time": 1e300}), "time: outside the years 1970 to 2100"),
        ('{"time": NaN', "malformed line: not valid JSON"),
    ]
    extra = whole | {f"c{n}": n for n in range(100_000)}  # wide, and as good as any
    (tmp_path / "log.csv").write_text("\n".join([*lines, *(b for b, _ in bad), json.dumps(extra)]))
    config = event_config(**CHANGES, **{"pipeline.log.format": {"type": "jsonl"}})
    manifest = run(config, tmp_path, tmp_path / "out")
    found = rejects_of(tmp_path / "out", "log.csv")
    assert [line for line, *_ in found] == list(range(41, 41 + len(bad)))
    for (_, reason, _), (_, expected) in zip(found, bad, strict=True):
        assert reason.startswith(expected)
    assert manifest["rows"]["rejects"] == len(bad)
    assert manifest["rows"]["rows_in"] == 41 + len(bad)


def test_parquet_of_wrong_values(event_config, tmp_path):
    rows = [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in good()]
    frame = pl.DataFrame(rows).with_columns(pl.col("time").cast(pl.Int64))
    long = frame.head(1).with_columns(user=pl.lit("u" * (1 << 20)))
    year = frame.head(1).with_columns(time=pl.lit(253_402_300_799))
    pl.concat([frame, long, year]).write_parquet(tmp_path / "log-a.csv")
    data = (tmp_path / "log-a.csv").read_bytes()
    (tmp_path / "log-b.csv").write_bytes(data[: len(data) // 2])
    changes = {"pipeline.log.format": {"type": "parquet"}, "pipeline.max_damaged_files": 1}
    run(event_config(**CHANGES, **changes), tmp_path, tmp_path / "out")
    assert [row[:2] for row in rejects_of(tmp_path / "out", "log-a.csv")] == [
        (41, "user: longer than 1024 bytes"),
        (42, "time: outside the years 1970 to 2100"),
    ]
    ((line, reason, _),) = rejects_of(tmp_path / "out", "log-b.csv")
    assert (line, reason[:40]) == (1, "damaged file, nothing of it was read: Pa")


def test_parquet_of_any_types(event_config, tmp_path):
    """Columns that nobody reads may hold anything, and tell no rows apart; bytes are text."""
    rows = [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in good()]
    one = pl.DataFrame(rows[:1] * 4).with_columns(pl.col("time").cast(pl.Int64))
    span = pl.Series([1, 1, 1, 2]).cast(pl.Duration("us"))
    odd = one.with_columns(
        user=pl.Series([b"u1", b"\xff\xfe", b"u1", b"u1"]),
        lists=pl.Series([[[1], []], [[1], []], [[1], []], [[1], []]]),
        structs=pl.Series([{"a": [{"b": n}]} for n in (1, 1, 2, 2)]),
        raw=pl.Series([b"\xff"] * 4),
        span=span,
    )
    odd.write_parquet(tmp_path / "log-a.csv")
    odd.select(pl.exclude("user"), user=pl.struct("item")).write_parquet(tmp_path / "log-b.csv")
    whole = pl.DataFrame(rows).with_columns(pl.col("time").cast(pl.Int64))
    whole.write_parquet(tmp_path / "log-c.csv")
    config = event_config(
        **CHANGES,
        **{
            "pipeline.log.format": {"type": "parquet"},
            "pipeline.max_reject_rate": 0.9,
            "pipeline.max_damaged_files": 1,
        },
    )
    account = run(config, tmp_path, tmp_path / "out")["rows"]
    # Rows 3 and 4 differ from row 1 in columns that nobody reads; 8 views of the whole file.
    assert (account["impressions"], account["duplicates"], account["rejects"]) == (9, 2, 2)
    ((line, reason, _),) = rejects_of(tmp_path / "out", "log-a.csv")
    assert (line, reason) == (2, "not UTF-8 text")
    ((line, reason, _),) = rejects_of(tmp_path / "out", "log-b.csv")
    assert (line, reason[:43]) == (1, "user: expected values or lists of them, rec")


@pytest.mark.parametrize(("bad", "published"), [(1, True), (2, False)])
def test_one_in_a_hundred_is_the_default_limit(bad, published, event_config, tmp_path):
    lines = [*good(99 if bad == 1 else 98), *["soon,VIEW,i,u,s,1,x"] * bad]
    (tmp_path / "log.csv").write_bytes(text(*lines))
    config = event_config(**CHANGES, **{"pipeline.max_reject_rate": None})
    if published:
        assert run(config, tmp_path, tmp_path / "out")["rows"]["rejects"] == 1
        return
    message = r"2 of 100 rows were rejected \(2\.0%; pipeline\.max_reject_rate allows 1\.0%\)"
    with pytest.raises(DataError, match=message):
        run(config, tmp_path, tmp_path / "out")
    assert len(pl.read_parquet(tmp_path / "out.rejects/*.parquet")) == 2
    assert not (tmp_path / "out").exists()


def test_parquet_says_how_many_rows_are_lost(event_config, tmp_path):
    rows = [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in good(100)]
    frame = pl.DataFrame(rows).with_columns(pl.col("time").cast(pl.Int64))
    frame.write_parquet(tmp_path / "log.csv", row_group_size=40, use_pyarrow=True)
    data = bytearray((tmp_path / "log.csv").read_bytes())
    column = pq.ParquetFile(tmp_path / "log.csv").metadata.row_group(1).column(0)
    data[column.data_page_offset : column.data_page_offset + 20] = bytes(20)
    (tmp_path / "log.csv").write_bytes(data)
    config = event_config(**CHANGES, **{"pipeline.log.format": {"type": "parquet"}})
    with pytest.raises(DataError, match=r"; \d+ rows were read, lost: \d+ of 100 rows; 1 file is"):
        run(config, tmp_path, tmp_path / "out")


def test_a_zip_that_cannot_be_opened_counts_as_damaged(event_config, tmp_path):
    (tmp_path / "log-a.csv").write_bytes(text(*good()))
    (tmp_path / "log-b.csv").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(DataError, match=r"log-b\.csv: damaged zip: .*lost: the whole file; 1 file"):
        run(event_config(**CHANGES), tmp_path, tmp_path / "out")
    config = event_config(**CHANGES, **{"pipeline.max_damaged_files": 1})
    (damage,) = run(config, tmp_path, tmp_path / "out")["damaged"]
    assert (damage["file"], damage["rows"]) == ("log-b.csv", 0)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("form", "divided"),
    [
        ("csv", False),
        ("plain", True),
        ("jsonl", False),
        ("csv", True),
        ("plain", False),
        ("jsonl", True),
    ],
)
def test_a_file_without_its_end_is_cut_off(form, divided, event_config, tmp_path, monkeypatch):
    lines = [as_json(line) for line in good()] if form == "jsonl" else [HEADER, *good()]
    whole = "\n".join(lines)
    (tmp_path / "log.csv").write_text(whole)  # whole, though its last line has no break
    formats = {"jsonl": {"type": "jsonl"}, "plain": {"type": "csv", "quoted": False}}
    changes = {"pipeline.log.format": formats.get(form, {"type": "csv"})}
    if divided:
        monkeypatch.setattr(ranges, "LONGEST", 300)
    assert run(event_config(**CHANGES, **changes), tmp_path, tmp_path / "out")["damaged"] == []
    (tmp_path / "log.csv").write_text(whole[: len(whole) - 9])
    said = r"log\.csv: cut off in the middle of its last line; 39 rows were read, lost: "
    with pytest.raises(DataError, match=said):
        run(event_config(**CHANGES, **changes), tmp_path, tmp_path / "cut")
    # A malformed line with an end is a line like any other.
    (tmp_path / "log.csv").write_text(whole[: len(whole) - 9] + "\n")
    found = run(event_config(**CHANGES, **changes), tmp_path, tmp_path / "bad")
    assert (found["damaged"], found["rows"]["rejects"]) == ([], 1)


def test_an_empty_file_is_no_gzip(event_config, tmp_path):
    (tmp_path / "log-a.csv").write_bytes(text(*good()))
    (tmp_path / "log-b.csv.gz").write_bytes(b"")
    config = event_config(**CHANGES, **{"pipeline.log.files": ["log*"]})
    with pytest.raises(DataError, match=r"log-b\.csv\.gz: damaged file, nothing of it was read"):
        run(config, tmp_path, tmp_path / "out")


def test_the_reject_lines_of_a_retried_stage_stay(event_config, tmp_path, monkeypatch):
    """Runners repeat stages: what a stage writes must not depend on what it wrote before."""
    lines = good()
    lines[5], lines[38] = "soon,VIEW,i,u,s,1,x", "late,VIEW,i,u,s,1,x"
    (tmp_path / "log.csv").write_bytes(text(*lines))
    monkeypatch.setattr(ranges, "LONGEST", 300)
    write = reading.write_rejects

    def twice(shard, log, plan):
        shard = (shard[0], list(shard[1]))
        write(shard, log, plan)
        write(shard, log, plan)

    monkeypatch.setattr(reading, "write_rejects", twice)
    config = event_config(**CHANGES, **{"pipeline.log.format": {"type": "csv", "quoted": False}})
    run(config, tmp_path, tmp_path / "out")
    assert sorted(row[0] for row in rejects_of(tmp_path / "out", "log.csv")) == [7, 40]


def test_users_that_look_like_nothing_are_named(event_config, tmp_path):
    lines = [*good(100), *(f"{T + at},VIEW,i{at},NULL,s,1,x" for at in range(20))]
    (tmp_path / "log.csv").write_bytes(text(*lines))
    (line,) = run(event_config(**CHANGES), tmp_path, tmp_path / "out")["advice"]
    assert line.startswith(
        "user 'NULL' has 20 of 120 rows: if it stands for a missing value, add it"
    )
    changes = {"pipeline.log.format": {"type": "csv", "null_values": ["NULL"]}}
    manifest = run(event_config(**CHANGES, **changes), tmp_path, tmp_path / "b")
    assert manifest["advice"] == []
    assert manifest["rejected"] == {"user: missing": 20}
