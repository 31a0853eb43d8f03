"""Tasks and their label rules: what is predicted, and how its true value is read from the log.

A label is computed in this order: the rule, `clip`, `at_least`, `without`, then the mask `when`. A
rule that finds nothing masks the label: it is null, which is not the same as 0. docs/labels.md
states every rule, with examples.
"""

import math
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from multigate.configs.sections.base import Duration, Frozen, contradiction
from multigate.configs.sections.losses import Censored, Loss, Quantile, ZeroInflated


class ImpressionLabel(Frozen):
    """1 for every logged impression, 0 for every sampled negative."""

    rule: Literal["impression"]


class EventLabel(Frozen):
    """From the feedback events attributed to the impression (event rows)."""

    rule: Literal["event"]
    events: tuple[str, ...] = Field(min_length=1)
    """Event types that count."""
    within: Duration | None = None
    """Only events so soon after the impression count."""
    aggregate: Literal["presence", "count", "sum", "max"] = "presence"
    """`sum` and `max` read the log's value column and are masked where no event came."""
    over: str | None = Field(None, examples=["video_seconds"])
    """Divide each event's value by this column of its row, such as seconds watched by the video's
    length; an event where it is missing or not above 0 has no value. For `sum` and `max`."""


_SESSION = timedelta(days=1)  # longer than a session lasts

EventTypes = Annotated[tuple[str, ...], Field(min_length=1)]


class DwellLabel(Frozen):
    """Seconds to the user's next event in the same session that ends it; masked where none does."""

    rule: Literal["dwell"]
    cap: Duration
    """Longer dwells count as this long."""
    within: Duration | None = None
    """An event later than this ends no dwell: the label is masked. Absent: one day, longer than a
    session lasts, or `cap` where that is longer."""
    ends: Literal["other_item", "any"] | EventTypes = "other_item"
    """What ends a dwell: an event on another item (a reload and feedback on the same item go on),
    any event, or an event of one of the types in a list."""

    @property
    def wait(self) -> timedelta:
        """How long the label stays open: `within`, or its default."""
        return self.within or max(self.cap, _SESSION)


class ColumnLabel(Frozen):
    """The value of a column (impression rows); masked where it is null."""

    rule: Literal["column"]
    column: str
    """The log's column that holds the label."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rule reads."""
        return (self.column,)


class RatioLabel(Frozen):
    """One column divided by another (impression rows), such as watched over duration.

    Masked where either is null or the divisor is not above 0.
    """

    rule: Literal["ratio"]
    column: str
    """The column that is divided."""
    over: str = Field(examples=["video_seconds"])
    """The divisor."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rule reads."""
        return self.column, self.over


LabelRule = Annotated[
    ImpressionLabel | EventLabel | DwellLabel | ColumnLabel | RatioLabel,
    Field(discriminator="rule"),
]


class Task(Frozen):
    """One thing to predict, and how its label comes out of the log.

    The label is computed in this order: `label`, `clip`, `at_least`, `without`, then the masks.
    """

    group: Literal["engagement", "satisfaction"]
    """Engagement is what the user does (clicks, dwell); satisfaction is what the user says of
    it (likes, ratings)."""
    type: Literal["binary", "regression"]
    """`binary` predicts the probability of a 1, `regression` a number."""
    label: LabelRule
    clip: tuple[float, float] | None = None
    """Limits of the value."""
    at_least: float | None = None
    """The label is 1 where the value reaches this threshold, else 0."""
    without: str | None = Field(None, examples=["skip"])
    """The label is 1 only where this other binary task's label is not 1."""
    when: str | None = None
    """Masked unless this other binary task's label is 1."""
    given: str | None = Field(None, examples=["click"])
    """Funnel: the label can be 1 only where this other binary task's label is 1, such as a purchase
    given a click. The model learns P(task | given) and its score is P(given) P(task | given), from
    all impressions (ESMM)."""
    transform: Literal["identity", "log1p"] = "identity"
    """What the model is trained on (regression); scores come back in the label's own units."""
    loss: Loss | None = None
    """Loss of a regression task; null: squared. Binary tasks have cross entropy."""
    weight: float = Field(1.0, ge=0)
    """Weight of the task's loss."""
    score_weight: float = 0.0
    """Weight of the task's score in the combined score."""

    @property
    def cap(self) -> float | None:
        """The largest value that the label can have, in its own units; None if it has no limit."""
        limits = [] if self.clip is None else [self.clip[1]]
        if isinstance(self.label, DwellLabel):
            limits.append(self.label.cap.total_seconds())
        return min(limits, default=None)

    @property
    def limits(self) -> tuple[float, float] | None:
        """The least and the largest score in own units; None where it has neither.

        Those of `clip`; no amount is below 0, and no time that was cut off at the cap above it.
        """
        low, high = self.clip or (-math.inf, math.inf)
        if isinstance(self.loss, ZeroInflated):
            low = max(low, 0.0)
        if isinstance(self.loss, Censored) and self.cap is not None:
            high = min(high, self.cap)
        return None if (low, high) == (-math.inf, math.inf) else (low, high)

    @property
    def quantile(self) -> float | None:
        """Share of the labels that are to lie below the score; None if it predicts no quantile."""
        return self.loss.q if isinstance(self.loss, Quantile) else None

    @property
    def predicts_mean(self) -> bool:
        """Whether the score is the label's mean, so that calibration to the mean is right."""
        return self.quantile is None

    @property
    def measured_as(self) -> Literal["binary", "regression", "quantile"]:
        """What the score is measured as: by AUC, by squared error, or by pinball loss."""
        return self.type if self.quantile is None else "quantile"


