"""A version on trial: whose calls it answers, what is scored besides, and that no call fails."""

import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest
from google.protobuf import json_format

from multigate.configs.errors import ServingError
from multigate.configs.version_folders import Trial
from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.serving.client import RankClient
from multigate.serving.client.packing import model_spec, rank_request
from multigate.serving.observe.drift import DriftMonitor
from multigate.serving.observe.side import side_of
from multigate.serving.protos import ranking_pb2
from multigate.serving.versions.manager import VersionManager
from multigate.serving.versions.saved_model import ServedSignature

ITEMS = [f"i{n}" for n in range(1, 7)]
COLUMNS = {"length": [float(n) for n in range(6)]}


@pytest.fixture
def base(tmp_path, publish):
    """Versions 1 and 2, which score alike; version 2 is tried."""
    base = tmp_path / "models"
    base.mkdir()
    publish(base, 1)
    publish(base, 2)
    return base


def call(client, user, **changes):
    arguments = {"context": {"hour": 9}, "item_ids": ITEMS, "columns": COLUMNS} | changes
    return client.rank("small", user={"user_id": user}, **arguments)


def request_of(user):
    return rank_request(
        model_spec("small", None, ""), {"user_id": user}, {"hour": 9}, ITEMS, COLUMNS
    )


def planted(monkeypatch, change):
    """Have version 2 answer in another way; `change` gets its signature's own outputs."""
    run, loaded = ServedSignature.__call__, {}

    def answer(self, inputs, timeout=None):
        outputs = run(self, inputs, timeout)
        return change(outputs) if self.name == "rank" and loaded.get(id(self)) else outputs

    def mark(running):
        version = running.server.models.manager("small")._loaded[2]
        loaded[id(version.saved_model.signatures["rank"])] = True

    monkeypatch.setattr(ServedSignature, "__call__", answer)
    return mark


def rows(folder, pattern):
    tables = [pq.read_table(path) for path in sorted(folder.glob(pattern))]
    return [row for table in tables for row in table.to_pylist()]


def counted(running, name, **labels):
    return running.metric(name, model="small", version="2", **labels) or 0


def value(user):
    return ranking_pb2.Value(text=user)


def test_a_user_stays_on_one_side_and_joins_it_as_the_percentage_grows():
    def groups(percent, version=2):
        return [
            side_of(Trial(version, percent), value(f"u{n}"), "r").group == "canary"
            for n in range(20_000)
        ]

    small, large = np.array(groups(10)), np.array(groups(40))
    assert abs(small.mean() - 0.1) < 0.01
    assert abs(large.mean() - 0.4) < 0.015
    assert (small <= large).all()
    assert (groups(10), any(groups(0)), all(groups(100))) == (small.tolist(), False, True)
    # The next trial's canary is of other users.
    assert abs((np.array(groups(40, version=3)) & large).mean() - 0.16) < 0.015
    # Known by heart: another hash would move users in the middle of a trial.
    drawn = [side_of(Trial(7, 50.0), value(user), "r").group[0] for user in "abcdefgh"]
    assert "".join(drawn) == "scsccssc"


@pytest.mark.parametrize("user", [None, ranking_pb2.Value(), value("")])
def test_calls_without_a_user_are_split_by_their_request(user):
    groups = Counter(side_of(Trial(2, 30), user, f"r{n}").group for n in range(5_000))
    assert abs(groups["canary"] / 5_000 - 0.3) < 0.03


def test_the_canary_answers_its_users_until_it_is_promoted(base, tmp_path, run_server, until):
    users = [f"u{n}" for n in range(60)]
    log = tmp_path / "log"
    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert {call(client, user).model_version for user in users[:5]} == {2}
        trials.begin(Base(base), 2, 30.0, None)
        until(lambda: counted(running, "multigate_trial_percent", side="canary") == 30)
        first = {user: call(client, user).model_version for user in users}
        expected = {
            user: 2 if side_of(Trial(2, 30.0), value(user), "").group == "canary" else 1
            for user in users
        }
        assert first == expected
        assert set(first.values()) == {1, 2}
        assert {user: call(client, user).model_version for user in users} == first
        # Calls that name a version are answered by it, on whichever side.
        assert {call(client, user, version=2).model_version for user in users[:9]} == {2}
        assert {call(client, user, version=1).model_version for user in users[:9]} == {1}
        answered = 2 * Counter(first.values())[2]
        assert counted(running, "multigate_canary_calls_total", result="answered") == answered
        assert running.metric("multigate_model_version", model="small") == 1
        verdict = {"version": 2, "against": 1, "at": "", "verdict": "bless", "objections": []}
        trials.record(Base(base), verdict)
        assert trials.promote(Base(base)) == 2
        until(lambda: running.metric("multigate_model_version", model="small") == 2)
        assert {call(client, user).model_version for user in users} == {2}
        assert running.metric("multigate_version_loads_total", model="small", result="loaded") == 2
    found = {
        (row["user_id"], row["ranked/model_version"], row["ranked/group"], row["ranked/trial"])
        for row in rows(log, "small/*.parquet")
        if row["ranked/canary"] == 30
    }
    assert found == {
        (user, version, "canary" if version == 2 else "stable", 2)
        for user, version in expected.items()
    }


