"""Tells people how a run ended, by a command of theirs. A failed notification fails no run."""

import json
import logging
import shlex
import subprocess

from multigate.configs.sections.run import RunConfig
from multigate.jobs.night.records import Notification

_log = logging.getLogger(__name__)


def notify(options: RunConfig, message: Notification) -> bool:
    """Run the configured command with the message on its standard input.

    Args:
        options: the command and its time limit.
        message: what is sent, as JSON.

    Returns:
        Whether there is a command and it succeeded. A failure is logged.
    """
    if options.notify is None:
        return False
    limit = options.notify_timeout.total_seconds()
    try:
        # The command's output is not the run's output; its errors are logged below.
        done = subprocess.run(
            shlex.split(options.notify),
            input=json.dumps(message, ensure_ascii=False) + "\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"no end after {limit:g} s" if not isinstance(error, OSError) else str(error)
        _log.error("run.notify: %s: %s; nobody was told: %s", options.notify, reason, message)
        return False
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-300:]
        _log.error(
            "run.notify: %s: exit status %d: %s; perhaps nobody was told: %s",
            options.notify,
            done.returncode,
            said,
            message,
        )
    return done.returncode == 0
