"""Data-parallel training: several processes, on one host or many, train one model together.

`take_place` gives the process its place among them, by the backend's own means:
`model.backend.workers` on TensorFlow, `model.backend.devices` on JAX.
"""

from typing import TYPE_CHECKING

from multigate.model import backend
from multigate.model.backend.workers import Workers

if TYPE_CHECKING:  # JAX may not be installed
    from multigate.model.backend.devices import Devices


def take_place() -> "Workers | Devices":
    """The process's place among those that train together, by the backend's own means.

    Raises:
        ModelError: the environment does not say who they are.
        PeerError: the others have not started within `WAIT_S` seconds.
    """
    if backend.name() == "tensorflow":
        return Workers()
    from multigate.model.backend.devices import Devices

    return Devices()
