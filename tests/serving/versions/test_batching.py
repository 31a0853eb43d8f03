"""Dynamic batching: what joins, what it never spoils, and what it refuses."""

import asyncio
import threading
from concurrent import futures

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from multigate.runtime.errors import RunTimeoutError
from multigate.runtime.threads import RunThreads
from multigate.serving.core.layout import Input, Layout, rank_layout
from multigate.serving.core.loop import CALLS
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import Call, OverloadedError, TooLateError
from multigate.serving.versions import batching
from multigate.serving.versions.batching import (
    ENOUGH,
    TURNS,
    Batcher,
    join_calls,
    split_call,
    turns_on,
)
from multigate.serving.versions.saved_model import SavedModel

ROWS = Layout({"x": Input("float32", "rows", "value", "x")})


@pytest.fixture(scope="module", autouse=True)
def loop():
    """The loop that batchers belong to."""
    CALLS.enter()
    yield
    CALLS.leave()


class Context:
    """What a call asks of its gRPC context."""

    def __init__(self, seconds=None):
        self.seconds = seconds

    def time_remaining(self):
        return self.seconds


class Doubler:
    """Doubles x; the first run waits until it is let go."""

    def __init__(self):
        self.started, self.let_go = threading.Event(), threading.Event()
        self.runs, self.timeouts = [], []

    def __call__(self, inputs, timeout):
        self.runs.append(inputs["x"].tolist())
        self.timeouts.append(timeout)
        if len(self.runs) == 1:
            self.started.set()
            assert self.let_go.wait(240)
        if (inputs["x"] < 0).any():
            raise ValueError("x is negative")
        if np.isnan(inputs["x"]).any():
            raise RunTimeoutError("Timed out")
        return {"y": inputs["x"] * 2}


def batcher(run, **limits):
    return Batcher(run, ROWS, ("m", "x"), ServerMetrics(), **({"slots": 1} | limits))


def values(*numbers):
    return {"x": np.array(numbers, np.float32)}


def answer(one, *numbers, call=None):
    """What a batcher answers to one call."""
    return CALLS.submit(one.run(values(*numbers), len(numbers), call or Call(Context())))


def queue_up(one, calls, until):
    """Submit calls one after the other, each once the one before it waits."""
    tasks = []
    for numbers, call in calls:
        before = len(one._queue)
        tasks.append(answer(one, *numbers, call=call))
        until(lambda before=before: len(one._queue) > before)
    return tasks


@pytest.fixture
def busy():
    """A batcher whose only slot is taken."""
    run = Doubler()

    def occupy(**limits):
        one = batcher(run, **limits)
        first = answer(one, 1)
        assert run.started.wait(120)
        return one, run, first

    yield occupy
    run.let_go.set()


def test_an_idle_batcher_runs_at_once_and_alone():
    run = Doubler()
    run.let_go.set()
    one = batcher(run)
    for number in (1.0, 2.0):
        assert answer(one, number).result(120)["y"].tolist() == [2 * number]
    assert run.runs == [[1], [2]]


def test_what_waits_is_joined_up_to_the_row_limit(busy, until):
    one, run, first = busy(max_rows=4)
    sizes = [(10, 11), (20,), (30,), (40, 41, 42)]
    tasks = queue_up(one, [(numbers, Call(Context())) for numbers in sizes], until)
    run.let_go.set()
    assert first.result(120)["y"].tolist() == [2]
    assert [task.result(120)["y"].tolist() for task in tasks] == [
        [20, 22], [40], [60], [80, 82, 84],
    ]  # fmt: skip
    assert run.runs == [[1], [10, 11, 20, 30], [40, 41, 42]]


def test_one_callers_bad_values_fail_only_that_caller(busy, until):
    one, run, _ = busy()
    tasks = queue_up(one, [((x,), Call(Context())) for x in (5, -1, 7)], until)
    run.let_go.set()
    assert tasks[0].result(120)["y"].tolist() == [10]
    assert tasks[2].result(120)["y"].tolist() == [14]
    with pytest.raises(ValueError, match="negative"):
        tasks[1].result(120)
    assert run.runs == [[1], [5, -1, 7], [5], [-1], [7]]


