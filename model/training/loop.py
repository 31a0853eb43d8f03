"""The loop over epochs: steps, validation, snapshots, early stopping, the best epoch's weights."""

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from multigate.configs.config import Config
from multigate.configs.files import write_json
from multigate.configs.statistics import Statistics
from multigate.model import backend
from multigate.model.backend.peers import lost_peer
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.examples import Examples
from multigate.model.data.feeds import Feed
from multigate.model.ranker.ranker import Ranker
from multigate.model.training import epoch_record, guards, snapshots, state
from multigate.model.training.guards import Guard
from multigate.model.training.optimizers import make_optimizer
from multigate.model.training.progress import Display
from multigate.model.training.state import Place
from multigate.model.training.tensorboard import Logs
from multigate.model.training.workspace import Workspace

_STEPS_AT_ONCE = 16  # that TensorFlow runs before it returns to Python
_DIAGNOSED_ROWS = 16_384  # of the validation split, for the gates' diagnostics


class Run:
    """One training, from its start or from a snapshot to the best epoch's weights.

    The validation loss is the weighted sum over tasks of each task's mean over its rows, without
    dropout, noise and the gates' regularisation.  Gates that become sparse by training
    (DSelect-k, COMET) are measured in their hardened form, because that form is served: an epoch
    with better soft gates may be worse once they are hardened.  The position tower takes part:
    the labels were biased by position when they were logged, and early stopping without the
    tower would favour a model that has learnt the bias.

    Args:
        ranker: fresh.
        config: of the run.
        statistics: of the training split.
        feed: rows to train on.
        held_out: rows to stop by.
        work: where snapshots and the best weights go.
        folder: the checkpoint as far as it is.
        progress: whether to show it.
        warm: whether the ranker has the weights of a checkpoint.
        on_epoch: called with each epoch's entry of the history; what it raises ends the training.
    """

    def __init__(
        self,
        ranker: Ranker,
        config: Config,
        statistics: Statistics,
        feed: Feed,
        held_out: Feed,
        work: Workspace,
        folder: Path,
        progress: bool,
        warm: bool,
        on_epoch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.ranker, self.config, self.statistics = ranker, config, statistics
        self.feed, self.held_out, self.work, self.folder = feed, held_out, work, folder
        self.on_epoch = on_epoch
        several = _STEPS_AT_ONCE if backend.name() == "tensorflow" else 1
        ranker.compile(
            optimizer=make_optimizer(config.train, feed.steps, warm, ranker.workers),
            steps_per_execution=min(several, feed.steps),
        )
        ranker.optimizer.build(ranker.trainable_variables)
        ranker.validates_positions = True
        ranker.mixture.harden()
        self.place = Place()
        self.resumed: dict[str, int] | None = None
        self.metrics: list[np.ndarray] | None = None
        """The losses' running means of a snapshot, until the epoch goes on."""
        self.display = Display(progress, config.train.epochs, feed.steps)
        found = state.restore(work, ranker, self.display.note)
        if found is not None:
            self.place, self.metrics = found
            self.resumed = {"epoch": self.place.epoch, "step": self.place.step}
        if ranker.workers is not None:  # a snapshot holds worker 0's seeds
            ranker.workers.spread_noise(ranker)
        self.guard = Guard(config.train, self.place.measured)

    def fit(self) -> list[dict[str, Any]]:
        """Train until the validation loss stops falling; write the best epoch's weights.

        Returns:
            One entry per epoch: epoch (from 1), loss, val_loss, regularisation, tasks (name ->
            loss, val_loss), experts_per_row, gates (task -> diagnostics at inference), seconds
            (of training steps), rows_per_second.
        """
        options, place = self.config.train, self.place
        sample = self.held_out.sample(_DIAGNOSED_ROWS)
        logs = Logs(self.folder / checkpoint.LOGS)
        for epoch in place.history:
            epoch_record.log(logs, epoch)
        with self.display:
            while place.epoch <= options.epochs and not self._finished():
                epoch = self._epoch(sample)
                improved = epoch["val_loss"] < self._best_loss()
                place.history.append(epoch)
                if improved and self.work.writes:
                    path = self.work.best(place.epoch)
                    weights.save(self.ranker, path)
                    place.best = [path.name, snapshots.checksum(path)]
                epoch_record.log(logs, epoch)
                self.display.line(epoch, improved)
                if self.on_epoch is not None:
                    self.on_epoch(epoch)
                place.epoch, place.step, place.seconds = place.epoch + 1, 0, 0.0
                self.save()
        logs.close()
        if self.work.writes:
            write_json(self.folder / checkpoint.HISTORY, {"epochs": place.history})
            shutil.copyfile(self.work.root / place.best[0], self.folder / checkpoint.WEIGHTS)
        return place.history

    def save(self) -> None:
        """Take a snapshot."""
        if not self.work.writes:
            return
        self.place.measured = list(self.guard.measured)
        state.save(self.work, self.ranker, self.place)

    def _finished(self) -> bool:
        """Whether the validation loss has stopped falling."""
        epochs = self.place.history
        if not epochs:
            return False
        best = min(epochs, key=lambda epoch: epoch["val_loss"])["epoch"]
        return epochs[-1]["epoch"] - best >= self.config.train.patience

    def _best_loss(self) -> float:
        return min((epoch["val_loss"] for epoch in self.place.history), default=math.inf)

    def _epoch(self, sample: Examples) -> dict[str, Any]:
        """Run an epoch, or the rest of one: its entry of the history."""
        number, contract = self.place.epoch, self.config.contract
        self.display.begin(number)
        train_metrics = self._steps()
        val_metrics = self._guarded(
            self.held_out,
            lambda: self.ranker.evaluate(
                self.held_out.epoch(), steps=self.held_out.steps, verbose=0, return_dict=True
            ),
        )
        epoch = epoch_record.entry(number, contract, train_metrics, val_metrics) | {
            "seconds": self.place.seconds,
            "rows_per_second": self.feed.rows / self.place.seconds,
            **epoch_record.diagnose(self.ranker, contract, self.statistics, sample),
        }
        if not math.isfinite(epoch["val_loss"]):
            what = f"epoch {number}: the validation loss"
            raise guards.not_finite(what, self.config.train)
        return epoch

    def _steps(self) -> dict[str, float]:
        """Run what is left of an epoch's steps; the means of the losses over all of them."""
        skip = self.place.step
        self._guarded(
            self.feed,
            lambda: self.ranker.fit(
                self.feed.epoch(self.place.epoch, skip),
                steps_per_epoch=self.feed.steps - skip,
                epochs=1,
                verbose=0,
                shuffle=False,
                callbacks=[_Watch(self)],
            ),
        )
        return {name: float(value) for name, value in self.ranker.get_metrics_result().items()}

    def _guarded(self, feed: Feed, call: Any) -> Any:
        """Call Keras, and raise errors of ours where its own hide them."""
        try:
            return call()
        except KeyboardInterrupt:
            if snapshots.exist(self.work.root):
                self.display.note("interrupted: continue from the last snapshot with --resume")
            raise
        except Exception as error:
            if feed.failure is not None:
                raise feed.failure from None
            lost = lost_peer(error) if self.config.train.data_parallel else None
            if lost is not None:
                raise lost from error
            # The gates' own check, in the graph (see `backend.check_finite`).
            if "expected finite values" in str(error):
                what = f"epoch {self.place.epoch}: a gate's input or logit"
                raise guards.not_finite(what, self.config.train) from error
            raise


class _Watch(keras.callbacks.Callback):
    """Follows an epoch: shows the progress, guards the loss, takes snapshots."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.began = time.perf_counter()
        self.before = run.place.seconds
        self.first = run.place.step
        self.means: tuple[int, float] = (0, 0.0)
        """Steps and mean of the guarded loss at the last measurement."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Keras has just set them to zero.
        if self.run.metrics is not None and self.first:
            for variable, value in zip(
                self.run.ranker.metrics_variables, self.run.metrics, strict=True
            ):
                variable.assign(value)
            found = {k: float(v) for k, v in self.run.ranker.get_metrics_result().items()}
            self.means = (self.first, self._guarded_loss(found))
        self.run.metrics = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        run, place = self.run, self.run.place
        # Keras counts several steps at once, beyond the end where the last ones are fewer.
        step = min(self.first + batch + 1, run.feed.steps)
        found = {name: float(value) for name, value in (logs or {}).items()}
        where = f"epoch {place.epoch}, step {step}: the training loss"
        run.guard.check_finite(found["loss"], where)
        self._measure(step, found, where)
        run.display.advance(step, found["loss"])
        every = run.config.train.save_every
        due = step // every > place.step // every
        place.step, place.seconds = step, self.before + time.perf_counter() - self.began
        if due and step < run.feed.steps:  # the epoch's end takes its own
            if backend.name() == "jax":
                self.model.jax_state_sync()
            run.save()

    def _measure(self, step: int, found: dict[str, float], where: str) -> None:
        """Hand the guard the mean over the steps since it was last given one."""
        before, mean = self.means
        if step - before < Guard.STEPS:
            return
        total = self._guarded_loss(found)
        self.means = (step, total)
        self.run.guard.check((total * step - mean * before) / (step - before), where)

    def _guarded_loss(self, found: dict[str, float]) -> float:
        tasks = self.run.config.contract.tasks
        total = sum(task.weight * found[f"{name}_loss"] for name, task in tasks.items())
        return total + found["regularisation"]
