"""What a process keeps of memory that it no longer needs."""

import ctypes
import subprocess
import sys

import pytest
import tensorflow as tf

from multigate.runtime import memory

needs_mallinfo2 = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33"
)


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
from multigate.runtime import memory
from multigate.runtime.session import Session

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


_FREES_LARGE_PIECES = """
import ctypes, threading
from pathlib import Path
from multigate.runtime import memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def written():  # KiB
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

def load_and_close():
    before = written()
    pieces = [libc.malloc(1 << 20) for _ in range(50)]
    for piece in pieces:
        libc.memset(piece, 1, 1 << 20)
    for piece in pieces:
        libc.free(piece)
    freed = written()
    memory.return_freed()
    print(freed - before, written() - before)

memory.keep_freed()
loading = threading.Thread(target=load_and_close)
loading.start()
loading.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thread_that_loads_gives_the_end_of_its_arena_back():
    """`malloc_trim` gives back that of the first arena alone."""
    kept, left = map(int, output_of(_FREES_LARGE_PIECES, "").split())
    assert kept > 45 << 10  # as `keep_freed` asks
    assert left < 1 << 10


_IN_USE = """
import ctypes, gc, sys
from pathlib import Path
import numpy as np
from multigate.runtime.errors import RefusedInputError
from multigate.runtime.session import Session

class Heap(ctypes.Structure):  # glibc's mallinfo2
    _fields_ = [(f"field{n}", ctypes.c_size_t) for n in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
folder = Path(sys.argv[1])

def in_use():  # bytes
    gc.collect()
    return libc.mallinfo2().field7
"""

_LOADS = """
for version in range(2, 34):
    folder = folder.rename(folder.with_name(str(version)))
    Session(folder).close()
    if version == 13:
        before = in_use()
print(in_use() - before)
"""


@needs_mallinfo2
def test_loads_of_ever_new_versions_keep_nothing(tmp_path):
    """TensorFlow counts loads by path, and never forgets one: 2 KiB each."""
    save_square(tmp_path / "1")
    kept = int(output_of(_IN_USE + _LOADS, tmp_path / "1"))
    assert kept < 20 << 10, f"{kept} bytes of 20 loads"


def save_refusing(folder):
    """A SavedModel whose signature calls a function that refuses negative numbers."""

    @tf.function
    def root(x):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x >= 0), ["negative"])]):
            return tf.sqrt(x)

    signature = tf.function(lambda x: {"y": root(x)})
    spec = tf.TensorSpec([None], tf.float32, "x")
    tf.saved_model.save(tf.Module(), str(folder), signature.get_concrete_function(x=spec))


_REFUSED_RUNS = """
session = Session(folder)
run = session.runner(session.definitions["serving_default"])

def refused(times):
    for _ in range(times):
        try:
            run(np.array([4, -1], np.float32))
        except RefusedInputError as error:
            assert "negative" in str(error)
        else:
            raise AssertionError("not refused")

assert run(np.array([4, 9], np.float32))[0].tolist() == [2, 3]
refused(100)
before = in_use()
refused(1000)
print(in_use() - before)
"""


@needs_mallinfo2
def test_runs_that_the_graph_refuses_keep_nothing(tmp_path):
    """TensorFlow never forgets a call of a function in which an operation failed: 800 bytes."""
    save_refusing(tmp_path / "1")
    kept = int(output_of(_IN_USE + _REFUSED_RUNS, tmp_path / "1"))
    assert kept < 50 << 10, f"{kept} bytes of 1000 runs"
