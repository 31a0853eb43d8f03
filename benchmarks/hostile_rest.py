"""What hostile HTTP calls do to the other callers of a server.

    python benchmarks/hostile_rest.py --model_base_path models/deskdrop [--calls 100000]
    python benchmarks/hostile_rest.py --sum one.json two.json

Starts `multigate serve` and sends it hostile calls (`benchmarks/hostile_calls.py`): JSON that is
malformed, of wrong types, nested deeply or megabytes large, bodies over the limit, bytes that are
no HTTP, heads and bodies in pieces, callers that write slowly, read slowly, break off, reset.  The
attackers have the lowest priority: they take what is left of the cores.  Other callers ask
meanwhile, and the server's own loop is watched (`benchmarks/hostile_pulse.py`); the same goes on
before and after each part of the attack, without attackers.

A stall is the machine's as far as an idle loop in another process was late at the same time, or as
the server's thread could have run and waited for a core; the rest is the server's.

Prints what was seen and, last, one JSON line, which `--out` also writes into a file; runs with
other seeds are added up by `--sum`.  Exit status 1: a call got what its kind may not get
(such as 500, or a connection that closes without an answer), another caller was not answered or
not rightly, the server held its loop or a caller up for more than 50 ms, or it did not end well.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.hostile_pulse import ECHO, GRPC, HEALTH, REST

HERE = Path(__file__).parent
STALL = 0.05
"""Seconds that nobody may be held up by the server."""
Span = tuple[float, float]
"""From one moment to another."""


class Part:
    """A part of the benchmark in a process of its own, which ends when its standard input does."""

    def __init__(self, stack: ExitStack, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(self.process.kill)
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.said, self.told = self.process.stdout, self.process.stdin

    def line(self) -> str:
        """The next line that it says."""
        line = self.said.readline()
        if not line:
            raise SystemExit(f"{self.process.args}: ended at its start")
        return line

    def end(self) -> None:
        """Tell it to end, and wait until it has."""
        self.told.close()
        self.process.wait(60)


def attack(
    stack: ExitStack, rest_port: int, base: Path, calls: int, attackers: int, seed: int
) -> tuple[Span, list[dict[str, Any]]]:
    """Hostile calls from several processes; when, and what each saw."""
    flags = ("--port", str(rest_port), "--model_base_path", str(base))
    parts = [
        Part(
            stack,
            *(str(HERE / "hostile_calls.py"), *flags, "--seed", str(seed + place)),
            *("--calls", str(calls // attackers)),
        )
        for place in range(attackers)
    ]
    for part in parts:
        part.line()  # it is ready
    began = time.monotonic()
    for part in parts:
        part.told.write("\n")
        part.told.flush()
    found = [json.loads(part.line()) for part in parts]
    return (began, time.monotonic()), found


def common(one: Span, spans: list[Span]) -> float:
    """Seconds of one span that fall into others."""
    return sum(max(min(one[1], end) - max(one[0], begin), 0.0) for begin, end in spans)


def within(moment: float, spans: list[Span]) -> bool:
    """Whether a moment lies in one of the spans."""
    return any(begin <= moment <= end for begin, end in spans)


def milliseconds(values: list[float]) -> dict[str, float]:
    """What is said of times."""
    ordered = sorted(values)
    places = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {name: ordered[int(place * len(ordered))] for name, place in places.items()}
    return {name: round(1e3 * one, 1) for name, one in (found | {"max": ordered[-1]}).items()}


def judge(
    asked: dict[str, list[tuple[float, float]]],
    late: list[tuple[float, float, float]],
    idle: list[tuple[float, float, float]],
    phases: dict[str, list[Span]],
) -> dict[str, Any]:
    """Times of all phases, and what remains of stalls without the machine's share.

    Args:
        asked: questions of the other callers.
        late: looks at the server's loop that were late.
        idle: looks at an idle loop that were late.
        phases: quiet and attacked.
    """
    machine = [(moment - seconds, moment) for moment, seconds, _ in idle]
    usual = {
        name: statistics.median(s for began, s in found if within(began, phases["quiet"]))
        for name, found in asked.items()
    }
    result: dict[str, Any] = {}
    for phase, spans in phases.items():
        answers = {
            name: [(began, s) for began, s in found if within(began, spans)]
            for name, found in asked.items()
        }
        loops = {
            name: [one for one in found if within(one[0], spans)]
            for name, found in (("server", late), ("idle", idle))
        }
        stalls = [
            (round(1e3 * own), f"{name} after {round(began - spans[0][0], 2)} s")
            for name, found in answers.items()
            if name != ECHO
            for began, s in found
            if (own := s - usual[name] - common((began, began + s), machine)) > STALL
        ]
        held = [
            (round(1e3 * own), f"after {round(moment - spans[0][0], 2)} s")
            for moment, s, waited in loops["server"]
            if (own := s - max(common((moment - s, moment), machine), waited)) > STALL
        ]
        result[phase] = {
            "seconds": round(sum(end - begin for begin, end in spans), 1),
            "answers": {name: len(found) for name, found in answers.items()},
            "ms": {name: milliseconds([s for _, s in found]) for name, found in answers.items()},
            "loop_lag_ms": {
                name: {
                    "over_10": sum(s > 0.01 for _, s, _ in found),
                    "over_25": sum(s > 0.025 for _, s, _ in found),
                    "over_50": sum(s > STALL for _, s, _ in found),
                    "max": round(1e3 * max((s for _, s, _ in found), default=0.0), 1),
                }
                for name, found in loops.items()
            },
            "callers_held_up_ms": sorted(stalls, reverse=True)[:20],
            "loop_held_up_ms": sorted(held, reverse=True)[:20],
        }
    return result


def lag_of(rest_port: int) -> dict[str, float]:
    """What the server's own metric says of its loop."""
    with urllib.request.urlopen(f"http://127.0.0.1:{rest_port}/metrics") as page:
        text = page.read().decode()
    name = "multigate_event_loop_lag_seconds"
    found = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\S+)', text, re.MULTILINE)
    counts = {bound: float(count) for bound, count in found}
    return {"looks": counts["+Inf"], "over_50_ms": counts["+Inf"] - counts["0.05"]}


