"""The command `multigate`: one verb per job.

Each verb is a module of `verbs`. This module parses the command line, runs the verb, and turns
errors into one line and an exit status.
"""

import argparse
import ctypes
import importlib
import json
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from types import FrameType
from typing import Any, NoReturn

from multigate import __version__
from multigate.configs import progress
from multigate.configs.errors import MultigateError
from multigate.verbs import VERBS, module_of
from multigate.verbs.common import add_output

_NOTHING_LEFT = "nothing half-written is left"
_INTERRUPTED = f"error: interrupted; {_NOTHING_LEFT}"
_AT_ONCE = (
    "error: interrupted twice, and ended at once; a hidden unfinished folder may be left, which "
    "the same command removes"
)
_BROKEN_PIPE = 128 + signal.SIGPIPE  # as of a program that the signal ends
_KINDS = {"int": "a whole number", "float": "a number"}
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: the command line after the program's name; `sys.argv` where absent.

    Returns:
        Exit status: 0 done (of a verdict: blessed), 1 the verdict is to refuse or `check` found
        what would fail a run, 2 the input, the configuration or the disk cannot be used, 130
        interrupted, 141 nobody reads standard output any more.
    """
    signals: list[int] = []
    interrupted = _INTERRUPTED
    try:
        with _interrupted_by_signals(signals):
            options = make_parser().parse_args(arguments)
            if options.caller is not None and not _end_with(options.caller):
                return 2
            interrupted = f"error: interrupted; {options.interrupted}"
            as_json = getattr(options, "json", False)
            bars = not as_json and not getattr(options, "quiet", False)
            with ExitStack() as options.temporary, _alone(as_json), progress.shown(bars):
                result = options.execute(options)
            if result is not None and as_json:
                print(json.dumps(result, ensure_ascii=False))
            sys.stdout.flush()
    except BaseException as error:
        lost = _lost_output()
        if signals or isinstance(error, KeyboardInterrupt):
            # Whatever the error is: an import that is interrupted may end in another one.
            print(interrupted, file=sys.stderr)
            return 130
        if isinstance(error, MultigateError):
            for line in str(error).splitlines():
                print(f"error: {line}", file=sys.stderr)
            return 2
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return _BROKEN_PIPE
        if isinstance(error, OSError):
            where = "standard output: " if lost and error.filename is None else ""
            print(f"error: {where}{_reason(error)}", file=sys.stderr)
            return 2
        raise
    return int(options.status(result))


@contextmanager
def _alone(as_json: bool) -> Iterator[None]:
    """With `--json`, send what a verb prints to standard error: the result stands alone.

    The descriptor too, which child processes and libraries in C write to.
    """
    if not as_json:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _lost_output() -> bool:
    """Give up what standard output cannot take, and say whether there is such.

    Else the interpreter would try to write it when it ends, complain, and change the exit status.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more, as after `| head`."""
    poll = select.poll()
    poll.register(1, select.POLLERR)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _end_with(caller: int) -> bool:
    """Have the system kill this process when its caller ends.

    A stage of a nightly run must not go on writing into the folder in which the next start works.

    Returns:
        Whether the caller still runs.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    return os.getppid() == caller  # else it ended before


