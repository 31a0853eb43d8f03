"""Estimates of the time and memory that the pipeline and a training take on this machine."""

import itertools
import os
from dataclasses import dataclass

import polars as pl

from multigate.configs import Config
from multigate.configs.contract import IdFeature, IdListFeature, NumberFeature, TextFeature
from multigate.configs.sections.features import VectorFeature

_GIB = 2**30
# As measured on Deskdrop on two cores (docs/results/init.md): 6 s of CPU time and 0.9 GiB for the
# pipeline; 135 s, 182 s of CPU time and 1.8 GiB for eight epochs with a teacher.  Other logs came
# within a factor of three.
_STAGES = 4.0  # CPU time of the whole pipeline, as a multiple of reading and labelling
_START, _TRAINING_START = 6.0, 12.0  # seconds before the work: imports of Beam, of TensorFlow
_PIPELINE_BASE, _TRAINING_BASE = 0.4, 1.5  # GiB of the libraries
_WORK = 10  # memory of a bucket at work, as a multiple of its size (`pipeline.bucket_mib`)
_FLOPS = 16e9  # per second and core, in the layers of a training
_STEP = 0.015  # seconds of a training step beside its arithmetic
_CELLS = 1e8  # per second and core, in boosted trees: rows times columns times trees
_TREES = 100  # of a fit of the teacher; early stopping decides
_SETTINGS = 6  # that the teacher tries in its first fold, and one in each other fold


@dataclass(frozen=True)
class Cost:
    """What a stage takes."""

    seconds: float
    gib: float
    how: str
    """How it is estimated."""


def pipeline_cost(config: Config, seconds: float, rows: int, log_rows: int) -> Cost:
    """Of `multigate examples`.

    Args:
        config: of the run.
        seconds: CPU time of reading and labelling the sample.
        rows: of the sample.
        log_rows: of the log.
    """
    cores = _cores()
    negatives = config.pipeline.negatives
    drawn = 1.0 if negatives is None else 1.0 + 0.3 * negatives.per_positive
    work = seconds / max(rows, 1) * log_rows * _STAGES * drawn / cores
    bucket = min(config.pipeline.bucket_mib * 2**20, 300 * log_rows)
    gib = _PIPELINE_BASE + cores * bucket * _WORK / _GIB
    how = (
        f"reading and labelling {rows} rows took {seconds:.2f} s of CPU time; the log has about "
        f"{log_rows} rows, all stages take some {_STAGES * drawn:.1f} times as much, on {cores} "
        "cores; memory: ten times a bucket for each core"
    )
    return Cost(_START + work, gib, how)


def training_cost(
    config: Config, features: pl.DataFrame, rows: int, labelled: dict[str, int]
) -> Cost:
    """Of `multigate train`: its teacher, if it has one, and all its epochs.

    Args:
        config: of the run.
        features: the sample's impressions, in which ids are counted.
        rows: of the training split.
        labelled: by task, rows of the training split that have its label.
    """
    model, train, cores = config.model, config.train, _cores()
    tasks = len(config.contract.tasks)
    inputs, slots, table = 0, 0, 0.0
    if model.wide is not None:
        table += tasks * model.wide.crosses
    for name, feature in config.contract.features.items():
        dim = model.embedding_dims.get(name, model.embedding_dim)
        if isinstance(feature, IdFeature | IdListFeature | TextFeature):
            length = getattr(feature, "max_length", 1)
            inputs, slots = inputs + dim, slots + length
            known = features[name].n_unique() if name in features.columns else 1
            if getattr(feature, "share", None) is None:
                table += dim * float(getattr(feature, "hash_buckets", None) or known)
            wide = model.wide is not None and config.contract.unknown_codes(name) is not None
            if wide and isinstance(feature, IdFeature):
                table += tasks * known
        elif isinstance(feature, VectorFeature):
            inputs, slots = inputs + (feature.project or feature.size), slots + feature.size
        elif isinstance(feature, NumberFeature):
            inputs, slots = inputs + (dim if feature.scale == "buckets" else 1), slots + 1
    experts = model.experts
    count = experts.count + experts.own * tasks
    widths = [inputs, *experts.units]
    kernels = count * sum(a * b for a, b in itertools.pairwise(widths))
    towers = [experts.units[-1], *model.towers.units, 1]
    kernels += tasks * sum(a * b for a, b in itertools.pairwise(towers))
    kernels += tasks * inputs * count
    flops = 6.0 * kernels * rows
    steps = -(-rows // train.batch_size)
    seconds = train.epochs * (flops / _FLOPS / cores + steps * _STEP)
    encoded = min(rows * slots * 4 / _GIB, train.memory)
    gib = _TRAINING_BASE + 2 * encoded + 3 * 4 * (table + kernels) / _GIB
    how = (
        f"{rows} rows, {train.epochs} epochs of {steps} steps; 6 operations per row and weight of "
        f"{kernels} dense weights at {_FLOPS / 1e9:.0f} G/s a core, and {_STEP * 1000:.0f} ms a "
        f"step; memory: the encoded rows twice, weights and tables ({table:.0f} numbers, ids as "
        "counted in the sample) three times"
    )
    if train.teacher is not None:
        # Trees learn each task on all folds but one; they read the split as a table of doubles.
        columns, folds = len(config.contract.features), train.teacher.folds
        taught = [n for n, task in config.contract.tasks.items() if train.teacher.teaches(task)]
        fits = (folds - 1 + _SETTINGS) * (1 - 1 / folds)
        cells = fits * columns * _TREES * sum(labelled.get(name, 0) for name in taught)
        seconds += cells / _CELLS / cores
        gib += 3 * 8 * rows * columns / _GIB
        how += (
            f"; before them the teacher: {folds - 1 + _SETTINGS} fits for each of {len(taught)} "
            f"tasks of {_TREES} trees over {columns} columns, {_CELLS / 1e6:.0f} M cells a second "
            "and core"
        )
    return Cost(_TRAINING_START + seconds, gib, how)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
