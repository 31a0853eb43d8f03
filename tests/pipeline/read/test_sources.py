"""Files of every format and compression, whole and damaged."""

import bz2
import gzip
import json
import lzma
import uuid
import zipfile

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from multigate.configs import DataError
from multigate.configs.sections.log import CsvFormat, JsonLinesFormat, OrcFormat, ParquetFormat
from multigate.pipeline import job
from multigate.pipeline.read.json_lines import as_text
from multigate.pipeline.read.lines import read_lines
from multigate.pipeline.read.ranges import divide_shards
from multigate.pipeline.read.sources import expand, read

ROWS = [("1", "ann", "x y"), ("2", "bob", None), ("3", "ö", 'say "hi", all')]
CSV = 'time,user,note\n1,ann,x y\n2,bob,\n3,ö,"say ""hi"", all"\n'
JSONL = "".join(
    json.dumps({"time": int(t), "user": u, "note": n, "other": [1]}) + "\n" for t, u, n in ROWS
)
WANTED = ["note", "time", "user"]


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": zstd,
}


def chunks(folder, name, form, wanted=WANTED):
    return [chunk for shard in expand(folder, (name,)) for chunk in read(shard, form, wanted)]


def rows(found):
    return [
        tuple(None if value is None else str(value) for value in row)
        for chunk in found
        if len(chunk.line)
        for row in chunk.frame.select("time", "user", "note").rows()
    ]


def rejected(found):
    return [
        (line, reason) for c in found for line, reason in c.rejects.select("line", "reason").rows()
    ]


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize(
    ("text", "form"), [(CSV, CsvFormat()), (JSONL, JsonLinesFormat(type="jsonl"))]
)
def test_text_formats_plain_and_compressed(text, form, suffix, tmp_path):
    (tmp_path / f"log{suffix}").write_bytes(PACK[suffix](text.encode()))
    found = chunks(tmp_path, "log*", form)
    assert rows(found) == ROWS
    assert rejected(found) == []
    first = 2 if isinstance(form, CsvFormat) else 1
    assert found[0].line.to_list() == [first, first + 1, first + 2]


def test_parquet(tmp_path):
    table = pa.table(
        {"time": [1, 2, 3], "user": [r[1] for r in ROWS], "note": [r[2] for r in ROWS]}
    )
    pq.write_table(table, tmp_path / "log.parquet")
    found = chunks(tmp_path, "*.parquet", ParquetFormat(type="parquet"))
    assert rows(found) == ROWS
    assert found[0].line.to_list() == [1, 2, 3]


ODD = {
    "decimals too long": pa.array([1, 2, None], pa.decimal256(50, 2)),
    "short decimals": pa.array([1, 2, None], pa.decimal32(5, 2)),
    "maps": pa.array([[("a", 1)], [("b", 1)], None], pa.map_(pa.string(), pa.int64())),
    "extensions": pa.array(["1", "2", None], pa.json_()),
    "lists of them": pa.array([[1], [2], None], pa.list_(pa.decimal32(5, 2))),
    "lists of text": pa.array([["a", "b"], ["a|b"], []]),
    "no list and an empty one": pa.array([[1], [], None], pa.list_(pa.int64())),
    "times of day": pa.array([1, 2, None], pa.time64("us")),
    "a zone of hours": pa.array([1, 2, None], pa.timestamp("us", "+05:30")),
    "for ever": pa.array([2**63 - 1, 2 - 2**63, None], pa.timestamp("us")),
    "for ever, in days": pa.array([2**31 - 1, -(2**31), None], pa.int32()).cast(pa.date32()),
}


@pytest.mark.parametrize("name", ODD)
def test_parquet_columns_that_polars_does_not_know_or_print(name, tmp_path):
    table = pa.table({"time": [1, 1, 1], "user": ["a"] * 3, "odd": ODD[name]})
    pq.write_table(table, tmp_path / "log.parquet")
    (chunk,) = chunks(tmp_path, "*.parquet", ParquetFormat(type="parquet"))
    assert chunk.frame.rows() == [(1, "a")] * 3
    (read_,) = chunks(tmp_path, "*.parquet", ParquetFormat(type="parquet"), ["time", "odd"])
    assert len(read_.text) + len(read_.rejects) in (1, 3)  # as rows, or the file's one reject


