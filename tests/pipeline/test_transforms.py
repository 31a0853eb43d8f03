"""Rows through Beam and rows through files on this machine's disk: the same files, byte by byte.

Beam's own local runner carries what travels through Beam: it encodes every element.
"""

import random
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from tests.pipeline.random_log import START, write_log

from multigate.pipeline import plan, transforms
from multigate.pipeline.core.runner import BEAMS_RUNNER, local_options
from multigate.pipeline.job import default_shuffle, run
from multigate.pipeline.shuffle.combines import AddCounts
from multigate.pipeline.shuffle.parcel import LocalFiles

BEAMS_OWN = [f"--runner={BEAMS_RUNNER}"]

SEEN = {"kind": "number", "side": "item", "count": {"of": "item", "events": ["VIEW"]}}
OF_ITEM = {"kind": "number", "side": "item", "label_rate": {"of": "item", "task": "like"}}
OF_USER = {"kind": "number", "side": "user", "label_rate": {"of": "user", "task": "like"}}
GENRE = {"kind": "id", "side": "item", "source": "items", "missing": "indicator"}
BY_TIME = {"by": "time", "validation": 0.2, "test": 0.2}

CASES = {
    "counters and rates": {
        "contract.features.seen": SEEN,
        "contract.features.of_item": OF_ITEM,
        "contract.features.of_user": OF_USER,
    },
    "shares of time": {"pipeline.split": BY_TIME | {"embargo": False}},
    "features of items that the log holds, and all rows in the pool": {
        "contract.features.kind": {
            "kind": "id",
            "side": "item",
            "column": "device",
            "missing": "indicator",
        },
        "pipeline.negatives": {"per_positive": 2, "sampling": "popularity"},
        "pipeline.downsample": {"keep": 0.5, "tasks": ["like"]},
    },
    "a side table and users to forget": {
        "contract.features.genre": GENRE,
        "pipeline.items": {"files": ["items.csv"], "format": {"type": "csv"}, "key": "item_id"},
        "pipeline.forget": "forget.txt",
    },
    "no negatives": {"pipeline.negatives": None},
}


def make_log(folder: Path) -> Path:
    write_log(folder, files=3, rows=300, users=20, devices=("a", "b"))
    genres = [f"i{at},g{at % 4}" for at in range(25)]
    (folder / "items.csv").write_text("\n".join(["item_id,genre", *genres]) + "\n")
    (folder / "forget.txt").write_text("u3\nu7\n")
    return folder


