"""Several worker processes on one port: what is dealt out, what holds for all, and what dies."""

import errno
import itertools
import math
import multiprocessing.util
import operator
import os
import re
import signal
import threading
import urllib.request
from concurrent import futures
from contextlib import suppress
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from multigate.configs.errors import ServingError
from multigate.runtime.start import start_runtime
from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.core import background
from multigate.serving.core.options import ServerOptions
from multigate.serving.observe import exporter
from multigate.serving.rpc.model_status import combine_states
from multigate.serving.rpc.server import BACKGROUND
from multigate.serving.versions.folders import WARMUP
from multigate.serving.versions.manager import VersionRecord
from multigate.serving.workers import supervisor
from multigate.serving.workers.link import AnswerTimeoutError
from multigate.serving.workers.messages import GetMetrics, Heartbeat
from multigate.serving.workers.supervisor import Slot, Supervisor

CALL = {
    "user": {"user_id": "u1"},
    "context": {"hour": 9},
    "item_ids": ["i1", "i2", "i3"],
    "columns": {"length": [1.0, 2.0, 3.0]},
}


@pytest.mark.parametrize(
    ("states", "together"),
    [
        (["AVAILABLE", "AVAILABLE"], "AVAILABLE"),
        (["AVAILABLE", None], "LOADING"),
        (["AVAILABLE", "LOADING"], "LOADING"),
        (["AVAILABLE", "END"], "UNLOADING"),
        (["UNLOADING", "END"], "UNLOADING"),
        (["END", "END"], "END"),
    ],
)
def test_a_version_is_available_where_all_workers_serve_it(states, together):
    assert combine_states([state and VersionRecord(state) for state in states]).state == together


def test_a_version_that_failed_in_one_worker_has_failed():
    assert (
        combine_states([VersionRecord("AVAILABLE"), VersionRecord("END", "damaged")]).error
        == "damaged"
    )


