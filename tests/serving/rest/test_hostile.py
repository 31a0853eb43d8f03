"""Hostile calls by the thousand: no 500, and good calls get their answers meanwhile."""

import importlib.util
import threading
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "benchmarks" / "hostile_rest.py"


def hostile():
    spec = importlib.util.spec_from_file_location("hostile_rest", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_hostile_calls_fail_nobody_else_and_never_the_server(
    tmp_path, publish, run_server, rest, until, caplog
):
    publish(tmp_path, 1)
    attack = hostile().attack
    seen, good = [], []
    with run_server(tmp_path, rest_api_port=0) as running:
        client = rest(running.server.rest_port)
        call = threading.Thread(
            target=lambda: seen.append(
                attack(running.server.rest_port, "small", 1000, threads=4, largest=1 << 16)
            )
        )
        call.start()
        while call.is_alive():
            good.append(client.get("small")[0])
        call.join()
        until(lambda: not running.server.gate.admitted, "the end of all calls")
    statuses = set(seen[0])
    assert statuses <= {"400", "404", "413", "429", "503", "broken off"}, seen[0]
    assert {"400", "404", "413"} <= statuses
    assert set(good) == {200}
    assert not [one for one in caplog.records if one.levelname in {"ERROR", "CRITICAL"}]
