"""Hostile HTTP calls of every kind, and what each may get; run by `benchmarks/hostile_rest.py`.

    python benchmarks/hostile_calls.py --port 8501 --model m --model_base_path models/deskdrop

Sends calls and prints, as one JSON object, what came of each kind and what was not to be expected.
All bodies are made before the first call, so that making them costs none of the calls' time.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

PATHS = ("rank", "recommend", "explain", "predict")
PIPELINED = 5
UNREAD = 40
"""Answers that a slow reader asks for and does not take."""
_LOOP = 1 << 12
"""Most bytes of a body that the server's loop reads itself."""
_MIDDLE = 1 << 15
"""Bytes of a body that the server reads in its first child."""
_SECONDS = 240.0
"""For any answer; the server's own limits are shorter."""
_LATE = 8.0
"""Seconds after which a connection that is closed, or a 408, is no wonder: on a machine that stands
still the caller itself is too slow."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_BUSY = {"429", "503"}
"""What any call may get from a server that is full."""
_TOO_SLOW = {"408", "closed", "ConnectionResetError", "BrokenPipeError"}
_GONE = {"left"}
"""What comes of a caller that does not wait for an answer."""


@dataclass(frozen=True)
class Hostile:
    """One call: its bytes, and how its caller behaves.

    Attributes:
        kind: in words.
        data: what is sent.
        may: what may come of it: statuses, or `left` where the caller left first.
        pieces: in how many pieces it is sent, with `pause` seconds between them.
        wait: seconds until the caller leaves without an answer; None: it waits for `answers`.
        resets: whether it leaves by a reset.
        window: bytes that it takes unread; 0: as many as usual.
    """

    kind: str
    data: bytes
    may: frozenset[str]
    pieces: int = 1
    pause: float = 0.0
    answers: int = 1
    wait: float | None = None
    resets: bool = False
    window: int = 0


def post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """A request; its length may be another than the body's."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: h",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def chunked(path: str, body: bytes, size: int = 1 << 16) -> bytes:
    """A request in chunks."""
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return (
        f"POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks)
        + b"0\r\n\r\n"
    )


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
"""Bodies of about n bytes, none of which is a call."""
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
"""Bodies as they are, none of which is a call."""
_CHARACTERS = b'{}[]",:0123456789.eE-+ntfua\\ \xff'


