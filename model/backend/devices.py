"""Data-parallel training on JAX: one program over all devices of all processes.

Keras's distribution API keeps a copy of every variable on every device, and JAX divides the rows
of each batch among the devices and puts in the sums over them.  The program says what it would say
to one device, and means the same: losses, but also what gates and position towers compute over the
batch (balance losses, capacities, expert choice, centring) and the noise of gates, are those of
one device on the whole batch, to the rounding of sums in another order.  Experts are the exception
that the program spells out, see `over_rows`: each device runs them on its own rows.

A batch whose rows do not divide evenly, as the last one of an epoch, is computed by every device
as a whole, so that no row is added to it that a gate would count.

Processes are told of one another as Keras wants it, by the environment variables

    KERAS_DISTRIBUTION_JOB_ADDRESSES    host0:2222,host1:2222
    KERAS_DISTRIBUTION_PROCESS_ID       0

and without them a process trains alone, on all the devices that it has.  Process 0 writes the
checkpoint.  All must see its folder, to continue from the same snapshot.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import keras
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from multigate.configs.errors import ModelError
from multigate.model.backend.peers import meet

Tensor = Any

_ADDRESSES, _PROCESSES, _PROCESS = (
    f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")
)
_HEARTBEAT_S = 30  # without which a process is taken to be gone


class _WholeBatches(keras.distribution.DataParallel):
    """Every process reads whole batches; the program divides them."""

    def get_data_layout(self, data_shape: tuple[int, ...]) -> keras.distribution.TensorLayout:
        return keras.distribution.TensorLayout([None] * len(data_shape), self.device_mesh)


class Devices:
    """The process's place among those that train together, and the devices of all of them.

    A context: within it variables are copied to all devices.  To be made before JAX computes
    anything: it connects the processes.

    Attributes:
        rank: number of the process; 0 writes.
        size: number of processes.

    Raises:
        ModelError: the environment variables do not fit together.
        PeerError: the other processes have not started within `WAIT_S` seconds.
    """

    def __init__(self) -> None:
        addresses, self.rank = _environment()
        self.size = len(addresses)
        if self.size > 1:
            with ExitStack() as stack:
                stack.enter_context(meet(addresses, self.rank))
                if self.rank == 0:
                    stack.close()  # the port is now for JAX
                jax.distributed.initialize(
                    addresses[0], self.size, self.rank, heartbeat_timeout_seconds=_HEARTBEAT_S
                )
        self._distribution = _WholeBatches(auto_shard_dataset=False)
        self.whole = self._distribution.get_data_layout(()).backend_layout
        """Sharding of what every device has all of."""
        self._scope = ExitStack()

    def __enter__(self) -> "Devices":
        self._scope.enter_context(self._distribution.scope())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._scope.close()
        if self.size > 1 and kind is None:
            jax.distributed.shutdown()  # waits for the others

    def divide(self, arrays: Any) -> Any:
        """Within a compiled program: put a batch's rows on the devices in parts."""

        def divide(array: Tensor) -> Tensor:
            mesh = _mesh(array.shape[0])
            if mesh is None:
                return array
            return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, _spec(mesh, 0)))

        return keras.tree.map_structure(divide, arrays)


def _environment() -> tuple[list[str], int]:
    """Addresses of all processes, and the number of this one."""
    given = {name: os.environ.get(name, "") for name in (_ADDRESSES, _PROCESSES, _PROCESS)}
    if not any(given.values()):
        return ["this process alone"], 0
    addresses = [address.strip() for address in given[_ADDRESSES].split(",")]
    count = given[_PROCESSES] or str(len(addresses))
    process = given[_PROCESS]
    fits = process.isdecimal() and int(process) < len(addresses) and count == str(len(addresses))
    if not fits or not all(a.rpartition(":")[2].isdecimal() for a in addresses):
        raise ModelError(
            f"train.data_parallel: expected {_ADDRESSES} to list host:port of every process, "
            f"{_PROCESS} to be this one's place in the list, from 0, and {_PROCESSES}, if it is "
            "set, their number; received "
            + ", ".join(f"{name}={value!r:.200}" for name, value in given.items())
        )
    return addresses, int(process)


def over_rows(
    compute: Callable[..., Any],
    rows: int,
    inputs: Sequence[int | None],
    outputs: Sequence[int | None],
) -> Callable[..., Any]:
    """A function of a batch that every device computes on its own rows.

    Args:
        compute: a pure function of arrays, or of nested lists of them.
        rows: B, of the whole batch.
        inputs: by argument the axis along which its arrays have rows; None for those that every
            device needs whole.
        outputs: by result the axis along which the devices' arrays are put together.

    Returns:
        The function of the whole batch: `compute` itself where there is one device, or B does not
        divide evenly.
    """
    mesh = _mesh(rows)
    if mesh is None:
        return compute
    return jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=tuple(_spec(mesh, axis) for axis in inputs),
        out_specs=tuple(_spec(mesh, axis) for axis in outputs),
        # So that gradients of what all have are summed after `compute`, not inside of its branches.
        check_vma=False,
    )


def _spec(mesh: Mesh, axis: int | None) -> PartitionSpec:
    """Of arrays that have rows along an axis."""
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, mesh.axis_names[0])


def _mesh(rows: int) -> Mesh | None:
    """The devices among which so many rows are divided; None where they are not."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.DataParallel):
        return None
    mesh = distribution.device_mesh.backend_mesh
    return mesh if mesh.size > 1 and rows and rows % mesh.size == 0 else None
