"""What a process keeps of memory that it no longer needs."""

import ctypes
import subprocess
import sys

import pytest
import tensorflow as tf

from multigate.serving.runtime import memory


def smaps(*mappings: tuple[int, int, str, str, int]) -> str:
    """As Linux writes it, of (begin, end, rights, file, KiB that the process has changed)."""
    return "".join(
        f"{begin:x}-{end:x} {rights} 00000000 08:01 42 {file:>30}\n"
        f"Size: {(end - begin) >> 10} kB\nRss: 4 kB\nAnonymous: {changed} kB\nVmFlags: rd ex mr\n"
        for begin, end, rights, file, changed in mappings
    )


def test_only_large_code_that_is_as_in_its_file_is_left():
    size = 16 << 20
    places = [number * size for number in range(1, 7)]
    text = smaps(
        (places[0], places[1], "r-xp", "/lib/large.so", 0),
        (places[1], places[2], "r-xp", "/lib/relocated.so", 4),
        (places[2], places[3], "rw-p", "/lib/data.so", 0),
        (places[3], places[3] + 4096, "r-xp", "/lib/small.so", 0),
        (places[4], places[5], "r-xp", "", 0),
        (places[5], places[5] + size, "r-xp", "/lib/last.so", 0),
    )
    assert list(memory._unchanged_code(text)) == [(places[0], size), (places[5], size)]


def save_square(folder):
    """A SavedModel that multiplies."""
    square = tf.function(lambda x: {"y": tf.linalg.matmul(x, x, transpose_b=True)})
    spec = tf.TensorSpec([None, 4], tf.float32, "x")
    tf.saved_model.save(tf.Module(), str(folder), square.get_concrete_function(x=spec))


def output_of(script, folder):
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_RUNS_AND_LEAVES = """
import sys
from pathlib import Path
import numpy as np
from multigate.serving.runtime import memory
from multigate.serving.runtime.session import Session

def resident():  # KiB of files, and of what no file has
    text = Path("/proc/self/status").read_text()
    return [int(text.split(name)[1].split()[0]) for name in ("RssFile:", "RssAnon:")]

session = Session(Path(sys.argv[1]))
run = session.runner(session.definitions["serving_default"])
x = np.arange(12, dtype=np.float32).reshape(3, 4)
first, before = run(x), resident()
memory.leave_unused_code()
after, second = resident(), run(x)
assert np.array_equal(first[0], second[0]), (first, second)
print(before[0] - after[0], before[1] - after[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_code_that_ran_once_is_left_and_runs_go_on(tmp_path):
    save_square(tmp_path / "1")
    of_files, of_none = map(int, output_of(_RUNS_AND_LEAVES, tmp_path / "1").split())
    assert of_files > 100 << 10  # TensorFlow's code, more than 200 MiB
    assert abs(of_none) < 10 << 10  # nothing that was written


_LOADS = """
import ctypes, gc, shutil, sys
from pathlib import Path
from multigate.serving.runtime.session import Session

class Heap(ctypes.Structure):  # glibc's mallinfo2
    _fields_ = [(f"field{n}", ctypes.c_size_t) for n in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
folder = Path(sys.argv[1])
for version in range(2, 34):
    folder = folder.rename(folder.with_name(str(version)))
    Session(folder).close()
    gc.collect()
    if version == 13:
        before = libc.mallinfo2().field7  # bytes in use
print(libc.mallinfo2().field7 - before)
"""


def test_loads_of_ever_new_versions_keep_nothing(tmp_path):
    """TensorFlow counts loads by path, and never forgets one: 2 KiB each."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("needs glibc 2.33")
    save_square(tmp_path / "1")
    kept = int(output_of(_LOADS, tmp_path / "1"))
    assert kept < 20 << 10, f"{kept} bytes of 20 loads"
