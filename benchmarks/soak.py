"""What a server keeps of callers who misbehave: threads, descriptors and memory over minutes.

    python benchmarks/soak.py --model_base_path models/deskdrop [--minutes 10]
        [--swap_every 5] [--examples examples] [--small_disk]

Starts `multigate serve --workers 2` and, all at once: callers who check each answer against the
scores that TensorFlow's Python computes of the same file (`benchmarks.soak_expected`); callers who
cancel; requests whose bytes are wrong; readers who never read; connections that break off in the
middle of a handshake.  One of the two workers is killed with SIGKILL time and again; the other one
and the supervisor are measured every second (`benchmarks.soak_flat`).  At last SIGTERM, under load.

Beside that (`benchmarks.soak_faults`): another version every few seconds; with examples, features
come from a Redis that hangs time and again, and some callers name ids alone; impressions go to a
small disk that is full half of the time.

Prints what was measured, minute by minute, and, last, one JSON line; exit status 1 where something
leaked or failed: another score than the right one, a status that none of this explains, such as
calls without Redis while it answers, or a process left behind.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.servers import NAME, RANK, free_ports, rank_requests
from benchmarks.soak_expected import Answers, expected_answers, same
from benchmarks.soak_faults import Fault, FullDisk, HangingRedis, Swaps
from benchmarks.soak_flat import Sample, by_minute, leaks, rise_of, table

from multigate.serving.client.rank_client import CHANNEL_OPTIONS
from multigate.serving.protos import ranking_pb2

WORKERS = 2
MOST_THREADS = 16
"""Of a worker's calls that wait. The pool grows to its bound whenever that many waited at once,
which a hung store makes likely: a small bound is reached in the warm-up, and then nothing grows."""
UNREAD = 30
"""Calls of a connection that reads none of the answers."""
EXPLAINED = {"OK", "UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED"}
ENDING = {"UNAVAILABLE", "CANCELLED"}  # what calls get while the server stops
WRONG = {"INVALID_ARGUMENT", "NOT_FOUND", "OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings


class Soak:
    """Callers of all kinds, until told to stop.

    Args:
        port: of the server.
        requests: with every feature.
        expected: the right answers.
    """

    def __init__(self, port: int, requests: list[bytes], expected: Answers) -> None:
        self.port = port
        self.requests = requests
        self._expected = expected
        self.stop = threading.Event()
        self.ending = threading.Event()
        """The server has been told to stop."""
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.versions: dict[int, int] = {}
        """That answered last, by the place of the caller who checks."""
        self.stored_at: list[float] = []
        """Monotonic seconds of the answers with features from Redis."""
        self._threads: list[threading.Thread] = []

    def start(self, what: Callable[[int], None], count: int) -> None:
        """Run `what` in so many threads."""
        for place in range(count):
            thread = threading.Thread(target=what, args=(place,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Wait until all callers have stopped."""
        self.stop.set()
        for thread in self._threads:
            thread.join(30)

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", CHANNEL_OPTIONS)

    def checking(self, place: int) -> None:
        """Calls whose answers must be right."""
        rng = random.Random(place)
        with self._channel() as channel:
            rank = channel.unary_unary(RANK, None, ranking_pb2.RankResponse.FromString)
            while not self.stop.is_set():
                which = rng.randrange(len(self.requests))
                try:
                    answer = rank(self.requests[which], timeout=120)
                except grpc.RpcError as error:
                    # Until then retries make up for the workers that are killed.
                    ending = self.ending.is_set()
                    what = "checked, at the end," if ending else "checked"
                    self._saw(what, error.code().name, ENDING if ending else set())
                    time.sleep(0.01)
                    continue
                self.counts["checked OK"] += 1
                self.versions[place] = answer.model_version
                if not same(self._expected[which], answer):
                    self.problems.append(f"request {which}: another answer than the file's")

    def asking_by_id(
        self, requests: list[bytes], expected: Answers, redis: HangingRedis
    ) -> Callable[[int], None]:
        """Calls that need the feature store: UNAVAILABLE or a warning while it hangs."""

        def ask(place: int) -> None:
            rng = random.Random(400 + place)
            with self._channel() as channel:
                rank = channel.unary_unary(RANK, None, ranking_pb2.RankResponse.FromString)
                while not self.stop.is_set():
                    which, began = rng.randrange(len(requests)), time.monotonic()
                    try:
                        answer = rank(requests[which], timeout=120)
                    except grpc.RpcError as error:
                        if self.ending.is_set():
                            self._saw("by id, at the end,", error.code().name, ENDING)
                        elif redis.gone(began, time.monotonic()):
                            self._saw("by id", error.code().name, {"UNAVAILABLE"})
                        else:
                            self._saw("by id, while Redis answers,", error.code().name, set())
                        time.sleep(0.01)
                        continue
                    if any("feature store" in one for one in answer.warnings):
                        self.counts["by id, without the store"] += 1
                        if not redis.gone(began, time.monotonic()):
                            self.problems.append("by id: without the store while Redis answers")
                        continue
                    self.counts["by id OK"] += 1
                    self.stored_at.append(time.monotonic())
                    if not same(expected[which], answer):
                        self.problems.append(f"request {which} by id: other than the file's")

        return ask

    def cancelling(self, place: int) -> None:
        """Calls that end before they are answered."""
        rng = random.Random(100 + place)
        with self._channel() as channel:
            rank = channel.unary_unary(RANK)
            while not self.stop.is_set():
                call = rank.future(rng.choice(self.requests), timeout=120)
                time.sleep(rng.random() * 0.01)
                call.cancel()
                self._saw("cancelled", call.code().name, EXPLAINED)

    def malformed(self, place: int) -> None:
        """Requests with a few bytes changed."""
        rng = random.Random(200 + place)
        with self._channel() as channel:
            rank = channel.unary_unary(RANK)
            while not self.stop.is_set():
                raw = bytearray(rng.choice(self.requests))
                for _ in range(rng.randrange(1, 4)):
                    raw[rng.randrange(len(raw))] = rng.randrange(256)
                try:
                    rank(bytes(raw), timeout=120)
                except grpc.RpcError as error:
                    ending = ENDING if self.ending.is_set() else set()
                    self._saw("malformed", error.code().name, WRONG | ending)
                time.sleep(0.005)

    def never_reading(self, place: int) -> None:
        """Connections that ask for answers and read none of them."""
        while not self.stop.is_set():
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                if not self._connect(one):
                    continue
                # More answers than the connection's window of 64 KiB holds.
                calls = [
                    call_frames(2 * place + 1, self.requests[place % len(self.requests)])
                    for place in range(UNREAD)
                ]
                with suppress(OSError):  # a worker died in between
                    one.sendall(b"".join(calls))
                self.counts["never read"] += 1
                self.stop.wait(2)

    def half_open(self, place: int) -> None:
        """Connections that stop talking after a part of the handshake, and then are reset."""
        rng = random.Random(300 + place)
        while not self.stop.is_set():
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                if self._connect(one, rng.randrange(len(PREFACE))):
                    self.counts["half open"] += 1
                    self.stop.wait(0.2)

    def _connect(self, one: socket.socket, size: int = len(PREFACE)) -> bool:
        try:
            one.connect(("127.0.0.1", self.port))
            one.sendall(PREFACE[:size])
        except OSError:  # a worker died in between
            time.sleep(0.05)
            return False
        return True

    def _saw(self, what: str, code: str, explained: set[str]) -> None:
        self.counts[f"{what} {code}"] += 1
        if code not in explained:
            self.problems.append(f"{what} call: {code}")