def new_channel(port):
    """Its own connection: the kernel deals out connections, not calls."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(f"127.0.0.1:{port}", own)


@pytest.fixture(scope="module")
def base(tmp_path_factory, publish):
    folder = tmp_path_factory.mktemp("shared")
    publish(folder, 1)
    return folder


@pytest.fixture(scope="module")
def admin_token_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "admin"
    path.write_text("admin\n")
    return path


@pytest.fixture(scope="module")
def fleet(base, admin_token_file):
    options = ServerOptions(
        admin_token_file=admin_token_file,
        model_name="small",
        model_base_path=base,
        port=0,
        metrics_port=0,
        rest_api_port=0,
        workers=2,
        file_system_poll_wait_seconds=0.1,
        drain_grace_seconds=5.0,
    )
    supervisor = Supervisor(options, start_runtime)
    supervisor.start()
    yield supervisor
    supervisor.stop(threading.Event())
    assert [slot.over.is_set() for slot in supervisor.slots] == [True, True]


def page_of(fleet):
    url = f"http://127.0.0.1:{fleet.metrics_port}/monitoring/prometheus/metrics"
    with urllib.request.urlopen(url, timeout=120) as page:
        return page.read().decode()


def number_of(page, name, **labels):
    """The number of one sample of a page; None where there is no such sample."""
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
    return {(one.name, *sorted(one.labels.items())): one.value for one in samples}.get(
        (name, *sorted(labels.items()))
    )


def rank_calls(page):
    """Workers that have answered Rank calls."""
    answered = {"method": "Rank", "model_name": "small", "status": "OK"}
    name = ":tensorflow:serving:request_count_total"  # the parser completes counters' names
    return {w for w in ("0", "1") if number_of(page, name, worker=w, **answered)}


def workers_on(page):
    """Workers whose metrics a page has."""
    found = {w: number_of(page, "multigate_calls_in_flight", worker=w) for w in ("0", "1")}
    return {worker for worker, calls in found.items() if calls is not None}


def test_no_worker_loads_the_python_of_tensorflow(fleet):
    for slot in fleet.slots:
        mapped = Path(f"/proc/{slot._process.pid}/maps").read_text()
        assert "libtensorflow_cc" in mapped
        assert "_pywrap_tensorflow" not in mapped


def test_each_worker_serves_http_on_one_port_with_the_metrics_of_all(fleet):
    base = f"http://127.0.0.1:{fleet.rest_port}"
    with urllib.request.urlopen(f"{base}/v1/models/small", timeout=120) as answer:
        assert '"AVAILABLE"' in answer.read().decode()
    with urllib.request.urlopen(f"{base}/monitoring/prometheus/metrics", timeout=120) as page:
        text = page.read().decode()
    assert workers_on(text) == {"0", "1"}
    assert number_of(text, "multigate_workers") == 2


def test_connections_are_dealt_out_and_metrics_say_to_whom(fleet, until):
    def call(_):
        with RankClient(f"127.0.0.1:{fleet.port}", timeout=120) as client:
            return len(client.rank("small", **CALL))

    def both():
        assert call(0) == 3
        return rank_calls(page_of(fleet)) == {"0", "1"}

    until(both, "a connection to each worker")
    page = page_of(fleet)
    assert number_of(page, "multigate_workers") == 2
    assert page.count("# TYPE multigate_request_seconds histogram") == 1
    assert number_of(page, "multigate_model_version", worker="1", model="small") == 1


def versions_of(fleet):
    """State of each version in all workers, as one of them tells it."""
    request = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "small"})
    with new_channel(fleet.port) as channel:
        answer = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(
            request, timeout=120
        )
    states = get_model_status_pb2.ModelVersionStatus.State
    return {status.version: states.Name(status.state) for status in answer.model_version_status}


def reload_request(base, labels, names=("small",)):
    request = model_management_pb2.ReloadConfigRequest()
    for name in names:
        config = request.config.model_config_list.config.add(name=name, base_path=str(base))
        config.model_platform = "tensorflow"
        config.version_labels.update(labels)
    return request


@pytest.mark.slow
def test_versions_and_reloads_concern_all_workers(fleet, base, publish, until, contract, helpers):
    swapped = threading.Event()

    def versions_over_one_connection(_):
        """As they come, without a version and with the first one's number."""
        found, of_the_first = [], set()
        with RankClient(f"127.0.0.1:{fleet.port}", timeout=120) as client:
            while not swapped.is_set() or found[-1] != 2:
                found.append(client.rank("small", **CALL).model_version)
                try:
                    of_the_first.add(client.rank("small", version=1, **CALL).model_version)
                except CallError as error:
                    of_the_first.add(error.code)
        return found, of_the_first

    with futures.ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(versions_over_one_connection, place) for place in range(4)]
        publish(base, 2)
        until(lambda: versions_of(fleet) == {1: "END", 2: "AVAILABLE"}, "the swap in all workers")
        swapped.set()
        for caller in callers:
            found, of_the_first = caller.result(120)
            assert found == sorted(found)
            assert of_the_first <= {1, "NOT_FOUND"}
    with new_channel(fleet.port) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(helpers.as_admin(channel))
        with pytest.raises(grpc.RpcError, match="nothing was changed") as raised:
            models.HandleReloadConfigRequest(reload_request(base, {"stable": 1}), timeout=120)
        assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        models.HandleReloadConfigRequest(reload_request(base, {"stable": 2}), timeout=120)
    request = helpers.predict_request(helpers.sample_inputs(contract, 2, users=1), "rank")
    request.model_spec.version_label = "stable"
    counted = 'request_count{method="Predict",model_name="small",status="OK"'

    def both_are_met():
        with new_channel(fleet.port) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            assert stub.Predict(request, timeout=120).model_spec.version.value == 2
        return page_of(fleet).count(counted) == 2

    until(both_are_met, "a connection to each worker")


def hold_the_warm_up(folder):
    """Reading these requests waits until somebody opens them for writing."""
    path = folder / WARMUP
    path.unlink()
    os.mkfifo(path)