def known_alike(name: str, task: Task) -> tuple[str, ...]:
    """Equal for tasks whose labels are known for the same impressions, from the same instant on.

    Args:
        name: of the task.
        task: its rule, and what masks it.
    """
    if task.when is not None or task.without is not None:
        return (name,)
    rule = task.label
    if isinstance(rule, EventLabel) and rule.aggregate in ("presence", "count"):
        return ("events", str(rule.within))  # 0 where no event came, and so never unknown
    return ("value", rule.model_dump_json())


def check_tasks(tasks: dict[str, Task]) -> None:
    """Check what each task says against its type and the other tasks.

    Raises:
        PydanticCustomError: a contradiction, by task.
    """
    for name, task in tasks.items():
        if name == "score":
            raise contradiction("task 'score': this name is the combined score's")
        if task.clip is not None and task.clip[0] >= task.clip[1]:
            low, high = task.clip
            raise contradiction(
                f"task {name!r}: expected clip to ascend, received {low:g} and {high:g}"
            )
        _check_rule(name, task)
        if task.type == "binary":
            if task.transform != "identity":
                raise contradiction(
                    f"task {name!r}: transform {task.transform!r} is for regression tasks"
                )
        elif task.at_least is not None or task.without is not None:
            raise contradiction(
                f"task {name!r}: at_least and without make binary labels; "
                "the task's type is regression"
            )
        _check_loss(name, task)
        for key in ("without", "when", "given"):
            other = getattr(task, key)
            if other is None:
                continue
            if other == name or other not in tasks or tasks[other].type != "binary":
                raise contradiction(
                    f"task {name!r}: {key}: expected the name of another binary task, "
                    f"received {other!r}"
                )
        if task.given is not None and task.type != "binary":
            raise contradiction(
                f"task {name!r}: given is for binary tasks; the task's type is regression; use "
                "when, which masks its label"
            )
        if task.given is not None and isinstance(tasks[task.given].label, ImpressionLabel):
            raise contradiction(
                f"task {name!r}: given: the label {task.given!r} of every logged impression is 1 "
                "(rule impression), so that it tells nothing about them; remove given"
            )
        if task.given is not None and task.when is not None:
            raise contradiction(
                f"task {name!r}: given learns from all impressions, and when masks those where "
                f"{task.when!r} is not 1; remove one of the two"
            )
    _refuse_cycles(tasks)


def _check_loss(name: str, task: Task) -> None:
    if task.loss is None:
        return
    kind = task.loss.kind
    if task.type == "binary":
        raise contradiction(
            f"task {name!r}: loss {kind!r} is for regression tasks; a binary task has cross entropy"
        )
    if isinstance(task.loss, Censored) and task.cap is None:
        raise contradiction(
            f"task {name!r}: loss 'censored' needs the value at which labels are cut off: a dwell "
            "label's cap, or clip; received neither"
        )
    if isinstance(task.loss, ZeroInflated) and task.transform != "identity":
        raise contradiction(
            f"task {name!r}: loss 'zero_inflated' takes the logarithm itself; remove transform "
            f"{task.transform!r}"
        )


def _check_rule(name: str, task: Task) -> None:
    rule = task.label
    if isinstance(rule, EventLabel) and rule.over and rule.aggregate not in ("sum", "max"):
        raise contradiction(
            f"task {name!r}: over divides values; expected aggregate: sum or max, received "
            f"{rule.aggregate!r}"
        )
    if isinstance(rule, DwellLabel) and rule.within is not None and rule.within < rule.cap:
        raise contradiction(
            f"task {name!r}: expected within to reach the cap, received within "
            f"{rule.within.total_seconds():g}s and cap {rule.cap.total_seconds():g}s"
        )
    if task.type != "binary" or task.at_least is not None:
        return
    if isinstance(rule, EventLabel) and rule.aggregate != "presence":
        raise contradiction(f"task {name!r}: a binary label from {rule.aggregate!r} needs at_least")
    if isinstance(rule, DwellLabel | RatioLabel):
        raise contradiction(f"task {name!r}: a binary label from {rule.rule} needs at_least")


def _refuse_cycles(tasks: dict[str, Task]) -> None:
    for start in tasks:
        seen, frontier = set(), [start]
        while frontier:
            task = tasks[frontier.pop()]
            for other in (task.without, task.when, task.given):
                if other == start:
                    raise contradiction(
                        f"task {start!r}: it refers to itself through without, when or given"
                    )
                if other is not None and other not in seen:
                    seen.add(other)
                    frontier.append(other)
