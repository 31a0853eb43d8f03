"""CPU of one run of `rank` alone, through TensorFlow's C interface and through its Python.

    python benchmarks/runtime.py --model_base_path models/deskdrop [--rounds 40] [--joined 1 8]

Both runtimes load the same version in one process and run the same inputs in turns, without a
server around them.  The two must give the same bits.  Prints a table and, last, one JSON line with
the median and the best round of each, in milliseconds of CPU a run, and the median of the rounds'
ratios.
"""

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.python_session import PythonSession
from benchmarks.servers import load_model, rank_requests
from benchmarks.turns import cells, summary

from multigate.runtime.session import Session
from multigate.serving.core.layout import RANK
from multigate.serving.protos import ranking_pb2
from multigate.serving.versions.batching import join_calls
from multigate.serving.versions.folders import scan

RUNTIMES = {"c": Session, "python": PythonSession}
CANDIDATES = (100, 500, 800)
ROUND = 0.15
"""Seconds of CPU of one runtime in one round."""
WARM = 10


def inputs_of(base: Path, candidates: int, joined: int) -> list[dict[str, np.ndarray]]:
    """Inputs of a few runs, each of so many calls that share the candidates."""
    saved_model, layout, reader = load_model(base)
    calls = [
        reader.read(ranking_pb2.RankRequest.FromString(raw)).inputs
        for raw in rank_requests(base, candidates // joined)
    ]
    saved_model.retire()
    runs = [calls[start : start + joined] for start in range(0, len(calls) - joined + 1, joined)]
    return [join_calls(run, layout) for run in runs]


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    """Whether two runs gave the same bits."""
    return all(
        one.dtype == other.dtype and np.array_equal(one, other)
        for one, other in zip(ours, theirs, strict=True)
    )


def measure(base: Path, candidates: int, joined: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of CPU a run, by runtime."""
    folder = next(iter(scan(base).values()))
    runs = [[run[key] for key in sorted(run)] for run in inputs_of(base, candidates, joined)]
    sessions = {name: runtime(folder) for name, runtime in RUNTIMES.items()}
    calls = {name: one.runner(one.definitions[RANK]) for name, one in sessions.items()}
    for arrays in runs[:WARM]:
        assert same(*[list(call(*arrays)) for call in calls.values()]), "other bits"
    began, turns = time.process_time(), 0
    while time.process_time() - began < ROUND / 2:
        calls["c"](*runs[turns % len(runs)])
        turns += 1
    times: dict[str, list[float]] = {name: [] for name in RUNTIMES}
    gc.collect()
    gc.disable()
    for place in range(rounds):
        for name in list(RUNTIMES)[:: 1 if place % 2 else -1]:
            call = calls[name]
            began = time.process_time()
            for turn in range(2 * turns):
                call(*runs[turn % len(runs)])
            times[name].append(1e3 * (time.process_time() - began) / (2 * turns))
    gc.enable()
    for session in sessions.values():
        session.close()
    return summary(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each runtime")
    parser.add_argument("--candidates", type=int, nargs="+", default=CANDIDATES)
    parser.add_argument("--joined", type=int, nargs="+", default=[1], help="calls of one run")
    options = parser.parse_args()
    print("| candidates | calls | c, median (best) | python | ratio |\n" + "|" + " --- |" * 5)
    found: dict[str, Any] = {}
    for joined in options.joined:
        for candidates in options.candidates:
            one = measure(options.model_base_path, candidates, joined, options.rounds)
            found[f"{candidates}/{joined}"] = one
            print(f"| {candidates} | {joined} | {cells(one)} |", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
