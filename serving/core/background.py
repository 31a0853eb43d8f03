"""What keeps work beside the calls, such as loading a version, from being felt by callers."""

import contextlib
import gc
import os
import threading


def lower_priority() -> None:
    """Give this thread less of the CPUs than those that answer calls, where the system can."""
    with contextlib.suppress(OSError, AttributeError):  # of this thread alone, on Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def keep_what_is_imported() -> None:
    """Spare the garbage collector what this process will hold to its end.

    With TensorFlow half a million objects are, and looking at all of them stops every thread for
    some 200 ms, which loading a version brings about.
    """
    gc.collect()
    gc.freeze()