class Kinds:
    """Makes calls of each kind, and each kind's share of them."""

    def __init__(self, rng: random.Random, model: str, rank: list[bytes], limit: int) -> None:
        """Prepare.

        Args:
            rng: makes what varies.
            model: that the server has.
            rank: bodies of Rank calls that it answers.
            limit: most bytes of a body that it takes.
        """
        self._rng = rng
        self._model = model
        self._rank = rank
        self._limit = limit

    def pool(self) -> list[tuple[float, list[Hostile]]]:
        """Share and calls of each kind."""
        kinds = (
            (0.44, 300, self._small),
            (0.13, 300, self._noise),
            (0.06, 100, self._large_for_the_loop),
            (0.06, 100, self._middle),
            (0.02, 60, self._large),
            (0.005, 4, self._over_the_limit),
            (0.01, 1, self._length_over_the_limit),
            (0.03, 50, self._in_chunks),
            (0.005, 10, self._in_tiny_chunks),
            (0.005, 1, self._many_headers),
            (0.03, 50, self._pipelined),
            (0.04, 50, self._elsewhere),
            (0.04, 100, self._no_http),
            (0.05, 100, self._broken_off),
            (0.03, 50, self._reset),
            (0.01, 10, self._too_late),
            (0.005, 4, self._too_many_candidates),
            (0.005, 10, self._answer_not_awaited),
            (0.025, 50, self._slow_writer),
            (0.002, 10, self._writer_that_stops),
            (0.008, 4, self._slow_reader),
        )
        return [(share, [make() for _ in range(count)]) for share, count, make in kinds]

    def _path(self) -> str:
        return f"/v1/models/{self._model}:{self._rng.choice(PATHS)}"

    def _valid(self, *headers: str) -> bytes:
        path = f"/v1/models/{self._model}:rank"
        return post(path, self._rng.choice(self._rank), *headers)

    def _small(self) -> Hostile:
        data = post(self._path(), self._rng.choice(SMALL))
        return Hostile("malformed", data, frozenset({"400"} | _BUSY))

    def _noise(self) -> Hostile:
        body = bytes(self._rng.choices(_CHARACTERS, k=self._rng.randrange(200)))
        return Hostile("noise", post(self._path(), body), frozenset({"400"} | _BUSY))

    def _large_for_the_loop(self) -> Hostile:
        """As large as a body may be that the serving process reads itself."""
        body = self._rng.choice(LARGE)(_LOOP - 100)
        return Hostile("4 KiB", post(self._path(), body), frozenset({"400"} | _BUSY))

    def _middle(self) -> Hostile:
        body = self._rng.choice(LARGE)(_MIDDLE - 100)
        return Hostile("32 KiB", post(self._path(), body), frozenset({"400"} | _BUSY))

    def _large(self) -> Hostile:
        size = _MIDDLE * (self._limit / _MIDDLE) ** self._rng.uniform(0.1, 1.0)
        body = self._rng.choice(LARGE)(int(0.99 * size))
        return Hostile("large", post(self._path(), body), frozenset({"400", "504"} | _BUSY))

    def _over_the_limit(self) -> Hostile:
        body = self._rng.choice(LARGE)(self._limit + (1 << 20))
        make = self._rng.choice([post, chunked])
        return Hostile("over the limit", make(self._path(), body), frozenset({"413"} | _BUSY))

    def _length_over_the_limit(self) -> Hostile:
        data = post(self._path(), b"", length=1 << 40)
        return Hostile("length over the limit", data, frozenset({"413"} | _BUSY))

    def _in_chunks(self) -> Hostile:
        data = chunked(self._path(), self._rng.choice(SMALL), self._rng.randrange(1, 99))
        return Hostile("in chunks", data, frozenset({"400"} | _BUSY))

    def _in_tiny_chunks(self) -> Hostile:
        data = chunked(self._path(), b" " * (1 << 15), self._rng.choice([1, 1, 7, 100]))
        may = {"400", "ConnectionResetError", "BrokenPipeError"}  # some of it is not read
        return Hostile("in tiny chunks", data, frozenset(may | _BUSY))

    def _many_headers(self) -> Hostile:
        data = post(self._path(), b"{", *["a:b"] * 3000)
        return Hostile("many headers", data, frozenset({"400"} | _BUSY))

    def _pipelined(self) -> Hostile:
        data = b"".join(post(self._path(), self._rng.choice(SMALL)) for _ in range(PIPELINED))
        may = frozenset({"400"} | _BUSY)
        return Hostile("pipelined", data, may, answers=PIPELINED)

    def _elsewhere(self) -> Hostile:
        data = self._rng.choice(
            (
                post(f"/v1/models/{'%2F' * self._rng.randrange(9)}x:train", b"{}"),
                post("/v1/models/another:rank", b"{}"),
                post(f"/v1/models/{self._model}/versions/99999:rank", self._rank[0]),
                f"DELETE /v1/models/{self._model} HTTP/1.1\r\nHost: h\r\n\r\n".encode(),
                post(self._path(), b"{}", "Content-Type: text/html"),
            )
        )
        may = {"400", "404", "405", "415"} | _BUSY
        return Hostile("elsewhere", data, frozenset(may))

    def _no_http(self) -> Hostile:
        data = self._rng.choice((b"\x16\x03\x01", b"GET", b"\x00", b"PRI * HTTP/2.0"))
        data += self._rng.randbytes(self._rng.randrange(1, 400)).replace(b"\n", b"") + b"\r\n\r\n"
        return Hostile("no HTTP", data, frozenset({"400"}))

    def _broken_off(self) -> Hostile:
        body = self._rng.choice(SMALL)
        data = post(self._path(), body, length=len(body) + 10)
        return Hostile(
            "broken off", data[: self._rng.randrange(len(data) + 1)], frozenset(_GONE), wait=0
        )

    def _reset(self) -> Hostile:
        data = self._rng.choice([self._valid(), post(self._path(), b"{", length=1 << 20)])
        wait = self._rng.uniform(0, 0.01)
        return Hostile("reset", data, frozenset(_GONE), wait=wait, resets=True)

    def _too_late(self) -> Hostile:
        may = frozenset({"200", "408", "504"} | _BUSY)
        return Hostile("deadline of 1 ms", self._valid("Grpc-Timeout: 1m"), may)

    def _too_many_candidates(self) -> Hostile:
        ids = json.dumps([str(place) for place in range(10_001)])
        body = f'{{"candidates": {{"item_id": {{"texts": {{"values": {ids}}}}}}}}}'
        data = post(f"/v1/models/{self._model}:rank", body.encode())
        return Hostile("too many candidates", data, frozenset({"400", "504"} | _BUSY))

    def _answer_not_awaited(self) -> Hostile:
        wait = self._rng.uniform(0, 0.02)
        return Hostile("answer not awaited", self._valid(), frozenset(_GONE), wait=wait)

    def _slow_writer(self) -> Hostile:
        data = post(self._path(), self._rng.choice(SMALL))
        may, pieces = frozenset({"400"} | _BUSY), self._rng.randrange(2, 40)
        return Hostile("slow writer", data, may, pieces=pieces, pause=1 / pieces)

    def _writer_that_stops(self) -> Hostile:
        whole = post(self._path(), b"{", length=2)
        if self._rng.random() < 0.5:
            return Hostile("half a body", whole, frozenset({"408"} | _BUSY))
        return Hostile("half a head", whole[:40], frozenset({"closed"}))

    def _slow_reader(self) -> Hostile:
        data = b"".join(self._valid() for _ in range(UNREAD))
        wait = self._rng.uniform(0.5, 2.0)
        kind = "slow reader"
        return Hostile(kind, data, frozenset(_GONE), wait=wait, resets=True, window=4096)