def call_frames(stream: int, message: bytes) -> bytes:
    """A Rank call as HTTP/2 sends it: a frame of headers and one of data."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    def frame(kind: int, flags: int, payload: bytes) -> bytes:
        return (
            len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
        )  # of at most 16 KiB

    # POST and http from HPACK's table; path, authority, content type and te in plain.
    headers = b"\x83\x86\x04" + text(RANK) + b"\x01" + text("localhost")
    headers += b"\x0f\x10" + text("application/grpc") + b"\0" + text("te") + text("trailers")
    return frame(1, 4, headers) + frame(0, 1, b"\0" + len(message).to_bytes(4) + message)


def start(flags: Sequence[str]) -> tuple[subprocess.Popen[str], int]:
    """The server and its port."""
    flags = ("--model_name", NAME, "--port", "0", "--workers", str(WORKERS), *flags)
    flags += ("--grpc_max_threads", str(MOST_THREADS))
    server = subprocess.Popen(
        [sys.executable, "-m", "multigate", "serve", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")},
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise SystemExit("the server ended at its start")
    return server, int(line.rpartition(":")[2])


def metrics(port: int) -> str:
    """The metrics' page, of all workers."""
    url = f"http://127.0.0.1:{port}/monitoring/prometheus/metrics"
    with urllib.request.urlopen(url, timeout=60) as page:
        return str(page.read().decode())


