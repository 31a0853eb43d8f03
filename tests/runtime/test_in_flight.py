"""The count of calls in flight: what a process changes, those that it began see at once."""

import os
import subprocess
import sys

import pytest

from multigate.runtime.in_flight import CallsInFlight

READER = """
import sys
from multigate.runtime.in_flight import CallsInFlight

calls = CallsInFlight(int(sys.argv[1]))
for _ in sys.stdin:
    print(calls.count, flush=True)
"""


def refused(name):
    raise PermissionError(name)


@pytest.mark.parametrize("memory", ["there", "another system's", "refused"])
def test_another_process_sees_the_count_as_it_changes(monkeypatch, memory):
    if memory == "another system's":
        monkeypatch.delattr(os, "memfd_create")
    elif memory == "refused":
        monkeypatch.setattr(os, "memfd_create", refused)
    calls = CallsInFlight()
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(calls.file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        pass_fds=[calls.file],
    ) as reader:

        def seen():
            reader.stdin.write("\n")
            return int(reader.stdout.readline())

        assert (seen(), calls.count) == (0, 0)
        for _ in range(300):  # more than a byte holds
            calls.begin()
        assert (seen(), calls.count) == (300, 300)
        calls.end()
        assert seen() == 299
        for _ in range(299):
            calls.end()
        assert (seen(), calls.count) == (0, 0)
        reader.stdin.close()


def test_its_file_is_closed_with_it():
    calls = CallsInFlight()
    file = calls.file
    os.fstat(file)
    del calls
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
