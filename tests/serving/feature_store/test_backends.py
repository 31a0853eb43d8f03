"""Features that a call leaves out, from a version's snapshot and from a real Redis."""

import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import DataError, ServingError
from multigate.configs.sections.base import parse
from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.serving.client.rank_client import RankClient
from multigate.serving.feature_store import redis_client, snapshot
from multigate.serving.feature_store.interface import Column, FeatureQuery, stored_features
from multigate.serving.feature_store.online_features import OnlineFeatures
from multigate.serving.feature_store.redis_loader import load_snapshot
from multigate.serving.feature_store.redis_store import RedisStore
from multigate.serving.feature_store.snapshot import Snapshot
from multigate.serving.feature_store.snapshot_writer import write_snapshot
from multigate.verbs.command import main

CUT_OFF = "2026-03-01T12:00:00+00:00"
COLLIDING = ["plumless", "buckeroo"]  # the same CRC-32
ITEMS = ["i1", "i2", *COLLIDING, "Zürich", "i7"]
ROWS = {
    "users": {
        "user_id": ["u1", "u2", "buckeroo"],
        "country": ["BR", None, ""],
        "age": [30.5, None, 7.0],
        "segment": [4, None, 2**40],
        "recent": [["i1", "i2", "i3", "i4", "i5"], [], ["i7", "", "i1"]],
    },
    "items": {
        "item_id": ITEMS,
        "topic": ["news", None, "sport", "news", "日本", ""],
        "length": [1.5, 2.5, 3.5, 0.1, -7.0, 1e9],
        "tags": [["a", "b"], [], None, ["a", "", "c", "d", "é"], ["b"], ["a"]],
    },
}
TYPES = {
    "age": pa.float32(),
    "length": pa.float32(),
    "idle": pa.float32(),
    "member": pa.float32(),
    "lately": pa.float32(),
    "views": pa.float32(),
    "clicks": pa.float32(),
    "segment": pa.int64(),
    "recent": pa.list_(pa.string()),
    "tags": pa.list_(pa.string()),
}


def write_examples(folder, contract, rows=ROWS, name="small", cut_off=CUT_OFF):
    """What the pipeline leaves of a snapshot, in two parts each."""
    for source, columns in rows.items():
        table = pa.table(
            {key: pa.array(values, TYPES.get(key, pa.string())) for key, values in columns.items()}
        )
        (folder / "snapshot" / source).mkdir(parents=True)
        for part, slice_ in enumerate((table.slice(0, 2), table.slice(2))):
            pq.write_table(slice_, folder / "snapshot" / source / f"part-{part}.parquet")
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint="0" * 16,
    )
    (folder / "contract.json").write_text(frozen.model_dump_json())
    (folder / "manifest.json").write_text(json.dumps({"name": name, "cut_off": cut_off}))
    return folder


@pytest.fixture
def examples(tmp_path, contract):
    return write_examples(tmp_path / "examples", contract)


@pytest.fixture(scope="module")
def server_of_redis(tmp_path_factory, until, lacking):
    """A Redis of its own on a socket: its address, a client, and a context in which it hangs."""
    program = shutil.which("redis-server")
    if program is None:
        lacking("redis-server is not installed")
    folder = tmp_path_factory.mktemp("redis")
    socket = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    address = f"unix://{socket}?db=0"
    client = redis.Redis.from_url(address)

    def answers():
        with suppress(redis.ConnectionError):
            return client.ping()

    @contextmanager
    def hanging():
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)

    until(answers, "an answer of Redis")
    yield SimpleNamespace(address=address, client=client, hanging=hanging)
    client.close()
    process.terminate()
    process.wait(120)


@pytest.fixture
def store_of_redis(server_of_redis):
    server_of_redis.client.flushall()
    server_of_redis.client.config_resetstat()
    return server_of_redis


def bytes_of(values):
    found = np.empty(len(values), object)
    found[:] = [value.encode() for value in values]
    return found


def everything(contract, user, items):
    names = [list(stored_features(contract, side)) for side in ("user", "item")]
    return FeatureQuery(user, names[0], bytes_of(items), names[1])


