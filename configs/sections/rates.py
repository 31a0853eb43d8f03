"""As-of rates by a short key: `rates: {of: [user, item], tasks: all}` becomes explicit features."""

from typing import Annotated, Any, Literal

from pydantic import Field

from multigate.configs.sections.base import Duration, Frozen, contradiction
from multigate.configs.sections.features import (
    Cross,
    LabelCount,
    LabelMean,
    LabelRate,
    NumberFeature,
)
from multigate.configs.sections.labels import ImpressionLabel, Task, known_alike


class Rates(Frozen):
    """How the user's and the item's past labels came out, by task: a rate (or mean) and a count.

    The features are named after the key and the task: `user_like_rate`, `item_dwell_mean`,
    `item_like_count`. A task of rule `impression` has only the count, because its label is 1 for
    every logged impression. A regression task has only the count by `[user, topic]`. Tasks whose
    labels are known for the same impressions, from the same instant on, have equal counts: one is
    made, named after the contract's first of them. So likes and comments within 7 days share
    `item_like_count`.
    """

    of: Annotated[tuple[Literal["user", "item"] | Cross, ...], Field(min_length=1)]
    """Whose labels: `user`, `item`, or `[user, topic]`, the user's of the candidate's topic."""
    tasks: Literal["all"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all"
    """Names of tasks, or all of them."""
    within: Duration | None = None
    """Only labels that closed at most so long before; all earlier ones where absent."""
    last: int | None = Field(None, ge=1, le=1000)
    """How many of a user's most recent topics count, of `[user, topic]`."""
    strength: float = Field(10.0, gt=0)
    """How many labels the prior, the task's mean in training, weighs as much as."""

    def features(self, tasks: dict[str, Task]) -> dict[str, NumberFeature]:
        """The features that the key stands for.

        Args:
            tasks: of the contract.

        Raises:
            PydanticCustomError: `tasks` names no task of the contract.
        """
        names = tuple(tasks) if self.tasks == "all" else self.tasks
        for name in names:
            if name not in tasks:
                raise contradiction(
                    f"rates.tasks: expected all, or some of {', '.join(tasks)}; received {name!r}"
                )
        first: dict[tuple[str, ...], str] = {}
        for name, task in tasks.items():  # in the contract's order, whatever that of `names`
            if name in names:
                first.setdefault(known_alike(name, task), name)
        counted = set(first.values())
        found = {}
        for key in self.of:
            for name in names:
                prefix = key if isinstance(key, str) else "_".join(key)
                for kind, feature in self._of_task(key, name, tasks[name]).items():
                    if kind != "count" or name in counted:
                        found[f"{prefix}_{name}_{kind}"] = feature
        return found

    def _of_task(
        self, key: Literal["user", "item"] | Cross, name: str, task: Task
    ) -> dict[str, NumberFeature]:
        """The features of one task, by the last part of their name."""
        side = key if isinstance(key, str) else "item"
        labels: dict[str, Any] = {"of": key, "task": name, "within": self.within}
        if not isinstance(key, str):
            labels["last"] = self.last
        count = LabelCount.model_validate(labels)
        found = {
            "count": NumberFeature(kind="number", side=side, label_count=count, transform="log1p")
        }
        smoothed = labels | {"strength": self.strength}
        if always_one(task):
            return found
        if task.type == "binary":
            rate = LabelRate.model_validate(smoothed)
            return {"rate": NumberFeature(kind="number", side=side, label_rate=rate)} | found
        if not isinstance(key, str):
            return found
        mean = LabelMean.model_validate(smoothed)
        return {"mean": NumberFeature(kind="number", side=side, label_mean=mean)} | found


def always_one(task: Task) -> bool:
    """Whether the label of every logged impression is 1, so that its rate tells nothing."""
    return isinstance(task.label, ImpressionLabel) and task.without is None
