"""What does not fit into memory is refused before it is made."""

from pathlib import Path

import pytest

from multigate.configs.errors import ModelError
from multigate.model.backend import memory


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machine_and_every_group_around_the_process_limit_it(tmp_path: Path) -> None:
    assert memory.available(tmp_path) is None  # not Linux
    write(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert memory.available(tmp_path) == 8000 * 1024
    write(tmp_path / "proc/self/cgroup", "4:cpu,memory:/job/worker\n0::/pod/one\n")
    assert memory.available(tmp_path) == 8000 * 1024
    pod = tmp_path / "sys/fs/cgroup/pod"
    write(pod / "memory.max", "5000\n")
    write(pod / "memory.current", "3000\n")
    write(pod / "memory.stat", "anon 2200\ninactive_file 500\nactive_file 300\n")
    write(pod / "one/memory.max", "max\n")
    write(pod / "one/memory.current", "10\n")
    write(pod / "one/memory.stat", "inactive_file 0\n")
    assert memory.available(tmp_path) == 5000 - (3000 - 500 - 300)
    job = tmp_path / "sys/fs/cgroup/memory/job/worker"
    write(job / "memory.limit_in_bytes", "1000")
    write(job / "memory.usage_in_bytes", "900")
    write(job / "memory.stat", "total_inactive_file 200")
    assert memory.available(tmp_path) == 300


def test_too_much_is_refused_with_both_sizes() -> None:
    memory.require(1, "one byte", "")
    with pytest.raises(
        ModelError, match=r"^tables take 1,048,576\.0 GiB of memory, .* are free; buy some$"
    ):
        memory.require(2**50, "tables", "buy some")
