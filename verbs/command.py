"""The command `multigate`: one verb per job.

The verbs are modules of `verbs`; this module parses the command line, runs one of them, and turns
errors into one line and an exit status.
"""

import argparse
import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from multigate.configs.errors import MultigateError
from multigate.verbs import VERBS

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: the command line after the program's name; `sys.argv` where absent.

    Returns:
        Exit status: 0 done (of a verdict: blessed), 1 a verdict is to refuse, 2 the input, the
        configuration or the disk cannot be used, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    if options.caller is not None and not _ends_with(options.caller):
        return 2
    try:
        with _interrupted_by_sigterm():
            result = options.run(options)
    except MultigateError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {_reason(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted; nothing half-written is left", file=sys.stderr)
        return 130
    if result is not None and getattr(options, "json", False):
        print(json.dumps(result, ensure_ascii=False))
    return int(options.status(result))


def _ends_with(caller: int) -> bool:
    """Have this process killed when its caller ends; whether the caller still runs.

    A stage of a nightly run must not go on writing into the folder in which the next start works.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    return os.getppid() == caller  # else it ended before


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a job as Ctrl-C does, so that it takes its unfinished folder along."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(error: OSError) -> str:
    """What the system refused, in one line."""
    reason = " ".join((error.strerror or str(error)).split())
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{reason}; make room, or choose a place that can be read and written"


def _done(result: Any) -> int:
    """Exit status of a verb whose result is no verdict."""
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="multigate",
        description="From user logs to a multi-task ranking service.",
    )
    # For a verb that another multigate process starts: end when that process ends.
    parser.add_argument("--caller", type=int, metavar="PID", help=argparse.SUPPRESS)
    choices = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in VERBS:
        verb = importlib.import_module(f"multigate.verbs.{name}")
        options = choices.add_parser(
            name,
            help=verb.HELP,
            description=verb.HELP[0].upper() + verb.HELP[1:] + ".",
            epilog="example:\n  " + verb.EXAMPLE.replace("\n", "\n  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if verb.run.__annotations__["return"] is not None:
            options.add_argument(
                "--json", action="store_true", help="print the result as one JSON object, last line"
            )
        verb.add_arguments(options)
        options.set_defaults(run=verb.run, status=getattr(verb, "status", _done))
    return parser