@pytest.mark.slow
def test_a_long_reload_keeps_nobody_waiting(fleet, base, publish, tmp_path, helpers):
    held = publish(tmp_path, 1, hold_the_warm_up)
    before = versions_of(fleet)
    with new_channel(fleet.port) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(helpers.as_admin(channel))
        request = reload_request(base, {})
        request.config.model_config_list.config.add(name="other", base_path=str(tmp_path))
        reload = models.HandleReloadConfigRequest.future(request, timeout=300)
        # These ask all workers, of which one loads.
        for _ in range(6):
            assert versions_of(fleet) == before
            page = page_of(fleet)
            assert number_of(page, "multigate_workers") == 2
            assert workers_on(page) == {"0", "1"}
        assert not reload.done()
        with (held / WARMUP).open("wb") as file:  # returns once it is being read
            file.write(b"no record")
        assert reload.exception().code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "cannot be replayed" in reload.exception().details()
        assert versions_of(fleet) == before


@pytest.mark.slow
def test_a_killed_worker_loses_no_call_of_a_client_that_retries(fleet, base, until, helpers):
    newest = max(n for n, state in versions_of(fleet).items() if state == "AVAILABLE")
    with new_channel(fleet.port) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(helpers.as_admin(channel))
        models.HandleReloadConfigRequest(reload_request(base, {"stable": newest}), timeout=120)
    died, done = threading.Event(), threading.Event()
    deaths = fleet.slots[0].deaths

    def call_until_done(place):
        with RankClient(f"127.0.0.1:{fleet.port}", timeout=120) as client:
            expected = [item["score"] for item in client.rank("small", **CALL)]
            while not done.is_set():
                scores = [item["score"] for item in client.rank("small", **CALL)]
                np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=5e-6)
                calls[place] += 1
                if died.is_set():  # leave the cores to the worker that starts
                    done.wait(0.02)

    def all_call_on():
        least = [count + 10 for count in calls]
        until(lambda: all(map(operator.ge, calls, least)), "calls")

    calls = [0] * 8
    with futures.ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(call_until_done, place) for place in range(8)]
        try:
            all_call_on()
            victim = fleet.slots[0].pid
            with fleet._changing:  # until it is let go, the next worker does not serve
                os.kill(victim, signal.SIGKILL)
                until(lambda: fleet.slots[0].deaths == deaths + 1)
                died.set()
                assert number_of(page_of(fleet), "multigate_workers") == 1
                all_call_on()
            until(lambda: fleet.slots[0].pid not in {None, victim}, "the next worker")
            all_call_on()
        finally:
            done.set()
        for caller in callers:
            caller.result(120)
    # It has the models of the last reload, not those of the command line.
    with new_channel(fleet.port) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(helpers.as_admin(channel))
        request = get_model_status_pb2.GetModelStatusRequest(
            model_spec={"name": "small", "version_label": "stable"}
        )
        status = models.GetModelStatus(request, timeout=120).model_version_status[0]
        assert status.version == newest
    died = number_of(page_of(fleet), "multigate_worker_deaths_total", worker="0")
    assert died == deaths + 1


@pytest.mark.slow
def test_a_hung_worker_is_replaced_and_delays_no_metrics(
    fleet, until, monkeypatch, caplog, usual_ask
):
    slot, asked = fleet.slots[0], []

    def ask(order, *seconds):
        asked.append(type(order))
        return usual_ask(slot, order, *seconds)

    monkeypatch.setattr(supervisor, "_HEARTBEAT_EVERY", 0.5)
    monkeypatch.setattr(supervisor, "_HEARTBEATS_MISSED", math.inf)
    monkeypatch.setattr(slot, "ask", ask)
    until(lambda: asked and slot.pid is not None and slot.responsive)
    victim, deaths = slot.pid, slot.deaths
    os.kill(victim, signal.SIGSTOP)
    try:
        until(lambda: not slot.responsive, "the first heartbeat without an answer")
        asked.clear()
        page = page_of(fleet)
        assert slot.pid == victim
        assert GetMetrics not in asked  # the page would wait for its answer
        assert number_of(page, "multigate_workers") == 1
        assert number_of(page, "multigate_model_version", worker="1", model="small")
        assert number_of(page, "multigate_model_version", worker="0", model="small") is None
        with monkeypatch.context() as limited:
            limited.setattr(supervisor, "_HEARTBEATS_MISSED", 4)
            until(lambda: slot.deaths == deaths + 1, "the end of the hung worker")
    finally:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    until(lambda: "worker 0 ended with" in caplog.text)
    ended = r"worker 0 ended with status -9 \(did not answer ([0-9]+) heartbeats\)"
    (missed,) = re.findall(ended, caplog.text)
    assert int(missed) >= 4
    until(lambda: slot.pid not in {None, victim}, "the next worker")
    until(lambda: number_of(page_of(fleet), "multigate_workers") == 2)


