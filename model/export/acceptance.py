"""What hardening the gates and rounding the weights may cost, judged on the validation split.

Test rows decide nothing here, so that the test metrics of a version are not selected on the rows
that they are measured on.  A point alone decides nothing either: the AUC of a rare task moves by
0.017 by chance.  Each metric is measured before and after on the same rows and the same resamples
of the users; the version is refused only where the whole 95 % interval of the difference lies
beyond the tolerance.  Where there are too few users for an interval, the loss is reported and
nothing is refused.
"""

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.errors import ExportError
from multigate.configs.files import LABEL
from multigate.configs.sections.model import ExportConfig
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Examples, encode
from multigate.model.data.rows import read_rows
from multigate.model.evaluation.evaluate import LOWER_IS_BETTER, Predictions
from multigate.model.evaluation.measures import tasks
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.export.frozen import weights as frozen_weights
from multigate.model.ranker.ranker import Ranker

_ROUNDING = 1e-6  # change of a measure that another order of sums can make

log = logging.getLogger(__name__)

_MOST_ROWS = 32_768
"""Rows that are judged, evenly spread: 500 resamples of more take longer than they tell."""


class LogLossChange(TypedDict):
    """Log loss of a binary task; `rise` is relative, `low` and `high` are its 95 % interval."""

    before: float
    after: float
    rise: float
    low: float | None
    high: float | None


class Change(TypedDict):
    """What a change of the model did to one task, on validation rows.

    `loss` is the fall of AUC or the relative rise of RMSE; `low` and `high` are its 95 % interval,
    None where there are too few users.
    """

    metric: str
    before: float
    after: float
    loss: float
    low: float | None
    high: float | None
    rows: int
    log_loss: NotRequired[LogLossChange]


Changes = dict[str, Change]
"""By task; tasks that did not change are left out."""

Measured = Mapping[str, tasks.Replicates]
"""By task: each measure on the sample and on its resamples."""


class Rule(NamedTuple):
    """What may change, and by how much.

    Attributes:
        what: the step that changes the model, in words.
        option: name of the tolerance in `export`.
        tolerance: largest fall of AUC, or relative rise of RMSE.
        log_loss_tolerance: largest relative rise of a binary task's log loss.
        advice: what to do where it is exceeded.
    """

    what: str
    option: str
    tolerance: float
    log_loss_tolerance: float
    advice: str


class Judge:
    """Hardens and rounds a ranker in place, and judges what that costs.

    Args:
        ranker: as trained.
        encoder: of its contract.
        examples: folder; its validation split is read only if something is judged.
        options: tolerances, and how the weights are stored.
    """

    def __init__(
        self, ranker: Ranker, encoder: Encoder, examples: Path, options: ExportConfig
    ) -> None:
        self._ranker, self._encoder, self._options = ranker, encoder, options
        self._folder = examples
        self._latest: Measured | None = None

    def harden(self) -> Changes:
        """Switch every gate to its k-sparse form.

        Returns:
            Empty where no gate has another form.

        Raises:
            ExportError: a task loses more than `hardening_tolerance` allows.
            DataError: the validation split cannot be read.
        """
        mixture = self._ranker.mixture
        # A level of a hierarchical gate may harden where the other one stays dense.
        levels = [level for gate in mixture.gates for level in gate.levels()]
        soft = [level for level in levels if not level.properties.sparse_at_inference]
        before = self._measure() if soft else {}
        mixture.harden()
        if not any(level.properties.sparse_at_inference for level in soft):
            return {}
        rule = Rule(
            "hardening the gates to their k-sparse form",
            "hardening_tolerance",
            self._options.hardening_tolerance,
            self._options.log_loss_tolerance,
            "The gates have not converged: train longer, raise the gate's entropy_weight or anneal "
            "its gamma, or allow more in the configuration",
        )
        return self._judge(before, rule)

    def round_weights(self) -> Changes:
        """Round the weights as the file stores them.

        Returns:
            Empty where the file stores float32.

        Raises:
            ExportError: a task loses more than `weights_tolerance` allows.
            DataError: the validation split cannot be read.
        """
        stored_as = self._options.weights
        if stored_as == "float32":
            return {}
        before = self._latest or self._measure()
        frozen_weights.round_weights(self._ranker, stored_as)
        rule = Rule(
            f"storing the weights as {stored_as}",
            "weights_tolerance",
            self._options.weights_tolerance,
            self._options.log_loss_tolerance,
            "Store them in a finer type (export.weights), or allow more in the configuration",
        )
        return self._judge(before, rule)

    def _judge(self, before: Measured, rule: Rule) -> Changes:
        rows, resamples = self._sample
        self._latest = self._measure()
        return judge(self._encoder.contract, rows.labels, resamples, before, self._latest, rule)

    def _measure(self) -> Measured:
        contract, (rows, resamples) = self._encoder.contract, self._sample
        scores = Predictions(self._ranker, contract, self._encoder.statistics, rows).scores
        return {
            name: tasks.measure(task, resamples, rows.labels[:, t], scores[name])
            for t, (name, task) in enumerate(contract.tasks.items())
        }

    @cached_property
    def _sample(self) -> tuple[Examples, Resamples]:
        """Validation rows, evenly spread over the split, and resamples of their users."""
        contract = self._encoder.contract
        columns = [*contract.features, *(LABEL + task for task in contract.tasks)]
        rows = read_rows(self._folder, "validation", columns).spread(_MOST_ROWS)
        return encode(rows, self._encoder), Resamples(rows.codes(contract.user))


