"""TensorFlow's C interface, from the library in its pip package, by ctypes.

The package's Python is not executed: that takes 8 s and 0.6 GB.  cffi was considered: it needs a
compiler to be as fast, and declares no less.
"""

import ctypes
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from multigate.runtime.errors import ModelRuntimeError, error_of

_NAMES = ("libtensorflow_cc.so.2", "libtensorflow_cc.2.dylib")

_P, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Output(ctypes.Structure):
    """TF_Output: one output of an operation."""

    _fields_ = (("operation", _P), ("index", _INT))


class Buffer(ctypes.Structure):
    """TF_Buffer: serialised bytes."""

    _fields_ = (("data", _P), ("length", _SIZE), ("deallocator", _P))


_QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "TF_NewStatus": (_P, ()),
    "TF_DeleteStatus": (None, (_P,)),
    "TF_GetCode": (_INT, (_P,)),
    "TF_Message": (ctypes.c_char_p, (_P,)),
    "TF_Version": (ctypes.c_char_p, ()),
    "TF_NewBuffer": (ctypes.POINTER(Buffer), ()),
    "TF_DeleteBuffer": (None, (ctypes.POINTER(Buffer),)),
    "TF_NewSessionOptions": (_P, ()),
    "TF_DeleteSessionOptions": (None, (_P,)),
    "TF_SetConfig": (None, (_P, ctypes.c_char_p, _SIZE, _P)),
    "TF_NewGraph": (_P, ()),
    "TF_GraphOperationByName": (_P, (_P, ctypes.c_char_p)),
    "TF_OperationNumOutputs": (_INT, (_P,)),
    "TF_OperationOutputType": (_INT, (Output,)),
    "TF_AllocateTensor": (_P, (_INT, _P, _INT, _SIZE)),
    "TF_SetShape": (None, (_P, _P, _INT)),
    "TF_DeleteTensor": (None, (_P,)),
    "TF_NumDims": (_INT, (_P,)),
    "TF_Dim": (ctypes.c_int64, (_P, _INT)),
    "TF_TensorElementCount": (ctypes.c_int64, (_P,)),
    "TF_TensorData": (_P, (_P,)),
    "TF_DeviceListCount": (_INT, (_P,)),
    "TF_DeviceListType": (ctypes.c_char_p, (_P, _INT, _P)),
    "TF_DeleteDeviceList": (None, (_P,)),
}
"""Functions that return in a microsecond: result and arguments.

They keep the interpreter: releasing it some hundred times a run would let other threads take it
each time, for up to the switch interval.
"""

_SLOW: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "TF_LoadSessionFromSavedModel": (
        _P,
        (_P, _P, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), _INT, _P, _P, _P),
    ),
    "TF_NewSession": (_P, (_P, _P, _P)),
    "TF_SessionListDevices": (_P, (_P, _P)),
    "TF_SessionRun": (None, (_P, _P, _P, _P, _INT, _P, _P, _INT, _P, _INT, _P, _P)),
    "TF_CloseSession": (None, (_P, _P)),
    "TF_DeleteSession": (None, (_P, _P)),
    "TF_DeleteGraph": (None, (_P,)),
}
"""Functions that take long: they release the interpreter meanwhile."""


class Library:
    """The functions of `_QUICK` and `_SLOW`, as attributes."""

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            ModelRuntimeError: it cannot be loaded, or lacks a function.
        """
        try:
            for declared, handle in (
                (_QUICK, ctypes.PyDLL(str(path))),
                (_SLOW, ctypes.CDLL(str(path))),
            ):
                for name, (result, arguments) in declared.items():
                    function = getattr(handle, name)
                    function.restype, function.argtypes = result, arguments
                    setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise ModelRuntimeError(
                f"{path}: cannot be used: {error}; install tensorflow 2.21 again"
            ) from None

    def __getattr__(self, name: str) -> Any:
        """Only for names that were not declared; tells type checkers that others exist."""
        raise AttributeError(f"{name}: not declared in {__name__}")

    @contextmanager
    def status(self) -> Iterator[int]:
        """A TF_Status for one call of a function.

        Raises:
            ModelRuntimeError: the function failed.
        """
        status = self.TF_NewStatus()
        try:
            yield status
            self.check(status)
        finally:
            self.TF_DeleteStatus(status)

    def check(self, status: int) -> None:
        """Raise the failure that a TF_Status tells of, if there is one.

        Raises:
            ModelRuntimeError: the function failed.
        """
        if code := self.TF_GetCode(status):
            message = (self.TF_Message(status) or b"").decode(errors="replace")
            raise error_of(code, message)


_LOCK = threading.Lock()


def library() -> Library:
    """The library, loaded at the first call.

    Raises:
        ModelRuntimeError: TensorFlow is not installed, or its library cannot be used.
    """
    with _LOCK:
        return _library()


@cache
def _library() -> Library:
    # Otherwise all sessions of the process share one pool of threads, of the size that the first
    # one asks for: the one that only looks for devices asks for as many as there are cores.  With a
    # second thread, each operation of a run wakes it to look for work: twice the CPU time.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
    return Library(library_path())


def library_path() -> Path:
    """Where the library is; finds the package without executing it.

    Raises:
        ModelRuntimeError: TensorFlow is not installed.
    """
    spec = importlib.util.find_spec("tensorflow")
    for folder in (spec and spec.submodule_search_locations) or ():
        for name in _NAMES:
            if (path := Path(folder) / name).is_file():
                return path
    raise ModelRuntimeError(
        f"{_NAMES[0]}: expected in the package tensorflow, received no such file; install "
        "tensorflow"
    )
