"""CPU of one run of `rank` as a server makes it, beside that of another checkout.

    python benchmarks/one_run.py --model_base_path models/deskdrop --before CHECKOUT BASE
        [--candidates 100 500 800] [--rounds 12]

BASE holds versions that the other checkout's own export wrote, of the same preset.  Each checkout
loads its version in a process of its own, reads the same requests, and runs them; the two take
turns.  Prints a table and, last, one JSON line with the median and the best round of each, in
milliseconds of CPU a run, and the median of the rounds' ratios.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from turns import cells, summary  # beside this file: another checkout may not have it

HERE = Path(__file__)
RUNS = 400
"""Of one round."""
MESSAGES = ("multigate.serving.protos.ranking_pb2", "serving.protos.ranking_pb2")
"""Where checkouts keep the messages: now, and before 2026-11-22."""


def messages() -> Any:
    """The messages of the checkout on the path."""
    for name in MESSAGES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"no checkout on PYTHONPATH: none of {', '.join(MESSAGES)}")


def child(base: Path, candidates: int) -> None:
    """Run as often as standard input says, and print milliseconds of CPU a run."""
    ranking_pb2 = messages()
    servers = importlib.import_module("benchmarks.servers")
    model, _, reader = servers.load_model(base)
    requests = [
        ranking_pb2.RankRequest.FromString(raw) for raw in servers.rank_requests(base, candidates)
    ]
    runs = [reader.read(request).inputs for request in requests]
    call = model.signatures["rank"]
    for inputs in runs:
        call(inputs)
    print("ready", flush=True)
    for line in sys.stdin:
        times = int(line)
        began = time.process_time()
        for turn in range(times):
            call(runs[turn % len(runs)])
        print(1e3 * (time.process_time() - began) / times, flush=True)


class Runs:
    """A checkout's process that runs its version."""

    def __init__(self, checkout: Path, base: Path, candidates: int) -> None:
        paths = f"{checkout / 'src'}:{checkout}"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "--child", str(base.absolute()), str(candidates)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._said() != "ready":
            raise SystemExit(f"{checkout}: cannot run the version in {base}; see above")

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def round(self) -> float:
        """Milliseconds of CPU a run."""
        assert self._process.stdin is not None
        print(RUNS, file=self._process.stdin, flush=True)
        return float(self._said())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(servers: dict[str, tuple[Path, Path]], candidates: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of CPU a run, by checkout."""
    processes = {name: Runs(*server, candidates) for name, server in servers.items()}
    times: dict[str, list[float]] = {name: [] for name in servers}
    for place in range(rounds + 1):
        for name in list(servers)[:: 1 if place % 2 else -1]:
            found = processes[name].round()
            if place:  # the first one warms up
                times[name].append(found)
    for process in processes.values():
        process.close()
    return summary(times)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument(
        "--before",
        type=Path,
        nargs=2,
        required=True,
        metavar=("CHECKOUT", "BASE"),
        help="another checkout, and versions that its own export wrote",
    )
    parser.add_argument("--candidates", type=int, nargs="+", default=[100, 500, 800])
    parser.add_argument("--rounds", type=int, default=12, help="turns of each checkout")
    options = parser.parse_args()
    servers = {
        "now": (HERE.parents[1], options.model_base_path),
        "before": (options.before[0].absolute(), options.before[1]),
    }
    print("| candidates | now, median (best) | before | ratio |\n" + "|" + " --- |" * 4)
    found: dict[str, Any] = {}
    for candidates in options.candidates:
        one = found[str(candidates)] = measure(servers, candidates, options.rounds)
        print(f"| {candidates} | {cells(one)} |", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