def draw(pool: list[tuple[float, list[Hostile]]], calls: int, seed: int) -> Iterator[Hostile]:
    """Calls in a random order, each kind by its share; at least one of each."""
    rng = random.Random(seed)
    counts = [max(round(share * calls), 1) for share, _ in pool[1:]]
    counts.insert(0, max(calls - sum(counts), 1))
    kinds = [place for place, count in enumerate(counts) for _ in range(count)]
    rng.shuffle(kinds)
    return (rng.choice(pool[kind][1]) for kind in kinds)


class Attack:
    """Sends calls from some connections at once, and notes what comes of them."""

    def __init__(self, port: int, calls: Iterator[Hostile], connections: int) -> None:
        self._port = port
        self._calls = calls
        self._connections = connections
        self.seen: dict[str, Counter[str]] = defaultdict(Counter)
        """By kind."""
        self.problems: list[str] = []

    async def run(self) -> None:
        """Send all of them.

        Callers that are slow on purpose do not keep the others waiting: besides the connections
        that ask one call after the other, four times as many may be slow.
        """
        slow: set[asyncio.Task[None]] = set()

        async def caller() -> None:
            for call in self._calls:
                if call.pause or call.window or call.kind.startswith("half"):
                    while len(slow) >= 4 * self._connections:
                        await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
                    task = asyncio.create_task(self._one(call))
                    slow.add(task)
                    task.add_done_callback(slow.discard)
                else:
                    await self._one(call)

        await asyncio.gather(*(caller() for _ in range(self._connections)))
        if slow:
            await asyncio.wait(slow)

    async def _one(self, call: Hostile) -> None:
        with socket.socket() as connection:
            connection.setblocking(False)
            if call.window:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, call.window)
            if call.resets:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            began = time.monotonic()
            try:
                async with asyncio.timeout(_SECONDS):
                    outcomes = await self._outcomes(call, connection)
            except (OSError, TimeoutError) as error:
                outcomes = [type(error).__name__]
        late = time.monotonic() - began > _LATE
        for outcome in outcomes:
            self.seen[call.kind][outcome] += 1
            if outcome not in call.may and not (late and outcome in _TOO_SLOW):
                start = call.data[:60]
                self.problems.append(f"{call.kind}: {outcome} for {start!r}")

    async def _outcomes(self, call: Hostile, connection: socket.socket) -> list[str]:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", self._port))
        sending = asyncio.create_task(_send(call, connection))
        try:
            if call.wait is not None:
                await asyncio.wait([sending], timeout=call.wait)
                await asyncio.sleep(call.wait)
                return ["left"]
            data, outcomes = b"", []
            for _ in range(call.answers):
                status, data = await _answer(connection, data)
                outcomes.append(status)
            return outcomes
        finally:
            sending.cancel()
            with suppress(OSError, asyncio.CancelledError):
                await sending


