"""Data-parallel training: several processes, on one host or many, train one model together.

`connect` joins this process to the others: `model.backend.workers` on TensorFlow,
`model.backend.devices` on JAX.
"""

from typing import TYPE_CHECKING

from multigate.model import backend
from multigate.model.backend.workers import Workers

if TYPE_CHECKING:  # JAX may not be installed
    from multigate.model.backend.devices import Devices


def connect() -> "Workers | Devices":
    """Connect this process to the others, in the way of the backend in use.

    Raises:
        ModelError: the environment does not list the processes.
        PeerError: the others have not started within `WAIT_S` seconds.
    """
    if backend.name() == "tensorflow":
        return Workers()
    from multigate.model.backend.devices import Devices

    return Devices()
