"""Large logs: ranges of files, buckets that are divided, and no result that depends on either."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from multigate.configs.sections.log import CsvFormat, JsonLinesFormat, ParquetFormat
from multigate.pipeline import job, plan
from multigate.pipeline.plan import compress_rows, count_buckets
from multigate.pipeline.read import ranges
from multigate.pipeline.read.sources import Shard, expand, read
from multigate.pipeline.sample import catalogue
from multigate.pipeline.shuffle import buckets
from multigate.pipeline.shuffle.buckets import SpreadBuffer, divide, gather, spread
from multigate.pipeline.shuffle.parcel import InBeam, LocalFiles
from multigate.pipeline.write import assemble

TABLES = ("vocabularies", "snapshot/users", "snapshot/items")


def write_log(folder: Path, rows: int = 600, users: int = 9) -> None:
    rng = random.Random(5)
    folder.mkdir()
    lines = [
        f"{1_700_000_000 + 60 * at},{rng.choice(['VIEW', 'VIEW', 'LIKE'])},"
        f"i{rng.randrange(20)},u{rng.randrange(users)},s{at // 50},,{rng.choice(['phone', 'desk'])}"
        for at in range(rows)
    ]
    lines += [f"{1_700_000_000 + at},{kind},i0,u0,s,,phone" for at, kind in enumerate(KINDS)]
    text = "\n".join(["time,event,item,user,session,value,device", *lines])
    (folder / "log.csv").write_text(text + "\n")


KINDS = ("DISLIKE", "BUY", "RATE")


def tables(folder: Path) -> dict[str, pl.DataFrame]:
    """What the parts of each of the output's tables hold together."""
    found = {}
    for name in TABLES:
        parts = sorted((folder / name).glob("*.parquet"))
        if name == "vocabularies":
            found |= {part.name: pl.read_parquet(part) for part in parts}
        else:
            frame = pl.concat([pl.read_parquet(part) for part in parts])
            found[name] = frame.sort(frame.columns[0])
    return found


@pytest.fixture(scope="module")
def counting(event_config):
    """Histories, the item's counters and features, negatives: all stages have work to do."""
    seen = {"kind": "number", "side": "item", "count": {"of": "item", "events": ["VIEW"]}}
    return lambda **changes: event_config(
        **{
            "contract.features.seen": seen,
            "contract.features.kind": {
                "kind": "id",
                "side": "item",
                "column": "device",
                "missing": "indicator",
            },
            "pipeline.negatives": {"per_positive": 2},
            **changes,
        }
    )


@pytest.mark.slow
def test_a_tiny_budget_changes_no_example(counting, tmp_path, monkeypatch, read_examples):
    write_log(tmp_path / "log")
    plain = job.run(counting(**{"pipeline.buckets": 1}), tmp_path / "log", tmp_path / "plain")
    # 600 rows are some 50 kB: buckets of the least size are still larger, so that bytes stand in
    # for MiB here; and examples are put together in pieces of a few rows.
    monkeypatch.setattr(plan, "_MIB", 1 << 12)
    monkeypatch.setattr(assemble, "_IMPRESSIONS", 7)
    monkeypatch.setattr(assemble, "_EXAMPLES", 10)
    merged = []
    merge = catalogue.merge
    monkeypatch.setattr(catalogue, "merge", lambda *a: merged.append(1) or merge(*a))
    config = counting(**{"pipeline.buckets": 8, "pipeline.bucket_mib": 1})
    small = job.run(config, tmp_path / "log", tmp_path / "small")
    for of in ("users", "items"):  # buckets were divided: their parts have other numbers
        parts = (tmp_path / "small" / "snapshot" / of).iterdir()
        assert max(part.name for part in parts) > "part-00007.parquet"
    assert len(merged) == 8  # of the catalogue: a bucket of items at a time
    assert small == plain
    assert read_examples(tmp_path / "small").equals(read_examples(tmp_path / "plain"))
    for (name, left), right in zip(
        tables(tmp_path / "small").items(), tables(tmp_path / "plain").values(), strict=True
    ):
        assert left.equals(right), name
    for name in ("statistics.json", "contract.json"):
        assert (tmp_path / "small" / name).read_text() == (tmp_path / "plain" / name).read_text()


def test_buckets_of_items_stay_few(counting, tmp_path, monkeypatch, read_examples):
    """Each bucket of users writes a parcel for each of items: their number must not be a square."""
    write_log(tmp_path / "log")
    run, made = job._run_beam, []

    def watched(shards, planned, *rest):
        made.append(planned.item_buckets)
        run(shards, planned, *rest)

    monkeypatch.setattr(job, "_run_beam", watched)
    for buckets_ in (2, 100):
        config = counting(**{"pipeline.buckets": buckets_})
        job.run(config, tmp_path / "log", tmp_path / f"{buckets_}")
    assert made == [2, 64]
    few, many = (read_examples(tmp_path / name) for name in ("2", "100"))
    assert few.equals(many)
    one, other = (tables(tmp_path / name) for name in ("2", "100"))
    assert all(one[name].equals(other[name]) for name in one)


