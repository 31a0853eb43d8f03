"""The devices that TensorFlow finds."""

from functools import cache

from multigate.runtime.library import library


@cache
def has_gpu() -> bool:
    """Whether TensorFlow would run on a GPU.

    Raises:
        ModelRuntimeError: its library cannot be used.
    """
    c = library()
    graph, options = c.TF_NewGraph(), c.TF_NewSessionOptions()
    try:
        with c.status() as status:
            session = c.TF_NewSession(graph, options, status)
        try:
            with c.status() as status:
                devices = c.TF_SessionListDevices(session, status)
            try:
                kinds = set()
                for place in range(c.TF_DeviceListCount(devices)):
                    with c.status() as status:
                        kinds.add(c.TF_DeviceListType(devices, place, status))
                return b"GPU" in kinds
            finally:
                c.TF_DeleteDeviceList(devices)
        finally:
            with c.status() as status:
                c.TF_DeleteSession(session, status)
    finally:
        c.TF_DeleteSessionOptions(options)
        c.TF_DeleteGraph(graph)
