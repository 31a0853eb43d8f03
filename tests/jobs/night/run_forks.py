"""Runs nights in processes of their own that start at once: forks of one that has imported all.

Reads one JSON object a line: the arguments of `jobs.night.nightly.run`, and `kill`: null, or the
stage and the seconds after its start at which the process gets SIGKILL. Answers with lines of JSON:
`status` (of the process; negative: the signal), and the `seconds` that it took.
"""

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from datetime import date
from pathlib import Path

HEAVY = (
    "tensorflow",
    "keras",
    "apache_beam",
    "polars",
    "multigate.pipeline.job",
    "multigate.model.training.train",
    "multigate.model.evaluation.evaluate",
    "multigate.model.export.export",
    "multigate.model.report.page",
    "multigate.jobs.night.nightly",
)


def run(order: dict) -> None:
    """Do one night in this process."""
    from multigate.configs import load
    from multigate.jobs.night.nightly import run

    if order.get("room") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["room"], order["room"]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run(
        load(order["config"]),
        date.fromisoformat(order["date"]),
        Path(order["data"]),
        Path(order["out"]),
        force=order.get("force"),
    )


def stage_of(state: Path) -> str:
    """The stage that a run is in now."""
    try:
        return json.loads(state.read_text()).get("stage", "")
    except (OSError, ValueError):
        return ""


def do(order: dict) -> dict:
    """Fork, run, kill when it is time, and wait."""
    state = Path(order["out"]) / order["date"] / "state.json"
    state.unlink(missing_ok=True)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(2, 1)  # standard output is for answers
            run(order)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    due = None
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if order.get("kill") and due is None and stage_of(state) == order["kill"][0]:
            due = time.monotonic() + order["kill"][1]
        if due is not None and time.monotonic() >= due:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - started,
    }


def main() -> None:
    """Answer orders until standard input ends."""
    for name in HEAVY:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(do(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
