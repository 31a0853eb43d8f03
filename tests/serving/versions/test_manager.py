"""Versions: which one serves, swaps under load, and versions that must never serve."""

import errno
import itertools
import json
import operator
import os
import re
import shutil
import threading
import time
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import get_model_status_pb2, prediction_log_pb2

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import ServingError
from multigate.runtime import memory
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core import background
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.rpc.server import BACKGROUND, Server
from multigate.serving.versions import folders, saved_model, warmup
from multigate.serving.versions import manager as manager_module
from multigate.serving.versions.folders import missing_files, scan, stamp
from multigate.serving.versions.manager import VersionManager
from multigate.serving.versions.model_config import ModelConfig
from multigate.serving.versions.ranker_version import RankerVersion

STATES = get_model_status_pb2.ModelVersionStatus.State


def test_scan_takes_integers_only_highest_first(tmp_path):
    for name in ("9", "10", "2", "007", "7.partial", ".8", "-1", "v3", "٣", str(1 << 70), "0"):
        (tmp_path / name).mkdir()
    (tmp_path / "11").write_text("a file")
    (tmp_path / "12").symlink_to("12")
    assert list(scan(tmp_path)) == [10, 9, 2, 0]
    assert scan(tmp_path / "absent") == {}


def test_a_scan_sees_the_versions_of_one_moment(tmp_path, monkeypatch):
    """Versions 3 to 8 are withdrawn, the highest last, while a scan goes over what it listed."""
    for number in range(1, 9):
        (tmp_path / str(number)).mkdir()
    is_folder, away = folders._is_folder, tmp_path / ".withdrawn"

    def withdraw_after_one(entry):
        found = is_folder(entry)
        if not away.exists():
            away.mkdir()
            for number in range(3, 9):
                (tmp_path / str(number)).rename(away / str(number))
        return found

    monkeypatch.setattr(folders, "_is_folder", withdraw_after_one)
    assert next(iter(scan(tmp_path))) == 8
    assert next(iter(scan(tmp_path))) == 2


def test_stamp_changes_with_the_files(tmp_path, exported):
    shutil.copytree(exported, tmp_path / "1")
    folder = tmp_path / "1"
    before = stamp(folder)
    assert stamp(folder) == before
    (folder / "assets.extra" / "golden.json").write_text("{}")
    assert stamp(folder) != before
    (folder / "saved_model.pb").unlink()
    assert missing_files(folder) == ["saved_model.pb"]


def version_of(running):
    with RankClient(running.target, timeout=120) as client:
        return client.contract("small").model_version


def status_of(running):
    request = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "small"})
    statuses = running.models.GetModelStatus(request, timeout=120).model_version_status
    return {s.version: (STATES.Name(s.state), s.status.error_message) for s in statuses}


def test_the_highest_number_serves_and_later_ones_take_over(
    tmp_path, publish, run_server, until, polled
):
    publish(tmp_path, 9)
    publish(tmp_path, 10)
    with run_server(tmp_path) as running:
        assert version_of(running) == 10
        publish(tmp_path, 11)
        until(lambda: version_of(running) == 11, "the swap")
        until(lambda: status_of(running)[10][0] == "END")
        assert status_of(running)[11] == ("AVAILABLE", "")
        shutil.rmtree(tmp_path / "11")
        until(lambda: version_of(running) == 10, "the rollback")
        shutil.rmtree(tmp_path / "10")
        shutil.rmtree(tmp_path / "9")
        polled(running)
        assert version_of(running) == 10


def test_a_look_at_the_versions_that_fails_is_counted_and_told(
    tmp_path, publish, run_server, until, monkeypatch, caplog
):
    """The look itself, such as at a disk that is gone: not a version that cannot be loaded."""
    monkeypatch.setattr(background, "_FIRST_PAUSE", 0.05)
    broken, looks = threading.Event(), []

    def look(base):
        if broken.is_set() and base == tmp_path:  # other servers of this process look as well
            looks.append(base)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scan(base)

    monkeypatch.setattr(manager_module, "scan", look)
    publish(tmp_path, 1)
    with run_server(tmp_path) as running:
        health = health_pb2_grpc.HealthStub(running.channel)
        watched = health.Watch(health_pb2.HealthCheckRequest(service=BACKGROUND), timeout=240)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        broken.set()
        until(lambda: len(looks) > 1, "two looks")
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        until(lambda: running.metric("multigate_thread_failures_total", thread="versions") > 1)
        assert version_of(running) == 1
        broken.clear()
        publish(tmp_path, 2)
        until(lambda: version_of(running) == 2, "the next version")
        watched.cancel()
    assert f"in a look at {tmp_path} for versions of model small" in caplog.text