def resident(pid: int) -> int:
    """Mebibytes."""
    (line,) = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(line) >> 10


def main() -> int:
    """Run the benchmark; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=4, help="attacks, with a rest before each")
    parser.add_argument("--attackers", type=int, default=2, help="processes")
    parser.add_argument("--rest", type=float, default=5, help="seconds before and after a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most_seconds", type=float, default=1e9, help="no round begins later")
    parser.add_argument("--out", type=Path, help="a file for the JSON line")
    parser.add_argument("--sum", type=Path, nargs="+", help="such files; nothing is attacked")
    options = parser.parse_args()
    if options.sum:
        return add_up([json.loads(path.read_text()) for path in options.sum])
    if options.model_base_path is None:
        parser.error("--model_base_path: required")
    base = options.model_base_path
    quiet: list[Span] = []
    attacked: list[Span] = []
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    problems: list[str] = []

    def rest() -> None:
        began = time.monotonic()
        time.sleep(options.rest)
        quiet.append((began, time.monotonic()))

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        here, script = Path(folder), str(HERE / "hostile_pulse.py")
        serving = Part(
            stack,
            *(script, "serve", "--out", str(here / "server"), "--model_name", "m"),
            *("--model_base_path", str(base), "--port", "0", "--rest_api_port", "0"),
        )
        port, rest_port = map(int, re.findall(r":(\d+)\b", serving.line()))
        echo = Part(stack, script, "echo", "--out", str(here / "idle"))
        pulse = Part(
            stack,
            *(script, "pulse", "--out", str(here / "pulse"), "--model_base_path", str(base)),
            *("--port", str(port), "--rest_port", str(rest_port)),
            *("--echo_port", echo.line().strip()),
        )
        pulse.line()
        time.sleep(2)  # until what is done once is done
        memory = {"before": resident(serving.process.pid)}
        begin = time.monotonic()
        for place in range(options.rounds):
            if time.monotonic() - begin > options.most_seconds:
                break
            rest()
            span, found = attack(
                stack,
                *(rest_port, base, options.calls // options.rounds, options.attackers),
                options.seed + 100 * place,
            )
            attacked.append(span)
            for one in found:
                problems += one["problems"]
                for kind, outcomes in one["seen"].items():
                    seen[kind].update(outcomes)
            calls = sum(sum(one.values()) for one in seen.values())
            print(
                f"round {place + 1}: {calls} answers and ends so far, {span[1] - span[0]:.0f} s",
                flush=True,
            )
        rest()
        pulse.end()
        if serving.process.poll() is not None:
            raise SystemExit(f"the server ended with status {serving.process.returncode}")
        memory["after"] = resident(serving.process.pid)
        lag = lag_of(rest_port)
        serving.process.terminate()
        status = serving.process.wait(60)
        echo.end()
        read = {name: json.loads((here / name).read_text()) for name in ("pulse", "server", "idle")}
    problems += read["pulse"]["problems"]
    phases = {"quiet": quiet, "attacked": attacked}
    judged = judge(read["pulse"]["asked"], read["server"], read["idle"], phases)
    for kind, outcomes in sorted(seen.items()):
        print(f"{kind}: {dict(outcomes.most_common())}")
    for phase, one in judged.items():
        for name in (ECHO, HEALTH, GRPC, REST):
            print(f"{phase}, {name}: {one['answers'][name]} answers, ms {one['ms'][name]}")
        print(f"{phase}, lag of loops, ms: {one['loop_lag_ms']}")
        print(
            f"{phase}, held up by the server, ms: {one['callers_held_up_ms']}, the loop itself "
            f"{one['loop_held_up_ms']}"
        )
    for problem in problems[:20]:
        print(f"not to be expected: {problem}")
    found = {
        "calls": sum(sum(one.values()) for one in seen.values()),
        "outcomes": dict(sum((Counter(one) for one in seen.values()), Counter()).most_common()),
        "problems": len(problems),
        "phases": judged,
        "lag_metric": lag,
        "resident_mib": memory,
        "exit_status": status,
    }
    print(json.dumps(found))
    if options.out is not None:
        options.out.write_text(json.dumps(found))
    return 0 if passed(found) else 1


def passed(found: dict[str, Any]) -> bool:
    """Whether a run found nothing that may not be."""
    attacked = found["phases"]["attacked"]
    stalls = attacked["callers_held_up_ms"] or attacked["loop_held_up_ms"]
    return not (found["problems"] or stalls or found["exit_status"])


def add_up(runs: list[dict[str, Any]]) -> int:
    """Print what several runs found together; the exit status."""
    outcomes: Counter[str] = Counter()
    for run in runs:
        outcomes.update(run["outcomes"])
    attacked = [run["phases"]["attacked"] for run in runs]
    lags = [one["loop_lag_ms"]["server"] for one in attacked]
    print(
        json.dumps(
            {
                "runs": len(runs),
                "calls": sum(run["calls"] for run in runs),
                "outcomes": dict(outcomes.most_common()),
                "problems": sum(run["problems"] for run in runs),
                "seconds": round(sum(one["seconds"] for one in attacked), 1),
                "answers": {
                    name: sum(one["answers"][name] for one in attacked)
                    for name in (ECHO, HEALTH, GRPC, REST)
                },
                "most_ms": {
                    name: max(one["ms"][name]["max"] for one in attacked)
                    for name in (ECHO, HEALTH, GRPC, REST)
                },
                "loop_lag_ms": {
                    **{name: sum(one[name] for one in lags) for name in ("over_10", "over_50")},
                    "max": max(one["max"] for one in lags),
                },
                "looks": sum(run["lag_metric"]["looks"] for run in runs),
                "callers_held_up_ms": [x for one in attacked for x in one["callers_held_up_ms"]],
                "loop_held_up_ms": [x for one in attacked for x in one["loop_held_up_ms"]],
            }
        )
    )
    return 0 if all(map(passed, runs)) else 1


if __name__ == "__main__":
    sys.exit(main())