def judge(
    contract: Contract,
    labels: np.ndarray,
    resamples: Resamples,
    before: Measured,
    after: Measured,
    rule: Rule,
) -> Changes:
    """Hold the change of every task's metrics to a rule.

    Args:
        contract: tasks.
        labels: (N, T), NaN where masked.
        resamples: of the users of these rows, on which both were measured.
        before: measures by task.
        after: the same after the change.
        rule: what is allowed.

    Raises:
        ExportError: the whole interval of a task's loss lies beyond the tolerance.
    """
    found: Changes = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        metric = tasks.MAIN[task.measured_as]
        rises = metric in LOWER_IS_BETTER
        losses = {metric: _loss(before[name][metric], after[name][metric], rises)}
        if task.type == "binary":
            losses["log_loss"] = _loss(before[name]["log_loss"], after[name]["log_loss"], True)
        limits = tasks.summaries(resamples, labels[:, t], losses)
        changes = [abs(part["value"] or 0.0) for part in limits.values()]
        if limits[metric]["value"] is None or max(changes) < _ROUNDING:
            continue
        values = {key: (float(before[name][key][0]), float(after[name][key][0])) for key in losses}
        found[name] = _change(metric, values, limits)
        for key, part in limits.items():
            option, allowed = rule.option, rule.tolerance
            if key == "log_loss":
                option, allowed = "log_loss_tolerance", rule.log_loss_tolerance
            text = _sentence(name, key, values[key], part, rule.what)
            if part["low"] is not None and part["low"] > allowed:
                raise ExportError(
                    f"{text}, all of it beyond export.{option}, which allows {allowed:g}. "
                    f"{rule.advice}"
                )
            if part["value"] is not None and part["value"] > allowed:
                log.warning(
                    "%s; export.%s allows %g, and the loss is not shown to be more than chance",
                    *(text, option, allowed),
                )
    return found


def _loss(before: np.ndarray, after: np.ndarray, lower_is_better: bool) -> np.ndarray:
    """Loss (1 + R,): the fall of a measure, or the relative rise of one where lower is better."""
    if not lower_is_better:
        return before - after
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(before > 0, (after - before) / before, after - before)


def _change(
    metric: str, values: Mapping[str, tuple[float, float]], limits: Mapping[str, Any]
) -> Change:
    before, after = values[metric]
    main = limits[metric]
    change = Change(
        metric=metric,
        before=before,
        after=after,
        loss=main["value"],
        low=main["low"],
        high=main["high"],
        rows=main["rows"],
    )
    if "log_loss" in limits:
        before, after = values["log_loss"]
        part = limits["log_loss"]
        change["log_loss"] = LogLossChange(
            before=before, after=after, rise=part["value"], low=part["low"], high=part["high"]
        )
    return change


def _sentence(
    task: str, metric: str, values: tuple[float, float], part: Mapping[str, Any], what: str
) -> str:
    before, after = values
    interval = "too few users for an interval"
    if part["low"] is not None:
        interval = f"95 % interval {part['low']:.4f} to {part['high']:.4f}"
    relative = "" if metric == "auc" else "relative "
    return (
        f"task {task!r}: {what} changes {metric.upper().replace('_', ' ')} from {before:.4f} to "
        f"{after:.4f} on {part['rows']} validation rows, a {relative}loss of {part['value']:.4f} "
        f"({interval})"
    )
