"""Calls per second of the server, beside other servers and the limits of the machine.

    python benchmarks/serve.py --model_base_path models/deskdrop [--seconds 3]

`benchmarks/servers.py` says what each server is.  Each runs in a process of its own, on the same
cores as its callers (`benchmarks/load.py`, one process of 1 to 64 callers), with the same requests
of random ids: in a closed loop, and in an open loop at 70 % of what the closed one reached.  All
servers run at once and are called in turn, for some rounds; of each, the middle round counts.

The limit is what the cores allow if a call costs one echo and its share of the model: cores / (CPU
seconds of an echo call in its server + CPU seconds of the model per call at its best number of
joined calls).  Callers are not in it: `of_limit_beside_callers` says what is reached of the limit
with the CPU seconds of the echo's callers, who have the same cores.

PyTriton needs numpy < 2, and of Python 3.11 a release before 3.11.5, which the stub in its wheel is
of; MLServer wants its own versions too.  Each gets an environment of its own:

    uv venv --python /usr/bin/python3.11 envs/pytriton
    uv pip install --python envs/pytriton/bin/python nvidia-pytriton tensorflow-cpu==2.20.* \
        pydantic PyYAML
    uv venv --python 3.11 envs/mlserver
    uv pip install --python envs/mlserver/bin/python mlserver 'uvloop<0.22' tensorflow-cpu \
        pydantic PyYAML

named by --pytriton and --mlserver (or PYTRITON and MLSERVER); without them both are left out.
Prints a table and, last, one JSON line with the ratios at 16 callers and 100 candidates.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
HEAD = (16, 100)  # callers and candidates of the ratios
HEADING = (
    "server    cands callers loop  calls/s  cands/s   p50 ms   p95 ms   p99 ms  cpu ms  caller ms"
)


@dataclass(frozen=True)
class Kind:
    """A server to compare."""

    name: str
    python: str
    flags: tuple[str, ...] = ()

    def start(self, base: Path, *more: str) -> subprocess.Popen[str]:
        """Start it."""
        name = self.name.partition("-")[0]
        command = [self.python, str(HERE / "servers.py"), name, "--model_base_path", str(base)]
        environment = os.environ | {
            "PYTHONPATH": f"{HERE.parent}:{HERE.parent / 'src'}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        return subprocess.Popen(
            [*command, *self.flags, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and those that it started."""
    total, root = 0.0, psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextlib.contextmanager