def serving(page: str) -> dict[str, int]:
    """The newest version of each worker, from the metrics' page."""
    found = re.findall(r'^multigate_model_version\{.*worker="(\d+)".*\} (\S+)$', page, re.MULTILINE)
    return {worker: int(float(number)) for worker, number in found}


def behind(port: int, callers: Soak, last: int, seconds: float = 120) -> list[str]:
    """What still serves or answers after swaps ended, and some time, that is not the last version.

    A load may take longer than the time between two swaps on a busy machine: a worker that is some
    versions behind while they go on is at no fault.
    """
    until = time.monotonic() + seconds
    while True:
        workers = serving(metrics(port))
        answers = set(callers.versions.values())
        if len(workers) == WORKERS and {*workers.values(), *answers} == {last}:
            return []
        if time.monotonic() > until:
            return [
                f"workers serve {workers} and versions {sorted(answers)} answer, {last} is there "
                f"for {seconds:g} s"
            ]
        time.sleep(0.1)


def impressions(port: int) -> Counter[str]:
    """Rows of the impression log by result, of all workers, from the metrics' page."""
    found = re.findall(
        r'^multigate_impression_rows_total\{.*result="(\w+)".*\} (\S+)$',
        metrics(port),
        re.MULTILINE,
    )
    rows: Counter[str] = Counter()
    for result, number in found:
        rows[result] += int(float(number))
    return rows


def workers_of(pid: int) -> list[psutil.Process]:
    """The server processes, oldest first."""
    found = []
    for child in psutil.Process(pid).children():
        try:
            if child.num_threads() > 8:  # the helper of multiprocessing has one
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda child: child.create_time())


def watch(
    server: subprocess.Popen[str], measured: psutil.Process, seconds: float
) -> tuple[dict[str, list[Sample]], int]:
    """Samples of a worker and the supervisor; kills the other worker now and then."""
    samples: dict[str, list[Sample]] = {"worker": [], "supervisor": []}
    kills = 0
    began = killed = time.monotonic()
    while time.monotonic() - began < seconds and measured.is_running():
        time.sleep(min(1.0, seconds / 60))
        now = time.monotonic() - began
        samples["worker"].append(Sample.of(measured, now))
        samples["supervisor"].append(Sample.of(psutil.Process(server.pid), now))
        others = [one for one in workers_of(server.pid) if one != measured]
        if time.monotonic() - killed > max(seconds / 12, 15) and others:
            others[0].kill()
            killed, kills = time.monotonic(), kills + 1
    return samples, kills


def idle_times(redis: HangingRedis, stored_at: list[float]) -> list[str]:
    """The times in which Redis answered, and no call had a feature from it."""
    return [
        f"no call had features from Redis, which answered for {ended - began:.1f} s"
        for began, ended in redis.answering()
        if ended - began > 1 and not any(began <= at <= ended for at in stored_at)
    ]