def test_a_row_that_is_not_finite_makes_the_members_run_alone(busy, until):
    one, run, _ = busy()
    tasks = queue_up(one, [((x,), Call(Context())) for x in (5, np.inf)], until)
    run.let_go.set()
    assert tasks[0].result(120)["y"].tolist() == [10]
    assert tasks[1].result(120)["y"].tolist() == [np.inf]
    assert run.runs[1:] == [[5, np.inf], [5], [np.inf]]


def test_a_full_queue_refuses_at_once(busy, until):
    one, run, _ = busy(max_queued=2)
    tasks = queue_up(one, [((x,), Call(Context())) for x in (2, 3)], until)
    with pytest.raises(OverloadedError, match="2 calls wait already"):
        answer(one, 4).result(120)
    run.let_go.set()
    assert [task.result(120)["y"].tolist() for task in tasks] == [[4], [6]]
    assert answer(one, 4).result(120)["y"].tolist() == [8]


def test_a_deadline_that_passes_in_the_queue_ends_the_call_and_its_work(busy, until):
    one, run, _ = busy()
    short = Call(Context(600))
    late, fine = queue_up(one, [((2,), short), ((3,), Call(Context(600)))], until)
    short.deadline -= 600
    run.let_go.set()
    with pytest.raises(TooLateError, match="in the queue"):
        late.result(120)
    assert fine.result(120)["y"].tolist() == [6]
    assert run.runs == [[1], [3]]


def test_a_deadline_that_has_passed_on_arrival_is_not_queued(busy):
    one, run, _ = busy()
    with pytest.raises(TooLateError, match="before the call was queued"):
        answer(one, 2, call=Call(Context(-1))).result(120)
    assert run.runs == [[1]]


def test_a_run_may_last_as_long_as_the_most_patient_of_its_calls(busy, until):
    one, run, _ = busy(max_rows=2)
    seconds = (600, 1000, 1000, None, 300)
    tasks = queue_up(one, [((5,), Call(Context(s))) for s in seconds], until)
    run.let_go.set()
    assert [task.result(120)["y"].tolist() for task in tasks] == [[10]] * 5
    unlimited, of_two, with_a_patient_one, of_one = run.timeouts
    assert unlimited is None
    assert 600 < of_two <= 1000
    assert with_a_patient_one is None
    assert 0 <= of_one <= 300


def test_calls_of_a_run_that_was_ended_are_late_and_not_run_again(busy, until, caplog):
    one, run, _ = busy()
    tasks = queue_up(one, [((x,), Call(Context(600))) for x in (5, np.nan)], until)
    run.let_go.set()
    for task in tasks:
        with pytest.raises(TooLateError, match="the deadline passed during the run"):
            task.result(120)
    assert len(run.runs) == 2
    with pytest.raises(TooLateError, match="the deadline passed during the run"):
        answer(one, np.nan).result(120)
    assert len(run.runs) == 3
    assert answer(one, 3).result(120)["y"].tolist() == [6]
    assert one._free == 1
    assert not caplog.records


def test_a_cancelled_call_leaves_the_queue(busy, until):
    one, run, _ = busy()
    cancelled, fine = queue_up(one, [((x,), Call(Context())) for x in (2, 3)], until)
    assert cancelled.cancel()
    until(lambda: len(one._queue) == 1)
    run.let_go.set()
    assert fine.result(120)["y"].tolist() == [6]
    assert run.runs == [[1], [3]]


def test_a_call_that_is_cancelled_in_its_run_ends_with_the_run(busy, until):
    """The run uses the version that the call keeps open."""
    one, run, _ = busy()
    ended = threading.Event()

    async def call():
        try:
            await one.run(values(2), 1, Call(Context()))
        finally:
            ended.set()

    run.let_go.set()
    until(lambda: one._free == 1)
    run.let_go.clear()
    run.runs.clear()  # the next run waits as well
    task = CALLS.submit(call())
    until(lambda: run.runs == [[2]])
    task.cancel()
    answered = queue_up(one, [((3,), Call(Context()))], until)
    assert not ended.wait(0.2)
    run.let_go.set()
    assert ended.wait(120)
    assert answered[0].result(120)["y"].tolist() == [6]