def test_parquet_of_two_columns_of_one_name(tmp_path):
    table = pa.table([[1], ["a"], ["b"]], names=["time", "user", "user"])
    pq.write_table(table, tmp_path / "log.parquet")
    found = chunks(tmp_path, "*.parquet", ParquetFormat(type="parquet"))
    assert rejected(found) == [(1, "malformed file: two columns 'user'")]


def test_several_characters_between_fields(tmp_path):
    form = CsvFormat(delimiter="::", header=("time", "user", "note"), quoted=False)
    text = '1::ann::x y\r\n2::bob::\r\n3::cy\r\n\r\n4::d:e::"q"::5\n5::e::"q"'
    (tmp_path / "log.dat").write_text(text, newline="")
    found = chunks(tmp_path, "log.dat", form)
    assert rows(found) == [("1", "ann", "x y"), ("2", "bob", None), ("5", "e", '"q"')]
    assert found[0].line.to_list() == [1, 2, 6]
    assert rejected(found) == [
        (3, "malformed line: expected 3 fields, received fewer"),
        (5, "malformed line: expected 3 fields, received more"),
    ]


def test_latin_1_and_a_byte_order_mark(tmp_path):
    (tmp_path / "a.csv").write_bytes("time,user,note\n1,ö,é\n".encode("latin-1"))
    assert rows(chunks(tmp_path, "a.csv", CsvFormat(encoding="latin-1"))) == [("1", "ö", "é")]
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbftime,user,note\n1,a,b\n")
    assert rows(chunks(tmp_path, "b.csv", CsvFormat())) == [("1", "a", "b")]


def test_zip_members(tmp_path):
    with zipfile.ZipFile(tmp_path / "log.zip", "w") as archive:
        archive.writestr("day/b.csv", "time,user,note\n2,b,\n")
        archive.writestr("day/a.csv.gz", gzip.compress(b"time,user,note\n1,a,\n"))
        archive.writestr("__MACOSX/day/b.csv", "shadow")
    assert rows(chunks(tmp_path, "log.zip", CsvFormat())) == [("1", "a", None), ("2", "b", None)]
    assert rows(chunks(tmp_path, "*.zip#day/b.csv", CsvFormat())) == [("2", "b", None)]
    with pytest.raises(DataError, match=r"log\.zip: no member 'c'; the zip holds day/a\.csv\.gz, "):
        expand(tmp_path, ("log.zip#c",))
    (tmp_path / "broken.zip").write_bytes((tmp_path / "log.zip").read_bytes()[:60])
    ((line, reason),) = rejected(chunks(tmp_path, "broken.zip", CsvFormat()))
    assert (line, reason[:13]) == (1, "damaged zip: ")


