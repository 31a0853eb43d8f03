"""The loop over epochs: steps, validation, snapshots, early stopping, the best epoch's weights.

Keras's `EarlyStopping` and `ModelCheckpoint` were considered: they cannot continue in the middle
of an epoch, and their own state would have to be put into the snapshots.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import keras
import numpy as np

from multigate.configs.config import Config
from multigate.configs.errors import ModelError
from multigate.configs.files import write_json
from multigate.configs.sections.model import MONITORS
from multigate.configs.statistics import Statistics
from multigate.model import backend
from multigate.model.backend.peers import lost_peer
from multigate.model.checkpoints import checkpoint, history, weights
from multigate.model.checkpoints.history import Epoch, Teaching
from multigate.model.data.examples import Examples, Lesson, Taught
from multigate.model.data.feeds import Feed
from multigate.model.optimizer.optimizers import averaged, make_optimizer
from multigate.model.ranker.ranker import Ranker
from multigate.model.training import advice, epoch_record, guards, row_moments, snapshots
from multigate.model.training.guards import Guard
from multigate.model.training.lines import Lines
from multigate.model.training.progress import Display
from multigate.model.training.state import TrainingState, restore, save
from multigate.model.training.tensorboard import Logs
from multigate.model.training.validation import (
    FEWEST,
    Validated,
    make_forward,
    teacher_qualities,
    validate,
)
from multigate.model.training.warm_start import Started
from multigate.model.training.workspace import Workspace

_DIAGNOSED_ROWS = 16_384  # of the validation split, for the gates' diagnostics

OnEpoch = Callable[[Epoch], None]


class ResumePoint(TypedDict):
    """Where an interrupted training continued: in this epoch, after this many of its steps."""

    epoch: int
    step: int


class TrainingLoop:
    """One training, from its start or from a snapshot to the best epoch's weights.

    `train.monitor` decides which epoch is the best (`model.training.validation`).  Validation, the
    gates' diagnostics and the kept weights are those of the averaged weights, if `train.ema` is on.

    The validation loss is the weighted sum over tasks of each task's mean over its rows, without
    dropout, noise and the gates' regularisation.  Gates that become sparse by training
    (DSelect-k, COMET) are measured in their hardened form, because that form is served: an epoch
    with better soft gates may be worse once they are hardened.  The position tower takes part:
    the labels were biased by position when they were logged, and early stopping without the
    tower would favour a model that has learnt the bias.

    Args:
        ranker: not compiled yet.
        config: of the training.
        statistics: of the training split.
        feed: training rows.
        held_out: validation rows.
        work: folder of snapshots and of the best weights.
        folder: the checkpoint as far as it is written.
        progress: whether to show progress on stderr.
        warm: whether the ranker has the weights of a checkpoint.
        on_epoch: called with each epoch's entry of the history; an exception from it ends the
            training.
        moments: of Adam, from the checkpoint that the ranker's weights are of.
        taught: what a teacher says of both splits; None without one.
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
        started_from: Started | None,
        on_epoch: OnEpoch | None = None,
        moments: Mapping[str, np.ndarray] | None = None,
        taught: Taught | None = None,
    ) -> None:
        self.ranker, self.config, self.statistics = ranker, config, statistics
        self.feed, self.held_out, self.work, self.folder = feed, held_out, work, folder
        self.on_epoch = on_epoch
        shared = backend.name() == "jax" and config.train.data_parallel
        at_once = 1 if shared else backend.steps_at_once()
        ranker.compile(
            optimizer=make_optimizer(
                config.train, feed.steps, started_from is not None, ranker.workers, ranker
            ),
            steps_per_execution=min(at_once, feed.steps),
        )
        ranker.optimizer.build(ranker.trainable_variables)
        if moments:
            row_moments.assign(ranker, moments)
        ranker.validates_positions = True
        ranker.mixture.harden()
        self.forward = make_forward(ranker)
        self.taught = taught
        self.of_teacher: dict[str, float] = {}
        """Qualities of the teacher on validation, by task; none where they decide nothing."""
        options = config.train.teacher
        if taught is not None and options is not None and options.while_ahead:
            self.of_teacher = teacher_qualities(taught, held_out, config.contract, statistics)
        self.started_from = started_from
        self.warnings: list[str] = []
        """What the user must know of the finished training."""
        self.state = TrainingState()
        self.resumed: ResumePoint | None = None
        self.metrics: list[np.ndarray] | None = None
        """Running means of the losses from a snapshot, until its epoch continues."""
        self.display = Display(progress, config.train.epochs, feed.steps)
        found = restore(work, ranker, self.display.note)
        if found is not None:
            self.state, self.metrics = found
            self.resumed = {"epoch": self.state.epoch, "step": self.state.step}
        if ranker.workers is not None:  # a snapshot holds worker 0's seeds
            ranker.workers.spread_noise(ranker)
        self.lines = None
        if ranker.linear is not None:
            fitted = self.resumed is not None
            self.lines = Lines(ranker, feed, held_out, statistics, fitted)
        self.guard = Guard(config.train, self.state.measured)

    def fit(self) -> list[Epoch]:
        """Train until the monitor stops improving; write the best epoch's weights.

        Returns:
            The history.
        """
        options, state = self.config.train, self.state
        sample = self.held_out.sample(_DIAGNOSED_ROWS)
        logs = Logs(self.folder / checkpoint.LOGS)
        for epoch in state.history:
            epoch_record.log_epoch(logs, epoch)
        with self.display:
            self.display.warn(advice.beforehand(self.config))
            if options.monitor not in MONITORS and not state.history:
                self._monitor(self._validate())
            while state.epoch <= options.epochs and not self._stopped_improving():
                epoch = self._epoch(sample)
                epoch_record.log_epoch(logs, epoch)
                self.display.end_epoch(epoch, history.kept(state.history) is epoch)
                if self.on_epoch is not None:
                    self.on_epoch(epoch)
                state.epoch, state.step, state.seconds = state.epoch + 1, 0, 0.0
                self.save()
            crosses = {} if self.ranker.wide is None else self.ranker.wide.crosses
            self.warnings = advice.warnings(state.history, self.config, self.started_from, crosses)
            self.display.end(state.history, self.warnings)
        if self.work.writes:
            written = {"epochs": state.history, "warnings": self.warnings}
            write_json(self.folder / checkpoint.HISTORY, written)
            shutil.copyfile(self.work.root / state.best[0], self.folder / checkpoint.WEIGHTS)
        return state.history

    def save(self) -> None:
        """Take a snapshot."""
        if not self.work.writes:
            return
        self.state.measured = list(self.guard.measured)
        save(self.work, self.ranker, self.state)

    def _stopped_improving(self) -> bool:
        """Whether `patience` epochs have passed since the best value of the monitor."""
        epochs = self.state.history
        if not epochs:
            return False
        return epochs[-1]["epoch"] - history.kept(epochs)["epoch"] >= self.config.train.patience

    def _epoch(self, sample: Examples) -> Epoch:
        """Run an epoch, or what is left of it; add it to the history; keep the weights if best."""
        number, state = self.state.epoch, self.state
        self.display.begin_epoch(number)
        lessons = self._lessons()
        if self.taught is not None:
            self.feed.teach(lessons)
        train_metrics = self._steps()
        self.display.begin_validation()
        ranker = self.ranker
        with averaged(ranker.optimizer, ranker.trainable_variables):
            found = self._call_keras(self.held_out, self._validate)
            losses = epoch_record.losses(
                number, ranker.task_weights, train_metrics, found, self._monitor(found)
            )
            if not math.isfinite(losses["val_loss"]):
                what = f"epoch {number}: the validation loss"
                raise guards.not_finite(what, self.config.train)
            teaching: Teaching = {}
            if self.taught is not None:
                teaching = {"taught": [*lessons]} | self._compared([*lessons], found)
            epoch: Epoch = {
                **losses,
                **teaching,
                "seconds": state.seconds,
                "rows_per_second": self.feed.rows / state.seconds,
                "lines": {},
                **epoch_record.diagnose(ranker, self.config.contract, self.statistics, sample),
            }
            state.history.append(epoch)
            if self._lessons() != lessons:
                self.guard.forget()  # a loss of other targets is another one
            best = history.kept(state.history) is epoch
            if best and self.lines is not None:
                epoch["lines"] = self.lines.blend(found)
            if best and self.work.writes:
                path = self.work.best(number)
                weights.save(ranker, path, row_moments.read(ranker))
                state.best = [path.name, snapshots.checksum(path)]
        return epoch

    def _validate(self) -> Validated:
        return validate(self.forward, self.held_out, self.config.contract, self.ranker.heads)

    def _lessons(self) -> dict[str, Lesson]:
        """How the teacher teaches the tasks that it teaches in the coming epoch."""
        if self.taught is None:
            return {}
        known = ~np.isnan(self.taught.scores).all(axis=0)
        past = self.state.history
        outgrown = {task for epoch in past for task in epoch.get("outgrown", ())}
        passed = past[-1].get("passed", ()) if past else ()
        names = [
            task
            for task, knows in zip(self.config.contract.tasks, known, strict=True)
            if knows and task not in outgrown
        ]
        share = self.taught.share
        return {task: Lesson(share, task not in passed) for task in names}

    def _compared(self, taught: Sequence[str], found: Validated) -> Teaching:
        """Tasks of those taught in which the ranker is ahead of its teacher now.

        `outgrown` are those in which it is ahead by more than the standard error of its own
        quality: where both are level the teacher still helps, and which of them is ahead is
        chance.  In those that it has `passed` by however little, rows without a label teach no
        more: they have nothing but the teacher's score.

        Args:
            taught: tasks.
            found: what validation found, with the position tower: the trees know places, too.
        """
        names = [task for task in taught if task in self.of_teacher]
        compared: Teaching = {"outgrown": [], "passed": []}
        for task in names:
            value, error = found.qualities[task]
            if value is not None and value > self.of_teacher[task]:
                compared["passed"].append(task)
                if error is not None and value - error > self.of_teacher[task]:
                    compared["outgrown"].append(task)
        return compared

    def _monitor(self, found: Validated) -> str:
        """What decides which epoch is kept; the loss where no task's quality can be measured.

        Raises:
            ModelError: the configuration names a task that the split cannot measure.
        """
        name = self.config.train.monitor
        if name == "loss":
            return name
        if name == "quality":
            return name if found.quality is not None else "loss"
        if found.qualities[name].value is None:
            raise ModelError(
                f"train.monitor: {name} cannot be measured, it has fewer than {FEWEST} validation "
                "labels of each class or labels that are all alike; choose quality, loss or "
                "another task"
            )
        return name

    def _steps(self) -> dict[str, float]:
        """Run the epoch's remaining steps; return the means of the losses over all its steps."""
        skip = self.state.step
        self._call_keras(
            self.feed,
            lambda: self.ranker.fit(
                self.feed.epoch(self.state.epoch, skip),
                steps_per_epoch=self.feed.steps - skip,
                epochs=1,
                verbose=0,
                shuffle=False,
                callbacks=[_StepCallback(self)],
            ),
        )
        return {name: float(value) for name, value in self.ranker.get_metrics_result().items()}

    def _call_keras(self, feed: Feed, call: Any) -> Any:
        """Call Keras; raise our own error where Keras's error hides the cause."""
        try:
            return call()
        except Exception as error:
            if feed.failure is not None:
                raise feed.failure from None
            lost = lost_peer(error) if self.config.train.data_parallel else None
            if lost is not None:
                raise lost from error
            # The gates' own check, in the graph (see `backend.check_finite`).
            if "expected finite values" in str(error):
                what = f"epoch {self.state.epoch}: a gate's input or logit"
                raise guards.not_finite(what, self.config.train) from error
            raise


