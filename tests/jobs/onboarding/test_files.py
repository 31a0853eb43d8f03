"""Which files of a folder `multigate init` takes for one table, and how the draft names them."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.tables.raw import find_tables
from multigate.pipeline.read.sources import expand
from multigate.verbs.command import main

START = 1_767_225_600  # 2026-01-01
KINDS = random.Random(1).choices("ABC", k=150)


def events() -> list[dict[str, Any]]:
    """What 200 users saw and played, of items whose kind the log does not tell."""
    draw, rows, at = random.Random(5), [], START
    tastes = [draw.choice("ABC") for _ in range(200)]
    for _ in range(1200):
        at += draw.randrange(100, 900)
        user, now = draw.randrange(200), at
        for item in draw.sample(range(150), 5):
            now += draw.randint(2, 9)
            seen = {"what": "card", "at": now, "who": f"u{user}", "on": {"id": f"s{item}"}}
            rows.append(seen)
            if draw.random() < (0.5 if KINDS[item] == tastes[user] else 0.1):
                now += draw.randint(2, 9)
                rows.append(seen | {"what": "play", "at": now})
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def names_of(globs: tuple[str, ...], folder: Path) -> set[str]:
    return {shard.name for shard in expand(folder, globs)}


@pytest.mark.parametrize("table", ["items.jsonl", "static/items.jsonl.gz"])
def test_compressed_and_plain_files_are_one_log_and_a_table_beside_them_is_none(table, tmp_path):
    """Last month's files are compressed, this month's are not yet."""
    rows = events()
    logs = {f"2026/01/app-{n}.jsonl.gz" for n in range(4)} | {
        f"2026/02/app-{n}.jsonl" for n in "45"
    }
    for at, name in enumerate(sorted(logs)):
        write(tmp_path / name, rows[at * 1500 : (at + 1) * 1500] if at < 5 else rows[7500:])
    write(tmp_path / table, [{"id": f"s{at}", "kind": kind} for at, kind in enumerate(KINDS)])
    made = draft(tmp_path, "my")
    pipeline = made.values["pipeline"]
    assert names_of(pipeline["log"]["files"], tmp_path) == logs
    assert any("*" in name for name in pipeline["log"]["files"])  # tomorrow's files count, too
    assert pipeline["items"] == {"files": [table], "format": {"type": "jsonl"}, "key": "id"}
    assert made.values["contract"]["features"]["kind"]["source"] == "items"
    found = check(made.config(), tmp_path)
    assert found.facts["rows"]["log"] == len(rows)


@pytest.mark.parametrize(
    ("log", "others", "globs"),
    [
        ([f"a-{n}.csv" for n in range(6)], [], ["*.csv"]),
        ([f"a-{n}.csv" for n in range(6)], ["b.csv"], ["a-*.csv"]),
        ([f"{n}.csv" for n in range(6)], ["b.csv"], [f"{n}.csv" for n in range(6)]),
        ([f"log/{n}.csv" for n in range(6)], ["b.csv"], ["log/**/*.csv"]),
        ([f"log/{n}.csv.gz" for n in range(6)], ["b.csv"], ["**/*.gz"]),
        ([f"log/{n}.csv.gz" for n in range(6)], ["b.tsv.gz"], ["**/*.csv.gz"]),
        ([f"log/{n}.csv" for n in range(3)], ["b.csv"], [f"log/{n}.csv" for n in range(3)]),
    ],
)
def test_globs_match_a_tables_files_and_no_others(log, others, globs, tmp_path):
    for name, head in [*((name, "x,y") for name in log), *((name, "a,b,c") for name in others)]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        cells = "1,2,3" if head.count(",") == 2 else "1,2"
        text = "\n".join([head, *[cells] * 50]).encode()
        if ".tsv" in name:
            text = text.replace(b",", b"\t")
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    table, *_ = find_tables(tmp_path, 1000)
    assert list(table.files) == globs


def test_event_types_of_a_file_each_are_one_log(tmp_path):
    rows = events()
    for kind in ("card", "play"):
        more = {"speed": 1.0} if kind == "play" else {"place": 3, "shelf": "top"}
        write(tmp_path / f"{kind}.jsonl", [row | more for row in rows if row["what"] == kind])
    [table] = find_tables(tmp_path, 20_000)
    assert table.files == ("card.jsonl", "play.jsonl")
    assert len(table.frame) == len(rows)


def test_rows_without_an_event_type_are_no_type_of_their_own(tmp_path):
    rows = events()
    for row in rows[::150]:
        row["what"] = None
    write(tmp_path / "log.jsonl", rows)
    made = draft(tmp_path, "my")
    assert "None" not in made.notes["pipeline.log.impression"]
    assert made.values["pipeline"]["max_reject_rate"] == pytest.approx(0.02)
    assert "0.7% no 'what'" in made.notes["pipeline.max_reject_rate"]
    assert check(made.config(), tmp_path).facts["rows"]["rejected"] == pytest.approx(
        len(rows) / 150, abs=1
    )


def test_tables_that_nothing_reads_are_told(tmp_path, capfd):
    """Such as those of a log with a file for each type of event, which no configuration reads."""
    rows = events()
    write(
        tmp_path / "items.jsonl", [{"id": f"s{at}", "kind": kind} for at, kind in enumerate(KINDS)]
    )
    for kind, more in (("card", "place"), ("play", "speed")):
        found = [row for row in rows if row["what"] == kind]
        lines = [
            f"{row['at']},{row['who']},{row['on']['id']},{at % 5}" for at, row in enumerate(found)
        ]
        (tmp_path / f"{kind}.csv").write_text("\n".join([f"at,who,item,{more}", *lines]) + "\n")
    played = len(lines)
    # The names are those of the log's users and items, the values are others.
    (tmp_path / "rates.csv").write_text("who,item,euro\n1,7,1.1\n2,8,1.2\n3,8,1.1\n")
    assert main(["init", "--data", str(tmp_path), "--out", str(tmp_path / "my.yaml")]) == 0
    told = [
        line for line in capfd.readouterr().err.splitlines() if line.startswith("left out: table")
    ]
    one = f"{played} rows; no column holds the log's users or items, each once"
    assert told == [
        f"left out: table play.csv: {one}. It names both: if its rows are events of this log, "
        "write all events into one table, with a column that names their type",
        "left out: table rates.csv: 3 rows; no column holds the log's users or items, each once",
    ]
    assert (
        f"# Tables that nothing reads:\n#   play.csv: {one}" in (tmp_path / "my.yaml").read_text()
    )
