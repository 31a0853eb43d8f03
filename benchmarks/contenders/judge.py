"""Measures what the contenders of the bake-off have scored, on the rows of the test split."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.files import ExamplesFolder
from multigate.configs.statistics import Statistics
from multigate.model.baselines.table import unmatched
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation.against_baseline import (
    TRANSFORMED,
    WITHIN,
    measure_binary,
    measure_regression,
)
from multigate.model.evaluation.corrections import corrected
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.evaluation.measures.names import title
from multigate.model.evaluation.paired import RELATIVE, paired_difference

REPLICATES = 500
_MEAN = "mean of binary tasks"

Replicates = dict[tuple[str, str], np.ndarray]
"""By task and measure: its value on the rows, and on each resample of the users, (1 + R,)."""


class Judge:
    """The rows of one data set's test split, and what scores of them are worth.

    Args:
        examples: folder of examples.
        contract: of the examples.
    """

    def __init__(self, examples: Path, contract: Contract) -> None:
        self._examples, self._contract = examples, contract
        self.rows = rows = read_rows(examples, "test")
        self._resamples = Resamples(rows.codes(contract.user), REPLICATES)
        self._labels, self._lists = rows.labels(contract), rows.lists(contract)
        self._new = unmatched(contract, rows)
        self._parts: Replicates = {}  # the labels of the rows that a measure is of

    @cached_property
    def _calibration(self) -> tuple[Statistics, Rows]:
        statistics = Statistics.read(ExamplesFolder(self._examples).statistics)
        return statistics, read_rows(self._examples, "validation")

    def calibrated(self, scores: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Scores of the test split in own units, put right on validation as an export does.

        Every contender's alike: log losses and errors would else compare who is calibrated, and
        errors in own units of labels learnt on a logarithm who is near the mean and who near the
        median.

        Returns:
            By task, calibrated scores; and for the error in own units those of regression tasks
            corrected for the logarithm too (`export.smearing`), where that helps on validation.
        """
        with np.load(scores) as stored:
            validation, test = (
                {name: stored[f"{split}/{name}"] for name in self._contract.tasks}
                for split in ("validation", "test")
            )
        found = corrected(self._contract, *self._calibration, validation, test)
        return found.scores, found.means

    def replicates(self, scores: Path) -> Replicates:
        """Every measure of one training's scores."""
        served, means = self.calibrated(scores)
        found: Replicates = {}
        for t, (name, task) in enumerate(self._contract.tasks.items()):
            y = self._labels[:, t]
            if task.type == "binary":
                measured = measure_binary(self._resamples, y, served[name], self._lists, self._new)
            else:
                measured = measure_regression(self._resamples, task, y, means[name])
                on_scale = measure_regression(self._resamples, task, y, served[name])
                measured |= {m: one for m, one in on_scale.items() if m.endswith(TRANSFORMED)}
            for metric, (values, part) in measured.items():
                found[name, metric], self._parts[name, metric] = values, part
        return found

    def mean(self, seeds: Sequence[Replicates]) -> Replicates:
        """The mean over trainings of every measure, and over the binary tasks where several are."""
        found = {key: np.mean([one[key] for one in seeds], axis=0) for key in seeds[0]}
        for metric in ("auc", WITHIN):
            areas = [values for (_, one), values in found.items() if one == metric]
            if len(areas) > 1:
                found[_MEAN, metric] = np.mean(areas, axis=0)
                self._parts[_MEAN, metric] = np.zeros(len(self.rows))
        return found

    def compare(self, contenders: Mapping[str, Replicates], first: str) -> dict[str, Any]:
        """By task, measure and contender: its value, and that of `first` less it, paired."""
        compared: dict[str, Any] = {}
        for (name, metric), part in self._parts.items():
            entry = compared.setdefault(name, {}).setdefault(metric, {})
            for contender, found in contenders.items():
                values, other = found[name, metric], None
                if first in contenders and contender != first:
                    values, other = contenders[first][name, metric], values
                relative = metric in RELATIVE
                entry[contender] = paired_difference(self._resamples, part, values, other, relative)
        return compared


def markdown(found: dict[str, Any], by_hand: str) -> str:
    """The measures as a table; ▼ where the first is worse beyond chance, ▲ where it is better.

    Args:
        found: what `bakeoff.Bakeoff.measure` returned.
        by_hand: the contender whose settings no trials chose.
    """
    names = list(found["cost"])
    lines = [
        f"| {found['data']}, test | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    for task, metrics in found["tasks"].items():
        for metric, entry in metrics.items():
            cells = [_cell(entry[name], relative=metric in RELATIVE) for name in names]
            lines.append(f"| {task}, {title(metric)} | {' | '.join(cells)} |")
    for text, key in (
        ("seeds", "seeds"),
        ("trials on validation", "trials"),
        ("training, CPU s", "cpu_seconds"),
        ("100 rows, CPU ms", "call_cpu_ms"),
    ):
        values = [found["cost"][name][key] for name in names]
        cells = ["" if value is None else f"{value:.4g}" for value in values]
        if key == "trials" and by_hand in names:
            cells[names.index(by_hand)] = "by hand"
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(one: dict[str, Any], relative: bool) -> str:
    """A contender's value, and the interval of the difference where there is one."""
    own = one["candidate"] if one["production"] is None else one["production"]
    text, difference = f"{own['value']:.4f}", one["difference"]
    if difference is None or difference["low"] is None:
        return text
    factor, digits, unit = (100, 1, " %") if relative else (1, 4, "")
    low, high = (f"{factor * difference[end]:+.{digits}f}" for end in ("low", "high"))
    mark = {True: " ▲", False: " ▼", None: ""}[one["wins"]]
    return f"{text} ({low} to {high}{unit}{mark})"