def test_globs_in_folders_name_each_file_once(tmp_path):
    for day in ("date=2026-01-01", "date=2026-01-02"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "part.csv").write_text(CSV)
    found = expand(tmp_path, ("date=*/part.csv", "**/*.csv"))
    assert [shard.name for shard in found] == [
        "date=2026-01-01/part.csv",
        "date=2026-01-02/part.csv",
    ]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_of_a_truncated_file_the_readable_part_is_read(suffix, tmp_path):
    # Numbers that hardly compress, in many blocks.
    numbers = pl.int_range(60_000, eager=True).hash(seed=1)
    lines = [f"{n},u,x\n" for n in numbers.to_list()]
    packed = PACK[suffix](("time,user,note\n" + "".join(lines)).encode())
    (tmp_path / f"log{suffix}").write_bytes(packed[: len(packed) * 2 // 3])
    found = chunks(tmp_path, "log*", CsvFormat())
    kept = sum(len(chunk.frame) for chunk in found)
    # What the last block held is lost: up to 900 kB under bzip2.
    assert kept > 30_000
    assert rows(found) == [(str(n), "u", "x") for n in numbers[:kept].to_list()]
    ((line, reason),) = rejected(found)
    assert reason.startswith("damaged file, the rest of it was not read: ")
    assert line == kept + 2


def test_a_file_that_is_not_what_its_name_says(tmp_path):
    (tmp_path / "log.gz").write_text(CSV)
    ((line, reason),) = rejected(chunks(tmp_path, "log.gz", CsvFormat()))
    assert (line, reason[:50]) == (1, "damaged file, nothing of it was read: its name say")
    (tmp_path / "log.parquet").write_text(CSV)
    found = chunks(tmp_path, "log.parquet", ParquetFormat(type="parquet"))
    assert rejected(found)[0][1].startswith("damaged file, nothing of it was read: ")


def test_lines_that_are_no_text(tmp_path):
    (tmp_path / "log.csv").write_bytes(b"time,user,note\n1,a,b\n2,\xff,b\n3,c,d\n")
    found = chunks(tmp_path, "log.csv", CsvFormat())
    assert rows(found) == [("1", "a", "b"), ("3", "c", "d")]
    assert rejected(found) == [(3, "not UTF-8 text")]
    assert found[0].line.to_list() == [2, 4]
    (tmp_path / "bin.csv").write_bytes(bytes(range(256)) * 100)
    zero = [(1, "not text: the first line holds zero bytes")]
    assert rejected(chunks(tmp_path, "bin.csv", CsvFormat())) == zero
    (tmp_path / "bin.csv").write_bytes(b"\xff\xfe\n1,a,b\n")
    assert rejected(chunks(tmp_path, "bin.csv", CsvFormat())) == [(1, "not UTF-8 text")]


def test_quotes_and_line_breaks(tmp_path):
    (tmp_path / "log.csv").write_text(
        "time,user,note\n"
        '1,a,"two\nlines"\n'  # lines 2 and 3: one record
        "2,b,x\n"  # line 4
        '3,c,5" disk\n'  # a quote inside a field is itself; line 5
        "4,d,x\n"
        '5,e,6" disk\n'
        '6,"f,x\n'  # opened, never closed: line 8
        "7,g,x,\n"  # line 9
        "8,h,x\n"
    )
    found = chunks(tmp_path, "log.csv", CsvFormat())
    assert rows(found) == [
        ("1", "a", "two\nlines"),
        ("2", "b", "x"),
        ("3", "c", '5" disk'),
        ("4", "d", "x"),
        ("5", "e", '6" disk'),
        ("8", "h", "x"),
    ]
    assert found[0].line.to_list() == [2, 4, 5, 6, 7, 10]
    assert rejected(found) == [
        (8, "malformed line: a quote that nothing closes"),
        (9, "malformed line: expected 3 fields, received 4"),
    ]


BESIDE_QUOTES = {
    '"a"b': "ab",  # text behind a closing quote
    '""b': "b",
    '"a"b"': 'ab"',
    'a"b': 'a"b',
    f'"{"w" * 200_000}"': "w" * 200_000,
    '"a\rb"': "a\rb",
    "a\rb": None,
    '"b': None,
    'b","c': None,
}


@pytest.mark.parametrize("user", BESIDE_QUOTES, ids=range(len(BESIDE_QUOTES)))
def test_what_a_record_holds_is_the_same_beside_any_other(user, tmp_path):
    """One parser takes records of one line, another a block with line breaks in its fields."""
    for others in (["2,b,x"], ['2,b,"two\nlines"'], ["2,b\rb,x"]):
        for lines in ([*others, f"1,{user},x"], [f"1,{user},x", *others]):
            (tmp_path / "log.csv").write_bytes("\n".join(["time,user,note", *lines]).encode())
            found = rows(chunks(tmp_path, "log.csv", CsvFormat()))
            kept = [] if BESIDE_QUOTES[user] is None else [("1", BESIDE_QUOTES[user], "x")]
            assert [row for row in found if row[0] == "1"] == kept


def test_lines_are_counted_where_the_last_one_has_no_break(tmp_path):
    (tmp_path / "log.csv").write_text('time,note\n1,"two\nlines"\n2,x')
    assert [line for c in chunks(tmp_path, "log.csv", CsvFormat()) for line in c.line] == [2, 4]


def test_an_open_quote_does_not_swallow_a_large_file(tmp_path):
    lines = ["1,a,x"] * 200_000
    lines[10] = '1,"a,x'
    (tmp_path / "log.csv").write_text("time,user,note\n" + "\n".join(lines) + "\n")
    found = chunks(tmp_path, "log.csv", CsvFormat())
    assert sum(len(chunk.frame) for chunk in found) == 199_999
    assert rejected(found) == [(12, "malformed line: a quote that nothing closes")]


def test_json_of_mixed_and_broken_lines(tmp_path):
    lines = ['{"time": 1, "user": "a", "note": "x"}'] * 200
    lines[50] = '{"time": 1, "user": "a"'
    lines[51] = "[1, 2]"
    lines[52] = '{"time": 1, "user": {"id": 3}}'
    lines[53] = '{"time": "late", "user": 7, "note": true}'
    lines[54] = "  "
    lines[55] = '{"time": 1}{"time": 2}'
    lines[56] = '{"user": "a"}'
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    found = chunks(tmp_path, "log.jsonl", JsonLinesFormat(type="jsonl"))
    assert rejected(found) == [
        (51, "malformed line: not valid JSON"),
        (52, "malformed line: expected a JSON object"),
        (53, "user: expected a value, received nested JSON; its key 'id' holds a value"),
        (56, "malformed line: not valid JSON"),
    ]
    got = rows(found)
    assert len(got) == 195
    assert got[50] == ("late", "7", "true")
    assert found[0].line[50] == 54
    assert got[51] == (None, "a", None)
    assert set(got) - {got[50], got[51]} == {("1", "a", "x")}


@pytest.mark.parametrize("rest", ["", "no JSON\n"])  # read fast, and slowly
def test_a_json_fraction_changes_no_integer_beside_it(rest, tmp_path):
    lines = '{"time": 1, "user": 12, "note": [3, 2.5]}\n{"time": 2.5, "user": 9007199254740993}\n'
    last = '{"time": 3, "user": 0.5, "note": [1.0]}\n{"time": 4.0, "user": 12.0}\n'
    (tmp_path / "log.jsonl").write_text(lines + rest + last)
    (chunk,) = chunks(tmp_path, "log.jsonl", JsonLinesFormat(type="jsonl"))
    got = chunk.frame.select("time", "user", as_text(chunk.frame["note"])).rows()
    assert got[:2] == [("1", "12", "3|2.5"), ("2.5", "9007199254740993", None)]
    assert got[2:] == [("3", "0.5", "1"), ("4", "12", None)]


def test_json_lists_survive_lines_without_them(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"note": ["a", "b"]}\n{"note": null}\n{"note": "c|d"}\n')
    (chunk,) = chunks(tmp_path, "log.jsonl", JsonLinesFormat(type="jsonl"))
    assert chunk.frame["note"].to_list() == ["a|b", None, "c|d"]
    (tmp_path / "log.jsonl").write_text('{"note": ["a", "b"]}\n{"note": null}\n')
    (chunk,) = chunks(tmp_path, "log.jsonl", JsonLinesFormat(type="jsonl"))
    assert chunk.frame["note"].to_list() == [["a", "b"], None]


@pytest.mark.parametrize("above", ["", "page."])
def test_json_lists_beside_texts_are_texts_with_their_separator(tmp_path, above):
    rows = ['["a", "c|d"]', "null", '"e,f|g"', '"h"', "[]"]
    notes = [f'{{"note": {row}}}' for row in rows]
    lines = [f'{{"page": {note}}}' if above else note for note in notes]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    (shard,) = expand(tmp_path, ("log.jsonl",))
    name = f"{above}note"
    for separators, first in (({name: ","}, "a,c|d"), ({}, "a|c|d")):
        (chunk,) = read(shard, JSON, [name], separators=separators)
        assert chunk.frame[name].to_list() == [first, None, "e,f|g", "h", ""]


def test_a_name_in_an_object_has_its_own_separator(tmp_path):
    lines = [f'{{"note": {one}, "page": {{"note": {one}}}}}' for one in ('["a", "b"]', '"c"')]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    (shard,) = expand(tmp_path, ("log.jsonl",))
    names = ["note", "page.note"]
    for separators, inner in (({"page.note": ";", "note": ","}, "a;b"), ({"note": ","}, "a|b")):
        (chunk,) = read(shard, JSON, names, separators=separators)
        assert chunk.frame.rows() == [("a,b", inner), ("c", "c")]


def test_lists_under_one_name_and_texts_under_an_earlier_one(tmp_path):
    lines = ['{"note": ["a|b", "c"]}', '{"old": "x,y"}', '{"note": "", "old": "z"}']
    rename = {"note": ("old",)}
    for given in (lines[:2], lines):  # all lists, and lists beside a text
        (tmp_path / "log.jsonl").write_text("\n".join(given) + "\n")
        (shard,) = expand(tmp_path, ("log.jsonl",))
        (chunk,) = read(shard, JSON, ["note"], rename=rename, separators={"note": ","})
        assert chunk.frame["note"].to_list() == ["a|b,c", "x,y", "z"][: len(given)]


class Pieces:
    """A stream that gives a few bytes at a time."""

    first = True

    def __init__(self, data, size):
        self.pieces = [data[at : at + size] for at in range(0, len(data), size)]

    def read(self):
        return self.pieces.pop(0) if self.pieces else b""


@pytest.mark.parametrize("block", [7, 40, 1000])
@pytest.mark.parametrize("size", [3, 100])
def test_where_blocks_are_cut_changes_nothing(block, size):
    text = 'a,"b\nc"\r\nd,é\n\n"e ""f""",\n,"g\n\nh"\nlast'
    found = list(read_lines(Pieces(text.encode(), size), "utf-8", quoted=True, block=block))
    records = [record for lines in found for record in lines.text]
    assert records == ['a,"b\nc"', "d,é", '"e ""f""",', ',"g\n\nh"', "last"]
    assert [n for lines in found for n in lines.number] == [1, 3, 5, 6, 9]
    plain = list(read_lines(Pieces(text.encode(), size), "utf-8", block=block))
    assert [n for lines in plain for n in lines.number] == [1, 2, 3, 5, 6, 8, 9]


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_an_endless_line_is_skipped(size):
    text = b"one\n" + b"x" * 100 + b"\ntwo\n" + b"y" * 100
    found = list(read_lines(Pieces(text, size), "utf-8", block=8))
    if size < 1000:  # read whole, it is a line like any other
        assert [(r, n) for f in found for r, n in zip(f.text, f.number, strict=True)] == [
            ("one", 1),
            ("two", 3),
        ]
        assert rejected_lines(found) == [
            (2, "line longer than 16 bytes"),
            (4, "line longer than 16 bytes"),
        ]
    else:
        assert [len(r) for f in found for r in f.text] == [3, 100, 3, 100]


def rejected_lines(found):
    return [row for lines in found for row in lines.rejects.select("line", "reason").rows()]


@pytest.mark.parametrize("value", ['{"id": 3}', '["a", ["b"]]', "[{}]"])
def test_json_among_texts_is_no_text(value, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"user": "a"}\n{"user": ' + value + '}\n{"user": "[x"}\n')
    (chunk,) = chunks(tmp_path, "log.jsonl", JsonLinesFormat(type="jsonl"))
    assert chunk.frame["user"].to_list() == ["a", "[x"]
    hint = "; its key 'id' holds a value" if "id" in value else ""
    assert rejected([chunk]) == [(2, "user: expected a value, received nested JSON" + hint)]


JSON = JsonLinesFormat(type="jsonl")


@pytest.mark.parametrize("rest", ["", "no JSON\n"])
def test_half_a_character_in_json_is_a_reject(rest, tmp_path):
    whole = [r"\ud83d\ude00", r"\\ud83d", r"\\\ud83d\ude00"]
    half = [r"\ud800", r"\ud83dx", r"\udc00", r"\ud83d\ud83d\ude00", r"\\\ud800", r"\ud83d\u0041"]
    lines = "".join(f'{{"time": 1, "user": "x{text}"}}\n' for text in [*whole, *half])
    (tmp_path / "log.jsonl").write_text(rest + lines)
    (chunk,) = chunks(tmp_path, "log.jsonl", JSON)
    assert chunk.frame["user"].to_list() == ["x\U0001f600", r"x\ud83d", "x\\\U0001f600"]
    first = 4 + bool(rest)
    reason = "not UTF-8 text: half of a surrogate pair"
    assert rejected([chunk])[bool(rest) :] == [(first + at, reason) for at in range(len(half))]


@pytest.mark.parametrize("rest", ["", "no JSON\n"])
@pytest.mark.parametrize("value", ['"a"', "[1]", '"[a"', '["[a"]', "1.5", "null"])
def test_of_a_key_written_twice_the_first_value_counts(rest, value, tmp_path):
    (tmp_path / "log.jsonl").write_text(
        f'{rest}{{"note": {value}, "note": ["b"], "time": 1, "time": "never"}}\n'
    )
    (chunk,) = chunks(tmp_path, "log.jsonl", JSON)
    (tmp_path / "once.jsonl").write_text(f'{{"note": {value}, "time": 1}}\n')
    (once,) = chunks(tmp_path, "once.jsonl", JSON)
    assert chunk.frame.equals(once.frame)


def test_texts_that_look_like_lists_are_told_from_lists(tmp_path):
    values = ["[x", '["a"]', ["a"], ["[b", "c"], None, [], "{}", "plain"]
    lines = [json.dumps({"time": at, "note": value}) for at, value in enumerate(values)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    (chunk,) = chunks(tmp_path, "log.jsonl", JSON)
    assert chunk.frame["note"].to_list() == ["[x", '["a"]', "a", "[b|c", None, "", "{}", "plain"]
    (tmp_path / "log.jsonl").write_text("\n".join(lines[2:6]))
    (chunk,) = chunks(tmp_path, "log.jsonl", JSON)
    assert chunk.frame["note"].to_list() == [["a"], ["[b", "c"], None, []]


def test_one_odd_line_changes_how_no_other_is_read(tmp_path):
    """As texts, a large float and a list of numbers are the same beside any neighbours."""
    lines = ['{"time": 1e22, "user": 1e-7, "note": [1.0, 2.5, true, null]}']
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    (alone,) = chunks(tmp_path, "log.jsonl", JSON)
    (tmp_path / "log.jsonl").write_text(
        "\n".join([*lines, '{"user": "x", "note": "y"}', "no JSON"])
    )
    (among,) = chunks(tmp_path, "log.jsonl", JSON)
    assert alone.frame.select(pl.all().map_batches(as_text)).row(0) == among.frame.row(0)
    assert among.frame["note"][0] == "1|2.5|true|"


def test_texts_that_begin_like_a_list_take_the_fast_way(tmp_path, monkeypatch):
    """One text in a hundred begins with a bracket: those lines alone are parsed twice."""
    lines = [json.dumps({"time": at, "note": "[x" if at % 100 == 0 else "x"}) for at in range(5000)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    parsed = []
    loads = json.loads
    monkeypatch.setattr(
        json, "loads", lambda text, **rest: parsed.append(text) or loads(text, **rest)
    )
    (chunk,) = chunks(tmp_path, "log.jsonl", JSON)
    assert len(chunk.frame) == 5000
    assert len(parsed) == 50 + 1  # and the first line, for its names


ESCAPED = (
    "time,user,note\n"
    '1,a,"5\\" disk, ""new"""\n'  # line 2
    "2,b\\,c,\\N\n"
    "3,\\\\N,x\\Ny\n"
    "4,d,two\\\nlines\n"  # lines 5 and 6
    '5,e,"\\\\"\n'
    "6,NULL,\n"
    "7,f\n"  # line 9
)


@pytest.mark.parametrize("block", [7, 20, 1 << 20])
def test_escapes(block, tmp_path, monkeypatch):
    monkeypatch.setattr(read_lines, "__defaults__", (False, None, block))
    (tmp_path / "log.csv").write_text(ESCAPED)
    form = CsvFormat(escape="\\", null_values=("NULL", "\\N"))
    found = chunks(tmp_path, "log.csv", form)
    assert rows(found) == [
        ("1", "a", '5" disk, "new"'),
        ("2", "b,c", None),
        ("3", "\\N", "xNy"),
        ("4", "d", "two\nlines"),
        ("5", "e", "\\"),
        ("6", None, None),
    ]
    assert [line for chunk in found for line in chunk.line] == [2, 3, 4, 5, 7, 8]
    assert rejected(found) == [(9, "malformed line: expected 3 fields, received 2")]


def test_escapes_without_quotes(tmp_path):
    (tmp_path / "log.tsv").write_text('time\tuser\tnote\n1\ta\\\tb\t"x\n2\tc\t\\N\n3\td\n')
    form = CsvFormat(delimiter="\t", escape="\\", quoted=False, null_values=("\\N",))
    found = chunks(tmp_path, "log.tsv", form)
    assert rows(found) == [("1", "a\tb", '"x'), ("2", "c", None)]
    assert rejected(found) == [(4, "malformed line: expected 3 fields, received 2")]


@pytest.mark.parametrize(("escape", "delimiter"), [(",", ","), ('"', ","), ("\\", "::")])
def test_an_escape_is_a_character_of_its_own(escape, delimiter):
    with pytest.raises(ValueError, match="escape: expected a character other than the quote and"):
        CsvFormat(escape=escape, delimiter=delimiter, quoted=False)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("quoted", [True, False])
def test_null_values(form, quoted, tmp_path):
    frame = pl.DataFrame(
        {"time": ["1", "NULL", "3"], "user": ["\\N", "a", "null"], "note": ["x", None, "x NULL"]}
    )
    write = {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}
    write[form](tmp_path / "log")
    formats = {
        "csv": CsvFormat(null_values=("NULL", "\\N"), quoted=quoted),
        "jsonl": JsonLinesFormat(type="jsonl", null_values=("NULL", "\\N")),
        "parquet": ParquetFormat(type="parquet", null_values=("NULL", "\\N")),
    }
    expected = [("1", None, "x"), (None, "a", None), ("3", "null", "x NULL")]
    assert rows(chunks(tmp_path, "log", formats[form])) == expected


def test_uuids_of_parquet_are_text(tmp_path):
    ids = [uuid.UUID(int=0xABC), None, uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")]
    raw = pa.array([None if i is None else i.bytes for i in ids], pa.uuid())
    pq.write_table(pa.table({"time": [1, 2, 3], "user": raw}), tmp_path / "log.parquet")
    (chunk,) = chunks(tmp_path, "*.parquet", ParquetFormat(type="parquet"))
    assert chunk.frame["user"].to_list() == [i and str(i) for i in ids]


@pytest.mark.parametrize("blank", ["\n", " \r\n\n", "\ufeff\n"])
def test_blank_lines_before_the_header_of_a_large_file(blank, tmp_path):
    form = CsvFormat(quoted=False)
    lines = [f"{at},u{at},x" for at in range(100)]
    text = blank + "\n".join(["time,user,note", *lines])
    (tmp_path / "log.csv").write_bytes(text.encode())
    (whole,) = expand(tmp_path, ("log.csv",))
    parts = divide_shards([whole], form, WANTED, 300)
    assert len(parts) > 2
    found = [chunk for shard in parts for chunk in read(shard, form, WANTED)]
    assert rows(found) == [(str(at), f"u{at}", "x") for at in range(100)]


def test_values_in_objects_are_read_by_their_path(tmp_path):
    """Of objects, objects in them, and texts of objects; a key with the dot comes first."""
    rows = [
        {"user": {"id": 'a\n"b" é', "n": 12345678901234567890, "tags": ["x", "y"]}, "k": 1},
        {"user": {"id": 7, "at": {"home": {"town": "Linz"}}}, "k": 2},
        {"user": None, "k": 3},
        {"user": "none", "k": 4},
        {"user": '{"id": "told"}', "k": 5},
        {"user": {"id": {"no": 1}}, "k": 6},
        {"k": 7},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = ["user.id", "user.n", "user.tags", "user.at.home.town", "k"]
    (shard,) = expand(tmp_path, ("log.jsonl",))
    (chunk,) = read(shard, JSON, names, single={"user.id"})
    assert chunk.frame.select(names).rows() == [
        ('a\n"b" é', "12345678901234567890", ["x", "y"], None, "1"),
        ("7", None, None, "Linz", "2"),
        (None, None, None, None, "3"),
        (None, None, None, None, "4"),
        ("told", None, None, None, "5"),
        (None, None, None, None, "7"),
    ]
    assert rejected([chunk]) == [
        (6, "user.id: expected a value, received nested JSON; its key 'no' holds a value")
    ]
    assert {"user.id", "user.n", "user.tags", "k"} <= set(chunk.columns)
    (tmp_path / "flat.jsonl").write_text('{"user.id": "own", "user": {"id": "inner"}}\n')
    (shard,) = expand(tmp_path, ("flat.jsonl",))
    (flat,) = read(shard, JSON, ["user.id"])
    assert flat.frame["user.id"].to_list() == ["own"]


def test_keys_of_lists_of_objects_are_lists(tmp_path):
    """A null, an empty list and a text beside them have no values; numbers keep their digits."""
    lines = [
        '{"a": {"tags": [{"name": "x", "id": 12345678901234567890}, {"name": "y"}]}}',
        '{"a": {"tags": []}}',
        '{"a": {"tags": null}}',
        '{"a": {"tags": "[{oops"}}',
        '{"a": {"tags": [{"name": "z", "id": 0.25}, null]}}',
        '{"a": null}',
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    names = ["a.tags.name", "a.tags.id"]
    (shard,) = expand(tmp_path, ("log.jsonl",))
    (chunk,) = read(shard, JSON, names)
    assert len(chunk.rejects) == 0
    assert chunk.frame["a.tags.name"].to_list() == [["x", "y"], None, None, None, ["z", None], None]
    ids = [["12345678901234567890", None], None, None, None, ["0.25", None], None]
    assert chunk.frame["a.tags.id"].to_list() == ids
    # Beside an object of the same name, values stand in one column of texts.
    (tmp_path / "log.jsonl").write_text("\n".join([lines[0], '{"a": {"tags": {"name": "w"}}}']))
    (chunk,) = read(shard, JSON, names[:1])
    assert chunk.frame["a.tags.name"].to_list() == ["x|y", "w"]


def test_a_list_of_objects_where_one_value_is_expected_is_a_reject(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"u": [{"id": 1}]}\n{"u": {"id": 2}}\n')
    (shard,) = expand(tmp_path, ("log.jsonl",))
    (chunk,) = read(shard, JSON, ["u.id"], single=["u.id"])
    assert chunk.frame["u.id"].to_list() == ["2"]
    assert chunk.rejects["reason"].to_list() == ["u.id: expected one value, received a list"]
    (chunk,) = read(shard, JSON, ["u"])
    assert "received nested JSON; its key 'id' holds a value" in chunk.rejects["reason"][0]


@pytest.mark.parametrize("suffix", ["parquet", "orc"])
def test_fields_of_structs_are_read_by_their_path(suffix, tmp_path):
    """Of structs, structs in them, and lists of structs; a column with the dot comes first."""
    of = [("id", pa.int64()), ("at", pa.struct([("town", pa.string())]))]
    users = [{"id": 7, "at": {"town": "Linz"}}, None, {"id": 9, "at": None}]
    tags = [[{"name": "a", "n": 1}, {"name": None, "n": 2}], [], None]
    table = pa.table(
        {
            "time": [1, 2, 3],
            "user": pa.array(users, pa.struct(of)),
            "tags": pa.array(tags, pa.list_(pa.struct([("name", pa.string()), ("n", pa.int8())]))),
        }
        # Columns of ORC cannot have a dot in their names.
        | ({"dotted.id": ["x", "y", "z"]} if suffix == "parquet" else {})
        | {"dotted": pa.array([{"id": "no"}] * 3)}
    )
    path = tmp_path / f"log.{suffix}"
    orc.write_table(table, path) if suffix == "orc" else pq.write_table(table, path)
    form = OrcFormat if suffix == "orc" else ParquetFormat
    wanted = ["tags.name", "user.at.town", "time", "user.id", "dotted.id", "user.lost"]

    (chunk,) = chunks(tmp_path, f"*.{suffix}", form(type=suffix), wanted)

    assert chunk.frame.to_dict(as_series=False) == {
        "tags.name": [["a", None], [], None],
        "user.at.town": ["Linz", None, None],
        "time": [1, 2, 3],
        "user.id": [7, None, 9],
        "dotted.id": ["x", "y", "z"] if suffix == "parquet" else ["no"] * 3,
    }
    assert {"user.id", "user.at.town", "tags.name", "tags.n"} <= set(chunk.columns)
    assert chunk.types["user.at.town"] == "string"


@pytest.mark.parametrize("side_table", [False, True])
def test_a_list_reads_the_same_beside_one_that_is_a_text(
    tmp_path, impression_config, read_examples, side_table
):
    """From the file to the examples, of the log and of a side table."""
    tags = [["a|b", "c"], ["d"], ["e", "f|g"], ["c", "d"]]
    feature = {"kind": "id_list", "side": "item", "separator": ","}
    changes = {"contract.features.tags": feature, "pipeline.log.files": ["log.jsonl"]}
    changes["pipeline.log.format"] = {"type": "jsonl"}
    if side_table:
        items = {"files": ["items.jsonl"], "format": {"type": "jsonl"}, "key": "item_id"}
        changes |= {
            "contract.features.tags": feature | {"source": "items"},
            "pipeline.items": items,
        }
    config = impression_config(**changes)
    found = []
    for name, written in (("lists", tags), ("mixed", [*tags[:3], "c,d"])):
        logs = tmp_path / name / "logs"
        logs.mkdir(parents=True)
        rows = [
            {"time": n, "user_id": n % 5, "item_id": n % 4, "request": str(n), "place": 0}
            | {"click": n % 3 % 2, "stars": 3, "price": 1, "tags": written[n % 4]}
            for n in range(40)
        ]
        table = [{"item_id": n, "tags": given} for n, given in enumerate(written)]
        for file, lines in (("log.jsonl", rows), ("items.jsonl", table)):
            (logs / file).write_text("".join(json.dumps(one) + "\n" for one in lines))
        job.run(config, logs, tmp_path / name / "examples")
        found.append(read_examples(tmp_path / name / "examples").sort("meta/time"))
    assert found[0].select("item_id", "tags").rows() == [(n % 4, tags[n % 4]) for n in range(40)]
    assert found[1].equals(found[0])
