"""Training: examples to a checkpoint, with early stopping on the validation split.

The same seed gives the same weights, bit for bit on a CPU: initial weights, noise and dropout
derive their seeds from it, and the order of the rows is a function of seed and epoch.  Snapshots
hold all that the next step depends on, so that a training that was killed ends with those weights
too.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from configs.config import Config
from configs.errors import ModelError
from configs.files import write_json
from configs.statistics import Statistics
from model import backend, checkpoint, guards, history, snapshots, warm_start, weights
from model.data import Examples, Split
from model.data_parallel import Workers
from model.encoding import Encoder
from model.feeds import Feed, make_feed
from model.guards import Guard
from model.optimizers import make_optimizer
from model.progress import Display
from model.ranker import Ranker
from model.snapshots import Snapshot
from model.tensorboard import Logs
from model.workspace import Workspace

_STEPS_AT_ONCE = 16  # that TensorFlow runs before it returns to Python
_VALIDATION_BATCH = 4096
_DIAGNOSED_ROWS = 16_384  # of the validation split, for the gates' diagnostics


def train(
    config: Config,
    examples: Path,
    out: Path,
    *,
    progress: bool = True,
    resume: bool = False,
    start_from: Path | None = None,
) -> dict[str, Any]:
    """Train a ranker and write its checkpoint, whole or not at all.

    Args:
        config: contract, model and training.
        examples: folder of examples.
        out: the checkpoint's folder; must not exist. See `model.checkpoint` for what it holds.
        progress: whether to show a bar, or lines, on stderr.
        resume: whether to continue a training of `out` that was killed or interrupted, where
            there is one.  Without it, one that is there is refused.
        start_from: checkpoint whose weights are the first ones, see `model.warm_start`.

    Returns:
        checkpoint, rows, epochs (trained), best_epoch, val_loss (of the best epoch), seconds (of
        this call), resumed (the place from which it continued, None from the start), started_from
        (what `warm_start.start` returns; None without it).

    Raises:
        DataError: the examples cannot be read, `out` exists or is being trained.
        ModelError: the examples were built with another contract, the loss is not finite or
            explodes, or the interrupted training was another.
    """
    started = time.perf_counter()
    workers = Workers() if config.train.data_parallel else None
    writes = workers is None or workers.rank == 0
    with Workspace(out, resume, writes) as work, _folder(work) as folder:
        frozen = checkpoint.start(folder, config, examples)
        work.identify(
            {
                "configuration": config.model_dump(mode="json"),
                "data": frozen.data_fingerprint,
                "checkpoint to start from": _identity(start_from),
            }
        )
        encoder = Encoder.read(folder)
        train_split = Split(examples, "train", encoder, config.train.weight)
        validation = Split(examples, "validation", encoder, config.train.weight)
        options, statistics = config.train, encoder.statistics
        ranker = checkpoint.make_ranker(
            config.contract, config.model, encoder, options.seed, options.precision
        )
        started_from = None
        if start_from is not None:
            started_from = warm_start.start(
                ranker, encoder, start_from, restart_schedules=options.restart_schedules
            )
        ranker.workers = workers
        feed = make_feed(
            train_split, config.contract, statistics, options.batch_size, options, workers
        )
        run = _Run(
            ranker,
            config,
            statistics,
            feed,
            # All of it for every worker: they have the same weights, and decide alike.
            make_feed(validation, config.contract, statistics, _VALIDATION_BATCH, options),
            work,
            folder,
            progress and writes,
            warm=start_from is not None,
        )
        epochs = run.fit()
    best = min(epochs, key=lambda epoch: epoch["val_loss"])
    return {
        "checkpoint": str(out),
        "rows": train_split.rows,
        "epochs": len(epochs),
        "best_epoch": best["epoch"],
        "val_loss": best["val_loss"],
        "seconds": time.perf_counter() - started,
        "resumed": run.resumed,
        "started_from": started_from,
    }


@contextmanager
def _folder(work: Workspace) -> Iterator[Path]:
    """Where the checkpoint is put together; a worker that does not write throws its own away."""
    if work.writes:
        yield work.checkpoint
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _identity(start_from: Path | None) -> str | None:
    """Checksum of a checkpoint's weights."""
    if start_from is None:
        return None
    try:
        return snapshots.checksum(start_from / checkpoint.WEIGHTS)
    except snapshots.DamagedError:
        raise ModelError(
            f"{start_from}: holds no {checkpoint.WEIGHTS}; expected a folder that `multigate "
            "train` wrote"
        ) from None