@pytest.mark.parametrize("files", [True, False])
def test_a_bucket_is_divided_down_to_one_user(files, tmp_path):
    rows = pl.DataFrame(
        {"user": ["a"] * 500 + ["b"] * 500, "time": range(1000), "fingerprint": range(1000)}
    )
    carrier = LocalFiles(tmp_path) if files else InBeam()
    (keyed,) = spread(carrier, rows, 1, "events", 0)
    divided = divide(keyed, keyed[1].size, 1, 4096, carrier)
    assert len({number for number, _ in divided}) == 2
    found = [gather([parcel])["user"].unique().to_list() for _, parcel in divided]
    assert sorted(found) == [["a"], ["b"]]
    assert sum(parcel.size for _, parcel in divided) > 4096
    assert divide(keyed, 4096, 1, 4096, carrier) == [keyed]


@pytest.mark.parametrize("form", [CsvFormat(quoted=False), JsonLinesFormat(type="jsonl")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("longest", [1, 7, 19, 20, 21, 64])
def test_ranges_hold_every_line_once(form, end, longest, tmp_path):
    csv = isinstance(form, CsvFormat)
    rows = [f"{at},x{'y' * (at % 5)}" if csv else f'{{"a": {at}}}' for at in range(30)]
    text = end.join((["a,b"] if csv else []) + rows)
    (tmp_path / "log").write_bytes(text.encode())
    (whole,) = expand(tmp_path, ("log",))
    parts = ranges.divide_shards([whole], form, ["a"], longest)
    assert len(parts) == -(-len(text) // longest)
    frames, numbers, before = [], [], 0
    for shard in parts:
        lines = 0
        for chunk in read(shard, form, ["a"]):
            if len(chunk.line):
                frames.append(chunk.frame)
                numbers += (chunk.line + before).to_list()
            lines = chunk.lines_read
        before += lines
    assert pl.concat(frames)["a"].cast(pl.Int64).to_list() == list(range(30))
    assert numbers == list(range(1 + csv, 31 + csv))


def parts_and_whole(path, longest, form=None):
    """Rows, lines, texts and rejects of a file's parts together, of the file, and the parts."""
    form = form or CsvFormat()
    (whole,) = expand(path.parent, (path.name,))
    parts = ranges.divide_shards([whole], form, ["a", "b"], longest)
    found = []
    for shards in (parts, [whole]):
        rows, rejects, before = [], [], 0
        for shard in shards:
            lines_read = 0
            for chunk in read(shard, form, ["a", "b"]):
                lines = (chunk.line + before).to_list()
                rows += zip(lines, *chunk.frame.get_columns(), chunk.text, strict=True)
                rejects += [(line + before, *rest) for line, *rest in chunk.rejects.rows()]
                lines_read = chunk.lines_read
            before += lines_read
        found.append((rows, rejects))
    return *found, parts


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("seed", range(4))
def test_quoted_files_are_divided_where_a_record_begins(seed, end, tmp_path):
    """Line breaks, quotes and whole lines inside a field; rows of too many fields; blank lines."""
    rng = np.random.default_rng(seed)
    inside = ["x", f'a""b{end}c', f"1,2{end}3,4{end}", f'{end}""', "", "é,"]
    rows = []
    for at in range(2000):
        field = inside[rng.integers(len(inside))]
        rows.append(f'{at},"{field}"' + (",more" if rng.random() < 0.02 else ""))
        rows += [""] if rng.random() < 0.02 else []
    (tmp_path / "log").write_bytes(end.join(["a,b", *rows]).encode())
    sizes = set()
    for longest in (701, 4000, 9999):
        divided, whole, parts = parts_and_whole(tmp_path / "log", longest)
        assert divided == whole
        assert len(whole[0]) > 1900
        assert len(whole[1]) > 10
        sizes.add(len(parts))
    assert len(sizes) == 3
    assert min(sizes) > 2


@pytest.mark.parametrize("every", [1, 100])
def test_behind_a_stray_quote_a_file_stays_whole(every, tmp_path):
    """The reader gives such a quote up after a megabyte; counting quotes cannot know that."""
    plain = [f"{at},{'x' * 90}" for at in range(12_000)]
    broken = [f'{at},"x{at},1\n{at},y"' if at % every == 0 else f'{at},"x"' for at in range(90_000)]
    for stray in ('0,5" screen', "0,5 screen"):
        (tmp_path / "log").write_text("\n".join(["a,b", *broken, stray, *plain, *broken, ""]))
        divided, whole, parts = parts_and_whole(tmp_path / "log", 250_000)
        assert divided == whole
        assert len(whole[0]) >= 190_000
        assert len(parts) > 2
        size = (tmp_path / "log").stat().st_size
        assert (parts[-1].start > size - 600_000) == ('"' not in stray)


def test_records_of_almost_the_greatest_length_are_divided(tmp_path):
    """Each is longer than the pieces whose quotes are counted; another is too long for a record."""
    for length, parted in ((450_000, True), (1_500_000, False)):
        rows = [f'{at},"{f"{at}," * (length // 3)}\n"' for at in (10, 11, 12, 13)]
        (tmp_path / "log").write_text("\n".join(["a,b", *rows, ""]))
        divided, whole, parts = parts_and_whole(tmp_path / "log", 600_000)
        assert divided == whole
        assert (len(parts) > 2) == parted


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize(
    "header",
    [b'a,"b\nB"', b'a,"b"\n', b"a,\xff", b"a,b\0", b"a,b" + b"," * 20_000, b"a\rb", b"a,\xc3"],
)
def test_parts_have_the_names_that_the_file_has(header, quoted, tmp_path):
    """A name with a line break, and first lines without which nothing in the file has a name."""
    (tmp_path / "log").write_bytes(header + b"\n" + b"1,x\n" * 20_000)
    (whole,) = expand(tmp_path, ("log",))
    form = CsvFormat(quoted=quoted)
    parts = ranges.divide_shards([whole], form, ["a", "b"], 30_000)
    found = [
        {
            (chunk.columns, str(chunk.damage))
            for shard in shards
            for chunk in read(shard, form, ["a"])
        }
        for shards in (parts, [whole])
    ]
    assert found[0] == found[1]
    readable = all(damage == "None" for _, damage in found[0])
    assert (len(parts) > 2) == readable


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("length", [0, 2, 4, 20, 4000])
def test_a_file_that_shrinks_is_read_as_it_is(length, quoted, tmp_path):
    text = "a,b\n" + "1,x\n" * 2000
    (tmp_path / "log").write_text(text)
    form = CsvFormat(quoted=quoted)
    (whole,) = expand(tmp_path, ("log",))
    parts = ranges.divide_shards([whole], form, ["a"], 3000)
    (tmp_path / "log").write_text(text[:length])
    for shards in (parts, ranges.divide_shards([whole], form, ["a"], 3000)):
        found = [chunk.line for shard in shards for chunk in read(shard, form, ["a"])]
        assert sum(map(len, found)) == max(length // 4 - 1, 0)


@pytest.mark.parametrize("quoted", [False, True])
def test_a_byte_order_mark_is_one_at_a_files_beginning_alone(quoted, tmp_path):
    """Files of which each began with one may be put together."""
    (tmp_path / "log").write_bytes(b"\xef\xbb\xbfa,b\n" * 100)
    for longest in (95, 97, 104):
        divided, whole, parts = parts_and_whole(tmp_path / "log", longest, CsvFormat(quoted=quoted))
        assert divided == whole
        assert len(parts) > 2


@pytest.mark.parametrize("header", [None, ("a", "b")])
def test_a_file_that_vanishes_is_damaged(header, tmp_path):
    (tmp_path / "log").write_text("a,b\n" + '1,"x"\n' * 1000)
    form = CsvFormat(header=header)
    (whole,) = expand(tmp_path, ("log",))
    parts = ranges.divide_shards([whole], form, ["a"], 3000)
    (tmp_path / "log").unlink()
    assert ranges.divide_shards([whole], form, ["a"], 3000) == [whole]
    for shard in (*parts, whole):
        (chunk,) = read(shard, form, ["a"])
        assert "nothing of it was read" in str(chunk.damage)


def test_row_groups_hold_every_row_once(tmp_path):
    frame = pl.DataFrame({"a": range(1000)})
    frame.write_parquet(tmp_path / "log", row_group_size=100)
    (whole,) = expand(tmp_path, ("log",))
    form = ParquetFormat(type="parquet")
    parts = ranges.divide_shards([whole], form, ["a"], whole.size // 4)
    assert len(parts) > 2
    chunks = [chunk for shard in parts for chunk in read(shard, form, ["a"])]
    assert pl.concat([chunk.frame for chunk in chunks])["a"].to_list() == list(range(1000))
    assert pl.concat([chunk.line for chunk in chunks]).to_list() == list(range(1, 1001))


def test_columns_that_nobody_reads_divide_no_file(tmp_path):
    frame = pl.DataFrame({"a": range(1000), "b": pl.int_range(1000, eager=True).hash()})
    frame.write_parquet(tmp_path / "log", row_group_size=100, use_pyarrow=True)
    (whole,) = expand(tmp_path, ("log",))
    form = ParquetFormat(type="parquet")
    narrow = ranges.divide_shards([whole], form, ["a"], whole.size // 4)
    assert len(narrow) < len(ranges.divide_shards([whole], form, ["a", "b"], whole.size // 4))
    assert sum(shard.size for shard in narrow) < whole.size / 2
    # Its bytes may be anything.
    data = bytearray((tmp_path / "log").read_bytes())
    for group in range(10):
        column = pq.ParquetFile(tmp_path / "log").metadata.row_group(group).column(1)
        start = column.dictionary_page_offset or column.data_page_offset
        data[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    (tmp_path / "log").write_bytes(data)
    (chunk,) = read(whole, form, ["a"])
    assert chunk.frame["a"].to_list() == list(range(1000))


def test_what_cannot_be_divided_stays_whole(tmp_path):
    (tmp_path / "log").write_text('a\n"x\ny"\n')
    (shard,) = expand(tmp_path, ("log",))
    assert ranges.divide_shards([shard], CsvFormat(escape="\\"), ["a"], 2) == [shard]
    assert ranges.divide_shards([shard], CsvFormat(), ["a"], 4) == [shard]  # inside the field
    packed = replace(shard, compressed=True)
    assert ranges.divide_shards([packed], CsvFormat(quoted=False), ["a"], 2) == [packed]


@pytest.mark.slow
def test_ranges_change_nothing_but_who_reads(counting, tmp_path, monkeypatch, read_examples):
    write_log(tmp_path / "log")
    with (tmp_path / "log" / "log.csv").open("a") as file:
        file.write("never,VIEW,i1,u1,s,,phone\n1700000000,VIEW,i1,,s,,phone\n")
    config = counting(**{"pipeline.log.format": {"type": "csv", "quoted": False}})
    whole = job.run(config, tmp_path / "log", tmp_path / "whole")
    monkeypatch.setattr(ranges, "LONGEST", 2000)
    divided = job.run(config, tmp_path / "log", tmp_path / "divided")
    assert divided == whole
    rejects = [
        pl.concat([pl.read_parquet(p) for p in sorted((tmp_path / name / "rejects").iterdir())])
        for name in ("whole", "divided")
    ]
    assert rejects[0]["line"].to_list() == [605, 606]
    assert rejects[1].equals(rejects[0])
    assert read_examples(tmp_path / "divided").equals(read_examples(tmp_path / "whole"))


def test_buckets_follow_the_size_of_the_log(event_config):
    config = event_config(**{"pipeline.buckets": None, "pipeline.bucket_mib": 64})
    log = Shard(Path("log.csv"), None, "log.csv", size=1 << 20)
    assert count_buckets(config, [log]) == 2
    # From 16 MiB for each on, there are buckets for several workers.
    assert count_buckets(config, [replace(log, size=64 << 20)]) == 4
    assert count_buckets(config, [replace(log, size=200 << 20)]) == 8
    # 2 GiB in halves of 64 MiB are 64; packed, they may be five times as many, in powers of two.
    assert count_buckets(config, [replace(log, size=2 << 30)]) == 64
    assert count_buckets(config, [replace(log, size=2 << 30, compressed=True)]) == 512
    assert count_buckets(config, [replace(log, size=1 << 50)]) == 4096
    assert not compress_rows([replace(log, size=512 << 20)])
    assert compress_rows([replace(log, size=512 << 20)] * 2)
    assert compress_rows([replace(log, size=512 << 20, compressed=True)])
    assert count_buckets(event_config(), [replace(log, size=2 << 30)]) == 3


def test_rows_are_held_until_a_file_is_worth_it(tmp_path, monkeypatch):
    rows = pl.DataFrame({"user": [f"user-{at}" for at in range(30)]})
    monkeypatch.setattr(buckets, "_HELD", 2.5 * rows.estimated_size())
    held = SpreadBuffer(LocalFiles(tmp_path), 2, "events", 0)
    found = [held.add(rows) for _ in range(5)]
    found.append(held.flush())
    assert [len(keyed) > 0 for keyed in found] == [False, False, True, False, False, True]
    together = [gather_users(bucket, found) for bucket in (0, 1)]
    assert sorted(together[0] + together[1]) == sorted(rows["user"].to_list() * 5)


def gather_users(bucket, found):
    parcels = [parcel for keyed in found for number, parcel in keyed if number == bucket]
    return [user for parcel in parcels for user in parcel.read()["user"]]


def test_a_large_log_has_no_more_parts_than_a_small_one():
    """Each part sends a parcel to each bucket, and a large log has many buckets."""
    files = [Shard(Path("log"), None, "log", 1 << 30) for _ in range(100)]
    longest = ranges.longest_part(files)
    assert sum(-(-file.size // longest) for file in files) <= 200
    assert ranges.longest_part(files[:1]) == ranges.LONGEST
