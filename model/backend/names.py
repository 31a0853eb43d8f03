"""Names of layers that depend on the model alone, not on what else the process has made."""

import collections
from collections.abc import Iterator
from contextlib import contextmanager

from keras.src.backend.common import global_state

_COUNTERS = "object_name_uids"
"""Keras's, by the kind of object; there is no public way to set them back but `clear_session`,
which also drops what models of the caller need."""


@contextmanager
def fresh_names() -> Iterator[None]:
    """Inside, Keras numbers layers from the beginning; afterwards it goes on where it was.

    TensorFlow names operations after the layers, and its graph optimiser adds up several gradients
    of one tensor in the order of their names.  `dense_10` comes before `dense_9`, so the same model
    gives another last bit once a process has made nine layers before.
    """
    before = global_state.get_global_attribute(_COUNTERS)
    global_state.set_global_attribute(_COUNTERS, collections.defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(_COUNTERS, before)
