"""What the user must know of a finished training, with the numbers and what to do.

The first epoch was kept: training made the monitor worse from its second epoch on.  A training that
starts from a checkpoint is excepted, because it may need no second epoch.

Tasks disagree: at the kept epoch the quality of a task that the loss weighs (`training.validation`)
is below that of its own best epoch by more than `_GAP`, and by more than one standard error of it.

A gate does not learn which expert suits a task: with one chosen, the weight of a Top-k gate is
always 1.

Pairs of ids lost their weights: their features have grown since the checkpoint to start from.  Or
they never had any: pairs of features that `model.wide.pairs` names do not fit.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from multigate.configs.config import Config
from multigate.configs.sections.gates import Hierarchical
from multigate.model.checkpoints import history
from multigate.model.checkpoints.history import Epoch
from multigate.model.ranker.wide import Crosses
from multigate.model.training import validation
from multigate.model.training.warm_start import Started

_GAP = 0.01
ALWAYS_ONE = ("topk", "noisy_topk")
"""Gates whose k weights sum to 1: with k = 1 the tasks' losses give them no gradient."""


def warnings(
    epochs: Sequence[Epoch],
    config: Config,
    started: Started | None,
    crosses: Crosses | None = None,
) -> list[str]:
    """Warnings about a training, a sentence or two each.

    Args:
        epochs: its history.
        config: of the training.
        started: what its checkpoint to start from gave it; None without one.
        crosses: the pairs of features that have weights.
    """
    kept = history.kept(epochs)
    found = _left_out(crosses or {}, config)
    found += beforehand(config)
    found += [] if started is None else _lost_pairs(started, config)
    if kept["epoch"] == 1 and len(epochs) > 1 and started is None:
        values = [f"{history.monitored(epoch):.4f}" for epoch in epochs]
        found.append(
            f"the first of {len(epochs)} epochs was kept: {history.monitor(epochs)} by epoch is "
            f"{', '.join(values)}, so training fits what validation does not have. Lower "
            f"train.learning_rate (now {config.train.learning_rate:g}), raise "
            f"model.experts.dropout (now {config.model.experts.dropout:g}) or model.id_dropout, or "
            "train on more rows"
        )
    gaps = []
    for name, best in history.best_epochs(epochs).items():
        here, there = kept["tasks"][name], epochs[best - 1]["tasks"][name]
        now, then, error = here.get("val_quality"), *_quality(there)
        if now is None or then is None or config.contract.tasks[name].weight == 0:
            continue
        if then - now > max(_GAP, error):
            what = validation.QUALITIES[config.contract.tasks[name].measured_as]
            gaps.append(f"{name} ({what} {now:.4f}, {then:.4f} after epoch {best})")
    if gaps:
        found.append(
            f"tasks disagree about the best epoch: epoch {kept['epoch']} was kept, others suit "
            f"{', '.join(gaps)}. Raise the loss weight (contract.tasks.NAME.weight) of a task that "
            "is best later, lower that of one that is best earlier, raise "
            f"model.experts.dropout (now {config.model.experts.dropout:g}), or set train.monitor "
            "to the task that matters most"
        )
    return found


def beforehand(config: Config) -> list[str]:
    """Warnings that the configuration alone gives, for the start of a training."""
    model = config.model
    experts = model.experts.count + model.experts.own
    gates = {f"model.gates.{task}": gate for task, gate in model.gates.items()}
    if not model.gates.keys() >= set(model.gate_names(config.contract.tasks).values()):
        gates["model.gate"] = model.gate
    return [said for where, gate in gates.items() for said in _untaught(where, gate, experts)]


def _untaught(where: str, gate: Any, experts: int) -> Iterator[str]:
    """A warning for a gate, or a level of it, that the tasks do not teach what to choose."""
    if isinstance(gate, Hierarchical):
        yield from _untaught(f"{where}.primary", gate.primary, gate.num_groups)
        yield from _untaught(f"{where}.secondary", gate.secondary, experts // gate.num_groups)
    elif gate.name in ALWAYS_ONE and gate.num_selected == 1 < experts:
        other = "{name: switch, num_selected: 1}"
        if getattr(gate, "static", False):  # Switch has no static form
            other = "{name: dselect_k, num_selected: 1, static: true}"
        yield (
            f"{where} does not learn which expert suits a task: with num_selected: 1 the weight "
            f"of {gate.name} is always 1, so the tasks' losses give it no gradient. Set "
            f"num_selected: 2, or take {other} instead"
        )


def _left_out(crosses: Crosses, config: Config) -> list[str]:
    """A warning for pairs of features that are wanted and have no weights."""
    wide = config.model.wide
    wanted = () if wide is None or wide.pairs is None else wide.pairs
    names = [" and ".join(pair) for pair in wanted if pair not in crosses.values()]
    if not names or wide is None:
        return []
    return [
        f"{', '.join(names)} have no weights of pairs: their pairs of values do not fit into "
        f"model.wide.crosses (now {wide.crosses:,}) beside those of smaller ones, or one of them "
        "has no known value. Raise it, or take them out of model.wide.pairs"
    ]


def _lost_pairs(started: Started, config: Config) -> list[str]:
    """A warning for each pair of features that has outgrown its room in the wide term."""
    room = 0 if config.model.wide is None else config.model.wide.crosses
    return [
        f"{lost:,} pairs of {names} lost the weights that {started['checkpoint']} has of them: "
        f"their features have outgrown model.wide.crosses (now {room:,}). Raise it to keep them"
        for names, lost in started["pairs_gone"].items()
    ]


def _quality(task: history.TaskLosses) -> tuple[float | None, float]:
    """A task's quality and its standard error."""
    return task.get("val_quality"), task.get("val_quality_error") or 0.0
