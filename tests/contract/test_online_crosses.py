"""No skew for rates by category: a server looks up what the pipeline writes in its examples.

The simulated feed up to an instant, and at that instant some impressions more of every user: the
features that a request with ids alone gets must be those of the pipeline's own examples of them.
"""

import json
import random
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import numpy as np
import polars as pl
import pytest
import yaml

from multigate.candidates.pairs import tower_features
from multigate.configs import load
from multigate.configs.contract import Contract
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.base import parse
from multigate.configs.sections.pipeline import TimeSplit
from multigate.jobs.requests import requests_from_examples
from multigate.jobs.simulate import simulate
from multigate.pipeline import job
from multigate.serving.core.status import MissingValueError
from multigate.serving.feature_store.online_features import OnlineFeatures
from multigate.serving.feature_store.snapshot import Snapshot
from multigate.serving.feature_store.snapshot_writer import write_snapshot
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.rank_request import RequestReader

CUT_OFF = datetime(2026, 1, 31, tzinfo=UTC)
TASKS = ["click", "like", "dwell"]
KEYS = ["user", "item", ["user", "topic"], ["user", "hour"]]
RATES = {"of": KEYS, "tasks": TASKS, "within": "20d", "last": 3}


def as_of(config, cut_off):
    days = [CUT_OFF - timedelta(days=back) for back in (8, 4)]
    split = TimeSplit(by="time", validation=days[0], test=days[1])
    change = {"cut_off": cut_off, "hold_back": False, "split": split}
    return config.model_copy(update={"pipeline": config.pipeline.model_copy(update=change)})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("crosses")


@pytest.fixture(scope="module")
def run(root):
    """The contract, the store as of the cut-off, and the examples at the cut-off."""
    config = load("demo")
    preset = files("multigate.configs.presets").joinpath("demo.yaml").read_text(encoding="utf-8")
    contract = parse(Contract, yaml.safe_load(preset)["contract"] | {"rates": RATES}, "test")
    config = config.model_copy(update={"contract": contract})
    simulate(root / "logs", seed=4, users=40, items=30, exposures=6_000)
    frame = pl.concat(pl.read_ndjson(path) for path in sorted((root / "logs").glob("*.jsonl")))
    latest = frame.sort("time").unique("user_id", keep="last", maintain_order=True).to_dicts()
    items = frame.unique("item_id", maintain_order=True).to_dicts()
    of_item, rng = ("item_id", "topic", "tags", "length"), random.Random(0)
    probes = []
    for user in latest:
        for item in rng.sample(items, 4):
            probe = user | {name: item[name] for name in of_item}
            probe |= {"time": int(CUT_OFF.timestamp()), "request_id": "probe", "hour": 20}
            probes.append(probe)
    probes.append(probes[0] | {"user_id": "new user"})
    probes.append(probes[1] | {"item_id": "new item"})
    (root / "logs/probes.jsonl").write_text("".join(json.dumps(p) + "\n" for p in probes))
    job.run(as_of(config, CUT_OFF), root / "logs", root / "examples")
    job.run(as_of(config, CUT_OFF + timedelta(seconds=1)), root / "logs", root / "probes")
    write_snapshot(root / "examples", root / "store")
    snapshot = Snapshot(root / "store", contract, contract.schema_fingerprint())
    examples = pl.read_parquet(root / "probes/test/*.parquet")
    examples = examples.filter(pl.col("meta/time") == CUT_OFF)
    assert len(examples) == len(probes) > 150
    return contract, OnlineFeatures(contract, snapshot, clock=None), examples.to_dicts()


def request(row, user=None, columns=None, second="i"):
    candidates = ranking_pb2.Candidates(
        item_id=ranking_pb2.ItemIds(texts=ranking_pb2.Texts(values=[row["item_id"], second])),
        columns=columns or {},
    )
    return ranking_pb2.RankRequest(
        user={"user_id": ranking_pb2.Value(text=user or row["user_id"]), "age": number(30)},
        context={"hour": ranking_pb2.Value(integer=row["hour"])},
        candidates=candidates,
    )


def number(value):
    return ranking_pb2.Value(number=value)