class _StepCallback(keras.callbacks.Callback):
    """Follows the steps of an epoch: shows progress, guards the loss, takes snapshots."""

    def __init__(self, loop: TrainingLoop) -> None:
        super().__init__()
        self.loop = loop
        self.began = time.perf_counter()
        self.before = loop.state.seconds
        self.first = loop.state.step
        self.measured: tuple[int, float] = (0, 0.0)
        """Step of the last measurement, and the mean of the guarded loss up to it."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Keras has just reset them.
        if self.loop.metrics is not None and self.first:
            for variable, value in zip(
                self.loop.ranker.metrics_variables, self.loop.metrics, strict=True
            ):
                variable.assign(value)
            found = {k: float(v) for k, v in self.loop.ranker.get_metrics_result().items()}
            self.measured = (self.first, found["guarded"])
        self.loop.metrics = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loop, state = self.loop, self.loop.state
        # Keras counts several steps at once; the last count can exceed the number of steps.
        step = min(self.first + batch + 1, loop.feed.steps)
        found = {name: float(value) for name, value in (logs or {}).items()}
        where = f"epoch {state.epoch}, step {step}: the training loss"
        loop.guard.check_finite(found["loss"], where)
        self._measure(step, found, where)
        loop.display.advance(step, found["loss"])
        every = loop.config.train.save_every
        due = step // every > state.step // every
        state.step, state.seconds = step, self.before + time.perf_counter() - self.began
        if due and step < loop.feed.steps:  # `fit` takes one at the end of the epoch
            if backend.name() == "jax":
                self.model.jax_state_sync()
            loop.save()

    def _measure(self, step: int, found: dict[str, float], where: str) -> None:
        """Give the guard the mean loss of the steps since the last measurement."""
        before, mean = self.measured
        if step - before < Guard.STEPS:
            return
        total = found["guarded"]
        self.measured = (step, total)
        self.loop.guard.check((total * step - mean * before) / (step - before), where)
