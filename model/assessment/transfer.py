"""Negative transfer: what each task loses by sharing experts, against a model of its own.

A baseline is a checkpoint of `multigate train --baseline`: the single-task model of one task, which
shares nothing, or the shared bottom, where all tasks share one expert.  A task that is worse than
its single-task model suffers negative transfer; a task that is worse than with the shared bottom
gains nothing from the mixture.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from multigate.configs.baselines import SHARED_BOTTOM, SINGLE_TASK
from multigate.configs.config import Config
from multigate.configs.errors import ModelError
from multigate.model.assessment.results import Baseline, ComparedWithBaseline, Transfer
from multigate.model.checkpoints import checkpoint
from multigate.model.data.rows import Rows
from multigate.model.evaluation.measures import tasks
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.evaluation.paired import RELATIVE, paired_difference
from multigate.model.evaluation.scored import Scored, score

MIXTURE = "mixture"


def baseline_name(config: Config) -> str:
    """What a checkpoint is a baseline of: `shared_bottom`, `single_task:TASK`, or `mixture`."""
    if config.model.experts.count + config.model.experts.own > 1:
        return MIXTURE
    trained = [name for name, task in config.contract.tasks.items() if task.weight > 0]
    if len(trained) == 1 and len(config.contract.tasks) > 1:
        return f"{SINGLE_TASK}:{trained[0]}"
    return SHARED_BOTTOM


def compare_baselines(
    ours: Scored,
    config: Config | None,
    baselines: Sequence[Path],
    rows: Rows,
    labels: np.ndarray,
    resamples: Resamples,
) -> Transfer | None:
    """Measure baselines on the same rows and resamples.

    Args:
        ours: scores of the model.
        config: of the model, for its training budget; None of an exported version.
        baselines: checkpoints.
        rows: of the split.
        labels: (N, T) in the model's order of tasks.
        resamples: of the users.

    Returns:
        None without baselines.

    Raises:
        ModelError: a checkpoint is no baseline.
    """
    if not baselines:
        return None
    models: list[Baseline] = []
    sentences = []
    for path in baselines:
        other, _ = checkpoint.read_config(path)
        name = baseline_name(other)
        if name == MIXTURE:
            raise ModelError(
                f"{path}: expected a baseline, received a mixture of {other.model.experts.count} "
                "experts; compare mixtures with --production or `multigate compare`"
            )
        theirs = score(path, rows)
        own = name.partition(":")[2]
        compared: dict[str, ComparedWithBaseline] = {}
        for t, (task_name, task) in enumerate(ours.contract.tasks.items()):
            if task_name not in theirs.scores or (own and task_name != own):
                continue
            metric = tasks.MAIN[task.measured_as]
            new, old = (
                tasks.measure(task, resamples, labels[:, t], scored.scores[task_name])[metric]
                for scored in (ours, theirs)
            )
            found = paired_difference(resamples, labels[:, t], new, old, metric in RELATIVE)
            compared[task_name] = {"metric": metric, **found}
            if found["wins"] is False:
                meaning = "the mixture does not pay for it."
                if own:
                    meaning = (
                        "negative transfer. Weigh the task more (contract.tasks."
                        f"{task_name}.weight: 4), or give tasks experts of their own "
                        "(model.experts.own)."
                    )
                sentences.append(
                    f"{task_name} is worse than with {_title(name)}, beyond chance: {meaning}"
                )
        models.append(
            {
                "name": name,
                "title": _title(name),
                "path": str(path),
                "budget": _budget(config, other),
                "tasks": compared,
            }
        )
    return {
        "models": models,
        "sentences": sentences or ["No task is worse than with a baseline beyond chance."],
    }


def _title(name: str) -> str:
    kind, _, task = name.partition(":")
    if kind == SINGLE_TASK:
        return f"the single-task model of {task}"
    return "the shared bottom"


def _budget(ours: Config | None, theirs: Config) -> list[str]:
    if ours is None:
        return []
    a, b = ours.train.model_dump(mode="json"), theirs.train.model_dump(mode="json")
    return [key for key in a if a[key] != b.get(key)]