@pytest.fixture
def asleep(tmp_path):
    """A supervisor of two workers that are fakes: each is a function of an order and seconds."""
    options = ServerOptions(model_name="small", model_base_path=tmp_path, port=0, workers=2)
    asleep = Supervisor(options, lambda: None)
    for slot in asleep.slots:
        slot.ready.set()
    yield asleep
    asleep.stop()


def test_it_stops_where_no_thread_can_be_started(asleep, monkeypatch):
    """What keeps processes from starting, such as a limit of a container, keeps threads from it."""
    stopped = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Slot, "stop", lambda slot, at_once: stopped.append((slot.number, at_once)))
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        asleep.stop(threading.Event())
    assert stopped == [(0, False), (1, False)]


def test_a_worker_that_begins_to_hang_holds_no_page_up(asleep, until, monkeypatch):
    """Its last numbers stand in, until it has missed its time; then it is left out."""
    first, second = asleep.slots
    numbers, hangs, late = itertools.count(), threading.Event(), threading.Event()

    def good(order, seconds):
        return [GaugeMetricFamily("calls", "Calls.", next(numbers))]

    def hanging(order, seconds):
        if hangs.is_set() and isinstance(order, GetMetrics):
            late.wait(60)
            raise AnswerTimeoutError("no answer")
        return [GaugeMetricFamily("calls", "Calls.", 77)]

    def page():
        return generate_latest(asleep).decode()

    monkeypatch.setattr(first, "_worker", good)
    monkeypatch.setattr(second, "_worker", hanging)
    before = page()
    assert (number_of(before, "calls", worker="0"), number_of(before, "calls", worker="1")) == (
        0,
        77,
    )
    hangs.set()
    monkeypatch.setattr(supervisor, "_METRICS_HELD", 0.2)
    found = []

    def fresh():
        found.append(page())
        return number_of(found[-1], "calls", worker="0") > 0

    until(fresh, "newer numbers of the healthy worker")
    assert number_of(found[-1], "calls", worker="1") == 77
    assert number_of(found[-1], "multigate_workers") == 2
    late.set()
    until(lambda: not second.responsive, "the end of its time")
    monkeypatch.setattr(supervisor, "_METRICS_HELD", 100.0)
    after = page()
    assert number_of(after, "calls", worker="0") is not None
    assert number_of(after, "calls", worker="1") is None
    assert number_of(after, "multigate_workers") == 1


@pytest.mark.slow
def test_a_thread_of_the_supervisor_that_fails_is_counted_and_told(fleet, until, monkeypatch):
    """A heartbeat, and the metrics' page: both begin again, and the workers' health says so."""
    slot, asked = fleet.slots[0], []
    ask, faults = slot.ask, iter([RuntimeError("planted")])
    page_faults = iter([RuntimeError("planted")])

    def broken_ask(order, *seconds):
        if isinstance(order, Heartbeat):
            asked.append(order)
            for fault in faults:
                raise fault
        return ask(order, *seconds)

    def broken_page(server):  # not that of another server of these tests, which may serve on
        if server.server_port == fleet.metrics_port:
            for fault in page_faults:
                raise fault

    def failures(thread):
        name = "multigate_thread_failures_total"
        return number_of(page_of(fleet), name, worker="supervisor", thread=thread)

    monkeypatch.setattr(background, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(supervisor, "_HEARTBEAT_EVERY", 0.5)
    monkeypatch.setattr(slot, "ask", broken_ask)
    monkeypatch.setattr(exporter._Server, "service_actions", broken_page)
    until(lambda: failures("heartbeat-0") == 1, "a failure of the heartbeat")
    until(lambda: failures("metrics") == 1, "a failure of the page")
    until(lambda: len(asked) > 2, "more heartbeats")
    request = health_pb2.HealthCheckRequest(service=BACKGROUND)
    for _ in range(3):  # connections, to whichever worker: all know
        with new_channel(fleet.port) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=120)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.slow