def plain(column, row):
    """A value as the table has it, None where missing."""
    if not column.present[row]:
        return None
    value = column.values[row]
    if column.lengths is not None:
        return [one.decode() for one in value[: column.lengths[row]]]
    return value.decode() if isinstance(value, bytes) else value.item()


def expected(contract, source, name, place):
    value = ROWS[source][name][place]
    feature = contract.features[name]
    if feature.kind == "id_list":
        return [one for one in value or [] if one][-feature.max_length :]
    if feature.kind == "number" and value is not None:
        return float(np.float32(value))
    return value or None


def check(contract, store):
    """Every row of the tables, and ids that are not in them."""
    for place, user in enumerate(ROWS["users"]["user_id"]):
        stored = store.read(everything(contract, user.encode(), ["nobody", *reversed(ITEMS)]))
        assert (stored.problem, stored.lacks_user) == ("", False)
        assert stored.lacks_items.tolist() == [0]
        for name in stored_features(contract, "user"):
            assert plain(stored.columns[name], 0) == expected(contract, "users", name, place)
        for name in stored_features(contract, "item"):
            column = stored.columns[name]
            assert plain(column, 0) is None
            for row in range(len(ITEMS)):
                assert plain(column, len(ITEMS) - row) == expected(contract, "items", name, row)
    unknown = store.read(everything(contract, b"buckero", ["plumles", "i1\0", "", "x" * 1000]))
    assert not any(column.present.any() for column in unknown.columns.values())
    assert unknown.lacks_user
    assert unknown.lacks_items.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kept", [1 << 16, -1], ids=["kept", "searched"])
def test_the_snapshot_answers_what_the_tables_hold(examples, contract, tmp_path, monkeypatch, kept):
    monkeypatch.setattr(snapshot, "_KEPT_TEXTS", kept)
    monkeypatch.setattr(snapshot, "_KEPT_NUMBERS", kept)
    assert write_snapshot(examples, tmp_path / "out") == {"users": 3, "items": 6}
    check(contract, Snapshot(tmp_path / "out", contract, contract.schema_fingerprint()))


def test_redis_answers_what_the_tables_hold_in_one_command(examples, contract, store_of_redis):
    loaded = load_snapshot(examples, store_of_redis.address)
    assert loaded.rows == {"users": 3, "items": 6}
    assert (loaded.name, loaded.cut_off) == ("small", CUT_OFF)
    store = RedisStore(
        store_of_redis.address, "small", contract, contract.schema_fingerprint(), 120.0
    )
    check(contract, store)
    statistics = store_of_redis.client.info("commandstats")
    assert statistics["cmdstat_mget"]["calls"] == len(ROWS["users"]["user_id"]) + 1
    store.close()


