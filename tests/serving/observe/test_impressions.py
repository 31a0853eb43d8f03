"""The log of what was ranked, and its way back through the pipeline."""

import dataclasses
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multigate.configs.config import Config
from multigate.configs.contract import (
    LENGTH,
    PRESENT,
    Contract,
    IdListFeature,
    PositionFeature,
)
from multigate.configs.errors import ServingError
from multigate.configs.sections.base import parse
from multigate.configs.version_folders import Trial
from multigate.pipeline import job
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.layout import SCORE, empty_like, rank_layout
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.observe import impressions
from multigate.serving.observe.impressions import (
    ImpressionLog,
    Ranked,
    batches,
    feature_columns,
    rows_of,
    sampled,
)
from multigate.serving.observe.side import Side

COLUMNS = {
    "topic": ["news", None, "sport"],
    "length": [1.5, 2.5, 3.5],
    "tags": [["a", "b"], [], None],
}
USER = {"user_id": "u1", "age": 30.0, "recent": ["i1", "i2", "i3", "i4", "i5"]}


def rank(client, **changes):
    arguments = {
        "user": USER,
        "context": {"hour": 9},
        "item_ids": ["i1", "i2", "i3"],
        "columns": COLUMNS,
    }
    return client.rank("small", **(arguments | changes))


@pytest.fixture
def base(tmp_path, publish):
    folder = tmp_path / "models"
    folder.mkdir()
    publish(folder, 1)
    return folder


def files(folder):
    return sorted(Path(folder).rglob("*.parquet"))


def counted(running, result):
    return running.metric("multigate_impression_rows_total", model="small", result=result) or 0


def test_rows_are_the_answers_with_the_features_as_used(base, tmp_path, run_server):
    log = tmp_path / "log"
    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        full = rank(client, request_id="full")
        rank(client, request_id="best", limit=1)
        rank(client, request_id="none", floors={"rating": (1e6, None)})
        lacking = COLUMNS | {"length": [None, 2.0, 3.0]}
        some = rank(client, request_id="some", columns=lacking)
    (path,) = files(log)
    assert path.parent == log / "small"
    rows = pq.read_table(path).to_pylist()
    assert [row["ranked/request_id"] for row in rows] == ["full"] * 3 + ["best"] + ["some"] * 2
    for row, item in zip(rows[4:], some, strict=True):  # the first candidate has no score
        assert (row["ranked/candidate"], row["item_id"]) == (item["index"], item["item_id"])
        assert row["ranked/candidate"] > 0
    for place, (row, item) in enumerate(zip(rows[:3], full, strict=True)):
        index = item["index"]
        assert row["ranked/position"] == row["position"] == place
        assert (row["ranked/candidate"], row["item_id"]) == (index, item["item_id"])
        assert row["ranked/score"] == item["score"]
        assert {task: row[f"ranked/score/{task}"] for task in item["tasks"]} == item["tasks"]
        assert (row["user_id"], row["age"], row["hour"]) == ("u1", 30.0, 9)
        assert (row["country"], row["segment"]) == (None, None)
        assert row["recent"] == ["i2", "i3", "i4", "i5"]  # the contract keeps the last four
        assert (row["topic"], row["length"]) == (COLUMNS["topic"][index], COLUMNS["length"][index])
        assert row["tags"] == (COLUMNS["tags"][index] or None)
        assert row["ranked/model_version"] == 1
    assert counted(running, "written") == 6


SHARED = {
    "label": {"kind": "id", "side": "item", "column": "title", "missing": "indicator"},
    "number": {"kind": "number", "side": "item", "column": "title", "pattern": "(\\d+)$"},
    "cost": {"kind": "number", "side": "item", "column": "price", "scale": "buckets"},
    "price": {"kind": "number", "side": "item", "transform": "log1p"},
    # A seller, whom the items' table calls a user.
    "seller": {"kind": "id", "side": "item", "source": "items", "column": "user_id"},
    "rank": {"kind": "number", "side": "context", "column": "ranked/position"},
}


