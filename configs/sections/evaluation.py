"""What the report looks at, and the rules by which a version goes out."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from multigate.configs.sections.base import Frozen, contradiction


class TaskRules(Frozen):
    """Rules of one task, where they differ from those of all tasks."""

    largest_loss: float | None = Field(None, ge=0)
    """As of `Rules`."""
    must_win: bool = False
    """Refuse unless the whole interval of the difference is on the better side of zero."""
    least_auc: float | None = Field(None, ge=0, le=1)
    """As of `Rules`."""


class Rules(Frozen):
    """When a candidate may replace the version in production."""

    largest_loss: float = Field(0.005, ge=0)
    """Largest loss of a task's AUC, or relative rise of its RMSE, against production."""
    judge: Literal["estimate", "interval"] = "estimate"
    """What has to keep within `largest_loss`: the difference itself, or the worse end of its
    interval, which asks for proof and refuses whatever little data cannot show."""
    largest_ranking_loss: float | None = Field(0.01, ge=0)
    """Largest loss of the combined score's NDCG@10; null does not look at it."""
    least_auc: float = Field(0.5, ge=0, le=1)
    """AUC that a task's interval has to reach, whatever production does: below, it is broken."""
    calibration: tuple[float, float] | None = (0.5, 2.0)
    """Limits of predicted over observed; refused when the whole interval is outside."""
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

    An id has its most frequent values, the others and the missing ones; a number its quarters,
    a list its lengths.
    """

    by: Literal["value"]
    feature: str
    most: int = Field(12, ge=1, le=100)
    """The most frequent values that have a slice of their own."""


class SeenSlices(Frozen):
    """Slices by how many training rows have the row's value: new users, items of the tail."""

    by: Literal["seen"]
    feature: str
    edges: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 10, 100), min_length=1)
    """Ascending counts at which a slice begins; the first slice holds what is below the first."""

    @model_validator(mode="after")
    def _check(self) -> "SeenSlices":
        if list(self.edges) != sorted(set(self.edges)):
            raise contradiction(f"edges: expected ascending counts, received {self.edges}")
        return self


class HourSlices(Frozen):
    """Slices by the hour of the impression, UTC, in blocks."""

    by: Literal["hour"]
    block: Literal[1, 2, 3, 4, 6, 12] = 6
    """Hours of one slice."""


Slices = Annotated[ValueSlices | SeenSlices | HourSlices, Field(discriminator="by")]


class EvaluationConfig(Frozen):
    """The report and the verdict."""

    replicates: int = Field(500, ge=50, le=10_000)
    """Resamples of the users, from which the intervals come."""
    seed: int = Field(0, ge=0)
    """Of the resamples."""
    slices: dict[str, Slices] | None = None
    """By the name that the report shows; where absent, users and items by how often training
    saw them, the context's categories, and the hour."""
    least_slice_rows: int = Field(50, ge=1)
    """Slices in which a task has fewer labels are not judged on it."""
    largest_feature_auc: float = Field(0.95, gt=0.5, le=1)
    """AUC of one feature alone above which it is taken for a leak."""
    rules: Rules = Rules()

    def unknown_name(self, tasks: Iterable[str], features: Iterable[str]) -> str | None:
        """What is wrong with a rule of a task, or a slice by a feature, that there is not.

        A rule that holds for nothing would bless what it was written to refuse.

        Args:
            tasks: of the contract.
            features: of the contract.

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