@dataclass
class _Place:
    """Where a training is: what a snapshot holds besides the variables.

    Attributes:
        epoch: the current one, from 1.
        step: steps of it that are done.
        seconds: that they took.
        history: the epochs before it.
        measured: the guard's latest measurements.
        best: name and checksum of the best epoch's weights; empty before there are any.
    """

    epoch: int = 1
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    best: list[str] = field(default_factory=list)


class _Run:
    """One training, from its start or from a snapshot to the best epoch's weights.

    The validation loss is the weighted sum over tasks of each one's mean over its rows, without
    the gates' regularisation, dropout and noise.  The position tower takes part: labels were
    biased by position when they were logged, and a model that is stopped by how well it explains
    them without it would be one that has learnt the bias.

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
    ) -> None:
        self.ranker, self.config, self.statistics = ranker, config, statistics
        self.feed, self.held_out, self.work, self.folder = feed, held_out, work, folder
        several = _STEPS_AT_ONCE if backend.name() == "tensorflow" else 1
        ranker.compile(
            optimizer=make_optimizer(config.train, feed.steps, warm, ranker.workers),
            steps_per_execution=min(several, feed.steps),
        )
        ranker.optimizer.build(ranker.trainable_variables)
        ranker.validates_positions = True
        self.place = _Place()
        self.resumed: dict[str, int] | None = None
        self.metrics: list[np.ndarray] | None = None
        """The losses' running means of a snapshot, until the epoch goes on."""
        self.display = Display(progress, config.train.epochs, feed.steps)
        self._restore()
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
            history.log(logs, epoch)
        with self.display:
            while place.epoch <= options.epochs and not self._finished():
                epoch = self._epoch(sample)
                improved = epoch["val_loss"] < self._best_loss()
                place.history.append(epoch)
                if improved and self.work.writes:
                    path = self.work.best(place.epoch)
                    weights.save(self.ranker, path)
                    place.best = [path.name, snapshots.checksum(path)]
                history.log(logs, epoch)
                self.display.line(epoch, improved)
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
        arrays = [weights.to_numpy(variable) for variable in self._variables()]
        snapshots.save(self.work.root, Snapshot(arrays, asdict(self.place)))
        self.work.forget_best()

    def _variables(self) -> list[Any]:
        """Everything that changes from step to step; the losses' running means come last."""
        ranker = self.ranker
        return [*ranker.variables, *ranker.optimizer.variables, *ranker.metrics_variables]

    def _restore(self) -> None:
        """Continue from the newest snapshot that is whole, if there is one."""

        def check(snapshot: Snapshot) -> None:
            best = snapshot.meta["best"]
            if best and snapshots.checksum(self.work.root / best[0]) != best[1]:
                raise snapshots.DamagedError(f"{best[0]}: checksum differs")

        found, damaged = snapshots.latest(self.work.root, check)
        for path in damaged:
            self.display.note(f"{path.name} is damaged: continuing from before it")
        if found is None:
            return
        variables = self._variables()
        shapes = [tuple(variable.shape) for variable in variables]
        if shapes != [array.shape for array in found.arrays]:
            raise ModelError(
                f"{self.work.root}: the snapshot's variables are not this model's; remove the "
                "folder to start over"
            )
        means = len(self.ranker.metrics_variables)
        for variable, array in zip(variables[:-means], found.arrays, strict=False):
            variable.assign(array)
        self.metrics = found.arrays[-means:]
        self.place = _Place(**found.meta)
        self.resumed = {"epoch": self.place.epoch, "step": self.place.step}
        self.display.note(f"continuing at epoch {self.place.epoch}, step {self.place.step}")

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
        epoch = history.entry(number, contract, train_metrics, val_metrics) | {
            "seconds": self.place.seconds,
            "rows_per_second": self.feed.rows / self.place.seconds,
            **history.diagnose(self.ranker, contract, self.statistics, sample),
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
            # The gates' own check, in the graph (see `backend.check_finite`).
            if "expected finite values" in str(error):
                what = f"epoch {self.place.epoch}: a gate's input or logit"
                raise guards.not_finite(what, self.config.train) from error
            raise


class _Watch(keras.callbacks.Callback):
    """Follows an epoch: shows the progress, guards the loss, takes snapshots."""

    def __init__(self, run: _Run) -> None:
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
