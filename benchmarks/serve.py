"""Calls per second of the server, beside other servers and an echo on asyncio.

    python benchmarks/serve.py --model_base_path models/deskdrop [--seconds 2] [--rounds 5]

`benchmarks/servers.py` says what each server is.  Each runs in a process of its own.  All servers
share the first cores of the machine; the callers (`benchmarks/load.py`, one process of 1 to 64
callers) have the last one to themselves.  All servers run at once and are called in turn, for some
rounds: in a closed loop, and at 16 callers and 100 candidates also in an open loop at 70 % of what
the closed one reached.  Of each server the middle round counts.

    before    as ours, of the checkout of another version, if --before names one

The columns:

    what      full: random values of every feature; ids: the user, the context and the items' ids
              alone, real ones, and our server reads the other features from the version's snapshot
    cands     candidates of a call
    callers   calls on their way at once; open: the calls come at random moments
    calls/s   answered calls a second
    of echo   the same over the echo's, middle of the rounds: both have the same bytes of requests
              and answers, and the echo does nothing else
    p50, ...  milliseconds from the call (open: from when it was due) to its answer
    p99/p50   of the same round
    cpu ms    CPU time of the server's processes per call
    caller    CPU time of the callers' process per call, in ms: where calls/s times this is near a
              second per second, the callers are the limit

PyTriton needs numpy < 2, and of Python 3.11 a release before 3.11.5, which the stub in its wheel is
of; MLServer wants its own versions too.  Each gets an environment of its own:

    uv venv --python /usr/bin/python3.11 envs/pytriton
    uv pip install --python envs/pytriton/bin/python nvidia-pytriton tensorflow-cpu==2.20.* \
        pydantic PyYAML prometheus-client
    uv pip install --python envs/pytriton/bin/python --no-deps tensorflow-serving-api
    uv venv --python 3.11 envs/mlserver
    uv pip install --python envs/mlserver/bin/python mlserver 'uvloop<0.22' tensorflow-cpu \
        pydantic PyYAML prometheus-client
    uv pip install --python envs/mlserver/bin/python --no-deps tensorflow-serving-api

named by --pytriton and --mlserver (or PYTRITON and MLSERVER); without them both are left out.
Prints a table and, last, one JSON line with the ratios of our server.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
WHAT = ("full", "ids")
HEAD = (16, 100)  # callers and candidates of the open loop
LOAD = 0.7  # of the open loop, as share of the closed one's calls
HEADING = (
    f"{'server':9} what cands callers loop   calls/s of echo   p50 ms   p95 ms   p99 ms p99/p50"
    "  cpu ms  caller"
)
Round = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A server to compare."""

    name: str
    python: str
    checkout: Path = HERE.parent
    """Whose code it runs; the benchmark's own is this one's."""

    def start(self, base: Path, *more: str) -> subprocess.Popen[str]:
        """Start it."""
        name = "ours" if self.name == "before" else self.name
        command = [self.python, str(HERE / "servers.py"), name, "--model_base_path", str(base)]
        environment = os.environ | {
            "PYTHONPATH": f"{self.checkout / 'src'}:{HERE.parent}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        return subprocess.Popen(
            [*command, *more],
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
    server: tuple[int, dict[str, Any]], what: str, callers: int, seconds: float, rate: float = 0
) -> Round:
    """Call a server from a process of callers, on the last core."""
    pid, how = server
    plan = {
        "target": f"127.0.0.1:{how['port']}",
        "method": how["method"],
        "requests": how["requests"][what],
        "callers": callers,
        "seconds": seconds,
        "rate": rate,
        "core": callers_core(),
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
    found: Round = json.loads(load.stdout.read())
    found["cpu"] = (cpu_seconds(pid) - before) / max(sum(found["statuses"].values()), 1)
    load.wait()
    return found


def callers_core() -> int:
    """The machine's last core, which no server uses."""
    return (os.cpu_count() or 1) - 1


def row(name: str, what: str, size: int, callers: int, loop: str, rounds: list[Round]) -> str:
    """A line of the table: of a server's rounds, the one in the middle."""
    key = "calls" if loop == "closed" else "p99"
    one = sorted(rounds, key=lambda one: one[key])[len(rounds) // 2]
    share = statistics.median(each["of_echo"] for each in rounds)
    refused = {code: count for code, count in one["statuses"].items() if code != "OK"}
    return (
        f"{name:9} {what:4} {size:5} {callers:7} {loop:6} {one['calls']:7.0f} {share:7.0%} "
        f"{one['p50'] * 1e3:8.2f} {one['p95'] * 1e3:8.2f} {one['p99'] * 1e3:8.2f} "
        f"{one['p99'] / one['p50']:7.2f} {one['cpu'] * 1e3:7.3f} {one['caller_cpu'] * 1e3:7.3f}"
        + (f"  {refused}" if refused else "")
    )


def in_turns(
    servers: dict[str, tuple[int, dict[str, Any]]],
    rounds: int,
    call: Callable[[str, tuple[int, dict[str, Any]]], Round],
) -> dict[str, list[Round]]:
    """Each server's rounds; all servers meet what else the machine does."""
    found: dict[str, list[Round]] = {name: [] for name in servers}
    for _ in range(rounds):
        turn = {name: call(name, server) for name, server in servers.items()}
        for name, one in turn.items():
            found[name].append(one | {"of_echo": one["calls"] / turn["echo"]["calls"]})
    return found


def ratios(closed: dict[str, list[Round]]) -> dict[str, float]:
    """Calls a second of our server over each other's, middle of the rounds."""
    return {
        other: round(
            statistics.median(
                one["calls"] / beside["calls"]
                for one, beside in zip(closed["ours"], rounds, strict=True)
            ),
            2,
        )
        for other, rounds in closed.items()
        if other != "ours"
    }


def compare(base: Path, kinds: list[Kind], options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything, print the table, return the ratios."""
    seconds, rounds = options.seconds, options.rounds
    summary: dict[str, Any] = {}
    for size in options.candidates:
        alone = Kind("model", sys.executable)
        flags = ("--candidates", str(size), "--seconds", str(max(seconds, 2)))
        costs = json.loads(alone.start(base, *flags).communicate()[0])
        said = ", ".join(f"{count}: {cost * 1e3:.2f}" for count, cost in costs.items())
        print(f"model alone, {size} candidates, CPU ms a call by joined calls: {said}")
        print(HEADING, flush=True)
        with contextlib.ExitStack() as stack:
            everyone = {kind.name: stack.enter_context(running(kind, base, size)) for kind in kinds}
            for what in options.what:
                servers = {n: one for n, one in everyone.items() if what in one[1]["requests"]}
                for count in options.callers:
                    closed = in_turns(
                        servers,
                        rounds,
                        lambda _, server, w=what, c=count: measure(server, w, c, seconds),
                    )
                    for name, found in closed.items():
                        print(row(name, what, size, count, "closed", found), flush=True)
                    key = f"{what}, {size} candidates, {count} callers"
                    summary[key] = {"over": ratios(closed)}
                    if (count, size) != HEAD:
                        continue
                    rates = {
                        name: LOAD * statistics.median(one["calls"] for one in found)
                        for name, found in closed.items()
                    }
                    steady = in_turns(
                        servers,
                        rounds,
                        lambda name, server, w=what, c=count, rates=rates: measure(
                            server, w, c, max(2 * seconds, 4), rates[name]
                        ),
                    )
                    for name, found in steady.items():
                        print(row(name, what, size, count, "open", found), flush=True)
                    summary[key]["p99_over_p50_open"] = [
                        round(one["p99"] / one["p50"], 2) for one in steady["ours"]
                    ]
    return summary


def chosen(options: argparse.Namespace) -> list[Kind]:
    """The servers that there are environments for."""
    here = sys.executable
    kinds = [Kind("echo", here), Kind("tutorial", here), Kind("ours", here)]
    if options.before:
        kinds.append(Kind("before", here, options.before.resolve()))
    if options.only:
        kinds = [kind for kind in kinds if kind.name in {"echo", "ours", "before"}]
        return kinds
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
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of which the middle one counts")
    parser.add_argument("--what", choices=WHAT, nargs="+", default=WHAT)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--candidates", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--only", action="store_true", help="our server and the echo only")
    parser.add_argument("--before", type=Path, help="checkout of another version")
    for name in ("pytriton", "mlserver"):
        help_text = f"python of the environment of {name}"
        parser.add_argument(f"--{name}", default=os.environ.get(name.upper()), help=help_text)
    options = parser.parse_args()
    if callers_core() == 0:
        parser.error("the callers need a core of their own; this machine has one core")
    os.sched_setaffinity(0, range(callers_core()))  # the servers inherit it
    print(json.dumps(compare(options.model_base_path, chosen(options), options)))


if __name__ == "__main__":
    main()
