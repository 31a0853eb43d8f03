"""Training: examples to a checkpoint, with early stopping on the validation split.

The same seed gives the same weights, bit for bit on a CPU: initial weights, noise and dropout
derive their seeds from it, and the order of the rows is a function of seed and epoch.  Snapshots
hold all that the next step depends on, so a training that was killed and resumed ends with the same
weights too, whatever else the process has made (`model.backend.names`).
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TypedDict

from multigate.configs.config import Config
from multigate.configs.errors import ModelError
from multigate.configs.progress import bar
from multigate.model.backend import memory
from multigate.model.backend.data_parallel import connect
from multigate.model.backend.names import fresh_names
from multigate.model.backend.workers import Workers
from multigate.model.baselines import teacher
from multigate.model.checkpoints import checkpoint, history
from multigate.model.data import unknown_ids
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Split
from multigate.model.data.feeds import make_feed
from multigate.model.data.funnels import check_labels
from multigate.model.evaluation import factors as found_factors
from multigate.model.ranker.embedder import table_width
from multigate.model.ranker.tables import table_bytes
from multigate.model.ranker.wide import crosses_of
from multigate.model.training import admission, label_quantiles, snapshots, warm_start
from multigate.model.training.loop import OnEpoch, ResumePoint, TrainingLoop
from multigate.model.training.row_moments import Moments
from multigate.model.training.workspace import TEACHER, Workspace

_VALIDATION_BATCH = 4096
_SAMPLED_ROWS = 1 << 18  # of a split, to measure the share of unknown ids


class Trained(TypedDict):
    """What a training did.

    `rows` of the training split, `epochs` that were trained, `best_epoch` that was kept, its
    `val_loss` and its value (`monitored`) of what decided (`monitor`: quality, loss or a task's
    name), each task's own best epoch, `warnings` for the user, `seconds` of this call, `resumed`
    None if it began at the start, `started_from` None without a checkpoint to start from, `lines`
    what a straight line of the numbers saves of the squared error, of the tasks that have one, and
    `factors` what factors of pairs of features save of the validation loss, by task and pair.
    """

    checkpoint: str
    rows: int
    epochs: int
    best_epoch: int
    val_loss: float
    monitor: str
    monitored: float
    best_epochs: dict[str, int]
    warnings: list[str]
    seconds: float
    resumed: ResumePoint | None
    started_from: warm_start.Started | None
    lines: dict[str, float]
    factors: dict[str, dict[str, float]]


def train(
    config: Config,
    examples: Path,
    out: Path,
    *,
    progress: bool = True,
    resume: bool = False,
    start_from: Path | None = None,
    on_epoch: OnEpoch | None = None,
    teacher_scores: Path | None = None,
) -> Trained:
    """Train a ranker and write its checkpoint, whole or not at all.

    Args:
        config: contract, model and training.
        examples: folder of examples.
        out: the checkpoint's folder, which must not exist; `model.checkpoints.checkpoint` lists
            its files.
        progress: whether to show progress on stderr.
        resume: whether to continue an interrupted training of `out`, if there is one.  If False,
            an interrupted training is refused.
        start_from: checkpoint with the initial weights, see `model.training.warm_start`.
        on_epoch: called with each epoch's entry of the history; an exception from it ends the
            training.
        teacher_scores: file in which the scores of `train.teacher` stay for other trainings on
            these examples; None: they go when this training ends.

    Raises:
        DataError: the examples cannot be read, `out` exists or is being trained.
        ModelError: the examples were built with another contract, the loss is not finite or
            explodes, or the interrupted training had other settings or data.
    """
    started = time.perf_counter()
    group = connect() if config.train.data_parallel else None
    writes = group is None or group.rank == 0
    with (
        group or nullcontext(),
        fresh_names(),
        Workspace(out, resume, writes) as work,
        _folder(work) as folder,
        ExitStack() as reading,
    ):
        reading.enter_context(bar("read the examples"))
        frozen = checkpoint.create(folder, config, examples)
        work.identify(
            {
                "configuration": config.model_dump(mode="json"),
                # JSON objects are equal in any order, and rows of kernels are not.
                "order of features and tasks": [
                    [*config.contract.features],
                    [*config.contract.tasks],
                ],
                "data": frozen.data_fingerprint,
                "checkpoint to start from": _identity(start_from),
            }
        )
        label_quantiles.add(folder, examples, config.contract, start_from)
        admission.add(folder, examples, config.contract, start_from)
        encoder = Encoder.read(folder)
        _require_memory(config, encoder)
        options, statistics = config.train, encoder.statistics
        weight = config.row_weight
        taught = None
        if options.teacher is not None:
            kept = teacher_scores or work.root / TEACHER if writes else None
            taught = teacher.scores(examples, config.contract, options.teacher, kept, weight)
        train_split = Split(
            examples,
            "train",
            encoder,
            weight,
            recency=options.recency,
            requests=options.ranking is not None,
            taught=taught,
        )
        validation = Split(examples, "validation", encoder, weight)
        for split in ("train", "validation"):
            check_labels(examples, split, config.contract)
        # Every worker validates on the whole split: equal weights, equal decisions.
        held_out = make_feed(validation, config.contract, statistics, _VALIDATION_BATCH, options)
        dropped = unknown_ids.dropout_shares(
            config.contract,
            config.model,
            *(
                unknown_ids.unknown_shares(config.contract, rows.sample(_SAMPLED_ROWS).features)
                for rows in (held_out, train_split)
            ),
        )
        ranker = checkpoint.make_ranker(
            config.contract,
            config.model,
            encoder,
            options.seed,
            options.precision,
            dropped,
            options.ranking,
        )
        started_from = None
        moments: Moments = {}
        if start_from is not None:
            started_from = warm_start.start(
                ranker,
                encoder,
                start_from,
                restart_schedules=options.restart_schedules,
                folder=folder,
                moments=moments,
            )
        workers = None
        if isinstance(group, Workers):
            ranker.workers = workers = group
        else:
            ranker.devices = group
        feed = make_feed(
            train_split, config.contract, statistics, options.batch_size, options, workers
        )
        loop = TrainingLoop(
            ranker,
            config,
            statistics,
            feed,
            held_out,
            work,
            folder,
            progress and writes,
            started_from,
            on_epoch=on_epoch,
            moments=moments,
            taught=taught,
        )
        reading.close()
        epochs = loop.fit()
        factors: dict[str, dict[str, float]] = {}
        if config.model.factors is not None and writes:
            with bar("find factors"):
                factors = found_factors.add(folder, examples, config.model.factors)
            loop.display.end_factors(factors)
    best = history.kept(epochs)
    return {
        "checkpoint": str(out),
        "rows": train_split.rows,
        "epochs": len(epochs),
        "best_epoch": best["epoch"],
        "val_loss": best["val_loss"],
        "monitor": history.monitor(epochs),
        "monitored": history.monitored(best),
        "best_epochs": history.best_epochs(epochs),
        "warnings": loop.warnings,
        "seconds": time.perf_counter() - started,
        "resumed": loop.resumed,
        "started_from": started_from,
        "lines": best.get("lines", {}),
        "factors": factors,
    }


def _require_memory(config: Config, encoder: Encoder) -> None:
    """Refuse embedding tables that do not fit into memory.

    Raises:
        ModelError: they do not.
    """
    sizes = {}
    for owner, rows in checkpoint.table_rows(config.contract, encoder).items():
        width = table_width(config.contract, config.model, owner)
        sizes[owner] = (table_bytes(rows, width, config.train), f"{owner} {rows:,} x {width}")
    largest = sorted(sizes.values(), reverse=True)[:3]
    needed = sum(size for size, _ in sizes.values())
    if config.model.wide is not None:
        counts = checkpoint.wide_counts(config.contract, encoder)
        rows = sum(unknown + len(of_id) for unknown, of_id in counts.values())
        for one, other in crosses_of(config.contract, counts, config.model.wide).values():
            rows += 1 + len(counts[one][1]) * len(counts[other][1])
        needed += table_bytes(rows, len(config.contract.tasks), config.train)
    names = ", ".join(name for _, name in largest)
    memory.require(
        needed,
        f"embedding tables with the optimiser's state and a snapshot of both (largest: {names})",
        "choose a smaller model.embedding_dim, min_count or hash_buckets for fewer rows, "
        "train.moments: bfloat16, or a machine with more",
    )


@contextmanager
def _folder(work: Workspace) -> Iterator[Path]:
    """Folder in which the checkpoint is written; a temporary one for workers that do not write."""
    if work.writes:
        yield work.checkpoint
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _identity(start_from: Path | None) -> str | None:
    """Checksum of the weights to start from."""
    if start_from is None:
        return None
    try:
        return snapshots.checksum(start_from / checkpoint.WEIGHTS)
    except snapshots.DamagedError:
        raise ModelError(
            f"{start_from}: holds no {checkpoint.WEIGHTS}; expected a folder that `multigate "
            "train` wrote"
        ) from None