def test_whole_number_ids(tmp_path, store_of_redis):
    features = {
        "user_id": {"kind": "id", "side": "user", "dtype": "int"},
        "item_id": {"kind": "id", "side": "item", "dtype": "int"},
        "recent": {"kind": "id_list", "side": "user", "dtype": "int", "max_length": 2},
        "price": {"kind": "number", "side": "item", "missing": "indicator"},
    }
    task = {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
    values = {"user": "user_id", "item": "item_id", "features": features, "tasks": {"view": task}}
    contract = parse(Contract, values, "test")
    rows = {
        "users": {"user_id": [2**60, -3, 0], "recent": [[1, 2, 3], None, [-(2**40)]]},
        "items": {"item_id": [7, -7, 2**62], "price": [0.25, None, 3.0]},
    }
    types = {"user_id": pa.int64(), "item_id": pa.int64(), "recent": pa.list_(pa.int64())}
    folder = write_examples(tmp_path / "examples", contract)
    for source, columns in rows.items():
        shutil.rmtree(folder / "snapshot" / source)
        (folder / "snapshot" / source).mkdir()
        table = pa.table({k: pa.array(v, types.get(k)) for k, v in columns.items()})
        pq.write_table(table, folder / "snapshot" / source / "part.parquet")
    write_snapshot(folder, tmp_path / "out")
    load_snapshot(folder / "snapshot", store_of_redis.address)
    schema = contract.schema_fingerprint()
    stores = [
        Snapshot(tmp_path / "out", contract, schema),
        RedisStore(store_of_redis.address, "small", contract, schema, 120.0),
    ]
    query = FeatureQuery(2**60, ["recent"], np.array([2**62, 8, -7, 7]), ["price"])
    for store in stores:
        columns = store.read(query).columns
        assert columns["recent"].values.tolist() == [[2, 3]]
        assert columns["price"].values.tolist() == [3.0, 0.0, 0.0, 0.25]
        assert columns["price"].present.tolist() == [True, False, False, True]
        assert columns["recent"].values.dtype == np.int64
        none = store.read(FeatureQuery(5, ["recent"], np.array([8]), ["price"])).columns
        assert (none["recent"].lengths.tolist(), none["price"].present.tolist()) == ([0], [False])
        store.close()


def rated_contract(contract):
    """The contract with rates of labels of its first binary task, and a snapshot with them."""
    task = {
        "group": "engagement",
        "type": "binary",
        "label": {"rule": "event", "events": ["LIKE"], "within": "1d"},
    }
    values = contract.model_dump(mode="json")
    values["tasks"]["liked"] = task
    values["rates"] = {"of": ["user", "item", ["user", "topic"]], "tasks": ["liked"]}
    cross, topics = "user_topic_liked", [["news"], None, ["sport", "日本", "news"]]
    lists = {
        f"{cross}_rate__keys": topics,
        f"{cross}_rate__ones": [[2], None, [0, 1, 3]],
        f"{cross}_rate__labels": [[5], None, [1, 2, 30]],
        f"{cross}_count__keys": topics,
        f"{cross}_count__labels": [[5], None, [1, 2, 30]],
    }
    rows = {
        "users": ROWS["users"]
        | {"user_liked_rate": [0.5, 0.25, 0.1], "user_liked_count": [4.0, 9.0, 0.0]}
        | lists,
        "items": ROWS["items"]
        | {"item_liked_rate": [0.2] * 6, "item_liked_count": [float(n) for n in range(6)]},
    }
    return parse(Contract, values, "test"), rows


def test_an_unknown_id_has_the_prior_and_no_labels(contract, tmp_path, store_of_redis, monkeypatch):
    rated, rows = rated_contract(contract)
    for name in ("user_liked", "item_liked"):
        for kind in ("rate", "count"):
            monkeypatch.setitem(TYPES, f"{name}_{kind}", pa.float32())
    for name, feature in rated.cross_lists().items():
        dtype = pa.string() if feature.dtype == "string" else pa.int64()
        monkeypatch.setitem(TYPES, name, pa.list_(dtype))
    folder = write_examples(tmp_path / "examples", rated, rows)
    statistics = {"features": {}, "tasks": {}, "rows": {}}
    (folder / "statistics.json").write_text(json.dumps(statistics))
    for write in (write_snapshot, load_snapshot):
        with pytest.raises(DataError, match=r"priors: .*'user_liked_rate' is absent; make the ex"):
            write(folder, tmp_path / "out" if write is write_snapshot else store_of_redis.address)
    priors = {"user_liked_rate": 0.1, "item_liked_rate": 0.3, "user_topic_liked_rate": 0.2}
    statistics["priors"] = priors
    (folder / "statistics.json").write_text(json.dumps(statistics))
    write_snapshot(folder, tmp_path / "out")
    load_snapshot(folder, store_of_redis.address)
    schema = rated.schema_fingerprint()
    for store in (
        Snapshot(tmp_path / "out", rated, schema),
        RedisStore(store_of_redis.address, "small", rated, schema, 120.0),
    ):
        online = OnlineFeatures(rated, store)
        found = online.read(everything(rated, b"u2", ["i9", "i2"])).columns
        assert found["user_liked_rate"].values.tolist() == [0.25]
        assert found["item_liked_rate"].values.tolist() == [np.float32(0.3), np.float32(0.2)]
        assert found["item_liked_rate"].present.all()
        assert found["item_liked_rate"].values.dtype == np.float32
        assert found["item_liked_count"].values.tolist() == [0, 1]
        assert found["item_liked_count"].present.all()
        unknown = online.read(everything(rated, b"u9", ["i9"])).columns
        assert unknown["user_liked_rate"].values.tolist() == [np.float32(0.1)]
        assert unknown["user_liked_count"].values.tolist() == [0]
        assert not unknown["age"].present.any()
        rate, count = "user_topic_liked_rate", "user_topic_liked_count"
        assert unknown[rate].values.tolist() == [np.float32(0.2)]
        # Topics of ITEMS: news, missing, sport, news, 日本, missing; and i9, of whom nobody knows.
        third = online.read(everything(rated, b"buckeroo", [*ITEMS, "i9"])).columns
        assert third[count].values.tolist() == [30, 0, 1, 30, 2, 0, 0]
        ones, labels = np.array([3, 0, 0, 3, 1, 0, 0]), np.array([30, 0, 1, 30, 2, 0, 0])
        # (ones + 10 * .2) / (labels + 10)
        assert third[rate].values == pytest.approx((ones + 2) / (labels + 10))
        assert third[rate].present.all()
        assert third[rate].values.dtype == np.float32
        # What the request says of topics counts, not what the store holds.
        given = Column(bytes_of(["日本", "news"]), np.array([True, False]))
        query = FeatureQuery(b"buckeroo", [], bytes_of(["i1", "i2"]), [count], {"topic": given})
        assert online.read(query).columns[count].values.tolist() == [2, 0]
        nobody = FeatureQuery(None, [], bytes_of(["i1"]), [rate])
        assert online.read(nobody).columns[rate].values.tolist() == [np.float32(0.2)]
        online.close()


def test_a_side_may_be_left_out(examples, contract, tmp_path):
    write_snapshot(examples, tmp_path / "out", ["items"])
    store = Snapshot(tmp_path / "out", contract, contract.schema_fingerprint())
    columns = store.read(everything(contract, b"u1", ["i1"])).columns
    assert set(columns) == {"topic", "length", "tags"}


def with_snapshot(examples):
    def change(folder):
        write_snapshot(examples, folder / "assets.extra" / "snapshot")

    return change


@pytest.fixture
def base(tmp_path, publish, examples):
    folder = tmp_path / "models"
    folder.mkdir()
    publish(folder, 1, with_snapshot(examples))
    return folder


@pytest.fixture(params=["version", "redis"])
def client(request, base, examples, run_server):
    """Of a server whose store is the version's snapshot, or Redis."""
    options = {}
    if request.param == "redis":
        server = request.getfixturevalue("store_of_redis")
        load_snapshot(examples, server.address)
        shutil.rmtree(base / "1/assets.extra/snapshot")
        options = {"feature_store": server.address, "feature_store_timeout_ms": 120_000}
    with (
        run_server(base, **options) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        yield client


def rank(client, user="u1", items=("i1", "i2", "plumless"), columns=None, **features):
    return client.rank(
        "small",
        user={"user_id": user, **features},
        context={"hour": 9},
        item_ids=list(items),
        columns=columns or {},
    )


def scores(ranking):
    return {item["item_id"]: item["score"] for item in ranking}


def sent(place, items=("i1", "i2", "plumless")):
    """All that the tables know of a user and of items, as a caller sends it."""
    users, of_items = ROWS["users"], ROWS["items"]
    user = {name: values[place] for name, values in users.items() if name != "user_id"}
    places = [ITEMS.index(item) for item in items]
    columns = {name: [of_items[name][at] for at in places] for name in ("topic", "length", "tags")}
    return user, columns


def test_ids_alone_score_as_with_all_features(client):
    for place, user in enumerate(ROWS["users"]["user_id"]):
        features, columns = sent(place)
        told = rank(client, user, columns=columns, **features)
        asked = rank(client, user)
        assert scores(asked) == scores(told)
        assert {warning.split()[1] for warning in asked.warnings} <= {
            warning.split()[1] for warning in told.warnings
        }


def test_what_the_request_names_wins_feature_by_feature(client):
    features, columns = sent(0)
    alone = scores(rank(client))
    changed = scores(rank(client, age=80.0))
    assert changed != alone
    assert changed == scores(rank(client, columns=columns, **(features | {"age": 80.0})))
    nothing = rank(client, country=None)
    assert any("'country': 1 missing" in warning for warning in nothing.warnings)
    assert scores(nothing) == scores(
        rank(client, columns=columns, **(features | {"country": None}))
    )
    topics = ["sport", None, "sport"]
    assert scores(rank(client, columns={"topic": topics})) == scores(
        rank(client, columns=columns | {"topic": topics}, **features)
    )


def test_unknown_ids_have_the_missing_rule(client):
    _, columns = sent(0)
    stranger = rank(client, "u9", age=3.0)
    assert stranger.warnings[0].startswith("user_id 'u9': the feature store does not know this")
    assert any("'country': 1 missing value;" in warning for warning in stranger.warnings)
    assert not any("item" in warning for warning in stranger.warnings)
    expected = rank(client, "u9", columns=columns, age=3.0)
    assert scores(stranger) == scores(expected)
    known = rank(client, items=("i1", "i9"))
    assert ([item["item_id"] for item in known], known.unscored) == (["i1"], [1])
    [warning] = [one for one in known.warnings if "does not know" in one]
    assert warning.startswith("the feature store does not know 1 item, new or")
    assert warning.endswith(": 'i9'")
    assert any("'length': 1 item not scored" in text and "'i9'" in text for text in known.warnings)
    with pytest.raises(ServingError, match=r"'length': expected a value .* received none$"):
        rank(client, items=("i8", "i9"))
    answer = rank(client, items=("i1", "i9"), columns={"length": [1.5, 2.0]})
    assert any("'topic': 1 missing value;" in warning for warning in answer.warnings)


def test_another_snapshot_comes_with_another_version(base, publish, run_server, contract, until):
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        before = rank(client)
        rows = {**ROWS, "users": {**ROWS["users"], "age": [99.0, None, 7.0]}}
        later = write_examples(base.parent / "later", contract, rows)
        publish(base, 2, with_snapshot(later))
        until(lambda: rank(client).model_version == 2)
        assert scores(rank(client)) != scores(before)
        assert scores(rank(client, age=30.5)) == scores(before)


def test_fresh_features_of_a_trial_do_not_hide_old_ones_in_production(
    base, publish, run_server, contract, until
):
    def call(version):
        known = {"user": {"user_id": "u1"}, "context": {"hour": 9}, "item_ids": ["i1"]}
        return client.rank("small", version=version, **known).model_version

    def end_of_features(version):
        name = "multigate_features_cut_off_timestamp_seconds"
        return running.metric(name, model="small", version=str(version))

    first = datetime.fromisoformat(CUT_OFF)
    second = first + timedelta(days=1)
    later = write_examples(base.parent / "later", contract, cut_off=second.isoformat())
    publish(base, 2, with_snapshot(later))
    trials.begin(Base(base), 2, 0.0, None)
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        assert [call(version) for version in (1, 2, 1, 2)] == [1, 2, 1, 2]
        assert end_of_features(1) == first.timestamp()
        assert end_of_features(2) == second.timestamp()
        trials.promote(Base(base), accepted=["verdict"])
        until(lambda: end_of_features(1) is None)  # nobody mends what no longer serves
        assert call(2) == 2
        assert end_of_features(2) == second.timestamp()


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("manifest.json", lambda text: text.replace(b'"schema": "', b'"schema": "0'), "schema"),
        ("manifest.json", lambda text: text[:-20], "cannot be read as a snapshot's manifest"),
        ("items/length.npy", lambda text: text[:-1] + b"\1", "length.npy: damaged"),
        ("users/keys.npy", lambda text: text[:-4], "keys.npy: damaged"),
        ("items/tags.codes.npy", None, "incomplete snapshot: .*tags.codes.npy"),
    ],
)
def test_a_snapshot_that_does_not_fit_keeps_its_version_from_serving(
    base, publish, run_server, examples, until, file, content, reason
):
    def spoil(folder):
        with_snapshot(examples)(folder)
        path = folder / "assets.extra/snapshot" / file
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content(path.read_bytes()))

    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        publish(base, 2, spoil)
        records = running.server.models.manager("small").records
        until(lambda: 2 in records() and records()[2].state == "END")
        assert rank(client).model_version == 1
        assert re.search(reason, records()[2].error)


