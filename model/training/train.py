"""Training: examples to a checkpoint, with early stopping on the validation split.

The same seed gives the same weights, bit for bit on a CPU: initial weights, noise and dropout
derive their seeds from it, and the order of the rows is a function of seed and epoch.  Snapshots
hold all that the next step depends on, so that a training that was killed ends with those weights
too.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from multigate.configs.config import Config
from multigate.configs.errors import ModelError
from multigate.model.backend.data_parallel import connect
from multigate.model.backend.workers import Workers
from multigate.model.checkpoints import checkpoint
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Split
from multigate.model.data.feeds import make_feed
from multigate.model.training import snapshots, warm_start
from multigate.model.training.loop import Run
from multigate.model.training.workspace import Workspace

_VALIDATION_BATCH = 4096


def train(
    config: Config,
    examples: Path,
    out: Path,
    *,
    progress: bool = True,
    resume: bool = False,
    start_from: Path | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train a ranker and write its checkpoint, whole or not at all.

    Args:
        config: contract, model and training.
        examples: folder of examples.
        out: the checkpoint's folder; must not exist. See `model.checkpoints.checkpoint` for what
            it holds.
        progress: whether to show a bar, or lines, on stderr.
        resume: whether to continue a training of `out` that was killed or interrupted, where
            there is one.  Without it, one that is there is refused.
        start_from: checkpoint whose weights are the first ones, see `model.training.warm_start`.
        on_epoch: called with each epoch's entry of the history; what it raises ends the training.

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
    group = connect() if config.train.data_parallel else None
    writes = group is None or group.rank == 0
    with group or nullcontext(), Workspace(out, resume, writes) as work, _folder(work) as folder:
        frozen = checkpoint.create(folder, config, examples)
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
        workers = None
        if isinstance(group, Workers):
            ranker.workers = workers = group
        else:
            ranker.devices = group
        feed = make_feed(
            train_split, config.contract, statistics, options.batch_size, options, workers
        )
        run = Run(
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
            on_epoch=on_epoch,
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
