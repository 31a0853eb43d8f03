"""Warm start: a new ranker gets the weights of a checkpoint of the same contract.

What is carried over, and how:

    id embeddings       one row per value, wherever the value is in the new vocabulary; a new value
                        keeps its initial row, a vanished one is dropped; the rows of missing and
                        unseen values are kept
    weights of pairs    one row per pair of values, wherever both are in the new vocabularies; 0 for
                        the others, and for features whose pairs had no weights before
    hashed id embeddings  all rows as they are: a hash needs no vocabulary, and the number of its
                        buckets is part of the schema; with `max_age` the rows of no recent id get
                        their initial weights (`model.training.admission`)
    all other weights   as they are, by name; the gates' step counters too, so that a converged gate
                        is not made soft again (unless its schedule is to start over)
    numbers             (x - mean) / std has a new mean and std.  With old = scale * new + shift, in
                        every first layer that reads the number its row of the kernel is multiplied
                        by scale, and row * shift is added to the bias, or to the row of the
                        number's indicator if missing values have one.  Before cross layers, which
                        multiply numbers, the number itself becomes scale * new + shift
    vectors             the same, place by place; where the vector is projected, its projection is
                         multiplied instead
    regression labels   the same, in the last layer of the towers, as the task's head says
    lines of numbers, factors  none: each training finds its own
    buckets of numbers  row by row: the n-th bucket is the n-th between the new quantiles

So known ids keep the scores that the checkpoint gives them without its lines and factors, until the
first step,
unless their features' pairs no longer fit into `model.wide.crosses`, which training warns of.  The
optimiser's moments start at zero, but those of the rows of features with `max_age` are carried over
too.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from multigate.configs.contract import (
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.errors import ModelError
from multigate.configs.sections.losses import Huber, Quantile, Squared
from multigate.configs.sections.model import ModelConfig
from multigate.configs.statistics import NumberStatistics, Statistics, VectorStatistics
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.data.vocabulary_index import VocabularyIndex
from multigate.model.gates.parts.schedule import ScheduledGate
from multigate.model.ranker.ranker import Ranker
from multigate.model.ranker.wide import CROSSED
from multigate.model.training import admission
from multigate.model.training.row_moments import Moments

_NOT_IN_SCHEMA = {"weight", "score_weight", "loss"}  # options of a task


class UnfitError(ModelError):
    """A checkpoint whose weights mean nothing to the model: another contract or architecture."""


class MovedValues(TypedDict):
    """How many values of a vocabulary were kept, are new and were dropped."""

    kept: int
    new: int
    dropped: int


class Started(TypedDict):
    """What a warm start did.

    Attributes:
        checkpoint: where the weights come from.
        tables: by feature.
        pairs_gone: pairs of values whose weights are lost because their features' pairs no longer
            fit into `model.wide.crosses`, by the features' names.
    """

    checkpoint: str
    tables: dict[str, MovedValues]
    pairs_gone: dict[str, int]


def start(
    ranker: Ranker,
    encoder: Encoder,
    source: Path,
    restart_schedules: bool = False,
    folder: Path | None = None,
    moments: Moments | None = None,
) -> Started:
    """Give a new ranker the weights of a checkpoint.

    Args:
        ranker: with tables for the new vocabularies.
        encoder: of the examples to train on.
        source: the checkpoint's folder.
        restart_schedules: set the gates' step counters to zero.
        folder: the new checkpoint, which says which hashed ids are recent; None keeps all.
        moments: gets the moments of Adam that are carried over, for `row_moments.assign`.

    Raises:
        UnfitError: the checkpoint is of another contract or architecture.
        ModelError: not a checkpoint, or a damaged one.
        DataError: its vocabularies or statistics are damaged.
    """
    config, frozen = checkpoint.read_config(source)
    ours, theirs = encoder.contract.schema_fingerprint(), frozen.schema_fingerprint
    if ours != theirs:
        raise UnfitError(
            f"{source}: has schema {theirs}, the configuration's contract has schema {ours}: "
            "features, labels or tasks differ, namely "
            f"{_differences(frozen.contract, encoder.contract)}; train without --from"
        )
    _check_order(source, frozen.contract, ranker.contract)
    _check_poolings(source, frozen.contract, ranker.contract)
    _check_losses(source, frozen.contract, ranker.contract)
    _check_functions(source, config.model, ranker.config)
    _check_gates(source, config.model, ranker)
    before = Encoder.read(source)
    path = source / checkpoint.WEIGHTS
    found = weights.read(path)
    named = weights.variables(ranker)
    carried = {} if moments is None else weights.read_moments(path)
    tables: dict[str, MovedValues] = {}
    if folder is not None:
        for name, changing in admission.features(encoder.contract).items():
            key = f"embeddings/{name}"
            if changing.hash_buckets is None or key not in found:
                continue
            gone = admission.evicted(folder, name, len(found[key]))
            fresh = weights.to_numpy(named[key])
            if fresh.shape == found[key].shape:
                found[key][gone] = fresh[gone]
            if key in carried:
                carried[key][gone] = 0
            dropped = int(gone.sum())
            tables[name] = {"kept": len(gone) - 1 - dropped, "new": 0, "dropped": dropped}
    for name, feature in encoder.contract.features.items():
        owner = encoder.contract.vocabulary_of(name)
        if owner not in encoder.vocabularies or not isinstance(feature, IdFeature | IdListFeature):
            continue
        old, new = before.vocabularies[owner], encoder.vocabularies[owner]
        offset = 1 + (encoder.contract.unknown_codes(name) or 0)
        for key in (f"embeddings/{name}", f"wide/{name}"):
            if key not in found or key not in named:
                continue
            fresh = weights.to_numpy(named[key])
            if found[key].shape[1:] != fresh.shape[1:]:
                continue  # `assign` refuses it by name
            found[key], moved = _move_rows(found[key], fresh, old, new, offset)
            if key in carried:
                zeros = np.zeros((len(fresh), carried[key].shape[1]), np.float32)
                carried[key], _ = _move_rows(carried[key], zeros, old, new, offset)
            tables.setdefault(name, moved)
    pairs_gone = _move_crosses(ranker, found, named, before, encoder)
    if moments is not None:
        moments.update(carried)
    found = {name: v for name, v in found.items() if not name.startswith(weights.FACTORS)}
    found = _with_fresh(found, named, "uncertainty/", weights.LINEAR)
    try:
        weights.assign(ranker, found, path)
    except ModelError as error:
        raise UnfitError(str(error)) from None
    _restandardise(ranker, before.statistics, encoder.statistics)
    if restart_schedules:
        for gate in ranker.mixture.gates:
            for layer in gate._flatten_layers():
                if isinstance(layer, ScheduledGate):
                    layer.step.assign(0)
    return {"checkpoint": str(source), "tables": tables, "pairs_gone": pairs_gone}


def _check_order(source: Path, before: Contract, now: Contract) -> None:
    """Refuse other places of the same names: weights are rows and columns in the contract's order.

    The schema does not depend on the order.
    """
    old, new = (
        {
            "features": [n for n in one.features if n != one.position],
            "tasks": list(one.tasks),
        }
        for one in (before, now)
    )
    for kind, names in old.items():
        if names != new[kind]:
            raise _other(f"{source}: order of {kind}", ", ".join(names), ", ".join(new[kind]))


def _check_poolings(source: Path, before: Contract, now: Contract) -> None:
    """Refuse a checkpoint that pools a list in another way: its weights would mean nothing."""
    for name, feature in now.features.items():
        if isinstance(feature, IdListFeature | TextFeature):
            old: Any = before.features[name]
            if old.pooling != feature.pooling:
                raise _other(
                    f"{source}: feature {name!r}",
                    f"pooling: {old.pooling}",
                    f"pooling: {feature.pooling}",
                )


def _check_losses(source: Path, before: Contract, now: Contract) -> None:
    """Refuse a checkpoint in which a tower's outputs mean something else."""
    for name, task in now.tasks.items():
        old, new = before.tasks[name].loss, task.loss
        one_output = all(
            loss is None or isinstance(loss, Squared | Huber | Quantile) for loss in (old, new)
        )
        if old != new and not one_output:
            said = ["squared" if loss is None else str(loss.kind) for loss in (old, new)]
            if said[0] == said[1]:
                said = [str(loss) for loss in (old, new)]
            raise _other(f"{source}: task {name!r}", f"loss: {said[0]}", f"loss: {said[1]}")