def damage_variables(folder):
    path = next((folder / "variables").glob("variables.data*"))
    path.write_bytes(path.read_bytes()[:100])


def damage_graph(folder):
    (folder / "saved_model.pb").write_bytes(b"not a graph")


def half_copy(folder):
    shutil.rmtree(folder / "variables")


def endless_link(folder):
    """A file that is there and cannot be looked at, by whatever user."""
    path = folder / "assets.extra" / "contract.json"
    path.unlink()
    path.symlink_to(path.name)
    (folder / "assets.extra" / "loop").symlink_to("loop")


def no_golden(folder):
    (folder / "assets.extra" / "golden.json").unlink()


def wrong_golden(folder):
    path = folder / "assets.extra" / "golden.json"
    golden = json.loads(path.read_text())
    golden["outputs"]["click"]["values"][0] += 0.01
    path.write_text(json.dumps(golden))


def broken_golden(folder):
    (folder / "assets.extra" / "golden.json").write_text('{"signature": "rank"}')


def broken_warmup(folder):
    path = folder / "assets.extra" / "tf_serving_warmup_requests"
    path.write_bytes(path.read_bytes().replace(b"user_id", b"user_ix"))


def rewrite_contract(folder, change):
    path = folder / "assets.extra" / "contract.json"
    values = json.loads(path.read_text())
    change(values["contract"])
    contract = FrozenContract.model_validate_json(json.dumps(values)).contract
    values["schema_fingerprint"] = contract.schema_fingerprint()
    path.write_text(json.dumps(values))


def other_schema(folder):
    """Same inputs and outputs, but lists of another length."""
    rewrite_contract(folder, lambda c: c["features"]["tags"].update(max_length=2))


def other_inputs(folder):
    rewrite_contract(folder, lambda c: c["features"].pop("topic"))


def other_outputs(folder):
    rewrite_contract(folder, lambda c: c["tasks"].update(buy=c["tasks"]["like"]))


def edited_contract(folder):
    path = folder / "assets.extra" / "contract.json"
    path.write_text(path.read_text().replace('"max_length":3', '"max_length":2'))


BROKEN = {
    damage_variables: "cannot be loaded",
    damage_graph: "cannot be loaded",
    half_copy: "incomplete: expected variables/variables.index",
    endless_link: "incomplete: expected assets.extra/contract.json",
    no_golden: "incomplete: expected assets.extra/golden.json",
    wrong_golden: "output 'click': expected",
    broken_golden: "cannot be read as a golden request",
    broken_warmup: "tf_serving_warmup_requests: request 0: cannot be replayed",
    other_schema: "expected schema .* received",
    other_inputs: "inputs differ from the contract's: topic .expected no such input",
    other_outputs: "expected outputs buy, click",
    edited_contract: "schema fingerprint: expected",
}


def test_broken_versions_never_serve_are_reported_and_load_once_repaired(
    tmp_path, publish, run_server, until
):
    publish(tmp_path, 1)
    with run_server(tmp_path) as running:
        for version, (damage, says) in enumerate(BROKEN.items(), start=2):
            publish(tmp_path, version, damage)
            until(lambda v=version: status_of(running).get(v, ("",))[0] == "END", damage.__name__)
            assert version_of(running) == 1
            assert re.search(says, status_of(running)[version][1]), status_of(running)[version]
        for version in range(2, 2 + len(BROKEN)):
            shutil.rmtree(tmp_path / str(version))
        repaired = publish(tmp_path, 2, half_copy)
        until(lambda: "incomplete" in status_of(running)[2][1])
        shutil.copytree(tmp_path / "1" / "variables", repaired / "variables")
        until(lambda: version_of(running) == 2, "the repair")


def test_a_version_that_makes_loading_fail_in_a_new_way_keeps_no_other_one_out(
    tmp_path, publish, run_server, until, monkeypatch
):
    """As files without permission do, which a test that root runs cannot have."""
    publish(tmp_path, 1)
    usual = folders.missing_files

    def refused(folder):
        if folder.name == "9":
            raise PermissionError(13, "Permission denied", str(folder))
        if folder.name == "8":
            raise ValueError("nobody expected this")
        return usual(folder)

    monkeypatch.setattr(saved_model, "missing_files", refused)
    with run_server(tmp_path) as running:
        publish(tmp_path, 9)
        publish(tmp_path, 8)
        publish(tmp_path, 2)
        until(lambda: version_of(running) == 2, "the version that can serve")
        until(lambda: {state for state, _ in status_of(running).values()} == {"END", "AVAILABLE"})
        assert "9: cannot be read: [Errno 13] Permission denied" in status_of(running)[9][1]
        assert "8: ValueError('nobody expected this')" in status_of(running)[8][1]


