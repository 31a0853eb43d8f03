"""How many cores there are: those of the process, and a container's limit."""

import os

import pytest

from multigate.runtime import cores as measured
from multigate.runtime.cores import cores


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "10000 100000\n"}, 0.1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "damaged"}, None),
        ({"cpu.max": "50000 0\n"}, None),
        ({}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),
    ],
)
def test_a_containers_limit_counts(tmp_path, monkeypatch, limits, share):
    (tmp_path / "cpu").mkdir()
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(measured, "_CGROUP", tmp_path)
    assert cores() == (share or len(os.sched_getaffinity(0)))