def _check_functions(source: Path, before: ModelConfig, now: ModelConfig) -> None:
    """Refuse what weights of the same shapes would mean something else under."""
    for name, old, new in (
        ("experts.activation", before.experts.activation, now.experts.activation),
        ("towers.activation", before.towers.activation, now.towers.activation),
        (
            "lists.attention.normalise",
            before.lists.attention.normalise,
            now.lists.attention.normalise,
        ),
        ("lists.length", before.lists.length, now.lists.length),  # `lists.match` has one column too
    ):
        if old != new:
            raise _other(f"{source}: model.{name}", str(old), str(new))


_ROUTES_BY = ("name", "num_selected", "salt", "estimator")
"""Options of a gate by which weights of the same shapes choose other experts, or weigh them in
another way.  Widths and temperatures may change, as they do along their schedules."""


def _check_gates(source: Path, before: ModelConfig, now: Ranker) -> None:
    """Refuse a gate that would route otherwise with the same weights."""

    def said(gate: Any, level: str = "") -> str:
        parts = [f"{level}{n}: {getattr(gate, n)}" for n in _ROUTES_BY if hasattr(gate, n)]
        levels = [n for n in ("primary", "secondary") if hasattr(gate, n)]
        return ", ".join([*parts, *(said(getattr(gate, n), f"{level}{n}.") for n in levels)])

    for name in now.gate_names:
        old, new = (said(one.gates.get(name, one.gate)) for one in (before, now.config))
        if old != new:
            raise _other(f"{source}: the gate of {name}", old, new)