def test_a_failed_version_is_tried_again_so_often(tmp_path, publish, run_server, until, polled):
    publish(tmp_path, 1)
    options = {"load_retry_interval_micros": 0, "max_num_load_retries": 2}
    with run_server(tmp_path, **options) as running:
        publish(tmp_path, 2, no_golden)
        until(lambda: running.server.models.records("small").get(2) is not None)
        until(lambda: running.server.models.records("small")[2].tries == 3)
        polled(running)
        assert running.server.models.records("small")[2].tries == 3
        assert running.metric("multigate_version_loads_total", model="small", result="failed") == 3


def test_at_the_start_an_older_good_version_serves(tmp_path, publish, run_server):
    publish(tmp_path, 1)
    publish(tmp_path, 2, wrong_golden)
    with run_server(tmp_path) as running:
        assert version_of(running) == 1
        assert status_of(running)[2][0] == "END"


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (
            lambda base, publish: base.rmdir(),
            "expected a folder of versions, but it does not exist",
        ),
        (lambda base, publish: None, "expected numbered version folders such as"),
        (lambda base, publish: publish(base, 1, no_golden), "no version can be loaded: .*golden"),
    ],
)
def test_a_server_without_a_version_does_not_start(tmp_path, publish, run_server, prepare, says):
    prepare(tmp_path, publish)
    with pytest.raises(ServingError, match=says):
        run_server(tmp_path).__enter__()


def test_a_taken_port_is_an_error_before_anything_is_loaded(tmp_path, running):
    server = Server(
        ServerOptions(model_name="small", model_base_path=tmp_path, port=running.server.port)
    )
    with pytest.raises(ServingError, match="cannot listen there: Address already in use; see"):
        server.start()


def test_an_address_of_ipv6(tmp_path, publish, run_server):
    publish(tmp_path, 1)
    with run_server(tmp_path, host="::1") as running:
        target = f"[::1]:{running.server.port}"
        with RankClient(target, timeout=120) as client:
            assert client.contract("small").model_version == 1
    with pytest.raises(ServingError, match=r"\[::1:2\]:0: cannot listen there"):
        run_server(tmp_path, host="::1:2").__enter__()


def test_swaps_under_load_fail_no_call_and_give_the_old_memory_back(
    tmp_path, publish, run_server, contract, helpers, until
):
    publish(tmp_path, 1)
    inputs = [helpers.sample_inputs(contract, 3, users=1, seed=s) for s in range(8)]
    requests = [helpers.predict_request(one, "rank") for one in inputs]
    with run_server(tmp_path) as running, futures.ThreadPoolExecutor(8) as pool:
        predict = running.prediction.Predict
        expected = [predict(r, timeout=120).outputs["score"].float_val for r in requests]
        done = threading.Event()

        def call_until_done(place):
            served = []
            while not done.is_set() or served[-1] != 4:
                response = predict(requests[place], timeout=120)
                scores = response.outputs["score"].float_val
                np.testing.assert_allclose(scores, expected[place], rtol=1e-5, atol=5e-6)
                served.append(response.model_spec.version.value)
                answered[place] += 1
            return served

        answered = [0] * 8
        callers = [pool.submit(call_until_done, place) for place in range(8)]
        old = running.server.models.manager("small")._loaded[1].saved_model
        for version in range(2, 5):
            # Each caller calls on, before and during the swap, however slow the machine is.
            least = [count + 8 for count in answered]
            until(lambda least=least: all(map(operator.ge, answered, least)), "calls")
            publish(tmp_path, version)
            until(lambda v=version: version_of(running) == v, f"version {version}")
        done.set()
        seen = [caller.result(120) for caller in callers]
        for served in seen:
            assert served == sorted(served)
            assert {1, 4} <= set(served)
        until(lambda: old._session._closed, "closing the first version's session")


def test_a_call_in_flight_finishes_on_the_version_it_began_on(
    tmp_path, publish, run_server, contract, helpers, until
):
    publish(tmp_path, 1)
    with run_server(tmp_path) as running:
        request = helpers.predict_request(helpers.sample_inputs(contract, 2, users=1), "rank")
        served = running.server.models.manager("small")._loaded[1]
        first, signature = served.saved_model, served.batchers["rank"]._run
        runs, let_go = threading.Event(), threading.Event()

        def held(inputs, timeout):
            runs.set()
            assert let_go.wait(240)
            return signature(inputs, timeout)

        served.batchers["rank"]._run = held
        slow = running.prediction.Predict.future(request, timeout=240)
        assert runs.wait(120)
        publish(tmp_path, 2)
        until(lambda: version_of(running) == 2)
        until(lambda: status_of(running)[1][0] == "UNLOADING", "the end of version 1")
        assert not first._session._closed
        let_go.set()
        assert slow.result().model_spec.version.value == 1
        until(lambda: status_of(running)[1][0] == "END")
        assert first._session._closed