@contextmanager
def _interrupted_by_signals(signals: list[int]) -> Iterator[None]:
    """Turn SIGTERM and Ctrl-C into KeyboardInterrupt, so that a job removes its unfinished folder.

    An exception in the middle of an import can crash an extension module's start-up. A signal that
    comes during an import therefore ends the process at once if no job has begun, so that nothing
    is written yet, and else takes effect when the import ends. A second one ends it at once.

    Args:
        signals: gets the number of each signal that arrives.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        importer = _importer(frame)
        if importer is None:
            raise KeyboardInterrupt
        if len(signals) > 1 or not _in_job(importer):
            said = _AT_ONCE if _in_job(importer) else _INTERRUPTED
            progress.clear()
            os.write(terminal, f"{said}\n".encode())
            os._exit(130)
        importer.f_trace = end_import
        sys.settrace(lambda *_: None)  # without a global trace function, `f_trace` is not called

    def end_import(frame: FrameType, event: str, value: Any) -> None:
        sys.settrace(None)
        raise KeyboardInterrupt

    terminal = os.dup(2)  # the import of TensorFlow redirects standard error
    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell's background job ignores it
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(terminal)


def _importer(frame: FrameType | None) -> FrameType | None:
    """The function that waits for an import to end, the outermost one; None outside of imports."""
    found = None
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            found = frame.f_back
        frame = frame.f_back
    return found


def _in_job(frame: FrameType | None) -> bool:
    """Whether a function outside of `verbs` is running: a job, which may have begun to write."""
    # The command's entry is no job, nor is what imports TensorFlow for it.
    command = ("multigate.__main__", "multigate.verbs.", "multigate.runtime.start")
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.startswith("multigate.") and not name.startswith(command):
            return True
        frame = frame.f_back
    return False


def _reason(error: OSError) -> str:
    """What the system refused, in one line."""
    reason = " ".join((error.strerror or str(error)).split())
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{reason}; make room, or choose a place that can be read and written"


def _done(result: Any) -> int:
    """Exit status of a verb whose result is no verdict."""
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one line, which names the nearest option or value.

    `--model-name` and `--model_name` are one option.
    """

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; what it does not know is told here, where the options are known."""
        self._given = self._spelled(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(self._given, namespace)
        if unknown:
            self.error(f"unexpected arguments: {' '.join(unknown)}")
        return found, unknown

    def _spelled(self, given: Sequence[str]) -> list[str]:
        """The words of the command line, with options as they are defined."""
        known = {one.replace("_", "-"): one for one in self._option_string_actions}
        words: list[str] = []
        for at, word in enumerate(given):
            if word == "--":
                return [*words, *given[at:]]
            name, equals, value = word.partition("=")
            words.append(known.get(name.replace("_", "-"), name) + equals + value)
        return words

    def error(self, message: str) -> NoReturn:
        """Tell a mistake in one line, a misspelt option before what it entails."""
        from multigate.configs.sections.nearest import did_you_mean

        known = [name for name in self._option_string_actions if name.startswith("--")]
        choice = re.fullmatch(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", message, re.S)
        value = re.fullmatch(r"(.*): invalid (int|float) value: (.*)", message, re.S)
        unknown = self._unknown_option()
        if unknown is not None:
            message = f"unknown option {unknown}; {did_you_mean(unknown, known)}"
        elif choice is not None:
            where, received, listed = choice.groups()
            names = re.findall(r"'([^']*)'", listed)
            message = f"{where}: expected one of {', '.join(names)}; received {received!r}; "
            message += did_you_mean(received, names)
        elif value is not None:
            where, kind, received = value.groups()
            message = f"{where}: expected {_KINDS[kind]}; received {received}; "
        else:
            message += "; "
        print(f"error: {self.prog}: {message}`{self.prog} --help` says more", file=sys.stderr)
        self.exit(2)

    def _unknown_option(self) -> str | None:
        for word in self._given:
            name = word.partition("=")[0]
            if word == "--" or (self._has_actions() and not word.startswith("-")):
                return None  # what follows is another parser's, or no option
            if re.match("--[a-z]", name) and not any(
                one.startswith(name) for one in self._option_string_actions
            ):
                return name
        return None

    def _has_actions(self) -> bool:
        return any(isinstance(action, argparse._SubParsersAction) for action in self._actions)


class _VerbParser(_Parser):
    """The parser of one verb; imports the verb when the command line names it.

    Args:
        verb: module of `verbs` that adds the options; "" for a parser within a verb's own.
    """

    def __init__(self, *args: Any, verb: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verb = verb

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the verb's options, then parse as usual."""
        if self._verb:
            self._add_options(importlib.import_module(module_of(self._verb)))
            self._verb = ""
        return super().parse_known_args(args, namespace)

    def _add_options(self, verb: Any) -> None:
        self.epilog = "example:\n  " + verb.EXAMPLE.replace("\n", "\n  ")
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        if verb.execute.__annotations__["return"] is not None:
            add_output(self)
        verb.add_arguments(self)
        self.set_defaults(
            execute=verb.execute,
            status=getattr(verb, "status", _done),
            interrupted=getattr(verb, "INTERRUPTED", _NOTHING_LEFT),
        )


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="multigate",
        description="From user logs to a multi-task ranking service.",
    )
    parser.add_argument("--version", action="version", version=f"multigate {__version__}")
    # For a verb that another multigate process starts: end when that process ends.
    parser.add_argument("--caller", type=int, metavar="PID", help=argparse.SUPPRESS)
    choices = parser.add_subparsers(
        dest="verb", required=True, metavar="VERB", parser_class=_VerbParser
    )
    for name, line in VERBS.items():
        choices.add_parser(name, verb=name, help=line, description=line[0].upper() + line[1:] + ".")
    return parser
