"""What training shows: a bar where there is a terminal, one line an epoch everywhere."""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Display:
    """Shows training's progress on stderr, so that stdout is left to results.

    Args:
        shown: False shows nothing.
        epochs: that training takes at most.
        steps: of one epoch.
    """

    def __init__(self, shown: bool, epochs: int, steps: int) -> None:
        self._console = Console(file=sys.stderr, quiet=not shown, soft_wrap=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            console=self._console,
            transient=True,
            # Elsewhere, such as in a job's log, a bar is a stream of control characters.
            disable=not (shown and self._console.is_terminal),
        )
        self._epochs, self._steps = epochs, steps
        self._task = self._bar.add_task("", total=steps, loss=0.0)

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        """Print one line about something else than an epoch."""
        self._console.print(text, markup=False)

    def begin(self, epoch: int) -> None:
        """Start the bar of an epoch, counted from 1."""
        self._bar.reset(self._task, description=f"epoch {epoch}/{self._epochs}")

    def advance(self, step: int, loss: float) -> None:
        """Show that so many of the epoch's steps are done, and the mean loss so far."""
        # Keras counts several steps at once, beyond the end where the last ones are fewer.
        self._bar.update(self._task, completed=min(step, self._steps), loss=loss)

    def line(self, epoch: Mapping[str, Any], best: bool) -> None:
        """Print one line about a finished epoch, an entry of the history."""
        tasks = "  ".join(f"{name} {task['val_loss']:.4f}" for name, task in epoch["tasks"].items())
        self._console.print(
            f"epoch {epoch['epoch']}/{self._epochs}  loss {epoch['loss']:.4f}  "
            f"validation {epoch['val_loss']:.4f}{' (best)' if best else ''}  {tasks}  "
            f"experts {epoch['experts_per_row']:.2f}  {epoch['seconds']:.1f} s",
            markup=False,
        )
