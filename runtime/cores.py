"""The processor's cores that this process may use."""

import contextlib
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""Where a container finds its limit, in versions 2 and 1 of cgroups: microseconds of all cores
(`max` and -1: any number) in a period of so many microseconds."""


def cores() -> float:
    """Cores that this process may use at once: a container's limit may be part of one."""
    try:
        found = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on Linux
        found = float(os.cpu_count() or 1)
    for names in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such thing, or no limit
            quota, period = " ".join((_CGROUP / name).read_text() for name in names).split()
            if int(quota) > 0 and int(period) > 0:
                found = min(found, int(quota) / int(period))
    return found
