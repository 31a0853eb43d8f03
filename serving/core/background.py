"""Keeps background work, such as loading a version, from slowing calls down."""

import contextlib
import gc
import os
import threading


def lower_priority() -> None:
    """Give this thread a lower CPU priority than the threads that answer calls, on Linux."""
    with contextlib.suppress(OSError, AttributeError):  # other systems change the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def freeze_garbage_collector() -> None:
    """Have the garbage collector ignore all objects that exist now, such as imported modules.

    With TensorFlow there are half a million of them.  A full collection, which loading a version
    triggers, would stop every thread for some 200 ms to look at each.
    """
    gc.collect()
    gc.freeze()