def test_pauses_grow_for_workers_that_die_as_soon_as_they_have_loaded(
    fleet, until, monkeypatch, caplog
):
    """And a worker that cannot be spawned is tried again."""
    slot = fleet.slots[1]

    def pauses():
        return re.findall(r"worker 1 ended with .*; the next one in ([0-9.]+) s", caplog.text)

    def kill(deaths):
        until(lambda: slot.pid is not None, "the next worker")
        os.kill(slot.pid, signal.SIGKILL)
        until(lambda: len(pauses()) >= deaths, "the end of the worker")

    monkeypatch.setattr(supervisor, "_YOUNG", -1.0)  # this one has worked
    kill(1)
    monkeypatch.setattr(supervisor, "_YOUNG", math.inf)  # none that follows has
    until(lambda: slot.pid is not None, "the next worker")
    with monkeypatch.context() as full:
        no_process(full)
        kill(4)
    until(lambda: slot.pid is not None, "a worker, once there is room for one")
    assert pauses()[:4] == ["0.2", "0.4", "0.8", "1.6"]
    for reason in NO_ROOM:
        assert f"worker 1 ended with status None ({reason!r}); the next one in" in caplog.text


@pytest.mark.slow
def test_workers_that_cannot_start_say_why_once(tmp_path):
    options = ServerOptions(model_name="small", model_base_path=tmp_path, port=0, workers=2)
    with pytest.raises(ServingError, match="expected numbered version folders"):
        Supervisor(options, start_runtime).start()


def test_what_a_process_cannot_be_given_is_an_error_and_no_endless_wait(tmp_path, caplog):
    options = ServerOptions(model_name="small", model_base_path=tmp_path, port=0, workers=2)
    with pytest.raises(ServingError, match="pickle"):
        Supervisor(options, lambda: None).start()  # a process cannot be given a lambda
    assert "worker 0 cannot be run" in caplog.text


NO_ROOM = [OSError(number, os.strerror(number)) for number in (errno.EAGAIN, errno.ENOMEM)]


def no_process(monkeypatch, refusals=None):
    """Have the system refuse new processes, as one does that has no more or no memory."""
    refusals = itertools.cycle(NO_ROOM) if refusals is None else refusals

    def refuse(path, arguments, descriptors):
        raise next(refusals)

    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", refuse)


@pytest.mark.parametrize("reason", NO_ROOM, ids=["EAGAIN", "ENOMEM"])
def test_a_worker_without_room_at_the_start_is_an_error(tmp_path, caplog, monkeypatch, reason):
    ensure_running()  # the helper of multiprocessing is spawned likewise
    no_process(monkeypatch, itertools.repeat(reason))
    options = ServerOptions(model_name="small", model_base_path=tmp_path, port=0, workers=2)
    fleet = Supervisor(options, start_runtime)
    with pytest.raises(ServingError, match=reason.strerror):
        fleet.start()
    assert "worker 0 cannot be run" in caplog.text
    assert not any(slot._thread.is_alive() for slot in fleet.slots)


class Clock:
    """A machine's clock that moves by what happens, and the pauses that somebody makes."""

    def __init__(self):
        self.now, self.pauses = 1000.0, []

    def monotonic(self):
        return self.now


class Pauses:
    """The event of a supervisor that stops once a number of workers have died."""

    def __init__(self, clock, deaths):
        self._clock, self._deaths = clock, deaths

    def is_set(self):
        return len(self._clock.pauses) >= self._deaths

    def wait(self, seconds):
        self._clock.now += seconds
        self._clock.pauses.append(seconds)


def test_a_long_load_is_no_work(monkeypatch):
    """A worker that dies as soon as it has loaded for a minute crash-loops ever more slowly."""
    lives = [(60, 1), (60, 1), (60, None), (60, 9), (60, 11), (60, 1), (0, 60), (0, 1)]
    clock, next_life = Clock(), iter(lives)
    monkeypatch.setattr(supervisor, "time", clock)
    slot = Slot(0, SimpleNamespace(stopping=Pauses(clock, len(lives))))
    slot._process = SimpleNamespace(exitcode=-9)

    def live():
        load, served = next(next_life)
        clock.now += load
        if served is not None:  # else it died while it loaded
            slot._ready_at = clock.now
            slot.settled.set()
            clock.now += served

    monkeypatch.setattr(slot, "_run_worker", live)
    slot._run()
    assert clock.pauses == [0.4, 0.8, 1.6, 3.2, 0.2, 0.4, 0.2, 0.4]
    assert slot.deaths == len(lives)