def test_no_store_is_asked_where_none_is_wanted(base, run_server):
    with (
        run_server(base, feature_store="none") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        _, columns = sent(0)
        answer = rank(client, columns=columns)
        assert any("'country': 1 missing" in warning for warning in answer.warnings)
        with pytest.raises(ServingError, match="'length': expected a value"):
            rank(client)


@pytest.mark.slow
def test_redis_that_does_not_answer_in_time(base, examples, run_server, store_of_redis, until):
    load_snapshot(examples, store_of_redis.address)
    features, columns = sent(0)
    options = {"feature_store": store_of_redis.address, "feature_store_timeout_ms": 100}
    with run_server(base, **options) as running, RankClient(running.target, timeout=120) as client:
        found = []

        def answered():
            """On a busy machine Redis may take longer now and then."""
            with suppress(ServingError):
                found.append(rank(client))
            return found

        until(answered, "an answer in time")
        (quick,) = found
        with store_of_redis.hanging():
            slow = rank(client, columns=columns)
            assert slow.warnings[0].startswith("feature store: no answer within 0.1 s (TimeoutErr")
            assert any("'country': 1 missing" in warning for warning in slow.warnings)
            with pytest.raises(ServingError, match=r"UNAVAILABLE.*'length': the request leaves"):
                rank(client)
            complete = rank(client, columns=columns, **features)
            assert not any("feature store" in warning for warning in complete.warnings)
        found.clear()
        until(answered, "an answer in time")
        assert scores(found[0]) == scores(quick) == scores(complete)


def test_the_circuit_breaker_skips_a_redis_that_hangs(
    base, examples, run_server, store_of_redis, monkeypatch
):
    monkeypatch.setattr("multigate.serving.feature_store.circuit_breaker.PAUSE_SECONDS", 3600.0)
    load_snapshot(examples, store_of_redis.address)
    _, columns = sent(0)
    options = {"feature_store": store_of_redis.address, "feature_store_timeout_ms": 50}
    with run_server(base, **options) as running, RankClient(running.target, timeout=120) as client:
        with store_of_redis.hanging():
            warnings = [rank(client, columns=columns).warnings[0] for _ in range(10)]
        stored = {
            name: running.metric(f"multigate_feature_store_{name}", model="small")
            for name in ("failures_total", "skips_total", "seconds_count")
        }
    timed_out = [text for text in warnings if "no answer within 0.05 s (Timeout" in text]
    assert warnings[: len(timed_out)] == timed_out
    assert len(timed_out) == 3
    assert set(warnings[3:]) == {"feature store: no answer several times in a row; skipped"}
    assert stored == {"failures_total": 10, "skips_total": 7, "seconds_count": 3}


def test_a_new_snapshot_in_redis_replaces_the_old_one_in_one_step(
    examples, contract, tmp_path, store_of_redis
):
    client, schema = store_of_redis.client, contract.schema_fingerprint()
    first = load_snapshot(examples, store_of_redis.address)
    store = RedisStore(store_of_redis.address, "small", contract, schema, 120.0)
    query = everything(contract, b"u1", ["i1"])
    assert store.read(query).columns["age"].values[0] == 30.5
    rows = {**ROWS, "users": {**ROWS["users"], "age": [99.0, None, 7.0]}}
    later = write_examples(tmp_path / "later", contract, rows)
    client.set(f"multigate:small:{schema}:loading", "somebody", ex=3600)
    with pytest.raises(ServingError, match="another load is running"):
        load_snapshot(later, store_of_redis.address)
    assert store.read(query).columns["age"].values[0] == 30.5
    client.delete(f"multigate:small:{schema}:loading")
    second = load_snapshot(later, store_of_redis.address, keep_seconds=3000)
    assert store.read(query).columns["age"].values[0] == 99.0
    for loaded, expires in ((first, True), (second, False)):
        keys = list(client.scan_iter(f"*:{loaded.generation}:*"))
        assert len(keys) == 9
        assert all((0 < client.ttl(key) <= 3000) == expires for key in keys)
    assert not client.exists(f"multigate:small:{schema}:loading")
    store.close()


def test_a_load_that_fails_changes_nothing(examples, contract, store_of_redis, monkeypatch):
    load_snapshot(examples, store_of_redis.address)
    before = store_of_redis.client.get(f"multigate:small:{contract.schema_fingerprint()}:current")
    shutil.rmtree(examples / "snapshot/items")
    with pytest.raises(DataError, match="items: no snapshot here"):
        load_snapshot(examples, store_of_redis.address)
    after = store_of_redis.client.get(f"multigate:small:{contract.schema_fingerprint()}:current")
    assert before == after
    with pytest.raises(
        ServingError, match=r"unix:///nowhere\.sock: .*servers keep the features they had"
    ):
        load_snapshot(examples, "unix:///nowhere.sock")
    monkeypatch.setattr(redis_client.importlib, "import_module", _absent)
    with pytest.raises(ServingError, match="pip install redis"):
        redis_client.connect("redis://localhost")


def _absent(name):
    raise ImportError(name)


def test_a_store_without_features_says_so(contract, store_of_redis):
    schema = contract.schema_fingerprint()
    store = RedisStore(store_of_redis.address, "small", contract, schema, 120.0)
    problem = store.read(everything(contract, b"u1", ["i1"])).problem
    assert problem == "no features are loaded for this model and schema"
    nowhere = RedisStore("unix:///nowhere.sock", "small", contract, schema, 5.0)
    assert "no answer within 5 s" in nowhere.read(everything(contract, b"u1", ["i1"])).problem
    store.close()


@pytest.mark.parametrize("key", ["*:current", "*:u:u1"])
@pytest.mark.parametrize("text", ["", "{}", "[]", "\xff", "[1", "7"])
def test_a_value_that_cannot_be_read_is_a_problem_and_no_crash(
    examples, contract, store_of_redis, key, text
):
    load_snapshot(examples, store_of_redis.address)
    schema = contract.schema_fingerprint()
    store = RedisStore(store_of_redis.address, "small", contract, schema, 120.0)
    query = everything(contract, b"u1", ["i1"])
    assert store.read(query).problem == ""
    (name,) = store_of_redis.client.scan_iter(key)
    store_of_redis.client.set(name, text)
    again = RedisStore(store_of_redis.address, "small", contract, schema, 120.0)
    for one in (store, again):
        assert "an unreadable answer" in one.read(query).problem
        one.close()


def test_services_with_the_features_in_another_order_read_the_same_values(
    examples, contract, store_of_redis
):
    """The schema's fingerprint ignores the order, so that both read the same rows."""
    load_snapshot(examples, store_of_redis.address)
    features = dict(reversed(contract.features.items()))
    reordered = contract.model_copy(update={"features": features})
    schema = reordered.schema_fingerprint()
    assert schema == contract.schema_fingerprint()
    assert list(stored_features(reordered, "user")) != list(stored_features(contract, "user"))
    store = RedisStore(store_of_redis.address, "small", reordered, schema, 120.0)
    check(reordered, store)
    store.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda value: value.pop("columns"), "users: no names of columns"),
        (lambda value: value["columns"]["items"].remove("topic"), "items: no column 'topic'"),
    ],
)
def test_rows_without_their_columns_are_refused(examples, contract, store_of_redis, change, says):
    load_snapshot(examples, store_of_redis.address)
    schema = contract.schema_fingerprint()
    key = f"multigate:small:{schema}:current"
    value = json.loads(store_of_redis.client.get(key))
    change(value)
    store_of_redis.client.set(key, json.dumps(value))
    store = RedisStore(store_of_redis.address, "small", contract, schema, 120.0)
    answer = store.read(everything(contract, b"u1", ["i1"]))
    assert says in answer.problem
    assert answer.problem.endswith("load the snapshot again")
    assert not answer.columns
    store.close()


