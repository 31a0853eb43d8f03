"""A SavedModel loaded through TensorFlow's C interface, and runs of it."""

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from multigate.runtime.devices import has_gpu
from multigate.runtime.dtypes import TensorSpec
from multigate.runtime.errors import ModelRuntimeError
from multigate.runtime.library import Buffer, Library, Output, library
from multigate.runtime.tensorflow_messages import config_pb2, meta_graph_pb2
from multigate.runtime.tensors import Inputs, Outputs, Shapes, shapes_of
from multigate.runtime.wire import fields_only

_SIGNATURES, _SAVER = 5, 3
"""Fields of MetaGraphDef.  Its graph, most of its bytes, is not parsed."""
_VARIABLES = "variables/variables.index"
_KEPT = 8
"""Most sets of input tensors that a signature keeps: other shapes cost as much as the values."""

GraphRun = Callable[..., list[np.ndarray]]
"""Runs a signature: arrays of its inputs and outputs, each in the order of their names."""


def session_config(parallelism: tuple[int, int]) -> Any:
    """The ConfigProto of a session.

    Args:
        parallelism: threads within an operation, and threads across operations; -1 for the latter
            means the calling thread.
    """
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=parallelism[0],
        inter_op_parallelism_threads=parallelism[1],
        gpu_options=config_pb2.GPUOptions(allow_growth=True),
    )
    # Otherwise TensorFlow optimises the whole graph once per signature: half a second of CPU each
    # for Deskdrop, to make a batched run 1 % cheaper and a single one 5 %.
    config.graph_options.place_pruned_graph = True
    # Otherwise a run calls functions, two for a signature.  TensorFlow keeps an object for each
    # function in which an operation fails, for ever (`LocalRendezvous::StartAbort`): some 800 bytes
    # for each request that the graph refuses.  Calls cost 40 us a run, too.
    config.graph_options.optimizer_options.do_function_inlining = True
    if parallelism[1] < 0 and not has_gpu() and not os.environ.get("TF_XLA_FLAGS"):
        # One thread needs no queue of operations that are ready: 30 us a run.  On a GPU a graph has
        # a part for each device, and the first one would wait for ever for what the second one has
        # to send.  Operations that XLA is told to join by itself are not for this executor.
        config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    return config


