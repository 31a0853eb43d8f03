"""The other processes of a data-parallel training: wait for them, notice when one is gone."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from multigate.configs.errors import ModelError
from multigate.model import backend

WAIT_S = 600.0
"""For the other workers to start."""


class PeerError(ModelError):
    """Another worker ended or did not come; what was saved can be continued."""


LOST = (
    "train.data_parallel: another process has ended or cannot be reached; see its own messages, "
    "then start all of them again with --resume"
)


def lost_peer(error: Exception) -> PeerError | None:
    """The error of ours for the backend's where another process is gone; None for any other."""
    if backend.name() == "tensorflow":
        import tensorflow as tf

        kinds = (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.CancelledError,
            tf.errors.DeadlineExceededError,
            tf.errors.FailedPreconditionError,
        )
        lost = isinstance(error, kinds) or "Collective ops is aborted" in str(error)
    else:
        # JAX has no types for them: these are the names of what carries its messages.
        lost = any(word in str(error) for word in ("Gloo", "NCCL", "coordination service"))
    return PeerError(LOST) if lost else None


@contextmanager
def meet(addresses: Sequence[str], rank: int) -> Iterator[None]:
    """Wait until all processes are there, by connecting to each.

    The backends themselves wait without end, or abort.  Within the context, too, the process
    listens on its own port: others may still have to reach it.

    Args:
        addresses: host:port of every process.
        rank: of this one.
    """
    deadline = time.monotonic() + WAIT_S
    port = int(addresses[rank].rpartition(":")[2])
    with socket.create_server(("", port), backlog=128):
        for number, address in enumerate(addresses):
            host, _, other = address.rpartition(":")
            while number != rank:
                try:
                    socket.create_connection((host, int(other)), timeout=5).close()
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise PeerError(
                            f"train.data_parallel: process {number} ({address}) is not there after "
                            f"{WAIT_S:g} s: {error}; start one process for each address, and look "
                            "whether they reach one another"
                        ) from None
                    time.sleep(0.2)
        yield
