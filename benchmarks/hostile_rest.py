"""What hostile JSON does to the other callers of a server.

    python benchmarks/hostile_rest.py --model_base_path models/deskdrop [--calls 100000]

Starts `multigate serve` and sends it hostile HTTP calls from several connections: JSON that is
malformed, of wrong types, nested deeply or megabytes large, bodies without end, heads and bodies in
pieces, wrong paths, and connections that break off.  Meanwhile a connection asks for the status of
a health service over gRPC every few milliseconds: the time that an answer takes beyond the usual is
for how long the event loop was held up.

Prints what was seen and, last, one JSON line; exit status 1 where a call got status 500, or the
server no answer.
"""

import argparse
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PATHS = ("rank", "recommend", "explain", "predict")
_SECONDS = 60.0


def _heads(path: str, length: int | None) -> bytes:
    how = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: h\r\n{how}\r\n\r\n".encode()


def _fill(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


LARGE: tuple[Callable[[int], bytes], ...] = (
    lambda n: b'{"inputs": [' + _fill(b"[],", n) + b"0]}",
    lambda n: b'{"inputs": [' + _fill(b"{},", n) + b"0]}",
    lambda n: b'{"instances": [' + _fill(b'"",', n) + b"0]}",
    lambda n: b'{"inputs": [' + _fill(b"1e-300,", n) + b"0]}",
    lambda n: b'{"inputs": [' + _fill(b"[[0]],", n) + b"0]}",
    lambda n: b"{" + b",".join(b'"%x":0' % k for k in range(n // 10)) + b"}",
    lambda n: b'{"user": {' + b",".join(b'"%x":{"integer":1}' % k for k in range(n // 22)) + b"}}",
    lambda n: b'{"candidates": {"item_id": {"texts": {"values": [' + _fill(b'"",', n) + b'""]}}}}',
    lambda n: b'{"candidates": {"item_id": {"integers": {"values": [' + _fill(b"1,", n) + b"1]}}}}",
    lambda n: _fill(b"[", n),
    lambda n: b'{"request_id": "' + _fill(b"\\u0001", n) + b'"}',
    lambda n: b'{"limit": ' + _fill(b"9", n) + b"}",
)
"""Bodies of about n bytes."""
SMALL = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"NaN",
    b'{"inputs": NaN}',
    b'{"inputs": null, "signature_name": "rank"}',
    b'{"inputs": {"hour": [1, "a", null, {"b64": 3}]}}',
    b'{"instances": [{"b64": "!"}, {}]}',
    b'{"signature_name": "classify", "instances": [{"b64": "////"}]}',
    b'{"limit": 1e99}',
    b'{"limit": -1}',
    b'{"user": {"": {}}}',
    b'{"user": {"user_id": {"text": "\xff"}}}',
    b'{"user": {"user_id": {"text": "\\ud800"}}}',
    b'{"candidates": {"item_id": {"texts": {"values": ["a"]}}}, "floors": {"x": {"min": "NaN"}}}',
    b'{"ranking": {"candidates": {}}, "pairs": 999999999, "candidate": -5}',
    b'{"model": {"name": "other"}}',
    b'{"returns": "NONE"}',
    b'{"a": 1, "a": 2}',
    b"{" * 5000,
)
"""Bodies as they are."""


def requests(rng: random.Random, model: str, largest: int) -> tuple[bytes, bool]:
    """The bytes of one hostile request, and whether it has an end that is worth an answer."""
    kind = rng.random()
    path = f"/v1/models/{model}:{rng.choice(PATHS)}"
    if kind < 0.05:
        body = rng.choice(LARGE)(int(largest ** rng.uniform(0.6, 1.0)))
    elif kind < 0.7:
        body = rng.choice(SMALL)
    else:
        body = bytes(rng.choices(b'{}[]",:0123456789.eE-+ntfua\\ \xff', k=rng.randrange(200)))
    if kind > 0.97:
        return rng.randbytes(rng.randrange(1, 400)), False
    if kind > 0.95:
        return _heads(path, len(body) + 10) + body, False  # and no more
    if kind > 0.93:
        return _heads(f"/v1/models/{'%2F' * rng.randrange(9)}x:train", len(body)) + body, True
    if kind > 0.91:
        return _heads(path, None) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), bool(body)
    if kind > 0.90:
        return _heads(path, 1 << 40), True  # a body that is refused by its length
    return _heads(path, len(body)) + body, True


def send(port: int, model: str, calls: int, seed: int, largest: int) -> Counter[str]:
    """Send requests, one connection each; the answers' statuses, and what else came of them."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(calls):
        data, whole = requests(rng, model, largest)
        with socket.socket() as connection:
            connection.settimeout(_SECONDS)
            try:
                connection.connect(("127.0.0.1", port))
                connection.sendall(data)
                if not whole:
                    seen["broken off"] += 1
                    continue
                head = connection.recv(12)
                seen[head[9:12].decode("latin-1") or "closed"] += 1
            except (ConnectionError, TimeoutError) as error:
                seen[type(error).__name__] += 1
    return seen


def attack(
    port: int, model: str, calls: int, threads: int = 8, largest: int = 4 << 20
) -> Counter[str]:
    """Send hostile calls from several threads; what came of them."""
    total: Counter[str] = Counter()
    lock = threading.Lock()

    def one(place: int) -> None:
        seen = send(port, model, calls // threads, place, largest)
        with lock:
            total.update(seen)

    workers = [threading.Thread(target=one, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return total


class Pulse(threading.Thread):
    """Asks for the server's health again and again."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.seconds: list[float] = []
        self.failures = 0
        self._port = port
        self._stop_asking = threading.Event()

    def run(self) -> None:
        """Ask until told to stop."""
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            while not self._stop_asking.wait(0.005):
                began = time.perf_counter()
                try:
                    check(health_pb2.HealthCheckRequest(service="liveness"), timeout=30)
                except grpc.RpcError:
                    self.failures += 1
                self.seconds.append(time.perf_counter() - began)

    def stop(self) -> list[float]:
        """Milliseconds of each answer, sorted."""
        self._stop_asking.set()
        self.join()
        return sorted(1e3 * one for one in self.seconds)


def main() -> int:
    """Run the benchmark; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    command = [
        *(sys.executable, "-m", "multigate", "serve", "--model_name", "m"),
        *("--model_base_path", str(options.model_base_path)),
        *("--port", "0", "--rest_api_port", "0"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            port, rest = map(int, re.findall(r":(\d+)\b", line))
            quiet = Pulse(port)
            quiet.start()
            time.sleep(5)
            before = quiet.stop()
            pulse = Pulse(port)
            pulse.start()
            began = time.perf_counter()
            seen = attack(rest, "m", options.calls, options.threads)
            seconds = time.perf_counter() - began
            during = pulse.stop()
        finally:
            server.terminate()
    failed = seen["500"] or seen["TimeoutError"] or pulse.failures or server.returncode
    print(f"{options.calls} calls in {seconds:.0f} s: {dict(seen.most_common())}")
    found = {
        "calls": options.calls,
        "seconds": round(seconds, 1),
        "statuses": dict(sorted(seen.items())),
        "health_ms": {
            name: {
                "median": round(statistics.median(values), 2),
                "p99": round(values[int(0.99 * len(values))], 2),
                "p99.9": round(values[int(0.999 * len(values))], 2),
                "max": round(values[-1], 2),
            }
            for name, values in (("quiet", before), ("attacked", during))
        },
        "exit_status": server.returncode,
    }
    print(json.dumps(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
