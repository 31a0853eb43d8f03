"""Progress of a training on stderr: a bar on a terminal, and one line per epoch everywhere."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from multigate.model.checkpoints.history import Epoch


class Display:
    """Shows progress on stderr; stdout is for results.

    Args:
        shown: False shows nothing.
        epochs: largest number of epochs.
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
            # In a job's log a bar would be a stream of control characters.
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
        """Print one line that is not about an epoch."""
        self._console.print(text, markup=False)

    def begin_epoch(self, epoch: int) -> None:
        """Start the bar of an epoch, counted from 1."""
        self._bar.reset(self._task, description=f"epoch {epoch}/{self._epochs}")

    def advance(self, step: int, loss: float) -> None:
        """Show how many of the epoch's steps are done, and the mean loss so far."""
        # Keras counts several steps at once; the last count can exceed the number of steps.
        self._bar.update(self._task, completed=min(step, self._steps), loss=loss)

    def end_epoch(self, epoch: Epoch, best: bool) -> None:
        """Print one line about a finished epoch."""
        tasks = "  ".join(f"{name} {task['val_loss']:.4f}" for name, task in epoch["tasks"].items())
        self._console.print(
            f"epoch {epoch['epoch']}/{self._epochs}  loss {epoch['loss']:.4f}  "
            f"validation {epoch['val_loss']:.4f}{' (best)' if best else ''}  {tasks}  "
            f"experts {epoch['experts_per_row']:.2f}  {epoch['seconds']:.1f} s",
            markup=False,
        )