@pytest.mark.parametrize(("at_once", "killed"), [(False, []), (True, [0])])
def test_a_worker_that_does_not_answer_in_time_has_its_time_to_drain(monkeypatch, at_once, killed):
    """The order has been sent: a busy worker follows it later."""
    slot, seen = Slot(0, None), []

    def ask(order):
        raise AnswerTimeoutError("no answer within 10 s")

    monkeypatch.setattr(slot, "ask", ask)
    monkeypatch.setattr(slot, "kill", lambda: seen.append(slot.number))
    slot.stop(at_once)
    assert seen == killed


def test_the_port_of_another_server_is_not_shared(fleet):
    with pytest.raises(ServingError, match="cannot listen there: Address already in use"):
        Supervisor(fleet.options.model_copy(update={"port": fleet.port}), start_runtime)


def reads(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    with suppress(FileNotFoundError):
        return any(fd.resolve() == path for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.slow
def test_workers_drain_while_one_of_them_loads(publish, tmp_path, until, helpers, admin_token_file):
    base, other = tmp_path / "small", tmp_path / "other"
    base.mkdir()
    other.mkdir()
    publish(base, 1)
    held = publish(other, 1, hold_the_warm_up)
    options = ServerOptions(
        model_name="small",
        model_base_path=base,
        port=0,
        workers=2,
        admin_token_file=admin_token_file,
        drain_grace_seconds=600.0,
    )
    supervisor = Supervisor(options, start_runtime)
    supervisor.start()
    processes = [slot._process for slot in supervisor.slots]
    with new_channel(supervisor.port) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(helpers.as_admin(channel))
        request = reload_request(base, {})
        request.config.model_config_list.config.add(name="other", base_path=str(other))
        reload = models.HandleReloadConfigRequest.future(request, timeout=300)
        health = health_pb2_grpc.HealthStub(channel)
        stopper = threading.Thread(target=supervisor.stop, args=(threading.Event(),))
        writer = os.open(held / WARMUP, os.O_RDWR)
        until(lambda: any(reads(p.pid, held / WARMUP) for p in processes), "a worker that loads")
        stopper.start()

        def drains() -> bool:
            """It says so, or takes no connections any more, whichever is seen first."""
            try:
                answer = health.Check(health_pb2.HealthCheckRequest(), timeout=120)
            except grpc.RpcError as error:
                return error.code() == grpc.StatusCode.UNAVAILABLE
            return answer.status == health_pb2.HealthCheckResponse.NOT_SERVING

        def ended() -> bool:
            """Lets go of whoever waits for the warm-up; a worker may come to it after the drain."""
            os.close(os.open(held / WARMUP, os.O_RDWR))
            return not stopper.is_alive()

        until(drains, "the drain")
        os.close(writer)
        until(ended, "the end")
        # The worker that has the call either loads to the end or has drained.
        error = reload.exception()
        assert error is None or error.code() == grpc.StatusCode.UNAVAILABLE
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.slow
def test_it_stops_while_a_worker_cannot_be_spawned(base, until, caplog, monkeypatch):
    """As when there is no memory for a process: the other worker drains and ends all the same."""
    options = ServerOptions(model_name="small", model_base_path=base, port=0, workers=2)
    supervisor = Supervisor(options, start_runtime)
    supervisor.start()
    lasting, broken = supervisor.slots
    no_process(monkeypatch)
    os.kill(broken.pid, signal.SIGKILL)
    until(lambda: caplog.text.count("worker 1 cannot be run") >= 2)
    with new_channel(supervisor.port) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=120)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    supervisor.stop(threading.Event())
    assert lasting.over.is_set()
    assert lasting._process.exitcode == 0
    assert not any(slot._thread.is_alive() for slot in supervisor.slots)
