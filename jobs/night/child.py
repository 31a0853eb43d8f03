"""A verb of the command in a process of its own, which ends when this one ends.

TensorFlow knows one Keras per process: the candidate model's verbs, on Keras 2, cannot run where
the ranker has been trained.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from multigate.configs.errors import RunError

_PATIENCE = 10.0  # s for an interrupted process to take its unfinished folder along


def call(verb: str, *arguments: str | Path) -> dict[str, Any]:
    """Run a verb; what it prints is printed, but for its result.

    Args:
        verb: of the command, one that has a result.
        arguments: its command line.

    Returns:
        Its result, also of a verdict that refuses.

    Raises:
        RunError: it failed; the message is its own.
    """
    words = [verb, "--json", *map(str, arguments)]
    command = [sys.executable, "-m", "multigate", "--caller", str(os.getpid()), *words]
    last = ""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as told,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},  # progress as it comes
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if last:
                    print(last, flush=True)
                last = line.rstrip()
            status = process.wait()
        except BaseException:
            _end(process)
            raise
        told.seek(0)
        errors = told.read().splitlines()
    name = " ".join([verb, *(str(word) for word in arguments[:1] if not str(word).startswith("-"))])
    if status not in (0, 1):
        own = [line.removeprefix("error: ") for line in errors if line.startswith("error: ")]
        ended = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
        raise RunError("\n".join(f"{name}: {line}" for line in own or [*errors[-1:], ended]))
    for line in errors:
        print(line, file=sys.stderr)
    try:
        result = json.loads(last)
    except ValueError:
        result = None
    if not isinstance(result, dict):  # an error that the verb did not foresee ends with 1, too
        reason = errors[-1] if errors else f"exit status {status}"
        raise RunError(f"{name}: no result: {reason}")
    return result


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
