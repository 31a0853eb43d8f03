"""What the report shows, and the rules by which a version may be published."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from multigate.configs.sections.base import Frozen, contradiction


class TaskRules(Frozen):
    """Rules of one task, where they differ from those of all tasks."""

    largest_loss: float | None = Field(None, ge=0)
    """As in `Rules`; 1 leaves a binary task without a bound."""
    must_win: bool = False
    """Refuse unless the whole interval of the difference is on the better side of zero."""
    least_auc: float | None = Field(None, ge=0, le=1)
    """As in `Rules`."""


class Rules(Frozen):
    """When a candidate may replace the version in production.

    By default, a loss is refused in two cases only. Either it is shown beyond chance to be more
    than `negligible_loss`; all comparisons of one verdict together refuse an equal model by chance
    once in forty times. Or it is beyond its bound: `largest_loss` of a task, `largest_ranking_loss`
    of the combined score. docs/evaluation.md says how many test rows a bound needs.
    """

    largest_loss: float = Field(0.02, ge=0)
    """Bound of a task's loss against production. Binary task: points of AUC, so that 0.02 allows
    0.78 after 0.80. Regression task: relative rise of the RMSE, or of a quantile's pinball
    loss, so that 0.02 allows 2 % more."""
    negligible_loss: float = Field(0.002, ge=0)
    """Loss that matters to nobody even where it is shown, in the units of the bounds: two trainings
    that differ in their seed alone differ by as much."""
    judge: Literal["shown", "estimate", "interval"] = "shown"
    """How losses are judged. `shown`: as said above. `estimate`: by their bounds alone. `interval`:
    the worse end of the 95 % interval must be within the bound, which demands proof and refuses
    where there is too little data for it."""
    largest_ranking_loss: float | None = Field(0.02, ge=0)
    """Bound of the loss of the combined score's NDCG@10, in its points, so that 0.02 allows 0.68
    after 0.70; null leaves the combined score unjudged."""
    largest_outcome_loss: float = Field(0.05, ge=0)
    """Bound of what users may do less under a version on trial, of each label per item shown,
    relative to production's users, so that 0.05 allows 95 clicks after 100. `multigate trial` must
    show that the loss is within it."""
    least_auc: float = Field(0.5, ge=0, le=1)
    """AUC of a task, whatever production has; one that is shown to be below beyond chance, over all
    binary tasks, is broken."""
    calibration: tuple[float, float] | None = (0.5, 2.0)
    """Limits of predicted over observed; the rule refuses if the whole interval is outside."""
    beats: Literal["lightgbm"] | None = None
    """Refuse a candidate that is worse than this model of another library, trained on the same
    examples; see `model.evaluation.against_baseline`."""
    tasks: dict[str, TaskRules] = Field({})
    """Rules that differ, by task."""

    @model_validator(mode="after")
    def _check(self) -> "Rules":
        if self.calibration is not None and not 0 <= self.calibration[0] < self.calibration[1]:
            low, high = self.calibration
            raise contradiction(
                f"calibration: expected limits that ascend from 0 or more, received {low:g} and "
                f"{high:g}"
            )
        return self


class ValueSlices(Frozen):
    """One slice per value of a feature.

    An id has slices for its most frequent values, for the others and for missing ones; a number has
    its quartiles; a list its lengths.
    """

    by: Literal["value"]
    feature: str = Field(examples=["country"])
    """The feature."""
    most: int = Field(12, ge=1, le=100)
    """How many of the most frequent values have a slice of their own."""


class SeenSlices(Frozen):
    """Slices by how many training rows have the row's value: new users, items of the tail."""

    by: Literal["seen"]
    feature: str = Field(examples=["item_id"])
    """The id feature."""
    edges: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 10, 100), min_length=1)
    """Ascending counts at which a slice begins; one more slice holds the rows below the first."""

    @model_validator(mode="after")
    def _check(self) -> "SeenSlices":
        if list(self.edges) != sorted(set(self.edges)):
            raise contradiction(f"edges: expected ascending counts, received {self.edges}")
        return self


class HourSlices(Frozen):
    """Slices by blocks of hours of the impression's time, in UTC."""

    by: Literal["hour"]
    block: Literal[1, 2, 3, 4, 6, 12] = 6
    """Hours of one slice."""


Slices = Annotated[ValueSlices | SeenSlices | HourSlices, Field(discriminator="by")]


class EvaluationConfig(Frozen):
    """The report and the verdict."""

    replicates: int = Field(500, ge=50, le=10_000)
    """Bootstrap resamples of the users, from which the intervals come."""
    seed: int = Field(0, ge=0)
    """Seed of the resamples."""
    slices: dict[str, Slices] | None = None
    """By the name that the report shows. Default: users and items by how often training saw them,
    the context's categories, and the hour."""
    least_slice_rows: int = Field(50, ge=1)
    """A slice in which a task has fewer labels is not judged on that task."""
    largest_feature_auc: float = Field(0.95, gt=0.5, le=1)
    """AUC of a single feature above which the report calls it a leak."""
    rules: Rules = Rules()

    def unknown_name(self, tasks: Iterable[str], features: Iterable[str]) -> str | None:
        """Find a rule for a task, or a slice by a feature, that the contract does not have.

        A rule with a misspelt task would bless what it was written to refuse.

        Args:
            tasks: tasks of the contract.
            features: features of the contract.

        Returns:
            A message, or None where every name is known.
        """
        sliced = [
            rule.feature
            for rule in (self.slices or {}).values()
            if not isinstance(rule, HourSlices)
        ]
        for where, names, known in (
            ("evaluation.rules.tasks", list(self.rules.tasks), list(tasks)),
            ("evaluation.slices: feature", sliced, list(features)),
        ):
            for name in names:
                if name not in known:
                    return f"{where}: expected one of {', '.join(known)}, received {name!r}"
        return None
