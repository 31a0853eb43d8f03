"""What the shadow of a version on trial does to the calls that it scores again.

    python benchmarks/shadow.py --model_base_path models/deskdrop [--rounds 180] [--seconds 0.4]
        [--loads 0.35] [--shadow 0 0 10 100] [--before CHECKOUT]

Starts one `multigate serve` for each percentage of shadow, and, with `--before`, one of another
version's checkout for each percentage above 0, all at once, each with the newest
version in production and a copy of it on trial, and the impression log on.  The second server
without shadow differs from the first in nothing: its ratio says what the machine does to one.

An open loop (a Poisson process) offers each a share of what a closed loop of 16 callers gets from
the first.  Turns are short and many, in another order each round, so that what else the machine
does meets all servers alike; all servers get the same calls at the same moments of a turn.  After
each turn there is a pause, until what waits to be scored by a server that nobody calls is scored:
else the next server would wait for that.

Prints p50 and p99 of each server's turn as each round ends; at the end, p50, p90 and p99 of all
calls of a server; the ratio of its p99, and of its p90, to those of
the first, with a 95 % interval (bootstrap of the rounds, the same rounds for both); CPU time a
call; and how many calls were scored, dropped and failed.  The last line is JSON.
"""

import argparse
import contextlib
import gc
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

_CAPACITY_SECONDS = 5.0
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


def over(ours: Sequence[np.ndarray], others: Sequence[np.ndarray], share: float) -> list[float]:
    """Ratio of a quantile of all rounds, with its 95 % interval."""
    draw = np.random.default_rng(0)

    def ratio(rounds: np.ndarray) -> float:
        first, second = (
            np.quantile(np.concatenate([one[place] for place in rounds]), share)
            for one in (ours, others)
        )
        return float(first / second)

    count = len(ours)
    drawn = [ratio(draw.integers(0, count, count)) for _ in range(1000)]
    return [ratio(np.arange(count)), *np.quantile(drawn, [0.025, 0.975]).tolist()]


def in_turns(
    servers: dict[str, tuple[int, dict[str, Any]]],
    load: float,
    rounds: int,
    seconds: float,
    pause: float,
) -> tuple[dict[str, Found], float]:
    """Offer all servers a share of what the first can answer; returns what that is, too."""
    found = {name: Found() for name in servers}
    order, rng = list(servers), random.Random(0)
    with contextlib.ExitStack() as stack:
        methods, requests = callers_of(servers, stack)
        first = order[0]
        for one in methods.values():
            closed_loop(one, requests, CALLERS, 1)  # all ways have been gone before it counts
        answered = len(closed_loop(methods[first], requests, CALLERS, _CAPACITY_SECONDS)[0])
        capacity = answered / _CAPACITY_SECONDS
        for place in range(rounds):
            rng.shuffle(order)
            for name in order:
                time.sleep(pause)
                before = cpu_seconds(servers[name][0])
                latencies, statuses = open_loop(
                    methods[name], requests, load * capacity, seconds, seed=place
                )
                found[name].latencies.append(np.array(latencies))
                found[name].statuses.update(statuses)
                found[name].cpu += cpu_seconds(servers[name][0]) - before
            said = [
                f"{name} % {1e3 * median:.1f} {1e3 * high:.1f} ms"
                for name, one in found.items()
                if one.latencies[-1].size
                for median, high in [np.quantile(one.latencies[-1], [0.5, 0.99])]
            ]
            print(f"round {place + 1} of {rounds}, p50 p99: {', '.join(said)}", flush=True)
    return found, capacity


def compare(
    base: Path,
    percents: Sequence[float],
    loads: Sequence[float],
    candidates: int,
    rounds: int,
    seconds: float,
    pause: float,
    before: Path | None,
) -> dict[str, Any]:
    """Measure, print the table, return its figures."""
    result: dict[str, Any] = {"candidates": candidates, "rounds": rounds, "seconds": seconds}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_requests(folder / "requests", rank_requests(base, candidates))
        kinds: dict[str, tuple[float, Path | None]] = {
            f"{percent:g}" + " again" * percents[:place].count(percent): (percent, None)
            for place, percent in enumerate(percents)
        }
        if before is not None:
            kinds |= {f"{percent:g} before": (percent, before) for percent in percents if percent}
        names = list(kinds)
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        servers = {}
        for name, (percent, checkout) in kinds.items():
            own = folder / name
            own.mkdir()
            models = on_trial(base, own, percent)
            arguments = ["--model_name", NAME, "--model_base_path", str(models)]
            arguments += ["--metrics_port", str(ports[name]), "--impression_log", str(own)]
            pid, how = stack.enter_context(served(arguments, own, checkout))
            servers[name] = pid, how | {"requests": str(folder / "requests")}
        gc.collect()
        gc.freeze()  # of the callers
        for load in loads:
            time.sleep(2)  # what waits is scored
            earlier = {name: shadowed(port) for name, port in ports.items()}
            found, capacity = in_turns(servers, load, rounds, seconds, pause)
            time.sleep(2)
            for name, one in found.items():
                total, first = np.concatenate(one.latencies), found[names[0]].latencies
                seen = dict(shadowed(ports[name]) - earlier[name])
                figures = {
                    **{f"p{at}_ms": 1e3 * np.quantile(total, at / 100) for at in (50, 90, 99)},
                    "cpu_ms": 1e3 * one.cpu / one.statuses.total(),
                }
                ratios = {f"p{at}_over": over(one.latencies, first, at / 100) for at in (90, 99)}
                said = [f"{name} {value:.3g}" for name, value in figures.items()]
                said += [
                    f"{name} {ratio:.3f} ({low:.3f} to {high:.3f})"
                    for name, (ratio, low, high) in ratios.items()
                ]
                print(
                    f"load {load:.0%} of {capacity:.0f} calls/s, shadow {name} %: "
                    f"{dict(one.statuses)}, {', '.join(said)}, shadow {seen}",
                    flush=True,
                )
                result[f"load {load:g} shadow {name}"] = {
                    **{name: round(value, 3) for name, value in figures.items()},
                    **{name: [round(x, 3) for x in value] for name, value in ratios.items()},
                    "statuses": dict(one.statuses),
                    "shadow": seen,
                }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--rounds", type=int, default=180)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each turn")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds before each turn")
    parser.add_argument("--candidates", type=int, default=100, help="of each call")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.35])
    parser.add_argument("--shadow", type=float, nargs="+", default=[0, 0, 10, 100])
    parser.add_argument("--before", type=Path, help="checkout of another version")
    options = parser.parse_args()
    found = compare(
        options.model_base_path,
        options.shadow,
        options.loads,
        options.candidates,
        options.rounds,
        options.seconds,
        options.pause,
        options.before,
    )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
