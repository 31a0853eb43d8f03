"""Drafts by how much a task may be worse than production's, where its test split has few labels."""

import math

from multigate.configs import Config
from multigate.configs.files import LABEL
from multigate.configs.sections.evaluation import Rules
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.sample import Labelled

_ENOUGH = {"binary": 400, "regression": 1000}
"""Labels of the test split, of the rarer class, with which the default bound is three standard
errors of the difference between two models that are equally good."""


def add_bounds(made: Draft, labelled: Labelled) -> None:
    """Give tasks of few labels a bound of their own, which chance hardly takes equal models beyond.

    Args:
        made: a whole draft; gets the bounds and their reasons.
        labelled: a sample of the log.
    """
    config = made.config()
    bounds = {}
    for task, few in _tested(config, labelled).items():
        kind = config.contract.tasks[task].type
        if 0 < few < _ENOUGH[kind]:
            bounds[task] = {"largest_loss": bound(kind, few)}
            labels = "labels of the rarer class" if kind == "binary" else "labels"
            made.notes[f"evaluation.rules.tasks.{task}"] = (
                f"the test split has about {few} {labels}: by chance, a version as good as "
                f"production's may be worse by more than {Rules().largest_loss:g}"
            )
    if bounds:
        section = made.values.setdefault("evaluation", {}).setdefault("rules", {})
        section["tasks"] = bounds


def bound(kind: str, few: int) -> float:
    """A bound for a test split of so many labels.

    The standard error falls with the root of their number n. An AUC's falls as 1 / n: models that
    learn from more labels also agree more, while most of an RMSE is noise that both see alike.

    Args:
        kind: of the task.
        few: labels of the test split, of a binary task those of the rarer class.
    """
    lack = _ENOUGH[kind] / few
    wide = Rules().largest_loss * (lack if kind == "binary" else math.sqrt(lack))
    return min(math.ceil(100 * wide) / 100, 1.0)


def _tested(config: Config, labelled: Labelled) -> dict[str, int]:
    """By task, how many labels the test split of the log has, about; of a binary one the rarer."""
    test, found = labelled.impressions.filter(labelled.splits == "test"), {}
    for name, task in config.contract.tasks.items():
        if task.label.rule == "impression":  # its negatives are drawn, as many as one likes
            continue
        labels = test[LABEL + name].drop_nulls()
        ones = int((labels == 1).sum())
        few = min(ones, len(labels) - ones) if task.type == "binary" else len(labels)
        found[name] = round(few * labelled.times)
    return found
