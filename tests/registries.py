"""Downloads of what tests build: registries hiccup, so each gets a second try."""

import subprocess
from typing import Any


def fetch(command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that asks a registry, and once more where it fails or takes too long.

    Args:
        command: the command's words.
        options: of `subprocess.run`.

    Returns:
        The last try; where it took longer than `timeout`, its status is 124, as of `timeout`.
    """
    for _ in range(2):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        except subprocess.TimeoutExpired as error:
            said = f"{command[0]} was not done within {error.timeout:g} s"
            done = subprocess.CompletedProcess(command, 124, "", said)
        if done.returncode == 0:
            break
    return done
