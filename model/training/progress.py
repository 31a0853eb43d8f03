"""Progress of a training on stderr: a bar on a terminal, and one line per epoch everywhere."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from multigate.configs import progress
from multigate.model.checkpoints import history
from multigate.model.checkpoints.history import Epoch


class Display:
    """Shows progress on stderr; stdout is for results.

    Args:
        shown: False prints no line; whether the bar is drawn, the command decides.
        epochs: largest number of epochs.
        steps: of one epoch.
    """

    def __init__(self, shown: bool, epochs: int, steps: int) -> None:
        self._shown = shown
        self._epochs, self._steps = epochs, steps
        self._open = ExitStack()

    def __enter__(self) -> "Display":
        self._open.enter_context(progress.shown(self._shown))
        self.bar = self._open.enter_context(progress.bar("train", self._steps, "steps"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def note(self, text: str) -> None:
        """Print one line that is not about an epoch."""
        if self._shown and not progress.quiet():
            progress.console().print(text, markup=False)

    def warn(self, warnings: Sequence[str]) -> None:
        """Print warnings, a line each, with `--quiet` too."""
        for warning in warnings if self._shown else ():
            text = f"warning: {warning}"
            progress.console().print(text, style="bold yellow", markup=False)

    def begin_epoch(self, epoch: int) -> None:
        """Start the bar of an epoch, counted from 1."""
        self.bar.begin(f"epoch {epoch}/{self._epochs}")

    def advance(self, step: int, loss: float) -> None:
        """Show how many of the epoch's steps are done, and the mean loss so far."""
        # Keras counts several steps at once; the last count can exceed the number of steps.
        self.bar.show(min(step, self._steps), f"loss {loss:.4f}")

    def begin_validation(self) -> None:
        """Show that the epoch's steps are done."""
        self.bar.show(self._steps, "validation")

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
        self.note(f"epoch {epoch['epoch']}/{self._epochs}  {'  '.join(parts)}")

    def end(self, epochs: Sequence[Epoch], warnings: Sequence[str]) -> None:
        """Print which epoch was kept, each task's best epoch, and the warnings."""
        kept, name = history.kept(epochs), history.monitor(epochs)
        best = ", ".join(f"{task} {epoch}" for task, epoch in history.best_epochs(epochs).items())
        self.note(
            f"kept epoch {kept['epoch']} of {len(epochs)}: {name} {history.monitored(kept):.4f}; "
            f"best epochs of the tasks: {best}"
        )
        if lines := kept.get("lines"):
            each = ", ".join(f"{task} {saved:.0%}" for task, saved in lines.items())
            self.note(f"squared errors that straight lines of the numbers save: {each}")
        self.warn(warnings)

    def end_factors(self, gains: Mapping[str, Mapping[str, float]]) -> None:
        """Print what factors of pairs of features save, by task that has some."""
        if gains:
            each = ", ".join(
                f"{task} {saved:.1%} ({pair})"
                for task, pairs in gains.items()
                for pair, saved in pairs.items()
            )
            self.note(f"validation losses that factors of two features save: {each}")
