"""Data-parallel training on JAX: one program over all devices of all processes.

Keras's distribution API keeps a copy of every variable on every device.  JAX shards the rows of
each batch over the devices and inserts the sums over them.  The result is that of one device on the
whole batch, apart from rounding, because sums run in another order.  This holds for losses, for
everything that gates and position towers compute over the batch (balance losses, capacities,
expert choice, centring), and for the noise of gates.  Experts are sharded explicitly, by
`shard_rows`: each device runs them on its own rows.

If the number of rows is not a multiple of the number of devices, as in the last batch of an epoch,
every device computes the whole batch.  Padding would add rows that a gate counts.

Keras's environment variables list the processes:

    KERAS_DISTRIBUTION_JOB_ADDRESSES    host0:2222,host1:2222
    KERAS_DISTRIBUTION_PROCESS_ID       0

Without them a process trains alone, on all of its devices.  Process 0 writes the checkpoint.  All
processes must see its folder, to continue from the same snapshot.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import keras
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from multigate.configs.errors import ModelError
from multigate.model.backend.peers import wait_for_peers

Tensor = Any

_ADDRESSES, _PROCESSES, _PROCESS = (
    f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")
)
_HEARTBEAT_S = 30  # a process that sends no heartbeat for so long counts as gone


class _WholeBatches(keras.distribution.DataParallel):
    """Every process reads whole batches; the compiled program shards them."""

    def get_data_layout(self, data_shape: tuple[int, ...]) -> keras.distribution.TensorLayout:
        return keras.distribution.TensorLayout([None] * len(data_shape), self.device_mesh)


class Devices:
    """The process's place among those that train together, and the devices of all of them.

    A context manager: inside it, variables are copied to all devices.  Make it before JAX computes
    anything, because it connects the processes.

    Attributes:
        rank: number of this process; process 0 writes.
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
                stack.enter_context(wait_for_peers(addresses, self.rank))
                if self.rank == 0:
                    stack.close()  # JAX needs the port now
                jax.distributed.initialize(
                    addresses[0], self.size, self.rank, heartbeat_timeout_seconds=_HEARTBEAT_S
                )
        self._distribution = _WholeBatches(auto_shard_dataset=False)
        self.whole = self._distribution.get_data_layout(()).backend_layout
        """Sharding of arrays that every device holds whole."""
        self._scope = ExitStack()

    def __enter__(self) -> "Devices":
        self._scope.enter_context(self._distribution.scope())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._scope.close()
        if self.size > 1 and kind is None:
            jax.distributed.shutdown()  # waits for the other processes

    def shard(self, arrays: Any) -> Any:
        """Inside a compiled program: spread a batch's rows over the devices."""

        def shard(array: Tensor) -> Tensor:
            mesh = _mesh(array.shape[0])
            if mesh is None:
                return array
            return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, _spec(mesh, 0)))

        return keras.tree.map_structure(shard, arrays)


def _environment() -> tuple[list[str], int]:
    """Addresses of all processes, and the number of this one.

    Raises:
        ModelError: the environment variables do not fit together.
    """
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
            f"{_PROCESS} to be the index of this process in that list, from 0, and {_PROCESSES}, "
            "if set, to be the number of processes; received "
            + ", ".join(f"{name}={value!r:.200}" for name, value in given.items())
        )
    return addresses, int(process)


def shard_rows(
    compute: Callable[..., Any],
    rows: int,
    inputs: Sequence[int | None],
    outputs: Sequence[int | None],
) -> Callable[..., Any]:
    """Make each device compute a function on its own rows of a batch.

    Args:
        compute: a pure function of arrays, or of nested lists of arrays.
        rows: B, of the whole batch.
        inputs: for each argument, the axis of its rows; None if every device needs it whole.
        outputs: for each result, the axis along which the devices' arrays are joined.

    Returns:
        A function of the whole batch.  It is `compute` itself if there is one device, or if B is
        not a multiple of the number of devices.
    """
    mesh = _mesh(rows)
    if mesh is None:
        return compute
    return jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=tuple(_spec(mesh, axis) for axis in inputs),
        out_specs=tuple(_spec(mesh, axis) for axis in outputs),
        # The check would sum gradients of whole arrays inside the branches of `compute`.
        check_vma=False,
    )


def _spec(mesh: Mesh, axis: int | None) -> PartitionSpec:
    """Partition of arrays by the axis of their rows; of whole arrays where it is None."""
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, mesh.axis_names[0])


def _mesh(rows: int) -> Mesh | None:
    """The devices over which so many rows are sharded; None if they are not sharded."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.DataParallel):
        return None
    mesh = distribution.device_mesh.backend_mesh
    return mesh if mesh.size > 1 and rows and rows % mesh.size == 0 else None