def texts(*values):
    return ranking_pb2.Column(texts=ranking_pb2.Texts(values=values))


def known_columns(row):
    """What callers send of items that no snapshot knows."""
    columns = {"topic": texts(row["topic"], row["topic"])}
    return columns | {"length": ranking_pb2.Column(numbers=ranking_pb2.Numbers(values=[1, 1]))}


def test_ids_alone_get_the_pipelines_own_rates(run):
    contract, store, rows = run
    reader = RequestReader(contract, 10, store)
    names = [*contract.label_counters()]
    assert len(contract.crosses()) == 10
    compared = 0
    for row in rows:
        inputs = reader.read(request(row, columns=known_columns(row))).inputs
        for name in names:
            assert inputs[name][0] == np.float32(row[name]), name
            compared += row[name] != 0
        if row["item_id"] == "new item":
            continue
        # The item's topic is in the store as well.
        length = {"length": known_columns(row)["length"]}
        alone = reader.read(request(row, columns=length, second=row["item_id"])).inputs
        assert all(alone[name][0] == inputs[name][0] for name in names)
    assert compared > 1000


def test_a_rate_of_one_users_row_never_stands_for_another_user(run, root):
    contract, _, _ = run
    requests = requests_from_examples(contract, ExamplesFolder(root / "examples"), 3, 5)
    assert {"topic", "item_click_rate"} <= set(requests[0].columns)
    assert not set(contract.crosses()) & set(requests[0].columns)
    _, items = tower_features(contract)
    assert {"topic", "item_click_rate"} <= set(items)
    assert not set(contract.crosses()) & set(items)


def test_the_limit_and_the_topics_matter(run):
    contract, _, rows = run
    counts = [row["user_topic_click_count"] for row in rows]
    assert sum(count > 0 for count in counts) > 30
    # With three of twelve topics kept, most candidates are of none of them.
    assert sum(count == 0 for count in counts) > 30
    assert {"user_topic_click_rate", "user_hour_dwell_count"} <= set(contract.crosses())


def test_recommend_reads_the_user_before_there_are_candidates(run):
    contract, store, rows = run
    reader = RequestReader(contract, 10, store)
    for row in rows[:20]:
        asked = request(row, columns=known_columns(row))
        user = reader.read_user(asked)
        whole, later = reader.read(asked), reader.read(asked, user)
        for name in contract.crosses():
            assert whole.inputs[name].tolist() == later.inputs[name].tolist()


def test_a_topic_that_the_user_never_saw_has_the_prior(run):
    contract, store, rows = run
    reader = RequestReader(contract, 10, store)
    (row, *_) = [row for row in rows if row["user_topic_click_count"] > 0]
    columns = known_columns(row)
    prior = reader.read(request(row, "nobody", columns)).inputs["user_topic_click_rate"][0]
    columns["topic"] = texts("a topic of nobody's", "another")
    inputs = reader.read(request(row, columns=columns)).inputs
    assert inputs["user_topic_click_rate"].tolist() == [prior, prior]
    assert inputs["user_topic_click_count"].tolist() == [0, 0]


def test_without_a_table_of_users_the_missing_rule_applies(run, root):
    """`export.snapshot: items`: nothing is known of the user, who may have labels."""
    contract, _, rows = run
    write_snapshot(root / "examples", root / "items", ["items"])
    snapshot = Snapshot(root / "items", contract, contract.schema_fingerprint())
    reader = RequestReader(contract, 10, OnlineFeatures(contract, snapshot, clock=None))
    row = next(row for row in rows if row["user_topic_click_count"] > 0)
    asked = request(row, second=row["item_id"])
    for name, rule in contract.label_counters().items():
        if rule.of == "user":
            asked.user[name].CopyFrom(number(row[name]))
    with pytest.raises(MissingValueError) as raised:
        reader.read(asked)
    assert set(raised.value.features) <= set(contract.crosses())
    for name in contract.crosses():
        asked.candidates.columns[name].numbers.values.extend([row[name]] * 2)
    inputs = reader.read(asked).inputs
    assert all(inputs[name][0] == np.float32(row[name]) for name in contract.crosses())
