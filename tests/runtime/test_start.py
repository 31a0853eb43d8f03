"""What a process with the C interface settles before it loads TensorFlow's library."""

import os
import subprocess
import sys

import pytest

PIECES = """
import ctypes, resource
from multigate.runtime import memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def run():  # as a run of the model: ten pieces of 3 MB, written and freed
    pieces = [libc.malloc(3 << 20) for _ in range(10)]
    for piece in pieces:
        libc.memset(piece, 1, 3 << 20)
    for piece in pieces:
        libc.free(piece)

memory.keep_freed()
run()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    run()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def output_of(code, **environment):
    """What a Python process prints."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "TF_ENABLE"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_runs_use_the_memory_that_the_run_before_freed():
    assert int(output_of(PIECES)) < 1_000  # of 153,600 pages that the runs write


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({"TF_ENABLE_ONEDNN_OPTS": "1"}, "1")])
def test_onednn_is_off_unless_the_environment_says_otherwise(given, expected):
    code = (
        "import os; from multigate.runtime.start import start_runtime; start_runtime();"
        "print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    )
    assert output_of(code, **given) == expected
