"""The shadow of a version on trial: what it scores, and that whatever ends it costs no call.

Where a test changes what a version answers, the shadow's scorer is in the process of the test, and
questions and answers are pickled all the same.
"""

import os
import pickle
import signal
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from multigate.configs.version_folders import Trial
from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.runtime.child import Child
from multigate.runtime.in_flight import CallsInFlight
from multigate.serving.client import RankClient
from multigate.serving.observe import gaps, shadow_scoring
from multigate.serving.observe import shadow as shadows
from multigate.serving.observe.gaps import Gaps
from multigate.serving.observe.shadow_scoring import Question, Scorer
from multigate.serving.observe.side import side_of
from multigate.serving.protos import ranking_pb2
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


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A server that stops waits for its shadow, however slow the machine is."""
    monkeypatch.setattr(shadows, "_CLOSING_SECONDS", 240.0)
    monkeypatch.setattr(shadows, "_FIRST_PAUSE", 0.01)


@pytest.fixture
def in_this_process(monkeypatch):
    """Scores in the process of the test; gets a function that changes what version 2 scores."""
    scorers, changes = {}, []

    def ask(child, question):
        if child not in scorers:
            options, file = child._arguments
            scorers[child] = Scorer(options, Gaps(CallsInFlight(os.dup(file)), options))
        answer = scorers[child].answer(pickle.loads(pickle.dumps(question)))
        return pickle.loads(pickle.dumps(answer))

    opened = Scorer._open

    def open_(scorer, wanted):
        loaded = opened(scorer, wanted)
        if wanted.number == 2 and changes:
            usual = loaded.saved_model.signatures["rank"]

            class Changed:
                layout = usual.layout

                def __call__(self, inputs):
                    return changes[-1](usual(inputs))

            loaded.saved_model.signatures["rank"] = Changed()
        return loaded

    def end(child):
        if child in scorers:
            scorers.pop(child).answer(Question())

    monkeypatch.setattr(Child, "ask", ask)
    monkeypatch.setattr(Child, "end", end)
    monkeypatch.setattr(Child, "pid", property(lambda child: child in scorers or None))
    monkeypatch.setattr(Scorer, "_open", open_)
    return changes.append


def call(client, user, **changes):
    arguments = {"context": {"hour": 9}, "item_ids": ITEMS, "columns": COLUMNS} | changes
    return client.rank("small", user={"user_id": user}, **arguments)


def rows(folder, pattern):
    tables = [pq.read_table(path) for path in sorted(folder.glob(pattern))]
    return [row for table in tables for row in table.to_pylist()]


def rows_by_request(log):
    """The rows of the shadow log by request, in the answer's order."""
    found = {}
    for row in sorted(rows(log, "small/shadow/*"), key=lambda row: row["ranked/position"]):
        found.setdefault(row["ranked/request_id"], []).append(row)
    return found


def counted(running, name, **labels):
    return running.metric(name, model="small", version="2", **labels) or 0


def results_of(running):
    """Calls that the shadow was to score, by what became of them."""
    results = ("scored", "dropped", "failed")
    counts = {one: counted(running, "multigate_shadow_calls_total", result=one) for one in results}
    return {result: count for result, count in counts.items() if count}


