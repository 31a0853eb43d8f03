"""The whole job: what must not change its output, and what it says of bad input."""

import json
import random
from itertools import pairwise

import polars as pl
import pytest

from multigate.configs import ConfigError, DataError
from multigate.pipeline.job import run

HEADER = "time,event,item,user,session,value,device"
KINDS = ("LIKE", "DISLIKE", "BUY", "RATE")
SPLIT = {"by": "time", "validation": 0.2, "test": 0.2, "embargo": False}


def lines_of_log(seed=0, rows=300):
    rng = random.Random(seed)
    kinds = ["VIEW"] * 6 + ["LIKE"] * 2 + ["DISLIKE", "BUY", "RATE"]
    lines = []
    for _ in range(rows):
        kind, value = rng.choice(kinds), rng.choice(["", "0.1", "0.7", "3"])
        time = 1_700_000_000 + rng.randint(0, 90) * 100
        session = f"s{rng.randint(0, 3)}"
        user, item = f"u{rng.randint(0, 9)}", f"i{rng.randint(0, 29)}"
        lines.append(f"{time},{kind},{item},{user},{session},{value},{rng.choice(['', 'phone'])}")
    return lines + rng.choices(lines, k=10)


def write_log(folder, *files):
    folder.mkdir()
    for at, lines in enumerate(files):
        (folder / f"log-{at}.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def baseline(event_config, tmp_path_factory):
    folder = write_log(tmp_path_factory.mktemp("job") / "log", lines_of_log())
    run(event_config(**{"pipeline.split": SPLIT}), folder, folder / "out")
    return folder / "out"


def bytes_of(out):
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


def test_shuffled_rows_in_other_files_give_the_same_bytes(baseline, event_config, tmp_path):
    lines = lines_of_log()
    random.Random(1).shuffle(lines)
    folder = write_log(tmp_path / "log", lines[:40], [], lines[40:41], lines[41:])
    run(event_config(**{"pipeline.split": SPLIT}), folder, tmp_path / "out")
    assert bytes_of(tmp_path / "out") == bytes_of(baseline)
    assert {p.name for p in baseline.iterdir()} == {
        "train",
        "validation",
        "test",
        "vocabularies",
        "snapshot",
        "statistics.json",
        "contract.json",
        "manifest.json",
        "report.json",
        "rejects",
    }


def test_other_buckets_give_the_same_rows(baseline, event_config, read_examples, tmp_path):
    folder = write_log(tmp_path / "log", lines_of_log())
    config = event_config(**{"pipeline.split": SPLIT, "pipeline.buckets": 7})
    manifest = run(config, folder, tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(read_examples(baseline))
    for name in ("statistics.json", "contract.json", "vocabularies/item_id.parquet"):
        assert (tmp_path / "out" / name).read_bytes() == (baseline / name).read_bytes()
    assert manifest == json.loads((baseline / "manifest.json").read_text()) | {
        "files": manifest["files"]
    }
    numbers = read_examples(tmp_path / "out")["meta/impression"]
    assert numbers.n_unique() == len(numbers)


def test_later_events_change_no_earlier_example(baseline, event_config, read_examples, tmp_path):
    # A week later: outside every window of the earlier impressions.
    later = [
        f"{int(line.split(',')[0]) + 7 * 86400},{line.split(',', 1)[1].replace('i1', 'n1')}"
        for line in lines_of_log(seed=5)
    ]
    folder = write_log(tmp_path / "log", lines_of_log(), later)
    config = event_config(**{"pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2}})
    run(config, folder, tmp_path / "out")
    more = read_examples(tmp_path / "out")
    before = read_examples(baseline).drop("split")
    same = more.join(before.select("meta/impression"), on="meta/impression", how="semi")
    assert same.select(before.columns).sort("meta/impression").equals(before)
    assert len(more) > len(before)
    assert before["meta/sampled"].sum() > 100


def test_an_impression_needs_its_side_tables(event_config, read_examples, tmp_path):
    folder = write_log(
        tmp_path / "log",
        [
            "10,VIEW,x,a,s,,phone",
            "20,VIEW,y,a,s,,phone",
            "30,VIEW,q,b,s,,phone",
            "40,VIEW,x,c,s,,phone",
            # The configuration names these types: they must occur.
            *(f"4{at},{kind},x,c,s,1," for at, kind in enumerate(KINDS, start=1)),
        ],
    )
    (folder / "items.jsonl").write_text('{"id": "x", "topic": "t1"}\n{"id": "y", "topic": "t2"}\n')
    (folder / "users.csv").write_text("user,age\na,33\nb,\nc,7\n")
    config = event_config(
        **{
            "pipeline.users": {"files": ["users.csv"], "key": "user"},
            "pipeline.items": {
                "files": ["items.jsonl"],
                "format": {"type": "jsonl"},
                "key": "id",
            },
            "contract.features.topic": {"kind": "id", "side": "item", "source": "items"},
            "contract.features.age": {
                "kind": "number",
                "side": "user",
                "source": "users",
                "missing": "indicator",
                "scale": "buckets",
                "buckets": 2,
            },
            "pipeline.split": {"by": "user", "validation": 0.01, "test": 0.01},
        }
    )
    manifest = run(config, folder, tmp_path / "out")
    # q has no topic, which the contract requires: dropped, and never a negative either.
    assert manifest["rows"]["dropped"] == 1
    assert manifest["rows"]["impressions"] == 3
    assert manifest["advice"] == [
        "1 of 4 impressions are left out, because a side table has no value of topic for them: "
        "complete the table, or let the feature be missing (missing: indicator)"
    ]
    rows = read_examples(tmp_path / "out").sort("meta/time", "meta/sampled").to_dicts()
    assert [(r["user_id"], r["item_id"], r["topic"], r["age"]) for r in rows] == [
        ("a", "x", "t1", 33.0),
        ("a", "y", "t2", 33.0),
        ("c", "x", "t1", 7.0),
        ("c", "y", "t2", 7.0),  # the negative of c: y, with y's own topic
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_row_has_one_fate(seed, event_config, read_examples, tmp_path):
    lines = lines_of_log(seed)
    bad = ["soon,VIEW,i1,u1,s,,phone", "1700000000,VIEW,i1,,s,,phone"]
    folder = write_log(tmp_path / "log", lines + bad)
    (folder / "items.csv").write_text("id,topic\n" + "".join(f"i{n},t\n" for n in range(29)))
    (folder / "gone.csv").write_text("u0\n")
    changes = {
        "pipeline.items": {"files": ["items.csv"], "key": "id"},
        "contract.features.topic": {"kind": "id", "side": "item", "source": "items"},
        "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
        "pipeline.attribution": "15m",
        "pipeline.collapse": "500s",
        "pipeline.hold_back": True,
        # What is left waits for fifteen minutes.
        **dict.fromkeys(("contract.tasks.view", "contract.tasks.dwell", "contract.tasks.long")),
        "pipeline.negatives": {"per_positive": 2},
    }
    manifest = run(event_config(**changes), folder, tmp_path / "out", forget=folder / "gone.csv")
    rows, examples = manifest["rows"], manifest["examples"]
    assert rows["rows_in"] == len(lines) + 2
    assert rows["rejects"] == 2
    forgotten = [line for line in lines if line.split(",")[3] == "u0"]
    assert rows["forgotten"] == len(forgotten)
    kept = [line for line in lines if line.split(",")[3] != "u0"]
    assert rows["duplicates"] == len(kept) - len(set(kept))
    every = sorted(line.split(",") for line in set(kept) if line.split(",")[1] == "VIEW")
    every.sort(key=lambda view: (view[3], view[2], int(view[0])))
    again = [
        one[2:4] == two[2:4] and int(two[0]) - int(one[0]) <= 500 for one, two in pairwise(every)
    ]
    views = [view for view, repeated in zip(every, [False, *again], strict=True) if not repeated]
    assert rows["collapsed"] == sum(again)
    last = max(int(line.split(",")[0]) for line in kept)
    # Labels are open for fifteen minutes; what follows at their very end still counts.
    closed = [view for view in views if int(view[0]) + 900 <= last]
    assert rows["held_back"] == len(views) - len(closed)
    assert rows["dropped"] == sum(view[2] == "i29" for view in closed)  # has no row in the table
    assert rows["impressions"] == len(closed) - rows["dropped"]
    others = ("feedback", "late", "orphans")
    assert sum(rows[name] for name in others) == len(set(kept)) - len(every)
    unused = ("outside", "after_cut_off")
    assert all(count for name, count in rows.items() if name not in unused), rows
    made = read_examples(tmp_path / "out")
    assert examples["total"] == len(made) == sum(examples["splits"].values())
    assert examples["impressions"] == rows["impressions"] == int((~made["meta/sampled"]).sum())
    assert examples["sampled_negatives"] == int(made["meta/sampled"].sum())
    assert examples["sampled_negatives"] + examples["negatives_missing"] == 2 * rows["impressions"]


BAD = [
    pytest.param([], {}, r"log-0\.csv: the log has no rows", id="empty"),
    pytest.param(
        lines_of_log(rows=20),
        {"pipeline.log.columns.session": "sitting"},
        r"log-0\.csv: no column 'sitting'; the file has time, event, item, user, session, value",
        id="column",
    ),
    pytest.param(
        lines_of_log(rows=20),
        {"pipeline.log.columns.session": "Sesion"},
        r"log-0\.csv: no column 'Sesion'; did you mean 'session'\? the file has time, event",
        id="nearest column",
    ),
    pytest.param(
        lines_of_log(rows=20),
        {"pipeline.log.impression": "SEEN"},
        r"pipeline\.log\.impression: event type 'SEEN' never occurs in the log; it holds .*VIEW \(",
        id="event",
    ),
    pytest.param(
        lines_of_log(rows=20) + ["soon,VIEW,x,a,s,,"] * 31,
        {},
        r"31 of 61 rows were rejected \(50\.8%; pipeline\.max_reject_rate allows 50\.0%\), most "
        r"often 31 times: time: expected a number of s since 1970; received 'soon', "
        r"and pipeline\.log\.time_unit is s; look at .*out\.rejects",
        id="rejects",
    ),
]


@pytest.mark.parametrize(("lines", "changes", "message"), BAD)
def test_bad_logs_publish_nothing(lines, changes, message, event_config, tmp_path):
    folder = write_log(tmp_path / "log", lines)
    with pytest.raises(DataError, match=message) as error:
        run(event_config(**changes), folder, tmp_path / "out")
    assert "\n" not in str(error.value)
    left = {path.name for path in tmp_path.iterdir()}
    if "rejected" in message:
        rejects = pl.read_parquet(tmp_path / "out.rejects" / "*.parquet")
        assert len(rejects) == 31
        assert left == {"log", "out.rejects"}
    else:
        assert left == {"log"}


def test_a_json_name_may_be_absent_from_rows_and_files_but_not_from_all(event_config, tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    row = '{"time": 10, "event": "VIEW", "item": "x", "user": "a", "session": "s"'
    (folder / "log-0.csv").write_text(row + "}\n")
    (folder / "log-1.csv").write_text(row + ', "device": "phone"}\n' + row + "}\n")
    form = {"type": "jsonl"}
    with pytest.raises(DataError, match=r"log-0\.csv: no column 'value'; the file has .*device"):
        run(event_config(**{"pipeline.log.format": form}), folder, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"log"}


def test_a_folder_that_exists_is_not_touched(event_config, tmp_path):
    folder = write_log(tmp_path / "log", lines_of_log(rows=5))
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="out: already exists"):
        run(event_config(), folder, tmp_path / "out")


def test_missing_folders_and_files_are_named(event_config, tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        run(event_config(), tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(DataError, match=r"no file matches 'log\*\.csv'; the folder holds other"):
        run(event_config(), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_contracts_that_do_not_fit_the_log_are_refused(event_config, tmp_path):
    changes = {"contract.features.user_id.column": "person"}
    message = r"contract\.features\.user_id: expected the log's column 'user'.*log column 'person'"
    with pytest.raises(ConfigError, match=message):
        run(event_config(**changes), tmp_path, tmp_path / "out")
    changes = {"contract.features.topic": {"kind": "id", "side": "item", "source": "items"}}
    with pytest.raises(ConfigError, match=r"topic: source: items needs pipeline\.items"):
        run(event_config(**changes), tmp_path, tmp_path / "out")
    # An item can be a negative before its first row, which would lack the topic.
    changes["pipeline.items"] = {"files": ["items.csv"], "key": "item", "time": "since"}
    changes["pipeline.negatives"] = {"exclude": "ever"}
    with pytest.raises(ConfigError, match=r"exclude: 'ever' .* contract\.features\.topic may not"):
        run(event_config(**changes), tmp_path, tmp_path / "out")
