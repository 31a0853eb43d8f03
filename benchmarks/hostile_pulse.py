"""What others feel while a server is attacked, and what the server itself says of it.

`benchmarks/hostile_rest.py` runs each part in a process of its own:

    python benchmarks/hostile_pulse.py echo --out idle.json
    python benchmarks/hostile_pulse.py pulse --port 8500 --rest_port 8501 ... --out pulse.json
    python benchmarks/hostile_pulse.py serve --out server.json --model_name m ...

`pulse` asks in turn, again and again: the echo; the server's health; a Rank call over gRPC and one
over HTTP, whose answers must stay as they were.  `serve` is `multigate serve` that writes down each
time that its event loop was late, and how much of that the loop's thread waited for a core.  `echo`
writes down the same of its own loop, which does nothing else: it tells what the machine does to a
process that nobody attacks.

All times are of the monotonic clock, which all processes of a machine share.
"""

import argparse
import asyncio
import gc
import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from multigate.serving.core import loop
from multigate.serving.core.loop import LoopLag

ECHO, HEALTH, GRPC, REST = "echo", "health", "Rank over gRPC", "Rank over HTTP"
NOTED = 0.005
"""Seconds of lag from which on it is written down."""
_PAUSE = 0.005
_SECONDS = 240.0


class Late:
    """The looks at a loop that were late: moment, seconds, and seconds that its thread waited.

    A thread waits where it could run and no core is free; where another thread keeps the
    interpreter, it sleeps.
    """

    def __init__(self) -> None:
        self.found: list[tuple[float, float, float]] = []
        self._waited = 0.0
        self._statistics = -1

    def note(self, seconds: float) -> None:
        """Note one look, in the loop's thread."""
        if self._statistics < 0:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._statistics = os.open(path, os.O_RDONLY)
        waited = int(os.pread(self._statistics, 99, 0).split()[1]) / 1e9
        if seconds >= NOTED:
            self.found.append((time.monotonic(), seconds, waited - self._waited))
        self._waited = waited


async def _echo(late: Late) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64):
            writer.write(data)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    LoopLag(late.note).start()
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def echo(out: Path) -> None:
    """Answer with what is sent, until standard input ends."""
    late = Late()
    asyncio.run(_echo(late))
    out.write_text(json.dumps(late.found))


class Pulse:
    """Asks in turn until told to stop, and notes when each question began and how long it took."""

    def __init__(
        self, port: int, rest_port: int, base: Path, model: str, echo_port: int | None = None
    ) -> None:
        import grpc
        from benchmarks.hostile_calls import rank_bodies
        from google.protobuf import json_format
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        from multigate.serving.protos import ranking_pb2, ranking_pb2_grpc

        self.asked: dict[str, list[tuple[float, float]]] = {
            one: [] for one in (ECHO, HEALTH, GRPC, REST)
        }
        """Moment and seconds of each question."""
        self.problems: list[str] = []
        self._echo: socket.socket | None = None
        if echo_port is not None:
            self._echo = socket.create_connection(("127.0.0.1", echo_port), timeout=_SECONDS)
            self._echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = http.client.HTTPConnection("127.0.0.1", rest_port, timeout=_SECONDS)
        self._path = f"/v1/models/{model}:rank"
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._check = health_pb2_grpc.HealthStub(self._channel).Check
        self._liveness = health_pb2.HealthCheckRequest(service="liveness")
        self._rank = ranking_pb2_grpc.RankingServiceStub(self._channel).Rank
        self._bodies = rank_bodies(base, 100, 16)
        self._requests = []
        for body in self._bodies:
            request = json_format.Parse(body, ranking_pb2.RankRequest())
            request.model.name = model
            self._requests.append(request)
        self._first: dict[int, dict[int, float]] = {}

    def run(self, stop: threading.Event) -> None:
        """Ask until told to stop."""
        place = 0
        while not stop.is_set():
            if self._echo is not None:
                self._ask(ECHO, partial(_ask_echo, self._echo))
            self._ask(HEALTH, partial(self._check, self._liveness, timeout=_SECONDS))
            self._compare(place, self._ask(GRPC, partial(self._ask_grpc, place)))
            self._compare(place, self._ask(REST, partial(self._ask_rest, place)))
            place = (place + 1) % len(self._bodies)
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._channel.close()
        if self._echo is not None:
            self._echo.close()

    def _ask(self, what: str, ask: Callable[[], Any]) -> Any:
        began, answer = time.monotonic(), None
        try:
            answer = ask()
        except Exception as error:
            self.problems.append(f"{what}: {' '.join(str(error).split())[:300]}")
        self.asked[what].append((began, time.monotonic() - began))
        return answer

    def _ask_grpc(self, place: int) -> dict[int, float]:
        answer = self._rank(self._requests[place], timeout=_SECONDS)
        return dict(zip(answer.item_index, answer.score, strict=True))

    def _ask_rest(self, place: int) -> dict[int, float]:
        self._http.request("POST", self._path, self._bodies[place])
        response = self._http.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise ValueError(f"{response.status}: {answer}")
        return dict(zip(answer["item_index"], answer["score"], strict=True))

    def _compare(self, place: int, scores: dict[int, float] | None) -> None:
        """Compare with the first answer to the same request, but for the order of additions."""
        first = self._first.setdefault(place, scores) if scores is not None else None
        if first is None or scores is None:
            return
        differs = first.keys() != scores.keys() or any(
            abs(first[item] - score) > 1e-4 for item, score in scores.items()
        )
        if differs:
            self.problems.append(f"request {place}: another answer than before")


def _ask_echo(connection: socket.socket) -> None:
    connection.sendall(b"x")
    connection.recv(1)


def pulse(out: Path, options: argparse.Namespace) -> None:
    """Ask until standard input ends."""
    asking = Pulse(
        options.port, options.rest_port, options.model_base_path, options.model, options.echo_port
    )
    stop = threading.Event()
    thread = threading.Thread(target=asking.run, args=(stop,))
    gc.collect()
    gc.freeze()
    thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    stop.set()
    thread.join()
    asking.close()
    out.write_text(json.dumps({"asked": asking.asked, "problems": asking.problems}))


def serve(out: Path, arguments: Sequence[str]) -> None:
    """Run `multigate serve`, and write down when its loop was late."""
    late = Late()

    class Watched(LoopLag):
        def __init__(self, observe: Callable[[float], object]) -> None:
            super().__init__(lambda seconds: (observe(seconds), late.note(seconds)))

    loop.LoopLag = Watched  # type: ignore[misc]
    from multigate.verbs.command import main

    try:
        main(["serve", *arguments])
    finally:
        out.write_text(json.dumps(late.found))


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="pulse takes --port, --rest_port, --echo_port, --model_base_path; serve what "
        "multigate serve takes",
        allow_abbrev=False,
    )
    parser.add_argument("part", choices=["echo", "pulse", "serve"])
    parser.add_argument("--out", type=Path, required=True, help="a JSON file of what was seen")
    options, arguments = parser.parse_known_args()
    if options.part == "echo":
        echo(options.out)
    elif options.part == "serve":
        serve(options.out, arguments)
    else:
        of_pulse = argparse.ArgumentParser()
        of_pulse.add_argument("--port", type=int, required=True, help="of gRPC")
        of_pulse.add_argument("--rest_port", type=int, required=True)
        of_pulse.add_argument("--echo_port", type=int, required=True)
        of_pulse.add_argument("--model", default="m")
        of_pulse.add_argument("--model_base_path", type=Path, required=True)
        pulse(options.out, of_pulse.parse_args(arguments))


if __name__ == "__main__":
    main()