def test_large_calls_are_split_and_put_together():
    run = Doubler()
    run.let_go.set()
    one = batcher(run, max_rows=4)
    assert answer(one, *range(10)).result(120)["y"].tolist() == [2 * x for x in range(10)]
    assert run.runs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_slot_comes_back_whatever_happens(busy, until):
    one, run, _ = busy()
    tasks = queue_up(one, [((-1,), Call(Context())) for _ in range(3)], until)
    run.let_go.set()
    for task in tasks:
        with pytest.raises(ValueError, match="negative"):
            task.result(120)
    until(lambda: one._free == 1)
    assert answer(one, 3).result(120)["y"].tolist() == [6]


def test_a_run_that_finds_no_thread_takes_no_slot(monkeypatch):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(batching, "run_threads", RunThreads)  # without an idle one
    one = batcher(Doubler())
    monkeypatch.setattr(threading.Thread, "start", fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="start new thread"):
            answer(one, 1).result(120)
    assert (one._free, len(one._queue)) == (1, 0)


def test_join_by_hand():
    layout = Layout(
        {
            "user": Input("int64", "users", "value", "user"),
            "history": Input("string", "users", "list", "history"),
            "item": Input("int64", "rows", "value", "item"),
            "user_index": Input("int32", "rows", "index"),
        }
    )
    first = {
        "user": np.array([1, 2]),
        "history": np.array([[b"a"], [b"b"]], object),
        "item": np.array([10, 11, 12]),
        "user_index": np.array([0, 1, 1], np.int32),
    }
    second = {
        "user": np.array([3]),
        "history": np.array([[b"c", b"d"]], object),
        "item": np.array([13, 14]),
        "user_index": np.array([0, 0], np.int32),
    }
    joined = join_calls([first, second], layout)
    assert joined["user"].tolist() == [1, 2, 3]
    assert joined["history"].tolist() == [[b"a", b""], [b"b", b""], [b"c", b"d"]]
    assert joined["item"].tolist() == [10, 11, 12, 13, 14]
    assert joined["user_index"].tolist() == [0, 1, 1, 2, 2]
    assert joined["user_index"].dtype == np.int32
    parts = split_call(joined, 5, 2, layout)
    assert [rows for _, rows in parts] == [2, 2, 1]
    assert [part["user_index"].tolist() for part, _ in parts] == [[0, 1], [1, 2], [2]]
    assert all(len(part["user"]) == 3 for part, _ in parts)


@pytest.fixture(scope="module")
def rank_signature(exported):
    saved_model = SavedModel.load(1, exported)
    yield saved_model.signatures["rank"]
    saved_model.retire()


def test_joined_and_split_answers_equal_single_ones(rank_signature, contract, helpers):
    layout = rank_layout(contract)
    calls = [
        helpers.sample_inputs(contract, rows=3 + seed, users=1 + seed % 3, seed=seed)
        for seed in range(9)
    ]
    alone = [rank_signature(call) for call in calls]
    together = rank_signature(join_calls(calls, layout))
    for name, scores in together.items():
        expected = np.concatenate([outputs[name] for outputs in alone])
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=5e-6)
    parts = split_call(join_calls(calls, layout), len(together["score"]), 5, layout)
    again = np.concatenate([rank_signature(part)["score"] for part, _ in parts])
    np.testing.assert_allclose(again, together["score"], rtol=1e-5, atol=5e-6)