def written_again(port: int, callers: Soak) -> dict[str, int]:
    """Rows of impressions; they must be written again once the disk has room."""
    before = impressions(port)
    for _ in range(600):
        now = impressions(port)
        if now["written"] > before["written"]:
            return {f"rows_{result}": number for result, number in now.items()}
        time.sleep(0.1)
    callers.problems.append("no impression is written after the disk had room again")
    return {}


def soak(
    base: Path,
    minutes: float,
    candidates: int,
    swap_every: float = 0,
    examples: Path | None = None,
    small_disk: bool = False,
) -> dict[str, Any]:
    """Run it all."""
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        swaps = Swaps(base, room / "models", swap_every) if swap_every else None
        redis = None if examples is None else HangingRedis(base, examples, room / "redis")
        disk = FullDisk(room / "disk") if small_disk else None
        faults: list[Fault] = [one for one in (swaps, redis, disk) if one is not None]
        flags = [] if swaps else ["--model_base_path", str(base)]
        for fault in faults:
            stack.enter_context(fault)
            flags += fault.flags
        full = rank_requests(base, candidates)
        by_id = [] if redis is None else redis.requests(32, candidates)
        expected = expected_answers(base, [*full, *by_id])
        (metrics_port,) = free_ports(1)
        server, port = start([*flags, "--metrics_port", str(metrics_port)])
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(True)]
        callers = Soak(port, full, expected[: len(full)])
        kinds = [
            (callers.checking, 4),
            (callers.cancelling, 2),
            (callers.malformed, 1),
            (callers.never_reading, 2),
            (callers.half_open, 2),
        ]
        if redis is not None:
            asking = callers.asking_by_id(by_id, expected[len(full) :], redis)
            kinds.append((asking, 2))
        try:
            measured = workers_of(server.pid)[0]
            for what, count in kinds:
                callers.start(what, count)
            for fault in faults:
                fault.start()
            samples, kills = watch(server, measured, 60 * minutes)
            if not measured.is_running():
                callers.problems.append("the worker that nobody killed died")
            numbers = {name: one for fault in faults for name, one in fault.numbers().items()}
            for fault in faults:
                fault.end()
            if redis is not None:
                callers.problems += idle_times(redis, callers.stored_at)
            if disk is not None:
                numbers |= written_again(metrics_port, callers)
            if swaps is not None:
                callers.problems += behind(metrics_port, callers, swaps.last)
            callers.ending.set()
            processes += psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGTERM)
            status = server.wait(120)
        finally:
            callers.join()
            if server.poll() is None:
                server.kill()
    _, alive = psutil.wait_procs(set(processes), 10)
    rises = {who: rise_of(found) for who, found in samples.items()}
    problems = [f"{n} times: {one}" for one, n in sorted(Counter(callers.problems).items())]
    problems += [f"{who} leaks" for who, one in rises.items() if leaks(one)]
    problems += [f"process {one.pid} is left behind" for one in alive]
    if status != 0:
        problems.append(f"exit status {status} after SIGTERM")
    for who, found in samples.items():
        print(*table(who, found), sep="\n")
    return {
        "minutes": minutes,
        "kills": kills,
        **numbers,
        "calls": dict(sorted(callers.counts.items())),
        "rise": rises,
        "by_minute": {who: by_minute(found) for who, found in samples.items()},
        "problems": problems,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--candidates", type=int, default=20, help="of each call")
    parser.add_argument("--swap_every", type=float, default=0, help="seconds; 0: no swaps")
    parser.add_argument("--examples", type=Path, help="with a snapshot, for Redis")
    parser.add_argument("--small_disk", action="store_true", help="needs the right to mount")
    options = parser.parse_args()
    found = soak(
        options.model_base_path,
        options.minutes,
        options.candidates,
        options.swap_every,
        options.examples,
        options.small_disk,
    )
    for problem in found["problems"]:
        print(problem)
    print(json.dumps(found))
    sys.exit(1 if found["problems"] else 0)


if __name__ == "__main__":
    main()