def test_the_command_loads(examples, contract, store_of_redis, capsys):
    arguments = ["features", "load", "--snapshot", str(examples), "--to", store_of_redis.address]
    assert main([*arguments, "--model_name", "other", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("loaded 3 users and 6 items of other, schema ")
    assert json.loads(printed.out)["rows"] == {"users": 3, "items": 6}
    keys = store_of_redis.client.keys(f"multigate:other:{contract.schema_fingerprint()}:*")
    assert len(keys) == 10


def test_who_is_not_in_the_log_has_counts_of_zero(tmp_path):
    count = {"of": "user", "events": ["view"]}
    features = {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "views": {"kind": "number", "side": "user", "count": count},
        "clicks": {"kind": "number", "side": "item", "count": count | {"of": "item"}},
    }
    task = {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
    values = {"user": "user_id", "item": "item_id", "features": features, "tasks": {"view": task}}
    contract = parse(Contract, values, "test")
    rows = {
        "users": {"user_id": ["a"], "views": [3.0]},
        "items": {"item_id": ["i", "j"], "clicks": [4.0, 5.0]},
    }
    write_snapshot(
        write_examples(tmp_path / "examples", contract, rows), tmp_path / "out", ["items"]
    )
    store = Snapshot(tmp_path / "out", contract, contract.schema_fingerprint())
    query = FeatureQuery(b"nobody", ["views"], bytes_of(["j", "new", "i"]), ["clicks"])
    columns = OnlineFeatures(contract, store).read(query).columns
    assert columns["clicks"].values.tolist() == [5, 0, 4]
    assert columns["clicks"].present.all()
    assert "views" not in columns  # of users, this store knows nothing


def test_times_since_an_event_grow_with_the_clock(tmp_path):
    since = {"of": "user", "events": ["view"]}
    lately = {"kind": "number", "side": "user", "since": since | {"within": "1h"}}
    features = {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "idle": {"kind": "number", "side": "user", "since": since, "missing": "indicator"},
        "member": {"kind": "number", "side": "user", "age": "iso", "missing": "indicator"},
        "age": {"kind": "number", "side": "user"},
        "lately": lately | {"missing": "indicator"},
    }
    task = {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
    values = {"user": "user_id", "item": "item_id", "features": features, "tasks": {"view": task}}
    contract = parse(Contract, values, "test")
    idle = [10.0, None]
    rows = {
        "users": {
            "user_id": ["a", "b"],
            "idle": idle,
            "member": idle,
            "age": [30.0, 40.0],
            "lately": idle,
        },
        "items": {"item_id": ["i"]},
    }
    write_snapshot(write_examples(tmp_path / "examples", contract, rows), tmp_path / "out")
    store = Snapshot(tmp_path / "out", contract, contract.schema_fingerprint())
    query = FeatureQuery(b"a", ["idle", "member", "age"], bytes_of(["i"]), [])
    cut_off = store.read(query).cut_off
    for clock, idle in (
        (lambda: cut_off + 3600, 3610),
        (lambda: cut_off - 3600, 10),  # a clock that is behind
        (None, 10),
    ):
        columns = OnlineFeatures(contract, store, clock).read(query).columns
        found = [columns[name].values.tolist() for name in ("idle", "member", "age")]
        assert found == [[idle], [idle], [30]]
    for passed, present in ((3590, True), (3591, False)):  # an event longer ago than an hour
        clock = OnlineFeatures(contract, store, lambda passed=passed: cut_off + passed)
        lately = clock.read(FeatureQuery(b"a", ["lately"], bytes_of(["i"]), [])).columns["lately"]
        assert (lately.present[0], lately.values[0]) == (present, 3600 * present)
    later = OnlineFeatures(contract, store, lambda: cut_off + 3600)
    nothing = later.read(FeatureQuery(b"b", ["idle"], bytes_of(["i"]), [])).columns["idle"]
    assert (nothing.present.tolist(), nothing.values.tolist()) == ([False], [0])