def test_a_version_that_is_loaded_again_stays_available_when_its_old_calls_end(tmp_path, publish):
    """As after a rollback: version 2 replaces 1 and is withdrawn, while a call goes on with 1."""
    options = ServerOptions(model_name="small", model_base_path=tmp_path)
    config = ModelConfig("small", tmp_path)
    manager = VersionManager(config, RankerVersion, options, ServerMetrics())
    publish(tmp_path, 1)
    manager.poll()
    in_flight = manager.acquire()
    publish(tmp_path, 2)
    manager.poll()
    assert {n: record.state for n, record in manager.records().items()} == {
        1: "UNLOADING", 2: "AVAILABLE",
    }  # fmt: skip
    shutil.rmtree(tmp_path / "2")
    manager.poll()
    in_flight.saved_model.release()
    for thread in threading.enumerate():
        if thread.name == "unload":
            thread.join(120)
    assert {n: record.state for n, record in manager.records().items()} == {
        1: "AVAILABLE", 2: "END",
    }  # fmt: skip
    manager.close()
    assert manager.records()[1].state == "END"


def test_what_is_kept_of_versions_that_are_gone_does_not_grow(tmp_path, publish, monkeypatch):
    """Neither states nor samples of metrics: a server may see a new version every minute."""
    monkeypatch.setattr(manager_module, "KEPT_GONE", 2)
    options = ServerOptions(model_name="small", model_base_path=tmp_path)
    metrics = ServerMetrics()
    config = ModelConfig("small", tmp_path)
    manager = VersionManager(config, RankerVersion, options, metrics)
    publish(tmp_path, 1, no_golden)
    for version in range(2, 7):
        publish(tmp_path, version)
        manager.poll()
        metrics.answered("Rank", "OK", 0.1, model="small", version=str(version))
    versions = set(re.findall(r'multigate_requests_total{.*version="(\d+)"', metrics.text()))
    assert versions == {"4", "5", "6"}
    assert manager.records().keys() == {4, 5, 6}
    publish(tmp_path, 7, no_golden)
    manager.poll()
    assert manager.records().keys() == {4, 5, 6, 7}  # it is there, and will be tried again
    shutil.rmtree(tmp_path / "7")
    manager.poll()
    assert manager.records().keys() == {5, 6, 7}
    manager.close()


def test_memory_goes_back_once_a_swap_is_over_and_now_and_then_where_swaps_do_not_end(monkeypatch):
    """Back after each of many swaps, it held up their slowest calls; kept for long, it grew."""
    now, given_back = [1000.0], []
    monkeypatch.setattr(memory, "return_freed", lambda: given_back.append(now[0]))
    monkeypatch.setattr(memory, "leave_unused_code", lambda: None)
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    freed = memory.FreedMemory()
    freed.give_back()
    freed.change()
    for _ in range(20):  # a load, then its predecessor's close, and a look at the folder each 0.1 s
        now[0] = round(now[0] + 0.1, 1)
        freed.give_back()
        if now[0] == 1000.5:
            freed.change()
    assert given_back == [1001.5]
    for _ in range(400):  # a swap each 0.8 s: 40 s
        now[0] = round(now[0] + 0.1, 1)
        freed.give_back()
        if round(now[0] * 10) % 8 == 0:
            freed.change()
    waits = [after - before for before, after in itertools.pairwise(given_back[1:])]
    assert all(memory.FreedMemory.LONGEST <= wait <= 11 for wait in waits)
    assert len(waits) == 2


def test_a_version_closes_while_memory_goes_back(monkeypatch):
    """The thread of a version's last call says so, and must not fail as the other gives back."""

    class GivenBackOnceRead(memory.FreedMemory):
        kept = None

        @property
        def _changed(self):
            found, self.kept = self.kept, None
            return found

        @_changed.setter
        def _changed(self, found):
            self.kept = found

    monkeypatch.setattr(memory, "leave_unused_code", lambda: None)
    freed = GivenBackOnceRead()
    freed.change()
    freed.change()
    assert freed.kept is not None


