"""Hostile calls by the thousand: no 500, and good calls get their answers meanwhile."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def pulse():
    """The callers of `benchmarks/hostile_pulse.py`, who compare their answers."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.hostile_pulse import Pulse

        yield Pulse
    finally:
        sys.path.remove(str(ROOT))


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(5000, marks=pytest.mark.slow),
        pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
def test_hostile_calls_fail_nobody_else_and_never_the_server(
    calls, tmp_path, publish, run_server, pulse, until, caplog
):
    publish(tmp_path, 1)
    options = {"rest_api_port": 0, "max_message_mebibytes": LIMIT >> 20}
    with run_server(tmp_path, **options) as running:
        server = running.server
        others, stop = pulse(server.port, server.rest_port, tmp_path, "small"), threading.Event()
        asking = threading.Thread(target=others.run, args=(stop,))
        asking.start()
        attacker = subprocess.run(
            [
                *(sys.executable, str(ROOT / "benchmarks" / "hostile_calls.py"), "--nice", "0"),
                *("--port", str(server.rest_port), "--model", "small"),
                *("--model_base_path", str(tmp_path), "--calls", str(calls)),
                *("--connections", "4", "--limit", str(LIMIT)),
            ],
            input="\n",
            capture_output=True,
            text=True,
            check=True,
        )
        stop.set()
        asking.join()
        others.close()
        until(lambda: not server.gate.admitted, "the end of all calls")
        lag = running.metric("multigate_event_loop_lag_seconds_count")
    found = json.loads(attacker.stdout.splitlines()[-1])
    assert found["unexpected"] == 0, found["problems"]
    assert sum(sum(one.values()) for one in found["seen"].values()) >= calls
    assert len(found["seen"]) == 22
    statuses = {status for one in found["seen"].values() for status in one}
    assert {"400", "404", "405", "408", "413", "415", "closed", "left"} <= statuses
    assert not others.problems
    assert min(len(others.asked[what]) for what in ("health", "Rank over gRPC", "Rank over HTTP"))
    assert lag > 0
    assert not [one for one in caplog.records if one.levelname in {"ERROR", "CRITICAL"}]