def running(kind: Kind, base: Path, candidates: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """A server: its process id, and how to call it."""
    server = kind.start(base, "--candidates", str(candidates))
    assert server.stdout is not None
    try:
        # Triton prints to standard output before.
        line = next((line for line in server.stdout if line.startswith('{"port"')), "")
        if not line:
            raise SystemExit(f"{kind.name}: ended at its start; run benchmarks/servers.py to see")
        yield server.pid, json.loads(line)
    finally:
        server.communicate()


def measure(
    server: tuple[int, dict[str, Any]], callers: int, seconds: float, rate: float = 0
) -> dict[str, Any]:
    """Call a server from a process of callers."""
    pid, how = server
    plan = {
        "target": f"127.0.0.1:{how['port']}",
        "method": how["method"],
        "requests": how["requests"],
        "callers": callers,
        "seconds": seconds,
        "rate": rate,
    }
    load = subprocess.Popen(
        [sys.executable, str(HERE / "load.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write(json.dumps(plan))
    load.stdin.close()
    load.stdout.readline()  # warm
    before = cpu_seconds(pid)
    found: dict[str, Any] = json.loads(load.stdout.read())
    found["cpu"] = (cpu_seconds(pid) - before) / max(sum(found["statuses"].values()), 1)
    load.wait()
    return found


def row(kind: str, candidates: int, callers: int, loop: str, one: dict[str, Any]) -> str:
    """A line of the table."""
    refused = {code: count for code, count in one["statuses"].items() if code != "OK"}
    return (
        f"{kind:9} {candidates:5} {callers:7} {loop:6} {one['calls']:7.0f} "
        f"{one['calls'] * candidates:8.0f} {one['p50'] * 1e3:8.2f} {one['p95'] * 1e3:8.2f} "
        f"{one['p99'] * 1e3:8.2f} {one['cpu'] * 1e3:7.2f} {one['caller_cpu'] * 1e3:10.2f}"
        + (f"  {refused}" if refused else "")
    )


def middle(rounds: list[dict[str, Any]], key: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """The round in the middle, by one of its figures."""
    return sorted(rounds, key=key)[len(rounds) // 2]


def compare(
    base: Path,
    kinds: list[Kind],
    callers: list[int],
    candidates: list[int],
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    """Measure everything, print the table, return the ratios."""
    cores = os.cpu_count() or 1
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    model: dict[int, float] = {}
    steady: dict[str, dict[str, Any]] = {}
    for size in candidates:
        alone = Kind("model", sys.executable)
        flags = ("--candidates", str(size), "--seconds", str(max(seconds, 2)))
        costs = json.loads(alone.start(base, *flags).communicate()[0])
        model[size] = min(costs.values())
        said = ", ".join(f"{count}: {cost * 1e3:.2f}" for count, cost in costs.items())
        print(f"model alone, {size} candidates, CPU ms a call by joined calls: {said}")
        print(HEADING)
        with contextlib.ExitStack() as stack:
            # All are there at once and take turns, so that all meet what else the machine does.
            servers = {kind.name: stack.enter_context(running(kind, base, size)) for kind in kinds}
            for count in callers:
                turns = [
                    {name: measure(server, count, seconds) for name, server in servers.items()}
                    for _ in range(rounds)
                ]
                for name in servers:
                    one = middle([turn[name] for turn in turns], lambda one: one["calls"])
                    found[name, count, size] = one
                    print(row(name, size, count, "closed", one), flush=True)
                if (count, size) != HEAD:
                    continue
                rates = {name: 0.7 * found[name, *HEAD]["calls"] for name in servers}
                turns = [
                    {
                        name: measure(server, count, max(2 * seconds, 4), rates[name])
                        for name, server in servers.items()
                    }
                    for _ in range(rounds)
                ]
                for name in servers:
                    one = middle([turn[name] for turn in turns], lambda one: one["p99"])
                    steady[name] = one
                    print(row(name, size, count, "open", one), flush=True)
    ours = max(
        (name for name in steady if name.startswith("ours")),
        key=lambda name: found[name, *HEAD]["calls"],
    )
    best, echo = found[ours, *HEAD], found["echo", *HEAD]
    limit = cores / (echo["cpu"] + model[HEAD[1]])
    beside = cores / (echo["cpu"] + echo["caller_cpu"] + model[HEAD[1]])

    def over(name: str) -> float | None:
        other = found.get((name, *HEAD))
        return round(best["calls"] / other["calls"], 2) if other else None

    return {
        "over_tutorial": over("tutorial"),
        "over_pytriton": over("pytriton"),
        "over_mlserver": over("mlserver"),
        "of_limit": round(best["calls"] / limit, 2),
        "of_limit_beside_callers": round(best["calls"] / beside, 2),
        "p99_over_p50_at_70": round(steady[ours]["p99"] / steady[ours]["p50"], 2),
        "server": ours,
        "calls_per_second": round(best["calls"]),
        "limit": round(limit),
        "cpu_ms": {
            "echo": round(echo["cpu"] * 1e3, 3),
            "echo_callers": round(echo["caller_cpu"] * 1e3, 3),
            "model": round(model[HEAD[1]] * 1e3, 3),
            "ours": round(best["cpu"] * 1e3, 3),
        },
    }


def chosen(options: argparse.Namespace) -> list[Kind]:
    """The servers that there are environments for."""
    here = sys.executable
    kinds = [Kind("echo", here), Kind("tutorial", here)]
    kinds += [
        Kind("ours" if count == 1 else f"ours-{count}", here, ("--workers", str(count)))
        for count in options.workers
    ]
    for name in ("pytriton", "mlserver"):
        python = getattr(options, name)
        if python and Path(python).exists():
            kinds.append(Kind(name, python))
        else:
            print(
                f"{name}: left out: {f'{python} is not there' if python else 'no environment'}; "
                f"--{name} names its python, and this script's head says how to make one"
            )
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of which the middle one counts")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--candidates", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="of our server")
    for name in ("pytriton", "mlserver"):
        help_text = f"python of the environment of {name}"
        parser.add_argument(f"--{name}", default=os.environ.get(name.upper()), help=help_text)
    options = parser.parse_args()
    if HEAD[0] not in options.callers or HEAD[1] not in options.candidates:
        parser.error("the ratios need 16 callers and 100 candidates among those measured")
    base, seconds = options.model_base_path, options.seconds
    kinds = chosen(options)
    callers, candidates, rounds = options.callers, options.candidates, options.rounds
    print(json.dumps(compare(base, kinds, callers, candidates, seconds, rounds)))


if __name__ == "__main__":
    main()