def test_features_of_one_column_are_all_logged(tmp_path, contract):
    said = contract.model_dump(exclude_unset=True)
    said["features"] |= SHARED
    shared = parse(Contract, said, "test")
    columns = feature_columns(shared, {"ranked/position"})
    assert {name: column for name, column in columns.items() if name != column} == {
        "label": "title",
        "number": "ranked/feature/number",
        "cost": "ranked/feature/cost",
        "seller": "ranked/feature/seller",
        "rank": "ranked/feature/rank",
    }
    features = dict(reversed(shared.features.items()))
    assert feature_columns(shared.model_copy(update={"features": features})) == (
        columns | {"rank": "ranked/position"}
    )
    layout = rank_layout(shared)
    inputs = {
        name: empty_like(what.dtype, (2,) if what.axis == "rows" else (1,))
        if what.dimensions == 1
        else empty_like(what.dtype, (2 if what.axis == "rows" else 1, 1))
        for name, what in layout.inputs.items()
    }
    inputs |= {
        "user_id": np.array([b"u1"], object),
        "seller": np.array([b"u7", b"u8"], object),
        "label": np.array([b"Film 1", b"Film 2"], object),
        "label" + PRESENT: np.array([True, True]),
        "number": np.array([1, 2], np.float32),
        "price": np.array([5, 6], np.float32),
        "cost": np.array([7, 8], np.float32),
        "rank": np.array([9], np.float32),
    }
    outputs = {name: np.ones(2, np.float32) for name in (SCORE, *shared.tasks)}
    call = Ranked("m", 1, "s", shared, "r", inputs, outputs, np.arange(2), 0.0)
    rows = rows_of(pa, [call]).to_pydict()
    assert rows["user_id"] == ["u1", "u1"]
    assert rows["ranked/feature/seller"] == ["u7", "u8"]
    assert (rows["title"], rows["ranked/feature/number"]) == (["Film 1", "Film 2"], [1, 2])
    assert (rows["price"], rows["ranked/feature/cost"]) == ([5, 6], [7, 8])
    assert (rows["ranked/position"], rows["ranked/feature/rank"]) == ([0, 1], [9, 9])


