"""Factors of pairs of features, found after a training in what its kept epoch leaves unexplained.

They see the rows of training once more, with the outputs that the kept epoch gives them, and the
true labels, also where a teacher taught.  Places are part of the outputs, on both splits: what a
place does is not for factors to explain.  Of a very large split some row groups stand for all.

Every two features may be a pair, of ids with a vocabulary and of numbers, which are cut into bins;
not numbers that the pipeline counts over time.  Which pairs have factors is decided on validation:

1. `newton.evidence` gives a z value for each pair and task.  A pair is wanted if for some task it
   is beyond what the largest of all of them exceeds by chance in one of five trainings; the pair of
   user and item, which is wanted most often, if it is beyond that of the tasks alone.  Two features
   of the user are no pair.
2. The tasks in which a wanted pair has a z value of 2 get its factors one pair after the other, the
   one with the largest value first, each of what the pairs before it leave, if those save enough
   (`newton.factorise`).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from multigate.configs.config import Config
from multigate.configs.contract import ID_HASH, PRESENT, Contract, Feature, NumberFeature
from multigate.configs.sections.model import Factors as FactorOptions
from multigate.model import backend
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Split, batches, targets
from multigate.model.ranker.factors.newton import Factorised, Rows, evidence, factorise
from multigate.model.ranker.factors.term import Factors, Pair, PairTables
from multigate.model.ranker.heads.location import Logistic, Squared
from multigate.model.ranker.wide import CROSSED, Counts

_FITTED_ROWS = 1 << 23
_JUDGED_ROWS = 1 << 17  # of each split, from which the evidence for a pair comes
_BATCH = 4096
_BINS = 16
_MOST_FEATURES = 32  # that pairs are made of, in the contract's order after user and item
_CHANCE = 0.2
_WANTED_ELSEWHERE = 2.0  # z value in another task of a wanted pair


class _Column(NamedTuple):
    """A feature's values among which factors tell.

    Attributes:
        first: code of the first known id; 0 of a number.
        size: known values; with a missing number, the last.
        edges: of a number's bins, (E,); none of an id.
        indicator: whether a missing number has a value of its own.
    """

    first: int
    size: int
    edges: np.ndarray
    indicator: bool = False


def add(folder: Path, examples: Path, options: FactorOptions) -> dict[str, dict[str, float]]:
    """Add factors to a checkpoint's weights, where they save loss on validation beyond chance.

    Args:
        folder: of the checkpoint, with the kept epoch's weights; it loses factors that it has.
        examples: that it was trained on.
        options: how many factors a value may have, and how many pairs a task.

    Returns:
        By task that has factors, for each pair (`age * topic`) the share of the validation loss
        that it saves beside those before it.

    Raises:
        DataError: the examples cannot be read.
    """
    ranker, encoder, config, _ = checkpoint.load(folder)
    contract, before, ranker.factors = config.contract, ranker.factors, None
    binary = {
        name: isinstance(ranker.heads[name], Logistic)
        for name, task in contract.tasks.items()
        if task.given is None and isinstance(ranker.heads[name], Logistic | Squared)
    }
    if not binary:
        return {}

    def outputs(encoded: Mapping[str, Any]) -> dict[str, Any]:
        return ranker.forward(encoded, training=False, positions=True).logits

    forward = outputs if backend.name() == "tensorflow" else ranker.jitted(outputs)
    counts = checkpoint.wide_counts(contract, encoder)
    names = _candidates(contract, counts)
    splits = [
        _read(config, examples, split, encoder, forward, names) for split in ("train", "validation")
    ]
    columns = _columns(contract, encoder, counts, names, splits[0].values)
    tasks = [
        _Task(name, t, binary[name], splits, columns)
        for t, name in enumerate(contract.tasks)
        if name in binary
    ]
    wanted = _wanted(tasks, _pairs(contract, columns), (contract.user, contract.item))
    for task in tasks:
        task.find(wanted.get(task.name, {}), options.width, options.pairs)
    tables = _tables(tasks, columns)
    if tables or before is not None:
        ranker.factors = Factors(tables, len(contract.tasks), name="factors") if tables else None
        path = folder / checkpoint.WEIGHTS
        weights.save(ranker, path, weights.read_moments(path))
    return {
        task.name: {CROSSED.join(pair): made.gain for pair, made in task.found.items()}
        for task in tasks
        if task.found
    }


class _Split(NamedTuple):
    """Rows of a split.

    Attributes:
        values: (N,) encoded, of the features that pairs may be made of.
        outputs: (N, T) of the kept epoch, on the scale of the loss.
        labels: (N, T) likewise; NaN where masked.
        weights: (N,).
        users: (N,) a number from 0 for each user, known or not, and each row without one.
    """

    values: dict[str, np.ndarray]
    outputs: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    users: np.ndarray


class _Task:
    """A task while its factors are looked for.

    Attributes:
        name: its name.
        place: among all tasks.
        found: its factors by pair.
    """

    def __init__(
        self,
        name: str,
        place: int,
        binary: bool,
        splits: Sequence[_Split],
        columns: Mapping[str, _Column],
    ) -> None:
        self.name, self.place, self._binary = name, place, binary
        self.found: dict[Pair, Factorised] = {}
        self._columns, self._splits = columns, splits
        self._known = [
            np.flatnonzero(~np.isnan(split.labels[:, place]) & (split.weights > 0))
            for split in splits
        ]
        self._outputs = [
            split.outputs[known, place] for split, known in zip(splits, self._known, strict=True)
        ]

    def rows(self, number: int, pair: Pair, step: int = 1) -> Rows:
        """The rows of training (0) or validation (1), or some of them, for a pair."""
        split, known = self._splits[number], self._known[number][::step]
        values = {
            name: split.values[name][known]
            for one in pair
            for name in (one, one + PRESENT)
            if name in split.values
        }
        first, second = (_places(values, one, self._columns[one]) for one in pair)
        return Rows(
            first,
            second,
            self._outputs[number][::step],
            split.labels[known, self.place],
            split.weights[known],
            split.users[known],
        )

    def evidence(self, pair: Pair) -> float:
        """See `newton.evidence`."""
        steps = [max(len(known) // _JUDGED_ROWS, 1) for known in self._known]
        some, judged = (self.rows(number, pair, steps[number]) for number in (0, 1))
        return evidence(some, judged, self._sizes(pair), self._binary)

    def find(self, wanted: Mapping[Pair, float], width: int, most: int) -> None:
        """Add the factors of wanted pairs, those with the largest z value first."""
        for pair in sorted(wanted, key=lambda pair: -wanted[pair]):
            fitted, judged = self.rows(0, pair), self.rows(1, pair)
            made = factorise(fitted, judged, self._sizes(pair), width, self._binary)
            if made is None:
                continue
            self.found[pair] = made
            for number, rows in enumerate((fitted, judged)):
                self._outputs[number] = self._outputs[number] + made.effect(rows)
            if len(self.found) == most:
                return

    def _sizes(self, pair: Pair) -> tuple[int, int]:
        return self._columns[pair[0]].size, self._columns[pair[1]].size


def _candidates(contract: Contract, counts: Counts) -> list[str]:
    """Features that pairs are made of, user and item first."""
    keys = [name for name in (contract.user, contract.item) if name in counts]
    computed = {
        name
        for name, feature in contract.features.items()
        if isinstance(feature, NumberFeature) and feature.counter is not None
    }
    others = [
        name
        for name, feature in contract.features.items()
        if name not in keys and (name in counts or isinstance(feature, NumberFeature))
        if name not in computed
    ]
    return [*keys, *others][:_MOST_FEATURES]


def _pairs(contract: Contract, columns: Mapping[str, _Column]) -> list[Pair]:
    """Pairs to judge: not two features of the user, which order no user's rows."""
    features = contract.features
    return [
        (one, other)
        for one, other in combinations(columns, 2)
        if {features[one].side, features[other].side} != {"user"}
    ]


