"""Lets gRPC end what it has begun to receive although the call is cancelled meanwhile.

gRPC's Python frees what it allocated to receive a message when its coroutine goes on.  A call that
is cancelled before ends the coroutine: 96 bytes stay for ever, and keep their page from going back
(grpc/grpc issue 43360, open for all versions up to 1.85).
"""

import asyncio
from functools import wraps
from typing import Any

from grpc._cython import cygrpc

_NAME = "_receive_message"


def receive_to_the_end() -> None:
    """Have the event loops' servers of this process leave nothing behind; once is enough.

    Receiving goes on in a task of its own, some 8 us of CPU a call: gRPC's core ends it as it
    cancels the call.  Nothing where gRPC has no function of this name.
    """
    receive = getattr(cygrpc, _NAME, None)
    if receive is None or hasattr(receive, "__wrapped__"):
        return

    @wraps(receive)
    async def receive_whole(call: Any, loop: Any) -> Any:
        return await asyncio.shield(receive(call, loop))

    setattr(cygrpc, _NAME, receive_whole)
