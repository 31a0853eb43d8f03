"""Progress of long work: bars on standard error, on a terminal only.

The command decides while a verb runs whether bars are drawn (`shown`). Where nobody has decided, as
in a library's call or in a worker of the pipeline's engine, a bar draws nothing and costs a
function call. rich draws them, and is imported with the first bar.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
P = ParamSpec("P")

_CLEAR = "\r\x1b[2K\x1b[?25h"  # an empty line, and the cursor that rich hides
_PER_SECOND = 4


class _Screen:
    """The terminal, with the bars that are under way."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        # Another descriptor: what imports TensorFlow sends the second one elsewhere for a while.
        self._file = os.fdopen(os.dup(2), "w", encoding="utf-8")
        self.console = Console(file=self._file, soft_wrap=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[text]}", markup=False),
            console=self.console,
            transient=True,
            refresh_per_second=_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file stays apart
        )
        self._lock = threading.Lock()
        self._bars = 0

    @property
    def drawn(self) -> bool:
        """Whether a bar stands on the terminal."""
        return self._bars > 0

    def add(self, what: str, total: int | None, unit: str) -> Any:
        """Draw a bar below the others."""
        with self._lock:
            if not self._bars:
                self._progress.start()
            self._bars += 1
        count = _count(0, total, unit)
        return self._progress.add_task(what, total=total, count=count, text="")

    def update(self, task: Any, at_once: bool, **values: Any) -> None:
        """Draw a bar anew, at once or with the next refresh."""
        self._progress.update(task, refresh=at_once, **values)

    def reset(self, task: Any, what: str, count: str) -> None:
        """Let a bar begin anew, its clock too, and draw it."""
        self._progress.reset(task, description=what, count=count, text="")
        self._progress.refresh()

    def remove(self, task: Any) -> None:
        """Remove a bar; the last one leaves an empty line."""
        self._progress.remove_task(task)
        with self._lock:
            self._bars -= 1
            if not self._bars:
                self._progress.stop()

    def close(self) -> None:
        """Leave an empty line, and the cursor as it was."""
        self._progress.stop()
        self._file.close()


_decided = False
_quiet = False
_screen: _Screen | None = None


@contextmanager
def shown(wanted: bool) -> Iterator[None]:
    """Decide for the block whether bars are drawn; an outer block's decision stands.

    Args:
        wanted: False draws nothing; True draws where standard error is a terminal.
    """
    global _decided, _quiet, _screen  # noqa: PLW0603
    if _decided:
        yield
        return
    _decided, _quiet = True, not wanted
    try:
        if wanted and os.environ.get("TERM") != "dumb" and _is_terminal():
            _screen = _Screen()
        yield
    finally:
        screen, _screen, _decided, _quiet = _screen, None, False, False
        if screen is not None:
            screen.close()


def quiet() -> bool:
    """Whether it was decided that no progress is shown."""
    return _quiet


def _is_terminal() -> bool:
    """Whether standard error is a terminal, also where a test or a notebook replaces it."""
    with suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty() and os.isatty(2)
    return False


def console() -> "Console":
    """Where lines on standard error go: above the bars, if there are some."""
    from rich.console import Console

    if _screen is not None:
        return _screen.console
    return Console(file=sys.stderr, soft_wrap=True, highlight=False)


def clear() -> None:
    """Leave an empty line before the process ends at once."""
    if _screen is not None and _screen.drawn:
        os.write(2, _CLEAR.encode())


class Bar:
    """One bar; without a terminal it only counts.

    Attributes:
        completed: how much is done.
        total: how much there is to do; None where that is not known.
    """

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self.completed, self.total, self._unit = 0, total, unit
        self._started = False
        self._screen = _screen
        self._task = None if self._screen is None else self._screen.add(what, total, unit)

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        self.show(self.completed + count)

    def begin(self, what: str) -> None:
        """Begin anew with something else of the same size."""
        self.completed = 0
        if self._screen is not None:
            self._screen.reset(self._task, what, _count(0, self.total, self._unit))

    def show(
        self,
        completed: int,
        text: str | None = None,
        what: str | None = None,
        at_once: bool = False,
    ) -> None:
        """Say how much is done.

        Args:
            completed: so much.
            text: stands behind the bar; None leaves what stands there.
            what: stands before it, likewise.
            at_once: draw it now, not with the next refresh: for what is short and must be seen.
        """
        self.completed = completed
        if self._screen is None:
            return
        values = {"text": text, "description": what}
        count = _count(completed, self.total, self._unit)
        given = {name: value for name, value in values.items() if value is not None}
        self._screen.update(self._task, at_once, completed=completed, count=count, **given)

    def step(self, text: str) -> None:
        """Begin the next of `total` steps; the one before it is done. Each is seen."""
        self.show(self.completed + self._started, text, at_once=True)
        self._started = True

    def remove(self) -> None:
        """Remove the bar."""
        if self._screen is not None:
            self._screen.remove(self._task)
            self._screen = None


@contextmanager
def bar(what: str, total: int | None = None, unit: str = "") -> Iterator[Bar]:
    """Show a bar while the block runs.

    Args:
        what: is done.
        total: how much there is to do; None where that is not known.
        unit: that is counted.
    """
    made = Bar(what, total, unit)
    try:
        yield made
    finally:
        made.remove()


def track(items: Iterable[T], what: str, total: int | None = None, unit: str = "") -> Iterator[T]:
    """The items, with a bar that counts them."""
    with bar(what, total, unit) as made:
        for item in items:
            yield item
            made.advance()


_steps: list[Bar] = []
"""The bars of the functions that say their steps, the innermost last."""


def stepwise(what: str, total: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: a bar while the function runs, which says with `step` where it is.

    Args:
        what: the function does.
        total: how many times it calls `step`.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with bar(what, total) as made:
                _steps.append(made)
                try:
                    return function(*args, **kwargs)
                finally:
                    _steps.remove(made)

        return run

    return decorate


def step(text: str) -> None:
    """Begin the next step of the innermost function that says its steps."""
    if _steps:
        _steps[-1].step(text)


def _count(completed: int, total: int | None, unit: str) -> str:
    of = "" if total is None else f"/{total:,}"
    return f"{completed:,}{of} {unit}".rstrip()