def both(config, log, folder, same_folders, **arguments):
    manifests = [
        run(config, log, folder / shuffle, options, shuffle=shuffle, **arguments)
        for shuffle, options in (("files", None), ("beam", BEAMS_OWN))
    ]
    assert manifests[0] == manifests[1]
    same_folders(folder / "beam", folder / "files")
    return manifests[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sweep(1)
def test_both_ways_make_the_same(case, event_config, same_folders, tmp_path):
    config = event_config(**CASES[case], **{"pipeline.buckets": 4})
    manifest = both(config, make_log(tmp_path / "log"), tmp_path, same_folders)
    assert manifest["examples"]["total"] > 100
    assert manifest["rows"]["rejects"] == 3


@pytest.mark.slow
def test_a_table_of_users_stands_beside_their_rates(event_config, same_folders, tmp_path):
    """What buckets of users hand on must not take the table's place."""
    log = make_log(tmp_path / "log")
    ages = [f"u{at},{20 + at}" for at in range(20)]
    (log / "users.csv").write_text("\n".join(["user_id,age", *ages]) + "\n")
    table = {"files": ["users.csv"], "format": {"type": "csv"}, "key": "user_id"}
    age = {"kind": "number", "side": "user", "source": "users", "missing": "indicator"}
    changes = {"contract.features.of_user": OF_USER, "contract.features.age": age}
    config = event_config(**changes, **{"pipeline.users": table, "pipeline.buckets": 4})
    both(config, log, tmp_path, same_folders)
    examples = pl.read_parquet(tmp_path / "files" / "train" / "*.parquet")
    assert examples["age"].null_count() == 0
    assert (examples["age"] == examples["user_id"].str.slice(1).cast(pl.Float64) + 20).all()


def test_no_table_counts_nothing():
    """A bucket without an impression whose label has closed has no times to count."""
    add = AddCounts()
    counted = add.add_input(add.create_accumulator(), None)
    assert add.extract_output(counted) is None
    table = pl.DataFrame({"cell": [1], "count": [2]})
    assert add.extract_output(add.add_input(counted, table)).equals(table)


@pytest.mark.slow
def test_divided_buckets_and_a_run_of_some_days_too(
    event_config, same_folders, tmp_path, monkeypatch
):
    monkeypatch.setattr(plan, "_MIB", 1 << 12)
    changes = CASES["counters and rates"] | {
        "pipeline.hold_back": True,
        "pipeline.buckets": 4,
        "pipeline.bucket_mib": 1,
    }
    span = tuple(datetime.fromtimestamp(START + 30_000 * at, UTC) for at in (1, 3))
    config = event_config(**changes)
    manifest = both(config, make_log(tmp_path / "log"), tmp_path, same_folders, span=span)
    assert manifest["rows"]["outside"] > 50
    parts = (tmp_path / "beam" / "snapshot" / "users").iterdir()
    assert max(part.name for part in parts) > "part-00003.parquet"


@pytest.mark.slow
def test_feedback_in_files_of_its_own(event_config, separate_files, same_folders, tmp_path):
    rng = random.Random(1)
    (tmp_path / "log").mkdir()
    shown = [
        {"time": START + 60 * at, "user": f"u{at % 9}", "item": f"i{rng.randrange(9)}", "id": at}
        | {"device": rng.choice("ab"), "session": at // 30}
        for at in range(300)
    ]
    feedback = [
        row
        | {"time": row["time"] + 5, "event": rng.choice(["LIKE", "DISLIKE", "BUY", "RATE"])}
        | {"value": rng.choice([None, 2.0])}
        for row in rng.sample(shown, 120)
    ]
    config = event_config(**separate_files(tmp_path / "log", shown, feedback))
    both(config, tmp_path / "log", tmp_path, same_folders)


@pytest.mark.slow
def test_rows_that_travel_through_beam_lie_in_no_file(event_config, tmp_path, monkeypatch):
    def broken(*_):
        raise AssertionError("a file between stages")

    for name in ("whole", "shares"):
        monkeypatch.setattr(LocalFiles, name, broken)
    run(event_config(), make_log(tmp_path / "log"), tmp_path / "out", BEAMS_OWN, shuffle="beam")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("train", "validation", "test", "vocabularies", "snapshot", "rejects"),
        *("contract.json", "manifest.json", "report.json", "statistics.json"),
    }


@pytest.mark.parametrize(
    ("options", "shuffle"),
    [
        (local_options(), "files"),
        (BEAMS_OWN, "files"),
        (["--runner=DirectRunner"], "files"),
        ([], "files"),
        (["--runner=FlinkRunner", "--flink_master=[local]"], "beam"),
        (["--runner", "DataflowRunner"], "beam"),
        (["--runner=PortableRunner"], "beam"),
    ],
)
def test_rows_travel_through_files_only_where_all_workers_are_here(options, shuffle):
    assert default_shuffle(options) == shuffle


@pytest.mark.slow
def test_beam_counts_the_rows(event_config, tmp_path, monkeypatch):
    """A line on Flink's or Dataflow's page of the job: rows in, rejected, examples by split."""
    found = {}
    build = transforms.build

    def watched(pipeline, *rest):
        build(pipeline, *rest)
        end = pipeline.run

        def run_(*arguments):
            result = end(*arguments)
            result.wait_until_finish()
            counters = result.metrics().query()["counters"]
            found.update({one.key.metric.name: one.committed for one in counters})
            return result

        pipeline.run = run_

    monkeypatch.setattr(transforms, "build", watched)
    manifest = run(event_config(), make_log(tmp_path / "log"), tmp_path / "out", BEAMS_OWN)
    splits = {f"examples_{name}": n for name, n in manifest["examples"]["splits"].items() if n}
    assert found["rows_in"] == manifest["rows"]["rows_in"] == 903
    assert found["rows_rejected"] == manifest["rows"]["rejects"] == 3
    assert found["negatives"] == manifest["examples"]["sampled_negatives"] > 0
    assert {name: found[name] for name in splits} == splits
