"""A process beside the server: it answers, is replaced, and ends with the process that began it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multigate.runtime.child import Child, ChildError

WORK = """
import os, time

def main(pipe, *arguments):
    try:
        while True:
            question = pipe.recv()
            if question == "hang":
                time.sleep(600)
            if question == "die":
                os._exit(3)
            pipe.send((os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), arguments, question))
    finally:
        for path in arguments:
            open(path, "w").close()
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module that a child works with."""
    (tmp_path / "work_of_child.py").write_text(WORK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    return "work_of_child"


def lives(pid):
    """Whether a process is there, and not only its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_questions_are_answered_until_the_end(work):
    child = Child(work, "lower", 240.0)
    assert child.pid is None
    lower = min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
    assert child.ask({"a": 1}) == (child.pid, lower, (), {"a": 1})
    os.kill(child.pid, signal.SIGTERM)  # a signal to the whole group ends the server alone
    first = child.pid
    assert child.ask(2)[0] == first
    child.end()
    assert not lives(first)
    second = child.ask(3)[0]
    assert second != first
    child.close()
    assert not lives(second)
    with pytest.raises(ChildError, match="has ended"):
        child.ask(4)
    assert child.pid is None


def test_one_that_dies_or_hangs_is_replaced(work):
    child = Child(work, "as the server", 240.0)
    first, priority, _, _ = child.ask(1)
    assert priority == os.getpriority(os.PRIO_PROCESS, 0)
    with pytest.raises(ChildError, match="has ended"):
        child.ask("die")
    second = child.ask(2)[0]
    child._longest = 0.1
    with pytest.raises(ChildError, match=r"did not answer within 0\.1 s"):
        child.ask("hang")
    child._longest = 240.0
    third = child.ask(3)[0]
    assert len({first, second, third}) == 3
    assert not lives(second)
    child.close()


def test_a_module_that_is_not_there_is_an_error_of_the_question():
    child = Child("multigate.nowhere", "idle", 240.0)
    with pytest.raises(ChildError, match="has ended"):
        child.ask(1)
    child.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such priority")
def test_idle_priority(work):
    child = Child(work, "idle", 240.0)
    pid = child.ask(1)[0]
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    child.close()


def test_it_ends_with_a_process_that_is_killed(work, tmp_path, until):
    """And finishes what it has under way."""
    done = tmp_path / "done"
    program = (
        "import sys\n"
        "from multigate.runtime.child import Child\n"
        f"child = Child({work!r}, 'idle', 240.0, {str(done)!r})\n"
        "print(child.ask(1)[0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
        # The child holds the other end of the pipe of standard output until it has ended.
        assert parent.stdout.read() == ""
    assert done.exists()
    until(lambda: not lives(pid), "its end")
