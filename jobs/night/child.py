"""Runs a verb of the command in a process of its own, which ends when this one ends.

TensorFlow has one Keras per process: the candidate model's verbs, on Keras 2, cannot run in the
process that trains the ranker on Keras 3.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from multigate.configs.errors import RunError

_ERROR = "error: "
_KEPT_LINES = 100
"""Last lines of standard error, among which are those that say why a verb failed."""
_PATIENCE = 10.0  # s for an interrupted process to remove its unfinished folder


def run_verb(verb: str, *arguments: str | Path) -> dict[str, Any]:
    """Run a verb, and print what it prints beside its result and its errors.

    Args:
        verb: of the command, one that has a result.
        arguments: its command line.

    Returns:
        Its result; a verdict that refuses is a result too.

    Raises:
        RunError: the verb failed; the message is its own.
    """
    words = [verb, "--json", *map(str, arguments)]
    command = [sys.executable, "-m", "multigate", "--caller", str(os.getpid()), *words]
    errors: deque[str] = deque(maxlen=_KEPT_LINES)
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as stdout,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},  # progress appears at once
        ) as process,
    ):
        assert process.stderr is not None
        try:
            for line in process.stderr:
                errors.append(line.rstrip())
                if not line.startswith(_ERROR):
                    print(line, end="", flush=True)
            status = process.wait()
        except BaseException:
            _terminate(process)
            raise
        stdout.seek(0)
        printed = stdout.read()
    name = " ".join([verb, *(str(word) for word in arguments[:1] if not str(word).startswith("-"))])
    if status not in (0, 1):
        own = [line.removeprefix(_ERROR) for line in errors if line.startswith(_ERROR)]
        ended = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
        raise RunError("\n".join(f"{name}: {line}" for line in own or [*list(errors)[-1:], ended]))
    try:
        result = json.loads(printed)
    except ValueError:
        result = None
    if not isinstance(result, dict):  # an unexpected error ends with status 1, too
        reason = errors[-1] if errors else f"exit status {status}"
        raise RunError(f"{name}: no result: {reason}")
    return result


def _terminate(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
