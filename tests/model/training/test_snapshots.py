"""A snapshot is read back as it was written, takes little memory, and shows when it is damaged."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from multigate.model.training import snapshots
from multigate.model.training.snapshots import Snapshot

MIB = 1 << 20


def arrays() -> Iterator[np.ndarray]:
    for number in range(8):
        yield np.full(4 * MIB // 4, number, np.float32)


def test_arrays_are_copied_one_after_the_other(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        snapshots.save(tmp_path, Snapshot(arrays(), {"step": 3}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One array of 4 MiB, the one before it, and the parts in which files are written and read.
    assert peak < 16 * MIB  # all arrays are 32 MiB
    found, damaged = snapshots.latest(tmp_path)
    assert found is not None
    assert not damaged
    assert found.meta == {"step": 3}
    for received, expected in zip(found.arrays, arrays(), strict=True):
        np.testing.assert_array_equal(received, expected)
    assert not list(tmp_path.glob(".*"))


def test_every_changed_byte_is_damage(tmp_path: Path) -> None:
    path = snapshots.save(tmp_path, Snapshot([np.arange(9.0)], {}))
    whole = path.read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert snapshots.latest(tmp_path) == (None, [path])
    for content in (b"", whole[:20], whole[:-1], whole + b"x"):
        path.write_bytes(content)
        assert snapshots.latest(tmp_path) == (None, [path])