async def _send(call: Hostile, connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    size = -(-len(call.data) // call.pieces) or 1
    for start in range(0, len(call.data), size):
        await loop.sock_sendall(connection, call.data[start : start + size])
        if call.pause:
            await asyncio.sleep(call.pause)


async def _answer(connection: socket.socket, data: bytes) -> tuple[str, bytes]:
    """The status of the next answer, whose errors have the form that they must have."""
    loop = asyncio.get_running_loop()
    while True:
        head, found, rest = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n") if found else None
        if length is not None and len(rest) >= int(length[1]):
            break
        part = await loop.sock_recv(connection, 1 << 16)
        if not part:
            return ("closed" if not data else "closed in an answer"), b""
        data += part
    status = head[9:12].decode("latin-1")
    body = rest[: int(length[1])]
    if status >= "400":
        try:
            lines = json.loads(body)["error"].splitlines()
        except (ValueError, LookupError, TypeError, AttributeError):
            lines = []
        if len(lines) != 1:
            status += " without a line of its own"
    return status, rest[int(length[1]) :]


def rank_bodies(base: Path, candidates: int, count: int) -> list[bytes]:
    """Bodies of Rank calls that a server of this base path answers, of items that it knows."""
    from benchmarks.servers import random_request, read_contract
    from google.protobuf import json_format

    from multigate.serving.versions.folders import scan

    popular = next(iter(scan(base).values())) / "assets.extra" / "popular.json"
    known = json.loads(popular.read_text())["items"] if popular.exists() else []
    contract, bodies = read_contract(base), []
    for seed in range(count):
        request = random_request(contract, candidates, seed)
        request.ClearField("model")
        ids = request.candidates.item_id
        texts = getattr(ids, ids.WhichOneof("values")).values
        if isinstance(texts[0], str):
            for place, item in enumerate(known[: len(texts)]):
                texts[place] = item
        bodies.append(json_format.MessageToJson(request, indent=None).encode())
    return bodies


def main() -> None:
    """Send calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True, help="of HTTP")
    parser.add_argument("--model", default="m")
    parser.add_argument("--model_base_path", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=8, help="at once; slow ones apart")
    parser.add_argument("--limit", type=int, default=4 << 20, help="bytes of a body")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nice", type=int, default=19, help="priority; 19: the lowest")
    options = parser.parse_args()
    os.nice(options.nice)
    rank = rank_bodies(options.model_base_path, 100, 8)
    pool = Kinds(random.Random(options.seed), options.model, rank, options.limit).pool()
    attack = Attack(options.port, draw(pool, options.calls, options.seed), options.connections)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    asyncio.run(attack.run())
    print(
        json.dumps(
            {
                "seconds": round(time.monotonic() - began, 1),
                "seen": attack.seen,
                "problems": attack.problems[:20],
                "unexpected": len(attack.problems),
            }
        )
    )


if __name__ == "__main__":
    main()