def _columns(
    contract: Contract,
    encoder: Encoder,
    counts: Counts,
    names: Sequence[str],
    values: Mapping[str, np.ndarray],
) -> dict[str, _Column]:
    """How the values of each feature are told apart; without those of one value."""
    found = {}
    for name in names:
        feature = contract.features[name]
        none = np.zeros(0, np.float32)
        if name in counts:
            first, of_ids = counts[name]
            found[name] = _Column(first, len(of_ids), none)
        elif getattr(feature, "scale", None) == "buckets":
            found[name] = _Column(0, encoder.rows(name), none)
        else:
            indicator, known = _has_indicator(feature), values[name]
            edges = _edges(known[values[name + PRESENT] > 0] if indicator else known)
            if len(edges):
                found[name] = _Column(0, len(edges) + 1 + indicator, edges, indicator)
    return found


def _edges(values: np.ndarray) -> np.ndarray:
    """Edges of bins with about as many rows each, halfway between two values that occur."""
    known, counts = np.unique(values, return_counts=True)
    if len(known) > _BINS:
        shares = np.cumsum(counts)[:-1] / len(values)
        after = np.unique(np.searchsorted(shares, np.arange(1, _BINS) / _BINS))
    else:
        after = np.arange(len(known) - 1)
    after = after[after < len(known) - 1]
    return ((known[after].astype(np.float64) + known[after + 1]) / 2).astype(np.float32)


