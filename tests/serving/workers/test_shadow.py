"""The shadow of a trial under several workers: each has a process, and none is left behind."""

import threading
import urllib.request

import psutil
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.runtime.start import start_runtime
from multigate.serving.client import RankClient
from multigate.serving.core.options import ServerOptions
from multigate.serving.workers.supervisor import Supervisor


def shadows_of(fleet):
    """By worker, the processes that score."""
    found = {}
    for slot in fleet.slots:
        children = psutil.Process(slot._process.pid).children()
        found[slot.number] = [one for one in children if "shadow_scoring" in str(one.cmdline())]
    return found


def scored(fleet):
    """Calls that were scored, by worker."""
    url = f"http://127.0.0.1:{fleet.metrics_port}/monitoring/prometheus/metrics"
    with urllib.request.urlopen(url, timeout=120) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        sample.labels["worker"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "multigate_shadow_calls_total" and sample.labels["result"] == "scored"
    }


@pytest.mark.slow
def test_each_worker_has_a_process_and_leaves_none(tmp_path, publish, until):
    base, log = tmp_path / "models", tmp_path / "log"
    base.mkdir()
    publish(base, 1)
    publish(base, 2)
    trials.begin(Base(base), 2, None, 100.0)
    options = ServerOptions(
        model_name="small",
        model_base_path=base,
        port=0,
        metrics_port=0,
        workers=2,
        impression_log=log,
    )
    fleet = Supervisor(options, start_runtime)
    fleet.start()
    try:
        until(lambda: all(len(one) == 1 for one in shadows_of(fleet).values()), "a process each")
        processes = [one for each in shadows_of(fleet).values() for one in each]
        assert len(processes) == 2

        def call():
            with RankClient(f"127.0.0.1:{fleet.port}", timeout=120) as client:
                client.rank(
                    "small",
                    user={"user_id": "u1"},
                    context={"hour": 9},
                    item_ids=["i1", "i2"],
                    columns={"length": [1.0, 2.0]},
                )
            return True

        until(lambda: call() and len(scored(fleet)) == 2, "calls of each worker scored")
    finally:
        fleet.stop(threading.Event())
    psutil.wait_procs(processes, 240)
    assert not [one for one in processes if one.is_running()]
    versions = [
        version
        for path in log.rglob("shadow-*.parquet")
        for version in pq.read_table(path)["shadow/version"].to_pylist()
    ]
    assert len(versions) >= 4
    assert set(versions) == {2}