def test_versions_that_are_loaded_and_closed_give_their_memory_back(
    tmp_path, publish, monkeypatch, until
):
    states = []
    options = ServerOptions(
        model_name="small", model_base_path=tmp_path, file_system_poll_wait_seconds=0.01
    )
    manager = VersionManager(
        ModelConfig("small", tmp_path), RankerVersion, options, ServerMetrics()
    )
    monkeypatch.setattr(memory.FreedMemory, "SETTLED", 0.0)
    monkeypatch.setattr(
        memory,
        "return_freed",
        lambda: states.append({n: record.state for n, record in manager.records().items()}),
    )
    publish(tmp_path, 1)
    manager.start()
    until(lambda: {1: "AVAILABLE"} in states, "the memory of a load")
    publish(tmp_path, 2)
    until(lambda: states[-1] == {1: "END", 2: "AVAILABLE"}, "the memory of a closed version")
    manager.close()


def test_warm_up_runs_all_signatures_that_are_recorded_or_take_what_is(watched, tmp_path):
    """The first Classify took half a second of a core; other calls waited for it."""
    folder = tmp_path / "1"
    shutil.copytree(watched, folder)
    with (folder / "assets.extra/tf_serving_warmup_requests").open("ab") as file:
        for kind, signature in (("classify_log", "classify"), ("regress_log", "regress")):
            log = prediction_log_pb2.PredictionLog()
            request = getattr(log, kind).request
            request.model_spec.signature_name = signature
            request.input.example_list.examples.add()
            data, checksum = log.SerializeToString(), bytes(4)
            file.write(len(data).to_bytes(8, "little") + checksum + data + checksum)
    loaded, ran = saved_model.SavedModel.load(1, folder), set()

    def noted(name, run):
        return lambda *inputs, **given: ran.add(name) or run(*inputs, **given)

    for name, signature in loaded.signatures.items():
        signature._run = noted(name, signature._run)
    assert warmup.warm_up(loaded, folder, only={"rank"}) == 2
    assert ran == {"rank"}
    assert warmup.warm_up(loaded, folder, only={"rank", "classify", "watch"}) == 3
    assert ran == {"rank", "classify", "watch"}
    assert warmup.warm_up(loaded, folder) == 4
    assert ran == {"rank", "classify", "regress", "watch", "rank_items"}
    loaded.retire()


def test_a_version_is_warm_in_all_that_calls_have_run_before(
    tmp_path, watched, contract, helpers, monkeypatch
):
    """A first run of a signature holds all other runs of the version up, for some 40 ms."""
    warmed = []

    def noted(*args):
        warmed.append(args[4])
        return warmup.warm_up(*args)

    monkeypatch.setattr(manager_module, "warm_up", noted)
    options = ServerOptions(model_name="small", model_base_path=tmp_path)
    manager = VersionManager(
        ModelConfig("small", tmp_path), RankerVersion, options, ServerMetrics()
    )
    for version in (1, 2, 3, 4):
        helpers.copies(watched)(tmp_path, version)
        manager.poll()
        newest = manager.acquire()
        if version == 2:
            newest.signature("watch")(helpers.sample_inputs(contract, 3, users=2, seed=1))
        newest.saved_model.release()
    needed = {"rank", "serving_default"}
    assert warmed == [None, needed, {*needed, "watch"}, {*needed, "watch"}]
    manager.close()


def test_warm_up_rests_after_each_request_where_other_versions_serve(
    tmp_path, publish, exported, monkeypatch
):
    one, rests = saved_model.SavedModel.load(1, exported), []
    count = warmup.warm_up(one, exported, rest=rests.append)
    assert len(rests) == count > 0
    one.retire()
    given = []
    monkeypatch.setattr(manager_module, "warm_up", lambda *args: given.append(args[-1]))
    options = ServerOptions(model_name="small", model_base_path=tmp_path)
    manager = VersionManager(
        ModelConfig("small", tmp_path), RankerVersion, options, ServerMetrics()
    )
    for version in (1, 2):
        publish(tmp_path, version)
        manager.poll()
    assert [rest is time.sleep for rest in given] == [False, True]
    manager.close()


def test_the_last_call_does_not_wait_for_the_end_of_its_version(exported):
    one = saved_model.SavedModel.load(1, exported)
    assert one.acquire()
    let_go, closed = threading.Event(), threading.Event()

    def close():
        assert let_go.wait(240)
        closed.set()

    one.retire(close)
    assert not one.acquire()
    release = threading.Thread(target=one.release, daemon=True)
    release.start()
    release.join(120)
    assert not release.is_alive()
    let_go.set()
    assert closed.wait(120)