def _other(where: str, expected: str, received: str) -> UnfitError:
    """The error for weights of the right shapes that would mean something else."""
    return UnfitError(
        f"{where}: expected {expected}, as the checkpoint was trained with, received {received}; "
        "train without --from"
    )


def _differences(before: Contract, now: Contract) -> str:
    """How two contracts differ, in words: `feature country (hash_buckets 7, now 8)`."""
    found = []
    old, new = (contract.model_dump(mode="json") for contract in (before, now))
    for kind in ("features", "tasks"):
        for name in {**old[kind], **new[kind]}:
            values = old[kind].get(name), new[kind].get(name)
            if None in values:
                found.append(f"{kind[:-1]} {name} ({'new' if values[0] is None else 'gone'})")
                continue
            keys = [key for key in {**values[0], **values[1]} if key not in _NOT_IN_SCHEMA]
            pairs = [(key, *(value.get(key) for value in values)) for key in keys]
            changes = [f"{key} {one}, now {other}" for key, one, other in pairs if one != other]
            if changes:
                found.append(f"{kind[:-1]} {name} ({'; '.join(changes)})")
    return ", ".join(found) or "user or item"


def _with_fresh(
    found: dict[str, np.ndarray], named: dict[str, Any], kept: str, remade: str
) -> dict[str, np.ndarray]:
    """The weights of a file, but for two kinds that a ranker may have or not, from night to night.

    Args:
        found: the weights of the file.
        named: the ranker's.
        kept: prefix of learnt task weights: those of the file, if and only if the ranker has them.
        remade: prefix of the linear term: the ranker's own.
    """
    fresh = {k: weights.to_numpy(v) for k, v in named.items() if k.startswith((kept, remade))}
    return fresh | {
        name: value
        for name, value in found.items()
        if not name.startswith(remade) and (not name.startswith(kept) or name in fresh)
    }


def _move_rows(
    old: np.ndarray, fresh: np.ndarray, before: pa.Array, after: pa.Array, offset: int
) -> tuple[np.ndarray, MovedValues]:
    """An embedding table for another vocabulary, out of the old one.

    Args:
        old: (offset + len(before), d).
        fresh: (offset + len(after), d) initial rows.
        before: the old vocabulary.
        after: the new one.
        offset: number of rows before the first value's row.
    """
    found = VocabularyIndex(before).find(after)
    kept = np.flatnonzero(found >= 0)
    table = fresh.copy()
    table[:offset] = old[:offset]
    table[offset + kept] = old[offset + found[kept]]
    counts: MovedValues = {
        "kept": len(kept),
        "new": len(after) - len(kept),
        "dropped": len(before) - len(kept),
    }
    return table, counts


def _move_crosses(
    ranker: Ranker,
    found: dict[str, np.ndarray],
    named: Mapping[str, Any],
    before: Encoder,
    now: Encoder,
) -> dict[str, int]:
    """Give the pairs of ids in the wide term their weights of a file, `found`, where both remain.

    Their features may have grown beyond `model.wide.crosses`, or shrunk below it: a weight that is
    new starts from 0, as if no row had had it, and one that is gone adds nothing. Moments of Adam
    are not carried over.

    Returns:
        How many pairs lost a weight because their features have grown, by the features' names.
    """
    gone: dict[str, int] = {}
    crosses = {} if ranker.wide is None else ranker.wide.crosses
    for key in [key for key in found if key.startswith("wide/") and CROSSED in key]:
        if key not in named:
            lost = int(found.pop(key)[1:].any(axis=1).sum())
            if lost and ranker.wide is not None:
                gone[key.removeprefix("wide/")] = lost
    for cross, features in crosses.items():
        key = f"wide/{cross}"
        fresh = weights.to_numpy(named[key])
        owners = [now.contract.vocabulary_of(name) for name in features]
        sizes = [[len(one.vocabularies[owner]) for owner in owners] for one in (before, now)]
        if key in found and found[key].shape != (1 + math.prod(sizes[0]), *fresh.shape[1:]):
            continue  # `assign` refuses it by name
        if key in found:
            old, new = (
                table[1:].reshape(*size, -1)
                for table, size in zip((found[key], fresh), sizes, strict=True)
            )
            places = [
                VocabularyIndex(before.vocabularies[owner]).find(now.vocabularies[owner])
                for owner in owners
            ]
            kept = [np.flatnonzero(place >= 0) for place in places]
            new[np.ix_(*kept)] = old[
                np.ix_(*(place[to] for place, to in zip(places, kept, strict=True)))
            ]
            fresh[1:] = new.reshape(len(fresh) - 1, -1)
        found[key] = fresh
    return gone


