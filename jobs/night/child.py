"""Runs a verb of the command in a process of its own, which ends when this one ends.

TensorFlow has one Keras per process: the candidate model's verbs, on Keras 2, cannot run in the
process that trains the ranker on Keras 3.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from multigate.configs.errors import RunError

_PATIENCE = 10.0  # s for an interrupted process to remove its unfinished folder


def run_verb(verb: str, *arguments: str | Path) -> dict[str, Any]:
    """Run a verb, and print what it prints except for the result.

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
    last = ""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as stderr,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},  # progress appears at once
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
            _terminate(process)
            raise
        stderr.seek(0)
        errors = stderr.read().splitlines()
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
