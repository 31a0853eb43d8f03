"""The other processes of a data-parallel training: wait for them, notice when one is lost."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from multigate.configs.errors import ModelError
from multigate.model import backend

WAIT_S = 600.0
"""How long to wait for the other processes to start, in seconds."""


class PeerError(ModelError):
    """Another process ended or never started; training can continue from the last snapshot."""


LOST = (
    "train.data_parallel: another process has ended or cannot be reached; see its own messages, "
    "then start all of them again with --resume"
)


def lost_peer(error: Exception) -> PeerError | None:
    """A `PeerError` where a backend's error means that another process is gone, else None."""
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
        # JAX has no error types for this; its messages name the library that lost the connection.
        lost = any(word in str(error) for word in ("Gloo", "NCCL", "coordination service"))
    return PeerError(LOST) if lost else None


@contextmanager
def wait_for_peers(addresses: Sequence[str], rank: int) -> Iterator[None]:
    """Wait until every other process accepts a connection.

    The backends themselves wait for ever, or abort.  Inside the context this process keeps
    listening on its port, because others may not have reached it yet.

    Args:
        addresses: host:port of every process.
        rank: number of this process.

    Raises:
        PeerError: a process has not started within `WAIT_S` seconds.
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
                            f"train.data_parallel: process {number} ({address}) did not answer "
                            f"within {WAIT_S:g} s: {error}; start one process for each address, "
                            "and check that the hosts can reach each other"
                        ) from None
                    time.sleep(0.2)
        yield