def test_the_pipeline_reads_the_log_joined_with_feedback(base, tmp_path, run_server, contract):
    log = tmp_path / "log"
    requests = 40
    with (
        run_server(base, impression_log=log, impression_log_rows=30) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        for number in range(requests):
            user = USER | {"user_id": f"u{number % 5}"}
            rank(client, request_id=f"r{number}", user=user)
    assert len(files(log)) == 4
    frame = pl.read_parquet(files(log))
    shown = frame.select("ranked/request_id", "item_id")
    feedback = shown.with_columns(
        click=(pl.col("item_id") == "i1").cast(pl.Int64), like=pl.lit(0), rating=pl.lit(4.0)
    ).filter(pl.col("item_id") != "i3")
    data = tmp_path / "data"
    data.mkdir()
    frame.join(feedback, on=["ranked/request_id", "item_id"], how="left").write_parquet(
        data / "impressions.parquet"
    )
    config = parse(
        Config,
        {
            "name": "closed",
            "contract": contract.model_dump(exclude_unset=True),
            "pipeline": {
                "log": {
                    "shape": "impressions",
                    "files": ["*.parquet"],
                    "format": {"type": "parquet"},
                    "time_unit": "us",
                    "columns": {
                        "time": "ranked/time",
                        "user": "user_id",
                        "item": "item_id",
                        "request": "ranked/request_id",
                    },
                },
                "split": {"by": "random", "validation": 0.1, "test": 0.1},
            },
            "model": {},
        },
        "test",
    )
    manifest = job.run(config, data, tmp_path / "examples")
    assert (manifest["rows"]["impressions"], manifest["rows"]["rejects"]) == (3 * requests, 0)
    splits = [tmp_path / "examples" / split for split in ("train", "validation", "test")]
    examples = pl.concat([pl.read_parquet(files(split)) for split in splits])
    assert len(examples) == 3 * requests
    assert examples["meta/request"].n_unique() == requests
    assert set(examples["position"]) == {0, 1, 2}
    by_item = {key[0]: group for key, group in examples.group_by("item_id")}
    assert set(by_item["i1"]["label/click"]) == {1.0}
    assert set(by_item["i2"]["label/rating"]) == {4.0}
    assert by_item["i3"]["label/click"].null_count() == requests
    assert by_item["i1"]["tags"].to_list() == [["a", "b"]] * requests
    assert by_item["i2"]["topic"].null_count() == requests
    assert set(examples["age"]) == {30.0}


def test_what_finds_no_room_is_dropped_and_counted(base, tmp_path, run_server, monkeypatch):
    monkeypatch.setattr(impressions, "_QUEUED_ROWS", 2)
    with (
        run_server(base, impression_log=tmp_path / "log") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert len(rank(client)) == 3
        assert len(rank(client, limit=2)) == 2
    assert (counted(running, "dropped"), counted(running, "written")) == (3, 2)


def test_a_disk_that_fails_fails_no_call(base, tmp_path, run_server, until):
    log = tmp_path / "log"
    with (
        run_server(base, impression_log=log, impression_log_rows=1) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        (log / "small").write_text("in the way")
        assert len(rank(client)) == 3
        until(lambda: counted(running, "dropped") == 3)
        (log / "small").unlink()
        assert len(rank(client)) == 3
        until(lambda: counted(running, "written") == 3)
    assert len(files(log)) == 1
    assert list(log.rglob(".*")) == []


def test_rows_that_do_not_fit_together_end_no_thread(tmp_path, contract, helpers):
    """Two contracts under one schema make columns of other types, which one file cannot hold."""
    number = contract.features["length"].model_copy(update={"side": "context"})
    other = contract.model_copy(update={"features": {**contract.features, "hour": number}})
    metrics = ServerMetrics()
    log = ImpressionLog(tmp_path, 1.0, 2, 3600.0, metrics)
    for name, of_call in (
        ("odd", contract),
        ("odd", other),
        ("fine", contract),
        ("fine", contract),
    ):
        outputs = {task: np.ones(1, np.float32) for task in (*contract.tasks, SCORE)}
        inputs = helpers.sample_inputs(contract, 1, users=1)
        log.add(Ranked(name, 1, "s", of_call, name, inputs, outputs, np.array([0]), 0.0))
    log.close()
    found = {
        (name, result): metrics.registry.get_sample_value(
            "multigate_impression_rows_total", {"model": name, "result": result}
        )
        for name in ("odd", "fine")
        for result in ("written", "dropped")
    }
    assert found == {
        ("odd", "written"): None,
        ("odd", "dropped"): 2,
        ("fine", "written"): 2,
        ("fine", "dropped"): None,
    }


def ranked_of(contract, helpers, seed, rows, **others):
    """An answer to a random request."""
    random = np.random.default_rng(seed)
    outputs = {
        task: random.normal(size=rows).astype(np.float32) for task in (*contract.tasks, SCORE)
    }
    return Ranked(
        **{"model": "m", "version": 1, "schema": "s", "contract": contract, "at": 0.5 + seed},
        request_id=f"r{seed}",
        inputs=helpers.sample_inputs(contract, rows, users=1, seed=seed),
        outputs=outputs,
        order=random.permutation(rows)[: 1 + rows // 2],
        **others,
    )


def test_rows_made_together_are_those_made_one_by_one(contract, helpers):
    side = Side(Trial(2, 50.0, 10.0), "canary", True)
    calls = [ranked_of(contract, helpers, seed, 1 + seed) for seed in range(12)]
    calls += [ranked_of(contract, helpers, 12, 5, side=side)]
    calls += [ranked_of(contract, helpers, 13, 5, places=np.array([9, 7, 0, 3, 2]))]
    together = rows_of(pa, calls)
    assert together.equals(pa.concat_tables([rows_of(pa, [one]) for one in calls]))
    assert any(together[feature].null_count for feature in ("country", "topic", "age"))
    few = rows_of(pa, calls, {"user_id"})
    assert few.equals(together.select(few.column_names))


ODD = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user", "missing": "indicator"},
        "segment": {"kind": "id", "side": "user", "dtype": "int", "missing": "indicator"},
        "taste": {"kind": "vector", "side": "user", "size": 2, "missing": "indicator"},
        "recent": {"kind": "id_list", "side": "user", "share": "item_id", "max_length": 9},
        "place": {"kind": "vector", "side": "context", "size": 2},
        "item_id": {"kind": "id", "side": "item"},
        "title": {"kind": "text", "side": "item", "hash_buckets": 8, "missing": "default"},
        "code": {"kind": "id", "side": "item", "dtype": "int"},
        "cover": {"kind": "vector", "side": "item", "size": 3, "missing": "default"},
        "tags": {"kind": "id_list", "side": "item", "max_length": 9},
        "codes": {"kind": "id_list", "side": "item", "dtype": "int", "max_length": 9},
        "price": {"kind": "number", "side": "item", "missing": "indicator"},
        "position": {"kind": "position"},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
        }
    },
}
TEXTS = np.array(
    [one.encode() for one in ("", "a", "São João", "東京", "🎉", "with\nlines")], object
)
NUMBERS = np.array([0, -1, 2**62, -(2**62)])


def odd_call(contract, seed, candidates):
    """An answer whose request has odd values, and lists as wide as the seed says."""
    random = np.random.default_rng(seed)
    inputs = {}
    for name, feature in contract.features.items():
        if isinstance(feature, PositionFeature):
            continue
        rows = candidates if feature.side == "item" else 1
        if isinstance(feature, IdListFeature):
            shape = (rows, seed % 4)
            inputs[name + LENGTH] = random.integers(0, shape[1] + 1, rows)
        else:
            shape = (rows, feature.size) if feature.kind == "vector" else (rows,)
            if feature.missing != "error":
                inputs[name + PRESENT] = random.random(rows) < 0.5
        if feature.kind in ("vector", "number"):
            inputs[name] = random.normal(size=shape).astype(np.float32)
        else:
            inputs[name] = random.choice(NUMBERS if feature.dtype == "int" else TEXTS, shape)
    outputs = {name: random.random(candidates).astype(np.float32) for name in ("click", SCORE)}
    order = random.permutation(candidates)[: random.integers(1, candidates + 1)]
    return Ranked("m", 1, "s", contract, f"r{seed}", inputs, outputs, order, float(seed))


def value_of(call, name, feature, row):
    """A feature of one row in plain Python."""
    if not call.inputs.get(name + PRESENT, np.ones(row + 1, bool))[row]:
        return None
    value = call.inputs[name][row]
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(feature, IdListFeature):
        values = values[: call.inputs[name + LENGTH][row]] or None
    if isinstance(values, list):
        return [one.decode() if isinstance(one, bytes) else one for one in values]
    return values.decode() if isinstance(values, bytes) else values


def test_odd_values_are_logged_as_they_are():
    contract = parse(Contract, ODD, "test")
    calls = [odd_call(contract, seed, 1 + seed % 7) for seed in range(30)]
    table = rows_of(pa, calls)
    table.validate(full=True)
    expected: dict[str, list] = {name: [] for name in contract.features}
    for call in calls:
        for place, row in enumerate(call.order):
            for name, feature in contract.features.items():
                of_position = isinstance(feature, PositionFeature)
                from_row = row if feature.side == "item" else 0
                expected[name].append(
                    place if of_position else value_of(call, name, feature, from_row)
                )
    assert table.select(list(expected)).to_pydict() == expected
    for name in (
        "user_id",
        "segment",
        "taste",
        "recent",
        "title",
        "cover",
        "tags",
        "codes",
        "price",
    ):
        assert 0 < table[name].null_count < len(table), name
    types = {name: table.schema.field(name).type for name in contract.features}
    text, number = pa.string(), pa.int64()
    vector = pa.list_(pa.float32())
    assert types == {
        **{"user_id": text, "item_id": text, "title": text, "segment": number, "code": number},
        **{"taste": vector, "place": vector, "cover": vector, "price": pa.float32()},
        **{"recent": pa.list_(text), "tags": pa.list_(text), "codes": pa.list_(number)},
        "position": number,
    }


def few_of_many(contract, seed, candidates, answered):
    """An answer of few of its request's candidates, whose others are not UTF-8."""
    call = odd_call(contract, seed, candidates)
    order = call.order[:answered]
    others = np.ones(candidates, bool)
    others[order] = False
    for name in ("item_id", "tags"):
        call.inputs[name][others] = b"\xff"
    return dataclasses.replace(call, order=order)


def test_candidates_that_are_not_in_the_answer_cost_it_no_rows():
    contract = parse(Contract, ODD, "test")
    calls = [few_of_many(contract, seed, 50, 3) for seed in (3, 7, 11)]
    calls += [odd_call(contract, 15, 5)]
    rows = rows_of(pa, calls).to_pylist()
    places = [(call, place, index) for call in calls for place, index in enumerate(call.order)]
    assert len(rows) == len(places)
    for row, (call, place, index) in zip(rows, places, strict=True):
        assert (row["ranked/position"], row["ranked/candidate"]) == (place, index)
        assert row["ranked/score"] == call.outputs[SCORE][index]
        for name, feature in contract.features.items():
            if feature.side == "item":
                assert row[name] == value_of(call, name, feature, index)


def test_candidates_that_are_not_in_the_answer_cost_no_memory():
    contract = parse(Contract, ODD, "test")
    calls = [odd_call(contract, 3 + 4 * seed, 2000) for seed in range(20)]
    calls = [dataclasses.replace(call, order=call.order[:10]) for call in calls]
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        size = rows_of(pa, calls).nbytes
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 5 * size


def test_what_waits_for_a_disk_that_hangs_is_of_the_answers_alone(tmp_path, monkeypatch):
    """Else 100,000 rows that may wait, ten from each call of a thousand, held gigabytes."""
    contract = parse(Contract, ODD, "test")
    hangs = threading.Event()
    monkeypatch.setattr(ImpressionLog, "_keep", lambda self, calls: hangs.wait(240))
    log = ImpressionLog(tmp_path, 1.0, 1000, 3600.0, ServerMetrics())
    tracemalloc.start()
    try:
        for seed in range(3, 83, 4):
            log.add(few_of_many(contract, seed, 2000, 10))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        hangs.set()
        log.close()
    assert held < 20 * 2000 * 20  # 20 bytes a candidate, which has 100 and more


@pytest.mark.parametrize("name", ["item_id", "tags"])
def test_a_text_that_is_not_utf_8_costs_its_own_call_alone(tmp_path, name):
    contract = parse(Contract, ODD, "test")
    calls = [odd_call(contract, seed, 5) for seed in (3, 7, 11)]
    calls[1].inputs[name][:] = b"\xff"
    if name == "tags":
        calls[1].inputs[name + LENGTH][:] = 1
    metrics = ServerMetrics()
    log = ImpressionLog(tmp_path, 1.0, 1000, 3600.0, metrics)
    for call in calls:
        log.add(call)
    log.close()
    rows = pl.concat([pl.read_parquet(path) for path in files(tmp_path)])
    assert rows["ranked/request_id"].unique(maintain_order=True).to_list() == ["r3", "r11"]
    dropped = metrics.registry.get_sample_value(
        "multigate_impression_rows_total", {"model": "m", "result": "dropped"}
    )
    assert dropped == len(calls[1].order)


def test_calls_of_one_version_are_made_into_rows_together(contract, helpers):
    other = contract.model_copy()
    calls = [ranked_of(contract, helpers, seed, 7) for seed in range(5)]  # four rows each
    calls += [ranked_of(other, helpers, 5, 7), ranked_of(other, helpers, 6, 7)]
    calls += [dataclasses.replace(calls[-1], version=2), dataclasses.replace(calls[-1], model="n")]
    assert [len(one) for one in batches(calls, 12)] == [3, 2, 2, 1, 1]
    assert [len(one) for one in batches(calls[:5], 1)] == [1] * 5
    assert [one for batch in batches(calls, 9) for one in batch] == calls


def test_versions_with_tasks_and_features_in_another_order_share_a_file(
    tmp_path, contract, helpers
):
    reordered = contract.model_copy(
        update={
            "tasks": dict(reversed(contract.tasks.items())),
            "features": dict(reversed(contract.features.items())),
        }
    )
    assert reordered.schema_fingerprint() == contract.schema_fingerprint()
    metrics = ServerMetrics()
    log = ImpressionLog(tmp_path, 1.0, 2, 3600.0, metrics)
    scores = {task: np.full(1, place, np.float32) for place, task in enumerate(contract.tasks)}
    for version, of_call in enumerate((contract, reordered)):
        outputs = {SCORE: np.ones(1, np.float32), **scores}
        inputs = helpers.sample_inputs(contract, 1, users=1)
        log.add(Ranked("m", version, "s", of_call, "r", inputs, outputs, np.array([0]), 0.0))
    log.close()
    (file,) = files(tmp_path)
    rows = pl.read_parquet(file)
    assert rows["ranked/model_version"].to_list() == [0, 1]
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = {one.path_in_schema: one for one in map(group.column, range(group.num_columns))}
    versions = columns["ranked/model_version"].statistics
    assert (versions.min, versions.max) == (0, 1)
    assert columns["country"].statistics is None  # rows are not chosen by it
    for place, task in enumerate(contract.tasks):
        assert rows[f"ranked/score/{task}"].to_list() == [place, place]
    assert rows[0].drop("ranked/model_version").equals(rows[1].drop("ranked/model_version"))


def test_a_file_ends_when_it_is_old_enough(base, tmp_path, run_server, until):
    log = tmp_path / "log"
    with (
        run_server(base, impression_log=log, impression_log_seconds=0.05) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        rank(client)
        until(lambda: len(files(log)) == 1)


def test_the_sample_is_a_share_that_the_request_id_decides():
    ids = [f"request-{number}" for number in range(20_000)]
    taken = np.array([sampled(one, 0.1) for one in ids])
    assert taken.mean() == pytest.approx(0.1, abs=0.01)
    assert all(sampled(one, 0.3) for one in np.array(ids)[taken])
    assert not any(sampled(one, 0.0) for one in ids)
    assert all(sampled(one, 1.0) for one in ids)


def test_a_folder_that_cannot_be_had(base, tmp_path, run_server):
    (tmp_path / "file").write_text("")
    with pytest.raises(ServingError, match=r"--impression_log .*file: File exists"):
        run_server(base, impression_log=tmp_path / "file").__enter__()
