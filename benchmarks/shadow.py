"""What the shadow of a version on trial does to the calls that it scores again.

    python benchmarks/shadow.py --model_base_path models/deskdrop [--rounds 30] [--seconds 1.5]
        [--loads 0.4 0.7] [--shadow 0 10 100]

Starts one `multigate serve` for each percentage of shadow, all at once, each with the newest
version in production and a copy of it on trial, and the impression log on.  In each round a closed
loop of 16 callers finds what the first one can answer now; then an open loop (a Poisson process)
offers each a share of that, in turn, in another order each round.

Prints p50 and p99 of all calls of a server; the ratio of its p99 to that of the first, with a 95 %
interval (bootstrap of the rounds); CPU time a call; and how many calls were scored, dropped and
failed.  The last line is JSON.
"""

import argparse
import contextlib
import json
import random
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from benchmarks.load import closed_loop, open_loop, write_requests
from benchmarks.observed import CALLERS, PAGE, callers_of, served
from benchmarks.serve import cpu_seconds
from benchmarks.servers import NAME, free_ports, rank_requests

from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.serving.versions.folders import scan

SHADOWED = re.compile(r'^multigate_shadow_calls_total\{.*result="(\w+)".*\} (\S+)', re.MULTILINE)


def on_trial(base: Path, folder: Path, percent: float) -> Path:
    """A base folder with the newest version of another one, and a copy of it on trial."""
    newest = next(iter(scan(base).values()))
    for number in (1, 2):
        shutil.copytree(newest, folder / "models" / str(number))
    trials.begin(Base(folder / "models"), 2, 0.0, percent)
    return folder / "models"


def shadowed(port: int) -> Counter[str]:
    """Calls that were due to be scored again, by what became of them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{PAGE}") as page:
        found = SHADOWED.findall(page.read().decode())
    return Counter({result: int(float(count)) for result, count in found})


@dataclass
class Found:
    """What was seen of one server."""

    latencies: list[np.ndarray] = field(default_factory=list)
    """Seconds, by round."""
    statuses: Counter[str] = field(default_factory=Counter)
    cpu: float = 0.0


def p99_over(ours: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> list[float]:
    """Ratio of the p99 of all rounds, with its 95 % interval."""
    draw = np.random.default_rng(0)

    def ratio(rounds: np.ndarray) -> float:
        first, second = (
            np.quantile(np.concatenate([one[place] for place in rounds]), 0.99)
            for one in (ours, others)
        )
        return float(first / second)

    count = len(ours)
    drawn = [ratio(draw.integers(0, count, count)) for _ in range(500)]
    return [ratio(np.arange(count)), *np.quantile(drawn, [0.025, 0.975]).tolist()]


def in_turns(
    servers: dict[str, tuple[int, dict[str, Any]]], load: float, rounds: int, seconds: float
) -> tuple[dict[str, Found], float]:
    """Offer all servers a share of what the first can answer; returns what it was at last, too."""
    found = {name: Found() for name in servers}
    order, rng = list(servers), random.Random(0)
    with contextlib.ExitStack() as stack:
        methods, requests = callers_of(servers, stack)
        first, capacity = order[0], 0.0
        for one in methods.values():
            closed_loop(one, requests, CALLERS, 1)  # all ways have been gone before it counts
        for _ in range(rounds):
            capacity = len(closed_loop(methods[first], requests, CALLERS, 0.5)[0]) / 0.5
            rng.shuffle(order)
            for name in order:
                before = cpu_seconds(servers[name][0])
                latencies, statuses = open_loop(methods[name], requests, load * capacity, seconds)
                found[name].latencies.append(np.array(latencies))
                found[name].statuses.update(statuses)
                found[name].cpu += cpu_seconds(servers[name][0]) - before
    return found, capacity


def compare(
    base: Path,
    percents: Sequence[float],
    loads: Sequence[float],
    candidates: int,
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    """Measure, print the table, return its figures."""
    result: dict[str, Any] = {"candidates": candidates, "rounds": rounds, "seconds": seconds}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_requests(folder / "requests", rank_requests(base, candidates))
        names = [f"{percent:g}" for percent in percents]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        servers = {}
        for name, percent in zip(names, percents, strict=True):
            own = folder / name
            own.mkdir()
            models = on_trial(base, own, percent)
            arguments = ["--model_name", NAME, "--model_base_path", str(models)]
            arguments += ["--metrics_port", str(ports[name]), "--impression_log", str(own)]
            pid, how = stack.enter_context(served(arguments, own))
            servers[name] = pid, how | {"requests": str(folder / "requests")}
        for load in loads:
            time.sleep(2)  # what waits is scored
            before = {name: shadowed(port) for name, port in ports.items()}
            found, capacity = in_turns(servers, load, rounds, seconds)
            time.sleep(2)
            for name, one in found.items():
                total = np.concatenate(one.latencies)
                p50, p99 = (1e3 * np.quantile(total, [0.5, 0.99])).tolist()
                over = p99_over(one.latencies, found[names[0]].latencies)
                seen = dict(shadowed(ports[name]) - before[name])
                cpu = 1e3 * one.cpu / one.statuses.total()
                print(
                    f"load {load:.0%} of some {capacity:.0f} calls/s, shadow {name} %: "
                    f"{dict(one.statuses)}, p50 {p50:.3g} ms, p99 {p99:.3g} ms, {over[0]:.2f} "
                    f"({over[1]:.2f} to {over[2]:.2f}) times, CPU {cpu:.3g} ms, shadow {seen}",
                    flush=True,
                )
                result[f"load {load:g} shadow {name}"] = {
                    "p50_ms": round(p50, 2),
                    "p99_ms": round(p99, 2),
                    "p99_over": [round(value, 3) for value in over],
                    "cpu_ms": round(cpu, 3),
                    "statuses": dict(one.statuses),
                    "shadow": seen,
                }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--candidates", type=int, default=100, help="of each call")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.4, 0.7])
    parser.add_argument("--shadow", type=float, nargs="+", default=[0, 10, 100])
    options = parser.parse_args()
    found = compare(
        options.model_base_path,
        options.shadow,
        options.loads,
        options.candidates,
        options.rounds,
        options.seconds,
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