def test_drift_is_measured_for_production_alone(base, run_server, monkeypatch):
    watched = []
    monkeypatch.setattr(
        DriftMonitor, "add", lambda self, ranker, *call: watched.append(ranker.number)
    )
    trials.begin(Base(base), 2, 100.0, None)
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        assert call(client, "u1").model_version == 2
        assert call(client, "u1", version=2).model_version == 2
        assert call(client, "u1", version=1).model_version == 1
    assert watched == [1]


def test_a_user_is_on_the_same_side_over_grpc_and_http(base, run_server, rest):
    users = [f"u{n}" for n in range(20)]
    trials.begin(Base(base), 2, 50.0, None)
    with run_server(base, rest_api_port=0) as running:
        http = rest(running.server.rest_port)

        def over_http(user):
            body = json_format.MessageToDict(request_of(user))
            status, answer = http.post("small:rank", {"request_id": "r1", **without(body, "model")})
            assert status == 200, answer
            return int(answer["model_version"])

        over_grpc = {user: running.ranking.Rank(request_of(user)).model_version for user in users}
        assert {user: over_http(user) for user in users} == over_grpc
        assert set(over_grpc.values()) == {1, 2}
        answered = 2 * Counter(over_grpc.values())[2]
        assert counted(running, "multigate_canary_calls_total", result="answered") == answered


def without(values, name):
    return {key: value for key, value in values.items() if key != name}


def test_calls_cancelled_at_random_leave_nothing_behind(base, run_server, until, helpers):
    """On both sides: in the queue, in a run, and where production answers for a late canary."""
    draw = random.Random(5)
    options = {"canary_timeout_ms": 5.0, "num_batch_threads": 1, "max_queued_calls": 8}
    with run_server(base, **options) as running, RankClient(running.target, timeout=120) as client:
        trials.begin(Base(base), 2, 50.0, None)
        until(lambda: counted(running, "multigate_trial_percent", side="canary") == 50)
        gate = running.server.gate
        versions = running.server.models.manager("small")._loaded
        calls = []
        for n in range(200):
            hour = helpers.slow_from + draw.choice([0, 100, 1_000])  # up to some 20 ms
            request = rank_request(
                model_spec("small", None, ""), {"user_id": f"u{n}"}, {"hour": hour}, ITEMS, COLUMNS
            )
            seconds = draw.choice([60, 60, 0.01])
            calls.append(running.ranking.Rank.future(request, timeout=seconds))
            draw.choice(calls[-6:]).cancel()
        codes = Counter(grpc_code(one) for one in calls)
        assert codes.keys() <= {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
        assert codes["CANCELLED"]
        assert versions.keys() == {1, 2}
        until(lambda: not gate.admitted and not gate.in_flight.count, "the end of all calls")
        for version in versions.values():
            until(lambda version=version: not version.saved_model._calls, "its calls")
            rank = version.batchers["rank"]
            until(lambda rank=rank: (rank._free, len(rank._queue)) == (1, 0), "its runs")
        assert len(call(client, "u1")) == len(ITEMS)


def grpc_code(future):
    """The status of a call, once it has ended."""
    try:
        future.result()
    except grpc.FutureCancelledError:
        return "CANCELLED"
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "promote"])
def test_a_trial_begins_and_ends_under_load_without_a_failed_call(
    base, tmp_path, run_server, until, hold, end
):
    """Callers who retry nothing; version 2 is loaded, tried, and withdrawn or put in production.

    All of them have calls in runs, on either side, when the trial ends.
    """
    (base / "2").rename(tmp_path / "later")
    with run_server(base) as running:
        rank, stopped = running.ranking.Rank, threading.Event()
        seen = [[] for _ in range(8)]

        def calling(number):
            while not stopped.is_set():
                user = f"u{number}-{len(seen[number])}"
                seen[number].append(rank(request_of(user), timeout=240).model_version)

        def called():
            """Each caller has had an answer to a call that it began from now on."""
            before = [len(one) for one in seen]
            until(lambda: all(len(one) > n + 1 for one, n in zip(seen, before, strict=True)))

        with ThreadPoolExecutor(8) as pool:
            callers = [pool.submit(calling, number) for number in range(8)]
            try:
                called()
                assert {version for one in seen for version in one} == {1}
                (tmp_path / "later").rename(base / "2")
                trials.begin(Base(base), 2, 50.0, None)
                until(lambda: counted(running, "multigate_trial_percent", side="canary") == 50)
                answers = {"result": "answered"}
                until(lambda: counted(running, "multigate_canary_calls_total", **answers) > 9)
                newest = {"stop": 1, "promote": 2}[end]
                manager = running.server.models.manager("small")
                with hold("rank"):
                    until(lambda: len(running.server.gate.admitted) == 8, "calls of all")
                    if end == "stop":
                        trials.stop(Base(base))
                    else:
                        verdict = {"version": 2, "against": 1, "at": "", "objections": []}
                        trials.record(Base(base), verdict | {"verdict": "bless"})
                        assert trials.promote(Base(base)) == 2
                    until(lambda: manager.available_versions() == [newest], "the end of the other")
                called()
                ended = [len(one) for one in seen]
                called()
            finally:
                stopped.set()
            for caller in callers:
                caller.result()
        assert {version for one in seen for version in one} == {1, 2}
        last = {v for one, n in zip(seen, ended, strict=True) for v in one[n:]}
        assert last == {newest}
        loads = running.metric("multigate_version_loads_total", model="small", result="loaded")
        assert loads == 2
    assert list(Base(base).withdrawn()) == ([2] if end == "stop" else [])


