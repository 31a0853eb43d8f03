"""The models' file, polled by several workers: what it asks for holds in all of them or in none."""

import os
import signal
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from multigate.runtime.start import start_runtime
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.options import ServerOptions
from multigate.serving.workers.supervisor import Supervisor
from multigate.verbs.command import main

WORKERS = ("0", "1")


def config(*models):
    """The text of a file: name and base path of each model."""
    parts = [f'config {{ name: "{name}" base_path: "{base}" }}' for name, base in models]
    return f"model_config_list {{ {' '.join(parts)} }}"


@pytest.fixture
def bases(tmp_path, publish):
    """Models `a`, `b` and `c`, each with version 1."""
    for name in "abc":
        (tmp_path / name).mkdir()
        publish(tmp_path / name, 1)
    return {name: tmp_path / name for name in "abc"}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "models.txt"


@pytest.fixture
def fleet(tmp_path, file, bases):
    """Two workers that poll the file, which asks for `a`."""
    (tmp_path / "token").write_text("admin\n")
    file.write_text(config(("a", bases["a"])))
    options = ServerOptions(
        model_config_file=file,
        model_config_file_poll_wait_seconds=0.1,
        admin_token_file=tmp_path / "token",
        port=0,
        metrics_port=0,
        workers=len(WORKERS),
        drain_grace_seconds=5.0,
    )
    supervisor = Supervisor(options, start_runtime)
    supervisor.start()
    yield supervisor
    supervisor.stop(threading.Event())


def samples(fleet, name):
    """A metric's samples of all workers; none of a busy one, which the page leaves out."""
    url = f"http://127.0.0.1:{fleet.metrics_port}/monitoring/prometheus/metrics"
    with urllib.request.urlopen(url, timeout=120) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return [one for family in families for one in family.samples if one.name == name]


def serving(fleet):
    """The models of each worker; none where a busy one left its metrics out."""
    found = samples(fleet, "multigate_model_version")
    models = {(one.labels["worker"], one.labels["model"]) for one in found}
    return {
        worker: "".join(name for name in "abc" if (worker, name) in models) for worker in WORKERS
    }


def served(fleet, until):
    """The models of each worker, once all of them have answered."""
    answers = []

    def answered():
        answers.append(serving(fleet))
        return all(answers[-1].values())

    until(answered, "an answer of each worker")
    return answers[-1]


def reloads(fleet, result):
    """How many changes of the file each worker has applied or refused."""
    found = samples(fleet, "multigate_config_reloads_total")
    counts = {(one.labels["worker"], one.labels["result"]): one.value for one in found}
    return {worker: counts.get((worker, result), 0) for worker in WORKERS}


def kill(fleet, number, until):
    """Kill a worker, and wait until its successor serves."""
    slot = fleet.slots[number]
    deaths = slot.deaths
    os.kill(slot.pid, signal.SIGKILL)
    until(lambda: slot.deaths > deaths, "its end")
    until(slot.ready.is_set, "its successor")


def everywhere(models):
    return dict.fromkeys(WORKERS, models)


@pytest.mark.slow
def test_a_changed_file_holds_in_all_workers_or_in_none(
    fleet, file, bases, tmp_path, until, capsys
):
    assert served(fleet, until) == everywhere("a")
    for broken in ("nonsense", config(("b", tmp_path / "absent"))):
        before = reloads(fleet, "failed")
        file.write_text(broken)

        def refused(before=before):
            now = reloads(fleet, "failed")
            return all(now[one] > before[one] for one in WORKERS)

        until(refused, "a refusal by each worker")
        assert served(fleet, until) == everywhere("a")
    # A worker that dies meanwhile has a successor, which serves what the others do.
    kill(fleet, 0, until)
    assert served(fleet, until) == everywhere("a")

    file.write_text(config(("a", bases["a"]), ("b", bases["b"])))  # mended
    until(lambda: serving(fleet) == everywhere("ab"), "the mended file in all workers")
    kill(fleet, 1, until)
    assert served(fleet, until) == everywhere("ab")

    # A reload request goes before the file, until that changes again; for successors too.
    other = tmp_path / "other.txt"
    other.write_text(config(("c", bases["c"])))
    command = ["reload", "--target", f"127.0.0.1:{fleet.port}", "--model_config_file", str(other)]
    assert main([*command, "--token_file", str(tmp_path / "token")]) == 0
    capsys.readouterr()
    kill(fleet, 0, until)
    assert served(fleet, until) == everywhere("c")
    file.write_text(config(("b", bases["b"])))
    until(lambda: serving(fleet) == everywhere("b"), "the changed file in all workers")
    with RankClient(f"127.0.0.1:{fleet.port}", timeout=120) as client:
        assert [model.name for model in client.models().models] == ["b"]
    until(lambda: sum(reloads(fleet, "applied").values()) >= 1)
