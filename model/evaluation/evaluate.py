"""Evaluation of a checkpoint on one split: metrics by task and by group, and what the gates did.

Positions are left out, as when serving.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
from rich.table import Table

from multigate.configs.config import Config
from multigate.configs.contract import Contract
from multigate.configs.lineage import check_examples
from multigate.configs.statistics import Statistics
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import Examples, batches, encode
from multigate.model.data.rows import read_rows
from multigate.model.evaluation import metrics
from multigate.model.evaluation.measures.names import title
from multigate.model.evaluation.results import (
    GateSummary,
    GroupMetrics,
    Summary,
    TaskMetrics,
    TaskSummary,
    TransformedMetrics,
)
from multigate.model.gates.parts.base import Routing
from multigate.model.moe.own import own_experts
from multigate.model.ranker import scores
from multigate.model.ranker.ranker import Ranker

_BATCH = 4096

LOWER_IS_BETTER = frozenset({"rmse", "pinball"})
_LOSS = {"auc": "log_loss", "rmse": "mse", "pinball": "pinball"}  # by the main metric
_ON_SCALE = ("mse", "label_std", "pinball", "pinball_of_constant")


class Predictions:
    """A ranker's outputs over many rows.

    Attributes:
        logits: by task, (N,) float32.
        scores: by task, (N,) in the label's own units.
        weights: by task, (E,) mean weight of each expert.
        load: by task, (E,) share of the rows that use each expert.
        used: by task, mean number of experts with a weight per row.
        experts_per_row: mean number of distinct experts evaluated per row, over all tasks.
        union: (E,) share of the rows on which some task uses each expert.
        overlap: (T, T) mean over the rows of the Jaccard overlap of two tasks' experts: how many
            both tasks use over how many either uses.
        diagnostics: by task, the gate's other scalars, means over the rows.
    """

    def __init__(
        self, ranker: Ranker, contract: Contract, statistics: Statistics, examples: Examples
    ) -> None:
        sums: dict[str, dict[str, Any]] = {task: {} for task in contract.tasks}
        logits: dict[str, list[np.ndarray]] = {task: [] for task in contract.tasks}
        experts: Any = 0.0
        union: Any = 0.0
        overlap: Any = 0.0
        for encoded, labels in batches(examples.features, examples.labels, _BATCH):
            rows = len(labels)
            forward = ranker.infer(encoded)
            experts += rows * float(_numpy(forward.mixed.experts_per_row))
            # By name: JAX gives dictionaries back in alphabetical order.
            routings = {task: forward.mixed.routings[n] for task, n in ranker.gate_of.items()}
            used = _used(list(routings.values()), rows)
            union = union + used.max(axis=1).sum(axis=0)
            overlap = overlap + _overlap(used)
            for task, routing in routings.items():
                logits[task].append(_numpy(forward.logits[task]))
                weights = _numpy(routing.weights)  # (B, E) or (E,)
                found = {"weights": weights.reshape(-1, weights.shape[-1]).mean(axis=0)}
                found |= {name: _numpy(value) for name, value in routing.diagnostics.items()}
                for name, value in found.items():
                    sums[task][name] = sums[task].get(name, 0.0) + rows * value
        N = len(examples)
        means = {task: {k: v / N for k, v in found.items()} for task, found in sums.items()}
        self.logits = {task: np.concatenate(parts) for task, parts in logits.items()}
        self.scores = {
            task: _numpy(value)
            for task, value in scores.scores(contract, statistics, self.logits).items()
        }
        self.weights = {task: found.pop("weights") for task, found in means.items()}
        self.load = {task: found.pop("load") for task, found in means.items()}
        self.used = {task: float(found.pop("experts_per_example")) for task, found in means.items()}
        self.experts_per_row = float(experts / N)
        self.union = np.asarray(union / N)
        self.overlap = np.asarray(overlap / N)
        self.diagnostics = {
            task: {k: float(v) for k, v in found.items() if np.ndim(v) == 0}
            for task, found in means.items()
        }


def evaluate(checkpoint: Path, examples: Path, *, split: str = "test") -> Summary:
    """Evaluate a checkpoint on a split of the examples that it was trained on.

    Args:
        checkpoint: folder written by `training.train`.
        examples: folder of examples.
        split: "train", "validation" or "test".

    Raises:
        ModelError: not a checkpoint, or the fingerprints differ.
        DataError: the split cannot be read.
    """
    loaded = checkpoints.load(checkpoint)
    check_examples(checkpoint, loaded.contract, examples)
    ranker, encoder, config, _ = loaded
    rows = encode(read_rows(examples, split).once(), encoder)
    predictions = Predictions(ranker, config.contract, encoder.statistics, rows)
    return summary(config, split, rows, predictions)


def summary(config: Config, split: str, rows: Examples, predictions: Predictions) -> Summary:
    """What `evaluate` returns, of predictions that exist already."""
    names = list(config.contract.tasks)
    shared, own = config.model.experts.count, config.model.experts.own
    gate_names = config.model.gate_names(config.contract.tasks)
    gates = {
        name: cast(
            GateSummary,
            {
                "gate": config.model.gates.get(name, config.model.gate).name,
                **({"own": own_experts(shared, own, t)} if own else {}),
                **({"shared": gate_names[name]} if config.model.shared_gate != "none" else {}),
                "weights": [float(w) for w in predictions.weights[name]],
                "load": [float(share) for share in predictions.load[name]],
                "experts_per_row": predictions.used[name],
                "overlap": {
                    other: float(predictions.overlap[t, u])
                    for u, other in enumerate(names)
                    if u != t
                },
                **predictions.diagnostics[name],
            },
        )
        for t, name in enumerate(names)
    }
    return {
        **task_summary(config.contract, split, rows.labels, predictions.scores),
        "experts_per_row": predictions.experts_per_row,
        "experts": len(predictions.union),
        "gates": gates,
        "union": [float(share) for share in predictions.union],
    }


def task_summary(
    contract: Contract, split: str, labels: np.ndarray, scored: Mapping[str, np.ndarray]
) -> TaskSummary:
    """The part of `summary` that needs no gates, of any scores (N,) by task."""
    tasks = task_metrics(contract, labels, scored)
    return {
        "split": split,
        "rows": len(labels),
        "tasks": tasks,
        "groups": summarise(tasks),
        "loss": _total_loss(contract, tasks),
    }


def task_metrics(
    contract: Contract, labels: np.ndarray, scored: Mapping[str, np.ndarray]
) -> dict[str, TaskMetrics]:
    """Metrics of every task.

    Args:
        contract: names, groups and types of the tasks.
        labels: (N, T) in own units, NaN where masked.
        scored: (N,) by task, in own units.

    Returns:
        By task; `trained_on` only where the label is transformed for training.
    """
    found: dict[str, TaskMetrics] = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        result = cast(
            TaskMetrics,
            {"group": task.group, "type": task.type}
            | metrics.of_task(task, labels[:, t], scored[name]),
        )
        if task.transform != "identity" and result["rows"]:
            on_scale = metrics.of_task(
                task, scores.transform(task, labels[:, t]), scores.transform(task, scored[name])
            )
            result["trained_on"] = cast(
                TransformedMetrics,
                {"scale": task.transform, result["metric"]: on_scale["value"]}
                | {key: value for key, value in on_scale.items() if key in _ON_SCALE},
            )
        found[name] = result
    return found


def caveat(split: str) -> str | None:
    """Why numbers of a split are better than on new rows; None of the test split."""
    if split == "train":
        return "The model was trained on these rows: expect worse on new ones."
    if split == "validation":
        return (
            "The kept epoch, and any calibration, were chosen on these rows: "
            "expect worse on new ones."
        )
    return None


def summarise(tasks: Mapping[str, TaskMetrics]) -> dict[str, GroupMetrics]:
    """Summarise the tasks of each group; tasks without a value are left out of the means."""
    groups: dict[str, GroupMetrics] = {}
    for group in dict.fromkeys(task["group"] for task in tasks.values()):
        members = [task for task in tasks.values() if task["group"] == group]
        measured = [task for task in members if task["value"] is not None]
        areas = [task["value"] for task in members if task["type"] == "binary"]
        errors = [
            _relative_rmse(task)
            for task in members
            if task["type"] == "regression" and "q" not in task
        ]
        groups[group] = {
            "tasks": len(members),
            "measured": len(measured),
            "auc": _mean(areas),
            "relative_rmse": _mean(errors),
        }
    return groups


def _relative_rmse(task: TaskMetrics) -> float | None:
    """RMSE over the label's standard deviation, on the scale of training."""
    scale = task.get("trained_on")
    rmse = scale["rmse"] if scale else task["value"]
    deviation = scale["label_std"] if scale else task.get("label_std")
    return rmse / deviation if rmse is not None and deviation else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that there are."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def table(result: Mapping[str, Any], best: Mapping[str, float | None] | None = None) -> Table:
    """The tasks' metrics for a terminal.

    Args:
        result: what `evaluate` or `assessment.assess` returned.
        best: best possible value by task; None where unknown.
    """
    view = Table(title=f"{result['split']} split, {result['rows']:,} rows", title_justify="left")
    for heading in ("task", "group", "metric"):
        view.add_column(heading)
    intervals = any("measures" in task for task in result["tasks"].values())
    optional = [*(["95 % interval"] if intervals else []), *(["best possible"] if best else [])]
    for heading in ("value", *optional, "rows", "positives"):
        view.add_column(heading, justify="right")
    previous = None
    for name, task in sorted(result["tasks"].items(), key=lambda item: item[1]["group"]):
        if previous not in (None, task["group"]):
            view.add_section()
        previous = task["group"]
        value = f"{task['value']:.4f}" if task["value"] is not None else task["reason"]
        cells = [name, task["group"], title(task["metric"]), value]
        if intervals:
            main = task["measures"][task["metric"]]
            known = main["low"] is not None
            cells.append(f"{main['low']:.4f} to {main['high']:.4f}" if known else "")
        if best:
            possible = best.get(name)
            cells.append("" if possible is None else f"{possible:.4f}")
        rate = "" if task.get("rate") is None else f"{100 * task['rate']:.1f} %"
        if scale := task.get("trained_on"):
            cells[3] += f"\n{scale['scale']}: {scale[task['metric']]:.4f}"
        if task.get("coverage") is not None:
            cells[3] += f"\ncoverage: {task['coverage']:.4f} of {task['q']:g}"
        view.add_row(*cells, f"{task['rows']:,}", rate)
    lines = []
    for group, summary in result["groups"].items():
        parts = []
        if summary["auc"] is not None:
            parts.append(f"mean AUC {summary['auc']:.4f}")
        if summary["relative_rmse"] is not None:
            parts.append(f"RMSE {summary['relative_rmse']:.3f} of the label's deviation")
        if parts or not summary["measured"]:
            lines.append(f"{group}: {', '.join(parts) or 'nothing measured'}")
    if said := caveat(result["split"]):
        lines.append(said)
    view.caption = "\n".join(lines) or None
    return view


def _total_loss(contract: Contract, tasks: Mapping[str, Mapping[str, Any]]) -> float:
    total = 0.0
    for name, task in contract.tasks.items():
        found = tasks[name]
        if found["rows"]:
            total += task.weight * found.get("trained_on", found)[_LOSS[found["metric"]]]
    return total


def _used(routings: Sequence[Routing], rows: int) -> np.ndarray:
    """Whether each row uses each expert, (B, T, E) float32; a static gate's choice is repeated."""
    used = [np.atleast_2d(_numpy(routing.weights)) > 0 for routing in routings]
    stacked = [np.broadcast_to(one, (rows, one.shape[1])) for one in used]
    return np.stack(stacked, axis=1).astype(np.float32)


def _overlap(used: np.ndarray) -> np.ndarray:
    """Jaccard overlap of every two tasks' experts, summed over the rows, (T, T)."""
    both = used @ used.transpose(0, 2, 1)  # (B, T, T)
    sizes = used.sum(axis=2)
    either = sizes[:, :, None] + sizes[:, None, :] - both
    # Two tasks that use no expert at all agree.
    shares = np.where(either > 0, both / np.maximum(either, 1), 1.0)
    found: np.ndarray = shares.sum(axis=0, dtype=np.float64)
    return found


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))