class Session:
    """A loaded SavedModel; any number of threads may run it.

    Attributes:
        definitions: its SignatureDefs, by name.
        ends_runs: whether TensorFlow looks at a run's time: operations run in threads of its own.
    """

    def __init__(self, folder: Path, parallelism: tuple[int, int] = (1, -1)) -> None:
        """Load a version folder, and initialise its tables and variables.

        Raises:
            ModelRuntimeError: the folder has no SavedModel, or it is damaged.
        """
        self._closed = True  # until it is loaded
        self.ends_runs = parallelism[1] >= 0
        self._library = library()
        self._changed = threading.Condition()
        self._runs = 0
        self._graph = self._library.TF_NewGraph()
        try:
            self._session, saved = _load(self._library, self._graph, folder, parallelism)
        except BaseException:
            self._library.TF_DeleteGraph(self._graph)
            raise
        self._closed = False
        try:
            meta_graph = meta_graph_pb2.MetaGraphDef.FromString(saved)
            self.definitions: dict[str, Any] = dict(meta_graph.signature_def)
            # TensorFlow loads a graph without its variables' values, and then cannot run it.
            if meta_graph.HasField("saver_def") and not (folder / _VARIABLES).is_file():
                raise ModelRuntimeError(
                    f"incomplete: expected {_VARIABLES} for the graph's variables"
                )
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        """Free the graph of a session that nobody has closed; at exit the process does."""
        if not self._closed and not sys.is_finalizing():
            self.close()

    def runner(self, definition: Any) -> GraphRun:
        """A function that runs a signature.

        Args:
            definition: its SignatureDef.

        Raises:
            ModelRuntimeError: the graph lacks one of its tensors.
        """
        return _Runner(self, definition)

    def close(self) -> None:
        """Refuse further runs, wait for those in progress, and free the graph."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.wait_for(lambda: self._runs == 0)
        with self._library.status() as status:
            self._library.TF_CloseSession(self._session, status)
        with self._library.status() as status:
            self._library.TF_DeleteSession(self._session, status)
        self._library.TF_DeleteGraph(self._graph)

    def begin(self) -> int:
        """Begin a run, which keeps the session open until `end`.

        Returns:
            TF_Session.

        Raises:
            ModelRuntimeError: it is closed.
        """
        with self._changed:
            if self._closed:
                raise ModelRuntimeError("the session is closed")
            self._runs += 1
        return self._session

    def end(self) -> None:
        """End a run."""
        with self._changed:
            self._runs -= 1
            if self._closed and not self._runs:
                self._changed.notify_all()

    def outputs(self, infos: Sequence[Any]) -> Any:
        """TF_Outputs of tensors such as `StatefulPartitionedCall:2`.

        Args:
            infos: TensorInfos.

        Raises:
            ModelRuntimeError: the graph has no such tensor.
        """
        found = (Output * len(infos))()
        for place, info in enumerate(infos):
            operation, _, index = info.name.partition(":")
            pointer = self._library.TF_GraphOperationByName(self._graph, operation.encode())
            number = int(index or 0)
            if not pointer or number >= self._library.TF_OperationNumOutputs(pointer):
                raise ModelRuntimeError(
                    f"tensor {info.name!r}: expected in the graph, received none; export the "
                    "version again"
                )
            found[place] = Output(pointer, number)
        return found


class _Runner:
    """Runs a signature of a session, from any number of threads."""

    def __init__(self, session: Session, definition: Any) -> None:
        self._session = session
        self._library = library()
        self._infos = dict(sorted(definition.inputs.items()))
        self._feeds = session.outputs(list(self._infos.values()))
        infos = [info for _, info in sorted(definition.outputs.items())]
        self._fetches = session.outputs(infos)
        numbers = [self._library.TF_OperationOutputType(output) for output in self._fetches]
        self._outputs = Outputs(self._library, [TensorSpec.of(info) for info in infos], numbers)
        self._counts = len(self._feeds), len(self._fetches)
        self._lock = threading.Lock()
        self._idle: dict[Shapes, Inputs] = {}
        """Input tensors that no run uses, by their shapes, in the order of their last runs."""
        self._results = ctypes.c_void_p * len(self._fetches)

    def __call__(self, *arrays: np.ndarray, timeout: float | None = None) -> list[np.ndarray]:
        """Run; releases the interpreter meanwhile.

        Args:
            arrays: one for each input, in the order of their names.
            timeout: seconds.  Without `Session.ends_runs` it would cost some 10 % of a run and end
                none, so it is left out.  With it, TensorFlow ends loops; the operations of a graph
                without loops are all run, and then the run fails.

        Returns:
            One array for each output, in the order of their names.

        Raises:
            ModelRuntimeError: see `runtime.errors`.
        """
        session = self._session.begin()
        try:
            shapes = shapes_of(arrays)
            inputs = self._take(shapes)
            inputs.fill(arrays, shapes)
            outputs = self._run(session, inputs, timeout if self._session.ends_runs else None)
            self._keep(inputs, shapes)  # after a failure they are freed
            return outputs
        finally:
            self._session.end()

    def _take(self, shapes: Shapes) -> Inputs:
        """Idle tensors, of these shapes if there are any."""
        with self._lock:
            if (inputs := self._idle.pop(shapes, None)) is not None:
                return inputs
            if len(self._idle) >= _KEPT:
                return self._idle.pop(next(iter(self._idle)))
        return Inputs(self._library, self._infos)

    def _keep(self, inputs: Inputs, shapes: Shapes) -> None:
        """Keep tensors for the next runs of these shapes."""
        inputs.let_go()
        with self._lock:
            if len(self._idle) >= _KEPT:  # other threads have kept theirs meanwhile
                self._idle.pop(next(iter(self._idle)))
            self._idle[shapes] = inputs

    def _run(self, session: int, inputs: Inputs, timeout: float | None) -> list[np.ndarray]:
        library = self._library
        options = None if timeout is None else ctypes.byref(_run_options(timeout))
        fed, fetched = self._counts
        computed = self._results()
        status = library.TF_NewStatus()
        try:
            library.TF_SessionRun(
                session,
                options,
                self._feeds,
                inputs.pointers,
                fed,
                self._fetches,
                computed,
                fetched,
                None,
                0,
                None,
                status,
            )
            library.check(status)
            return self._outputs.arrays(computed)
        finally:
            library.TF_DeleteStatus(status)
            for tensor in computed:
                if tensor:
                    library.TF_DeleteTensor(tensor)


def _load(
    library: Library, graph: int, folder: Path, parallelism: tuple[int, int]
) -> tuple[int, bytes]:
    """A TF_Session, and the fields of the MetaGraphDef that are not its graph."""
    config = session_config(parallelism).SerializeToString()
    options = library.TF_NewSessionOptions()
    buffer = library.TF_NewBuffer()
    try:
        with library.status() as status:
            library.TF_SetConfig(options, config, len(config), status)
        with _same_path(folder) as path, library.status() as status:
            tags = (ctypes.c_char_p * 1)(b"serve")
            session = library.TF_LoadSessionFromSavedModel(
                options, None, os.fsencode(path), tags, 1, graph, buffer, status
            )
        length = buffer.contents.length
        saved = (ctypes.c_char * length).from_address(buffer.contents.data)
        return session, fields_only(memoryview(saved).cast("B"), {_SIGNATURES, _SAVER})
    finally:
        library.TF_DeleteBuffer(buffer)
        library.TF_DeleteSessionOptions(options)


@contextmanager
def _same_path(folder: Path) -> Iterator[str]:
    """A path of a folder that does not depend on its name, while it is loaded.

    TensorFlow keeps counters for each path that it ever loaded, some 2 KiB in pieces that stay
    between those of the version.  So the memory of a server would grow with each swap.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # TensorFlow says what is wrong with it
        yield str(folder)
        return
    path = f"/proc/self/fd/{opened}"
    try:
        yield path if Path(path).is_dir() else str(folder)
    except ModelRuntimeError as error:
        raise type(error)(str(error).replace(path, str(folder))) from None
    finally:
        os.close(opened)


def _run_options(timeout: float) -> Buffer:
    """RunOptions with a time limit; at least a millisecond, as 0 means none."""
    milliseconds = max(math.ceil(timeout * 1e3), 1)
    serialised = config_pb2.RunOptions(timeout_in_ms=milliseconds).SerializeToString()
    text = ctypes.create_string_buffer(serialised, len(serialised))
    buffer = Buffer(ctypes.cast(text, ctypes.c_void_p), len(serialised), None)
    buffer.keep = text  # the buffer holds its address only
    return buffer