def test_a_run_that_tensorflow_ended_leaves_the_next_ones_right(
    exported, contract, helpers, rank_signature
):
    inputs = helpers.sample_inputs(contract, 2, users=1)
    slow_inputs = inputs | {"hour": np.array([helpers.slow_from + 999_999])}  # over ten seconds
    saved_model = SavedModel.load(1, exported, (1, 2))
    layout = rank_layout(contract)
    one = Batcher(saved_model.signatures["rank"], layout, ("m", "rank"), ServerMetrics(), slots=1)
    with pytest.raises(TooLateError, match="the deadline passed"):
        CALLS.submit(one.run(slow_inputs, 2, Call(Context(0.5)))).result(120)
    expected = rank_signature(inputs)
    for seconds in (600, None):
        answer = CALLS.submit(one.run(inputs, 2, Call(Context(seconds)))).result(120)
        assert answer.keys() == expected.keys()
        assert all(np.array_equal(answer[name], expected[name]) for name in expected)
    saved_model.retire()


def test_concurrent_calls_of_the_server_are_joined_and_keep_their_answers(
    tmp_path, publish, run_server, contract, helpers, hold, until
):
    publish(tmp_path, 1)
    inputs = [helpers.sample_inputs(contract, 1 + s % 7, users=1, seed=s) for s in range(24)]
    requests = [helpers.predict_request(one, "rank") for one in inputs]
    with (
        run_server(tmp_path, num_batch_threads=1, max_batch_rows=16) as running,
        futures.ThreadPoolExecutor(24) as pool,
    ):
        predict = running.prediction.Predict
        alone = [predict(request, timeout=120).outputs["score"].float_val for request in requests]
        batcher = running.server.models.manager("small")._loaded[1].batchers["rank"]
        with hold("rank"):
            rounds = pool.map(lambda request: predict(request, timeout=240), requests * 12)
            until(lambda: len(batcher._queue) > 1, "calls to be joined")
        for place, response in enumerate(rounds):
            expected = alone[place % len(requests)]
            np.testing.assert_allclose(
                response.outputs["score"].float_val, expected, rtol=1e-5, atol=5e-6
            )
        rank = {"model": "small", "signature": "rank"}
        runs = running.metric("multigate_batch_calls_count", **rank)
        calls = running.metric("multigate_batch_calls_sum", **rank)
    assert calls == 24 * 13
    assert runs < calls


def test_deadline_queue_limit_and_admission_cap_through_the_stubs(
    tmp_path, publish, run_server, contract, helpers, hold, until, monkeypatch
):
    publish(tmp_path, 1)
    options = {"num_batch_threads": 1, "max_queued_calls": 1, "max_concurrent_calls": 3}
    with run_server(tmp_path, **options) as running, hold("rank") as held:
        predict = running.prediction.Predict
        batcher = running.server.models.manager("small")._loaded[1].batchers["rank"]
        quick = helpers.predict_request(helpers.sample_inputs(contract, 2, users=1), "rank")
        occupying = predict.future(quick, timeout=240)
        assert held.begun.wait(120)
        waiting = predict.future(quick, timeout=120)
        until(lambda: len(batcher._queue) == 1)
        with pytest.raises(grpc.RpcError, match="1 calls wait already") as raised:
            predict(quick, timeout=120)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        waiting.cancel()
        until(lambda: not batcher._queue)
        late = predict.future(quick, timeout=0.2)
        assert late.exception().code() == grpc.StatusCode.DEADLINE_EXCEEDED
        running.take_up()  # it may reach the server after its caller has given up
        until(lambda: len(running.server.gate.admitted) == 1)
        assert not batcher._queue
        waiting = predict.future(quick, timeout=120)
        until(lambda: len(batcher._queue) == 1)
        monkeypatch.setattr(running.server.gate, "_max_calls", 2)  # as many as are in flight
        with pytest.raises(grpc.RpcError, match="2 calls are in flight already") as raised:
            predict(quick, timeout=120)
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not occupying.done()
        held.let_go.set()
        assert waiting.result().outputs
        assert len(occupying.result().outputs["score"].float_val) == 2
        assert predict(quick, timeout=120).outputs
        text = running.server.metrics.text()
    assert 'request_count{method="Predict",model_name="small",status="UNAVAILABLE"}' in text
    assert 'request_count{method="refused",model_name="",status="RESOURCE_EXHAUSTED"}' in text