def lives(pid):
    """Whether a process is there, and not only its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def negated(outputs):
    return {name: -values for name, values in outputs.items()}


def test_the_same_calls_are_scored_and_no_answer_changes(
    base, tmp_path, run_server, monkeypatch, in_this_process
):
    log = tmp_path / "log"
    in_this_process(negated)
    trials.begin(Base(base), 2, 50.0, 100.0)
    users = [f"u{n}" for n in range(20)]
    run, signatures = ServedSignature.__call__, []

    def answer(self, inputs, timeout=None):
        outputs = run(self, inputs, timeout)
        return negated(outputs) if self in signatures else outputs

    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        tried = running.server.models.trial("small")[1].saved_model.signatures["rank"]
        signatures.append(tried)
        monkeypatch.setattr(ServedSignature, "__call__", answer)
        answers = {user: call(client, user, limit=3, request_id=user) for user in users}
        plain = {user: call(client, user, limit=3, version=1) for user in users}
    shown = rows(log, "small/*.parquet")
    seen = {(row["ranked/request_id"], row["item_id"]): row for row in rows(log, "small/shadow/*")}
    by_user = {user: answer.model_version for user, answer in answers.items()}
    assert set(by_user.values()) == {1, 2}
    assert len(seen) == 20 * 3
    for row in shown:
        if row["ranked/trial"] is None:  # it named a version
            assert row["ranked/shadow"] is None
            continue
        assert row["ranked/shadow"]
        other = seen[row["ranked/request_id"], row["item_id"]]
        assert (other["user_id"], other["ranked/score"]) == (row["user_id"], row["ranked/score"])
        assert other["ranked/model_version"] == by_user[row["user_id"]]
        assert other["shadow/version"] == 3 - by_user[row["user_id"]]
        # Calls that are joined to one run may differ in the last bits.
        for name in ("score", "score/click"):
            assert other[f"shadow/{name}"] == pytest.approx(-row[f"ranked/{name}"], rel=1e-5)
        assert other["shadow/position"] == 5 - row["ranked/position"]
        assert (other["shadow/pairs"], other["shadow/overlap"]) == (0.0, 0.0)
    for user, answer in answers.items():
        if by_user[user] == 1:
            assert [item["score"] for item in answer] == [item["score"] for item in plain[user]]
    assert results_of(running) == {"scored": 20}
    assert running.metric("multigate_shadow_rows_total", model="small", result="written") == 60
    assert counted(running, "multigate_shadow_pairs_count") == 20


def test_a_process_of_idle_priority_scores_while_the_trial_lasts(base, tmp_path, run_server, until):
    log = tmp_path / "log"
    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        call(client, "before")
        assert running.server._shadow.pid is None
        trials.begin(Base(base), 2, 50.0, 100.0)
        until(lambda: running.server._shadow.pid is not None, "the process")
        pid = running.server._shadow.pid
        if sys.platform == "linux":
            until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE, "its priority")
            assert os.sched_getscheduler(0) == os.SCHED_OTHER
        users = [f"u{n}" for n in range(20)]
        versions = {u: call(client, u, limit=3, request_id=u).model_version for u in users}
        until(lambda: results_of(running) == {"scored": 20}, "their scores")
        trials.stop(Base(base))
        until(lambda: not lives(pid), "its end")
        assert running.server._shadow.pid is None
        # Its rows are written when the trial ends, not when the server does.
        found = rows_by_request(log)
    assert set(versions.values()) == {1, 2}
    assert found.keys() == set(users)
    for user, items in found.items():
        side = side_of(Trial(2, 50.0, 100.0), ranking_pb2.Value(text=user), user)
        assert versions[user] == (2 if side.group == "canary" else 1)
        assert {one["shadow/version"] for one in items} == {3 - versions[user]}
        assert [one["shadow/position"] for one in items] == [0, 1, 2]
        assert {(one["shadow/pairs"], one["shadow/overlap"]) for one in items} == {(1.0, 1.0)}
        for one in items:  # both versions are alike
            assert one["shadow/score"] == pytest.approx(one["ranked/score"], rel=1e-5)


def test_a_shadow_that_hangs_or_fails_is_counted(
    base, run_server, until, monkeypatch, in_this_process
):
    begun, released, seen = threading.Event(), threading.Event(), []

    def hang(outputs):
        seen.append(len(outputs["score"]))
        begun.set()
        assert released.wait(240)
        if len(seen) in (1, 2, 4):  # the first call; four calls together, and the second of them
            raise RuntimeError("planted")
        return outputs

    in_this_process(hang)
    monkeypatch.setattr(shadows, "_QUEUED", 24)
    trials.begin(Base(base), 2, None, 100.0)
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        assert call(client, "first").model_version == 1
        assert begun.wait(240)
        versions = [call(client, f"u{number}").model_version for number in range(11)]
        until(lambda: results_of(running) == {"dropped": 7})  # four wait
        released.set()
        expected = {"failed": 2, "scored": 3, "dropped": 7}
        until(lambda: results_of(running) == expected, "the others")
    assert versions == [1] * 11
    assert seen == [6, 24, 6, 6, 6, 6]


def test_runs_are_short_and_their_scores_those_of_each_call(
    base, tmp_path, run_server, until, monkeypatch, in_this_process
):
    begun, released, seen, log = threading.Event(), threading.Event(), [], tmp_path / "log"

    def hold(outputs):
        seen.append(len(outputs["score"]))
        begun.set()
        assert released.wait(240)
        return outputs

    in_this_process(hold)
    monkeypatch.setattr(shadow_scoring, "RUN_ROWS", 8)
    monkeypatch.setattr(shadows, "_TOGETHER", 8)
    trials.begin(Base(base), 2, None, 100.0)
    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        sizes = {"first": 6, "small": 3, "other": 2, "none": 4, "large": 20, "last": 1}
        for user, size in sizes.items():
            items = [f"i{n}" for n in range(size)]
            lengths = {"length": [float(n) for n in range(size)]}
            call(client, user, item_ids=items, columns=lengths, request_id=user)
            assert begun.wait(240)  # in which the first is: the others are joined behind it
        released.set()
        until(lambda: results_of(running) == {"scored": len(sizes)})
    assert seen == [6, 3 + 2, 4, 8, 8, 4, 1]
    found = rows_by_request(log)
    assert {user: len(items) for user, items in found.items()} == sizes
    for items in found.values():  # versions 1 and 2 are alike
        for one in items:
            assert one["shadow/score"] == pytest.approx(one["ranked/score"], rel=1e-5)
        assert [one["shadow/position"] for one in items] == list(range(len(items)))


def test_calls_are_scored_while_none_is_in_flight(
    base, run_server, until, monkeypatch, in_this_process, hold, contract, helpers
):
    monkeypatch.setattr(gaps, "LONGEST_WAIT", 240.0)
    monkeypatch.setattr(gaps, "cores", lambda: 2.0)
    waiting, in_flight = threading.Event(), []
    wait = Gaps.wait
    monkeypatch.setattr(Gaps, "wait", lambda self: [waiting.set(), wait(self)])
    trials.begin(Base(base), 2, None, 100.0)
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:

        def note(outputs):
            in_flight.append(running.server.gate.in_flight.count)
            return outputs

        in_this_process(note)
        with hold("serving_default") as held:
            request = helpers.predict_request(helpers.sample_inputs(contract, 2))
            other = running.prediction.Predict.future(request, timeout=240)
            assert held.begun.wait(240)
            for number in range(3):
                call(client, f"u{number}")
            assert waiting.wait(240)
            assert call(client, "last").model_version == 1
            assert results_of(running) == {}
        other.result()
        until(lambda: results_of(running) == {"scored": 4})
    assert set(in_flight) == {0}


def test_a_share_of_the_calls_is_scored_and_the_log_says_which(base, tmp_path, run_server):
    log = tmp_path / "log"
    trials.begin(Base(base), 2, None, 25.0)
    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        for number in range(40):
            call(client, f"u{number}", request_id=f"r{number}")
    wanted = {r["ranked/request_id"] for r in rows(log, "small/*.parquet") if r["ranked/shadow"]}
    assert rows_by_request(log).keys() == wanted
    assert 0 < len(wanted) < 25
    assert results_of(running) == {"scored": len(wanted)}


def test_a_process_that_dies_or_hangs_is_replaced_and_no_call_waits(
    base, run_server, until, caplog
):
    trials.begin(Base(base), 2, None, 100.0)
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        shadow = running.server._shadow
        call(client, "first")
        until(lambda: results_of(running) == {"scored": 1})
        killed = shadow.pid
        os.kill(killed, signal.SIGKILL)
        until(lambda: shadow.pid not in (killed, None), "the next one")
        call(client, "second")
        until(lambda: results_of(running).get("scored") == 2)
        hanging = shadow.pid
        os.kill(hanging, signal.SIGSTOP)
        assert [call(client, f"u{number}").model_version for number in range(5)] == [1] * 5
        shadow._child._longest = 10.0  # of the next question; one may be under way
        os.kill(hanging, signal.SIGCONT)
        until(lambda: results_of(running).get("scored") == 7)
        os.kill(hanging, signal.SIGSTOP)
        call(client, "lost")
        until(lambda: results_of(running).get("failed"), "the hanging one's end")
        assert not lives(hanging)
        shadow._child._longest = 600.0
        until(lambda: shadow.pid is not None and call(client, "more") and lives(shadow.pid))
        until(lambda: results_of(running)["scored"] > 7, "scores of another one")
    assert "the process that scores has ended" in caplog.text
    assert "did not answer within 10 s" in caplog.text


def test_a_server_stops_beside_a_process_that_hangs(base, run_server, until, monkeypatch):
    trials.begin(Base(base), 2, None, 100.0)
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        call(client, "first")
        until(lambda: results_of(running) == {"scored": 1})
        pid = running.server._shadow.pid
        os.kill(pid, signal.SIGSTOP)
        call(client, "second")
        monkeypatch.setattr(shadows, "_CLOSING_SECONDS", 0.1)
    assert not lives(pid)
    assert results_of(running) == {"scored": 1, "failed": 1}
    assert not running.server._shadow._thread._thread.is_alive()


def test_a_version_that_the_process_cannot_load_fails_no_call(
    base, run_server, until, monkeypatch, caplog, in_this_process
):
    monkeypatch.setattr(shadow_scoring, "_LOAD_AGAIN", 0.0)
    graph = base / "2/saved_model.pb"
    whole = graph.read_bytes()
    trials.begin(Base(base), 2, None, 100.0)
    graph = base / ".trial/2/saved_model.pb"
    opened = Scorer._open

    def damaged(scorer, wanted):  # the server has read it before
        graph.write_bytes(b"damaged")
        monkeypatch.setattr(Scorer, "_open", opened)
        return opened(scorer, wanted)

    monkeypatch.setattr(Scorer, "_open", damaged)
    with run_server(base) as running, RankClient(running.target, timeout=120) as client:
        until(lambda: graph.read_bytes() == b"damaged")
        assert call(client, "first").model_version == 1
        until(lambda: results_of(running) == {"failed": 1})
        graph.write_bytes(whole)
        assert call(client, "second").model_version == 1
        until(lambda: results_of(running) == {"failed": 1, "scored": 1})
    assert "cannot be scored by the other version" in caplog.text
    assert "cannot be loaded" in caplog.text


def test_the_process_follows_the_versions_of_the_server(
    base, tmp_path, publish, run_server, until, monkeypatch
):
    """A new version in production scores the canary's calls; one promoted is found where it is."""
    log = tmp_path / "log"
    trials.begin(Base(base), 2, 100.0, 100.0)
    scored = iter(range(1, 9))

    def scored_by(running, client, number):
        call(client, f"u{number}", request_id=f"r{number}")
        total = next(scored)
        until(lambda: sum(results_for(running, n) for n in ("2", "4")) == total)

    def results_for(running, version):
        name = "multigate_shadow_calls_total"
        return running.metric(name, model="small", version=version, result="scored") or 0

    with (
        run_server(base, impression_log=log) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        scored_by(running, client, 0)
        publish(base, 3)
        until(lambda: running.server.models.manager("small").serving() == 3)
        scored_by(running, client, 1)
        pid = running.server._shadow.pid
        trials.stop(Base(base))
        until(lambda: running.server.models.trial("small") is None)
        until(lambda: not lives(pid))
        publish(base, 4)
        until(lambda: running.server.models.manager("small").serving() == 4)
        # Version 4 lies elsewhere from now on, and is loaded already.
        trials.begin(Base(base), 4, 0.0, 100.0)
        until(lambda: running.server.models.trial("small") is not None)
        scored_by(running, client, 2)
    versions = {name: items[0]["shadow/version"] for name, items in rows_by_request(log).items()}
    assert versions == {"r0": 1, "r1": 3, "r2": 4}