def _places(values: Mapping[str, np.ndarray], name: str, column: _Column) -> np.ndarray:
    """Places (N,) of a feature's values; below 0 where unknown."""
    if not len(column.edges):
        return values[name].astype(np.int64) - column.first
    found = np.searchsorted(column.edges, values[name], side="right")
    return (
        np.where(values[name + PRESENT] > 0, found, column.size - 1) if column.indicator else found
    )


def _wanted(
    tasks: Sequence[_Task], pairs: Sequence[Pair], keys: Pair
) -> dict[str, dict[Pair, float]]:
    """By task, the wanted pairs with the task's z value."""
    found: dict[str, dict[Pair, float]] = {}
    for pair in pairs:
        tests = len(tasks) if pair == keys else len(tasks) * len(pairs)
        values = {task.name: task.evidence(pair) for task in tasks}
        if max(values.values()) >= norm.isf(_CHANCE / tests):
            for name, value in values.items():
                if value >= _WANTED_ELSEWHERE:
                    found.setdefault(name, {})[pair] = value
    return found


def _tables(tasks: Sequence[_Task], columns: Mapping[str, _Column]) -> dict[Pair, PairTables]:
    """The factors that all tasks have, by pair and code."""
    found = {}
    for pair in dict.fromkeys(pair for task in tasks for pair in task.found):
        of_tasks = [task for task in tasks if pair in task.found]
        first, second = (
            np.concatenate([task.found[pair][side] for task in of_tasks], axis=1) for side in (0, 1)
        )
        one, other = (columns[name] for name in pair)
        found[pair] = PairTables(
            _by_code(first, one),
            _by_code(second, other),
            np.array([task.place for task in of_tasks], np.int32),
            one.edges,
            other.edges,
        )
    return found


def _has_indicator(feature: Feature) -> bool:
    """Whether the encoder says which values of a number in bins are missing."""
    number = isinstance(feature, NumberFeature) and feature.scale != "buckets"
    return number and feature.missing == "indicator"


def _by_code(known: np.ndarray, column: _Column) -> np.ndarray:
    """The table (R, K * F) of a feature's codes from that of its known values."""
    return np.pad(known, ((column.first, 0), (0, 0))).astype(np.float32)


def _read(
    config: Config,
    examples: Path,
    split: str,
    encoder: Encoder,
    forward: Callable[..., Any],
    names: Sequence[str],
) -> _Split:
    """A split with the values of some features."""
    contract, recency = config.contract, config.train.recency if split == "train" else None
    found = Split(examples, split, encoder, config.row_weight, recency=recency)
    indicators = [n + PRESENT for n in names if _has_indicator(contract.features[n])]
    names = [*names, *indicators]
    values: dict[str, list[np.ndarray]] = {name: [] for name in names}
    users, outputs, labels, weights = [], [], [], []
    for rows in found.read(found.spread(_FITTED_ROWS)):
        for name in names:
            values[name].append(rows.features[name])
        users.append(rows.features[contract.user + ID_HASH])
        labels.append(targets(rows, contract, encoder.statistics))
        for encoded, _ in batches(rows.features, labels[-1], _BATCH):
            logits = forward(encoded)
            outputs.append(np.stack([np.asarray(logits[task]) for task in contract.tasks], axis=1))
        ones = np.ones(len(rows), np.float32)
        weights.append(ones if rows.weights is None else rows.weights)
    hashes = np.concatenate(users)
    codes = np.unique(hashes, return_inverse=True)[1]
    nobody = hashes < 0
    codes[nobody] = codes.max() + 1 + np.arange(nobody.sum())
    return _Split(
        {name: np.concatenate(parts) for name, parts in values.items()},
        np.concatenate(outputs),
        np.concatenate(labels),
        np.concatenate(weights),
        codes,
    )