def test_health_checks_are_answered_where_no_other_call_is_admitted(
    tmp_path, publish, run_server, contract, helpers, hold, until, monkeypatch
):
    """Else an orchestrator would restart an overloaded server."""
    publish(tmp_path, 1)
    with run_server(tmp_path, num_batch_threads=1, max_concurrent_calls=2) as running:
        predict = running.prediction.Predict
        check = health_pb2_grpc.HealthStub(running.channel).Check
        request = health_pb2.HealthCheckRequest()
        admitted = running.server.gate.admitted
        quick = helpers.predict_request(helpers.sample_inputs(contract, 2, users=1), "rank")
        with hold("rank"):
            calls = [predict.future(quick, timeout=240) for _ in range(2)]
            until(lambda: len(admitted) == 2)
            checks = [check.future(request, timeout=120) for _ in range(20)]
            assert {one.result().status for one in checks} == {1}
            with pytest.raises(grpc.RpcError, match="2 calls are in flight already") as raised:
                predict(quick, timeout=120)
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not any(call.done() for call in calls)
            for call in calls:
                call.cancel()
        until(lambda: not admitted)
        assert check(request, timeout=120).status == 1
        # Nobody needs a token for them: they have a limit, too.
        probes = running.server.gate.health_calls
        until(lambda: not probes)
        monkeypatch.setattr("multigate.serving.core.calls.MAX_HEALTH_CALLS", 1)
        watch = health_pb2_grpc.HealthStub(running.channel).Watch(request, timeout=120)
        until(lambda: len(probes) == 1)
        with pytest.raises(grpc.RpcError, match="1 calls are in flight already"):
            check(request, timeout=120)
        watch.cancel()
        until(lambda: not probes)
        assert check(request, timeout=120).status == 1


class Turns:
    """Calls that come to a batcher in turns of the event loop, and the runs that they shared."""

    def __init__(self, **limits):
        self.runs = []
        self.one = batcher(self.run, turns=3, **limits)

    def run(self, inputs, timeout):
        self.runs.append(inputs["x"].tolist())
        return {"y": inputs["x"] * 2}

    def __call__(self, *turns):
        """Answers to calls, one or None a turn, each (values) or a number of turns without one."""

        async def come():
            tasks = []
            for numbers in turns:
                if numbers is not None:
                    work = self.one.run(values(*numbers), len(numbers), Call(Context()))
                    tasks.append(asyncio.ensure_future(work))
                await asyncio.sleep(0)
            return await asyncio.gather(*tasks)

        return [found["y"].tolist() for found in CALLS.submit(come()).result(120)]


def test_calls_of_a_few_turns_share_a_run():
    came = Turns()
    assert came([1], None, [2], None, [3]) == [[2], [4], [6]]
    assert came.runs == [[1, 2, 3]]


def test_a_run_waits_for_no_call_that_comes_later():
    came = Turns()
    assert came([1], *[None] * 40, [2])[0] == [2]
    assert came.runs == [[1], [2]]


def test_a_full_run_and_enough_calls_wait_for_no_turn():
    came = Turns(max_rows=4)
    came([1, 2], [3, 4], [5], None)
    assert came.runs == [[1, 2, 3, 4], [5]]
    came = Turns()
    came(*[[number] for number in range(ENOUGH + 2)])
    assert came.runs[0] == list(range(ENOUGH))
    assert [number for run in came.runs for number in run] == list(range(ENOUGH + 2))


def test_a_call_that_leaves_before_its_run_begins_holds_nobody_up():
    came = Turns()

    async def leave():
        work = asyncio.ensure_future(came.one.run(values(1), 1, Call(Context())))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])

    CALLS.submit(leave()).result(120)
    assert came([2]) == [[4]]
    assert came.runs == [[2]]


def test_a_worker_with_a_core_beside_the_loops_waits_for_no_turn():
    assert [turns_on(cores) for cores in (0.5, 1, 1.9, 2, 16)] == [TURNS, TURNS, TURNS, 0, 0]