def _restandardise(ranker: Ranker, before: Statistics, after: Statistics) -> None:
    """Adapt the layers that read or make standardised numbers to the new means and deviations."""
    column = 0
    for name, width in ranker.embedder.widths.items():
        feature = ranker.embedder.features.get(name)
        if isinstance(feature, NumberFeature) and feature.scale == "standardise":
            _restandardise_input(ranker, name, column, before.features[name], after.features[name])
        if isinstance(feature, VectorFeature) and feature.scale == "standardise":
            _restandardise_input(ranker, name, column, before.vectors[name], after.vectors[name])
        column += width
    for t, (name, task) in enumerate(ranker.contract.tasks.items()):
        if task.type != "regression":
            continue
        old_label, new_label = before.tasks[name], after.tasks[name]
        scale = old_label.std / new_label.std
        shift = (old_label.mean - new_label.mean) / new_label.std
        head = ranker.towers[name].head
        a, b = ranker.heads[name].rescaled(scale, shift)  # (K,) each
        head.kernel.assign(weights.to_numpy(head.kernel) * a)
        head.bias.assign(weights.to_numpy(head.bias) * a + b)
        for table in ranker.wide.tables.values() if ranker.wide is not None else ():
            values = weights.to_numpy(table.embeddings)
            values[:, t] *= a[0]
            table.embeddings.assign(values)
        if ranker.position_tower is not None:
            effects = weights.to_numpy(ranker.position_tower.table.embeddings)
            effects[:, t] *= a[0]
            ranker.position_tower.table.embeddings.assign(effects)


def _restandardise_input(
    ranker: Ranker,
    name: str,
    column: int,
    old: NumberStatistics | VectorStatistics,
    new: NumberStatistics | VectorStatistics,
) -> None:
    """Adapt what reads a number or a vector to new means and deviations.

    Args:
        ranker: to change.
        name: of the feature.
        column: the first one of its part of the embedder's output.
        old: the checkpoint's statistics.
        new: those of the examples to train on.
    """
    embedder = ranker.embedder
    scale = np.atleast_1d(new.std) / np.atleast_1d(old.std)
    shift = (np.atleast_1d(new.mean) - np.atleast_1d(old.mean)) / np.atleast_1d(old.std)
    if (scale == 1).all() and (shift == 0).all():
        return
    if name in embedder.rescaled:
        before_scale, before_shift = weights.to_numpy(embedder.rescaled[name])
        embedder.rescaled[name].assign([before_scale * scale, before_scale * shift + before_shift])
        return
    projection = embedder.projections.get(name)
    if projection is not None:  # x @ P with x = scale * x' + shift
        values = weights.to_numpy(projection.kernel)
        projection.kernel.assign(values * scale[:, None])
        shift = shift @ values
        scale = np.ones(len(shift))
    width = len(shift)
    indicator = column + width if embedder.features[name].missing == "indicator" else None
    for kernel, bias in _input_maps(ranker):
        for place in range(width):
            _rescale(kernel, bias, column + place, indicator, scale[place], shift[place])


def _input_maps(ranker: Ranker) -> list[tuple[Any, Any]]:
    """Kernel (D, .), and bias (.,) or None, of every layer that reads the mixture's input."""
    layers = [expert.stack[0] for expert in ranker.mixture.experts]
    experts = [(layer.kernel, layer.bias) for layer in layers]
    return experts + [pair for gate in ranker.mixture.gates for pair in gate.linear_maps()]


def _rescale(
    kernel: Any, bias: Any, column: int, indicator: int | None, scale: float, shift: float
) -> None:
    """Keep x @ kernel + bias when column `column` of x becomes (column - shift) / scale.

    The shift goes to the row of the number's indicator, else to the bias; with neither it is lost.

    Args:
        kernel: variable (D, .).
        bias: variable (.,), or None.
        column: of the number.
        indicator: column that is 1 where the number is known, if there is one.
        scale: new standard deviation / old one.
        shift: (new mean - old mean) / old standard deviation.
    """
    values = weights.to_numpy(kernel)
    moved = values[column] * shift  # (.,)
    values[column] *= scale
    if indicator is not None:
        values[indicator] += moved
    elif bias is not None:
        bias.assign(weights.to_numpy(bias) + moved)
    kernel.assign(values)
