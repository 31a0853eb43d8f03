"""Progress of a training on stderr: a bar on a terminal, and one line per epoch everywhere."""

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from multigate.model.checkpoints import history
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
        """Print one line about a finished epoch: losses, monitor, the tasks' qualities."""
        monitor = history.monitor([epoch])
        parts = [f"loss {epoch['loss']:.4f}", f"validation {epoch['val_loss']:.4f}"]
        if monitor != "loss":
            parts.append(f"{monitor} {history.monitored(epoch):.4f}")
        parts[-1] += " (best)" if best else ""
        for name, task in epoch["tasks"].items():
            quality = task.get("val_quality")
            if name != monitor and quality is not None:
                parts.append(f"{name} {quality:.4f}")
        parts += [f"experts {epoch['experts_per_row']:.2f}", f"{epoch['seconds']:.1f} s"]
        self._console.print(
            f"epoch {epoch['epoch']}/{self._epochs}  {'  '.join(parts)}", markup=False
        )

    def end(self, epochs: Sequence[Epoch], warnings: Sequence[str]) -> None:
        """Print which epoch was kept, each task's best epoch, and the warnings."""
        kept, name = history.kept(epochs), history.monitor(epochs)
        best = ", ".join(f"{task} {epoch}" for task, epoch in history.best_epochs(epochs).items())
        self.note(
            f"kept epoch {kept['epoch']} of {len(epochs)}: {name} {history.monitored(kept):.4f}; "
            f"best epochs of the tasks: {best}"
        )
        for warning in warnings:
            self._console.print(f"warning: {warning}", style="bold yellow", markup=False)