def test_a_canary_that_raises_fails_no_call(base, tmp_path, run_server, until, monkeypatch):
    monkeypatch.setattr("multigate.serving.feature_store.circuit_breaker.PAUSE_SECONDS", 3600.0)
    log = tmp_path / "log"

    def broken(outputs):
        raise RuntimeError("planted")

    mark = planted(monkeypatch, broken)
    trials.begin(Base(base), 2, 100.0, None)
    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        mark(running)
        versions = [call(client, f"u{number}").model_version for number in range(30)]
        with pytest.raises(ServingError, match="expected a value"):
            call(client, "u1", context={})
        results = {
            result: counted(running, "multigate_canary_calls_total", result=result)
            for result in ("answered", "failed", "skipped")
        }
        candidates = running.metric("multigate_candidates_sum", model="small")
    assert set(versions) == {1}
    assert candidates == 30 * len(ITEMS)  # of a call that the canary failed as well, once
    # After three failures in a row it is spared, until a pause has passed.
    assert results == {"answered": 0, "failed": 3, "skipped": 27 + 1}
    written = rows(log, "small/*.parquet")
    assert {(row["ranked/model_version"], row["ranked/group"]) for row in written} == {
        (1, "canary")
    }
    assert len(written) == 30 * len(ITEMS)


def test_a_canary_that_hangs_holds_no_call_up(base, run_server, monkeypatch):
    released = threading.Event()

    def hang(outputs):
        released.wait(120)
        return outputs

    mark = planted(monkeypatch, hang)
    trials.begin(Base(base), 2, 100.0, None)
    with (
        run_server(base, canary_timeout_ms=50.0) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        mark(running)
        versions = [call(client, f"u{number}").model_version for number in range(8)]
        late = counted(running, "multigate_canary_calls_total", result="late")
        candidates = running.metric("multigate_candidates_sum", model="small")
        released.set()
    assert versions == [1] * 8
    assert late >= 3
    assert candidates == 8 * len(ITEMS)  # also of calls that the canary had begun, once


def test_a_version_that_moves_while_it_is_loaded_is_loaded_where_it_is_then(
    base, tmp_path, run_server, until, monkeypatch
):
    """At once: not after the pause of a version that failed to load."""
    (base / "2").rename(tmp_path / "later")
    open_, moves = VersionManager._open, []

    def move(manager, version, folder):
        if moves:
            moves.pop()(Base(base))
        return open_(manager, version, folder)

    def promote(base):
        verdict = {"version": 2, "against": 1, "at": "", "verdict": "bless", "objections": []}
        trials.record(base, verdict)
        trials.promote(base)

    with run_server(base) as running:
        monkeypatch.setattr(VersionManager, "_open", move)
        moves += [promote, lambda base: trials.begin(base, 2, 50.0, None)]
        (tmp_path / "later").rename(base / "2")
        until(lambda: running.metric("multigate_model_version", model="small") == 2)
        assert not moves
        failed = running.metric("multigate_version_loads_total", model="small", result="failed")
        assert failed == 2


def test_a_version_that_cannot_be_loaded_is_not_tried(base, run_server, until):
    trials.begin(Base(base), 2, 100.0, 100.0)
    (base / ".trial/2/saved_model.pb").write_bytes(b"damaged")
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        assert {call(client, f"u{number}").model_version for number in range(9)} == {1}
        record = running.server.models.records("small", 2)[2]
        assert (record.state, "cannot be loaded" in record.error) == ("END", True)
        assert running.metric("multigate_trial_percent", model="small") is None


def test_damaged_settings_end_no_trial(base, run_server, until, caplog):
    trials.begin(Base(base), 2, 100.0, None)
    settings = base / ".trial/settings.json"
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        settings.write_text('{"version": 2, "canary": 101}')
        until(lambda: "expected a percentage, 0 to 100, received 101" in caplog.text)
        assert call(client, "u1").model_version == 2
        settings.write_text(json.dumps({"version": 2, "canary": 0}))
        until(lambda: call(client, "u1").model_version == 1)
