"""How much memory this process can still get, on Linux.

psutil was considered: it does not know the limits of a container (cgroups).
"""

from collections.abc import Iterator
from pathlib import Path

from multigate.configs.errors import ModelError
from multigate.model import backend

_V2 = ("memory.max", "memory.current", "inactive_file", "active_file")
_V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "total_active_file",
)
"""Files of the limit and the usage, and the parts of the usage that are given back on demand."""


def require(needed: int, what: str, advice: str) -> None:
    """Refuse what does not fit into this machine's memory; of a GPU's memory it knows nothing.

    Args:
        needed: bytes.
        what: needs them, as the subject of a sentence.
        advice: what to do.

    Raises:
        ModelError: fewer bytes are free.
    """
    free = available()
    if free is not None and needed > free and not backend.has_accelerator():
        raise ModelError(f"{what} take {_size(needed)} of memory, {_size(free)} are free; {advice}")


def available(root: Path = Path("/")) -> int | None:
    """Free bytes: the machine's, or fewer under a container's limit; None where it does not say.

    Args:
        root: of the file system that has proc and sys.
    """
    found = [*_of_machine(root), *_of_container(root)]
    return min(found, default=None)


def _of_machine(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_container(root: Path) -> Iterator[int]:
    """What each limit of the process's group, and of the groups around it, leaves."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        inner = top / path.lstrip("/")
        for folder in [inner, *inner.parents]:
            if folder.is_relative_to(top):
                yield from _left(folder, names)


def _left(folder: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Bytes that a group's limit leaves, if it has one."""
    limit, usage, *given_back = names
    try:
        most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.split()[0] in given_back:
                used -= int(line.split()[1])
    except (OSError, ValueError):
        return
    if most.isdecimal():  # "max" without a limit
        yield max(int(most) - used, 0)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
