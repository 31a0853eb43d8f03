"""Reads JSON bodies: tiny ones in the loop, the others in two processes beside this one.

Whoever reads JSON keeps the interpreter, in whichever thread: a thread that competes with the loop
for it makes each system call of the loop wait, and all calls with it.  A body over `TINY` is
therefore read in a child process, whose answer is the request message's bytes; reading these costs
what it costs gRPC.  Bodies over `MIDDLE`, the worst of which take seconds, have a child of their
own, so that the others do not wait for them.
"""

import asyncio
import gc
import logging
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from multigate.runtime.child import Child, ChildError, Priority
from multigate.runtime.tensorflow_messages import predict_pb2
from multigate.serving.core.status import InvalidRequestError, OverloadedError
from multigate.serving.core.tracing import step
from multigate.serving.protos import ranking_pb2
from multigate.serving.rest.messages import read_message
from multigate.serving.rest.tensors import Signatures, read_predict

LOG = logging.getLogger("multigate.serving")

TINY = 1 << 12
"""Bytes of a body that is read in the loop: the worst takes some 1.5 ms."""
MIDDLE = 1 << 16
"""Bytes of a body that the first child reads: the worst takes some 20 ms."""
_LONGEST = 30.0
"""Seconds after which a child that does not answer is replaced; the worst 4 MiB take two."""


class JsonReader:
    """Reads request bodies for the loop."""

    def __init__(self, max_waiting: int) -> None:
        """Make a reader whose child processes are not started yet.

        Args:
            max_waiting: most bodies that wait for each child.
        """
        self._middle, self._large = _Lane(max_waiting, "as the server"), _Lane(max_waiting, "lower")

    def start(self) -> None:
        """Start the children, so that the first bodies do not wait for them."""
        self._middle.start()
        self._large.start()

    def close(self) -> None:
        """End the children."""
        self._middle.close()
        self._large.close()

    async def message(self, body: bytes, kind: str) -> Any:
        """A message of the RankingService.

        Raises:
            InvalidRequestError: the body is not such a message.
            OverloadedError: too many bodies of its size wait.
        """
        with step("parse", bytes=len(body)):
            if len(body) <= TINY:
                return read_message(body, kind)
            data = await self._lane(body).ask("message", body, kind)
            return getattr(ranking_pb2, kind).FromString(data)

    async def predict(self, body: bytes, signatures: Signatures) -> tuple[Any, bool]:
        """A PredictRequest, and whether it came in row format.

        Raises:
            InvalidRequestError: the body is not what the signature takes.
            OverloadedError: too many bodies of its size wait.
        """
        with step("parse", bytes=len(body)):
            if len(body) <= TINY:
                return read_predict(body, signatures)
            data, rows = await self._lane(body).ask("predict", body, signatures)
            return predict_pb2.PredictRequest.FromString(data), rows

    def _lane(self, body: bytes) -> "_Lane":
        return self._middle if len(body) <= MIDDLE else self._large


class _Lane:
    """Bodies that wait for one child, which reads one after the other."""

    def __init__(self, max_waiting: int, priority: Priority) -> None:
        self._max_waiting = max_waiting
        self._waiting = 0
        self._child = Child(__name__, priority, _LONGEST)
        # One thread: the child reads one body at a time, and takes no more than one core.
        self._asking = ThreadPoolExecutor(1, "json")

    def start(self) -> None:
        self._asking.submit(self._child.start)

    def close(self) -> None:
        self._child.close()
        self._asking.shutdown(cancel_futures=True)
        self._child.close()

    async def ask(self, *question: Any) -> Any:
        """The child's answer.

        Raises:
            InvalidRequestError: it refuses the body.
            OverloadedError: too many wait.
        """
        if self._waiting >= self._max_waiting:
            raise OverloadedError(
                f"{self._waiting} bodies over {TINY} bytes wait to be read already; try again "
                "later, or call another server"
            )
        self._waiting += 1
        loop = asyncio.get_running_loop()
        asked = self._asking.submit(self._ask, question)
        # It may be done already, and is then called at once.
        asked.add_done_callback(lambda _: loop.call_soon_threadsafe(self._done))
        try:
            answer = await asyncio.wrap_future(asked)
        finally:
            del asked  # an exception would know it, and it the exception
        if isinstance(answer, str):
            raise InvalidRequestError(answer)
        return answer[0] if len(answer) == 1 else answer

    def _ask(self, question: Any) -> Any:
        """The child's answer: a tuple, or why the body is refused.

        Raises:
            OverloadedError: the child died or hangs; the next question starts another.
        """
        try:
            return self._child.ask(question)
        except ChildError as error:
            LOG.warning("the process that reads JSON bodies %s; another one follows", error)
        raise OverloadedError("the body could not be read; try again, or call another server")

    def _done(self) -> None:
        self._waiting -= 1


def _read(kind: str, body: bytes, about: Any) -> Any:
    """What the child answers."""
    try:
        if kind == "message":
            return (read_message(body, about).SerializeToString(),)
        request, rows = read_predict(body, about)
        return request.SerializeToString(), rows
    except InvalidRequestError as error:
        return str(error)


def main(pipe: Connection) -> None:
    """Answer until the other end is closed.

    Args:
        pipe: to the server.

    Raises:
        EOFError: it is closed.
    """
    gc.disable()  # a body makes millions of objects, and no circles
    while True:
        pipe.send(_read(*pipe.recv()))
