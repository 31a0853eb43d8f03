"""What an assessment says, as JSON: the shape of `report.json`."""

from typing import Any, NotRequired, TypedDict

from multigate.explanation.document import Explanation
from multigate.model.checkpoints.history import Epoch
from multigate.model.evaluation.measures.bootstrap import Interval
from multigate.model.evaluation.measures.ranking import RankingSummary
from multigate.model.evaluation.measures.tasks import ReliabilityBin, ResidualBin
from multigate.model.evaluation.results import (
    BaselineComparison,
    Comparison,
    GateSummary,
    GroupMetrics,
    PairedDifference,
    TaskMetrics,
)


class AssessedTask(TaskMetrics):
    """A task's metrics with intervals.

    Attributes:
        measures: by name.
        reliability: bins of equally many rows, by score; none where the score is no mean.
        residuals: the same bins; of regression tasks only.
    """

    measures: dict[str, Interval]
    reliability: list[ReliabilityBin]
    residuals: NotRequired[list[ResidualBin]]


class AssessedGroup(GroupMetrics):
    """A group's means with their intervals; None where there is no mean."""

    auc_interval: Interval | None
    relative_rmse_interval: Interval | None


class Point(TypedDict):
    """One ratio of the trade-off.

    Attributes:
        ratio: that the satisfaction tasks' score weights are multiplied by; None for satisfaction
            alone.
        chosen: whether these are the contract's own weights.
        engagement: NDCG@10 by what engagement labels say is relevant.
        satisfaction: the same by satisfaction labels.
        front: no other point is better for one group and no worse for the other.
    """

    ratio: float | None
    chosen: bool
    engagement: Interval
    satisfaction: Interval
    front: bool


class TradeOff(TypedDict):
    """The points of all ratios, and the measure that they are judged by."""

    measure: str
    points: list[Point]


class Look(TypedDict):
    """One slice, task and measure.

    Attributes:
        slice: the rule's title.
        value: name of the slice.
        task: name.
        measure: "auc", "rmse", "pinball" or "calibration" (predicted over observed).
        rows: of the slice, with a label.
        users: with such rows.
        found: the slice's value.
        whole: the value on all rows.
        gap: negative is worse: AUC minus that of the whole; minus the relative rise of RMSE or
            pinball loss; minus how much farther from 0 the logarithm of predicted over observed is
            than the whole's.
        marked: whether it is worse beyond chance.
    """

    slice: str
    value: str
    task: str
    measure: str
    rows: int
    users: int
    found: Interval
    whole: float
    gap: float
    marked: bool


class SliceSummary(TypedDict):
    """All looks at slices, the marked ones first, then the worst.

    Attributes:
        slices: how many slices.
        looked_at: how many slices, tasks and measures together.
        level: of the marks, 0.05 / `looked_at`.
        rows: the looks.
    """

    slices: int
    looked_at: int
    level: float
    rows: list[Look]


class FeatureLeak(TypedDict):
    """How well one feature alone ranks the rows.

    Attributes:
        feature: name.
        by: "value", "length", "presence" or "mean label".
        task: name.
        auc: of the feature's order against the labels.
        leak: whether that is above the limit.
    """

    feature: str
    by: str
    task: str
    auc: float
    leak: bool


class LeakSummary(TypedDict):
    """Signs that a split is easier than new rows are.

    Attributes:
        features: highest AUC first.
        limit: AUC above which a feature is taken for a leak.
        shared_rows: how many rows have the impression of a training row; None where examples have
            no such column.
        in_order: whether every row is newer than training; None where times are not known.
        late_training: share of the training rows that are not older than the oldest row.
        split_by: how the examples were split, where it is known.
    """

    features: list[FeatureLeak]
    limit: float
    shared_rows: int | None
    in_order: bool | None
    late_training: float | None
    split_by: NotRequired[str | None]


class ExplainedRow(TypedDict):
    """One row of the split, explained.

    Attributes:
        chosen: how the row was chosen, in words.
        row: its place in the split, from 0.
        labels: by task, in the label's own units; None where masked.
        explanation: why it has its scores.
    """

    chosen: str
    row: int
    labels: dict[str, float | None]
    explanation: Explanation


class TaskStability(TypedDict):
    """A task's metric over seeds: mean, standard deviation, and mean experts per row."""

    metric: str
    mean: float
    deviation: float
    experts_per_row: float | None


class Stability(TypedDict):
    """How much runs with other seeds agree.

    Attributes:
        runs: how many.
        tasks: by name.
        overlap: mean over pairs of tasks of the overlap's deviation over the seeds.
        differences: what differs besides the seed, a sentence each.
    """

    runs: int
    tasks: dict[str, TaskStability]
    overlap: float | None
    differences: list[str]


class ComparedWithBaseline(PairedDifference):
    """A task of this model (`candidate`) and of a baseline (`production`)."""

    metric: str


class Baseline(TypedDict):
    """A baseline and this model on the same rows.

    Attributes:
        name: `shared_bottom` or `single_task:TASK`.
        title: the same in words.
        path: of the checkpoint.
        budget: keys of the training options that differ from the model's.
        tasks: by name; a single-task model has its own task only.
    """

    name: str
    title: str
    path: str
    budget: list[str]
    tasks: dict[str, ComparedWithBaseline]


class Transfer(TypedDict):
    """The model against its baselines, and what that means, a sentence each."""

    models: list[Baseline]
    sentences: list[str]


class Assessment(TypedDict):
    """Everything that the report shows about one model on one split.

    Attributes:
        name: of the model.
        kind: "version" or "checkpoint".
        source: its folder.
        users: of the split.
        replicates: resamples of the users.
        confidence: of the intervals.
        caveat: why these rows flatter the model; None of the test split.
        split, rows, loss: see `evaluation.results.TaskSummary`.
        experts_per_row, experts, gates, union: see `evaluation.results.Summary`; of a version,
            what its export measured.
        explained: at most three rows, and why they have their scores.
        findings: about the gates, a sentence each.
        history: the training's epochs.
        training_warnings: what training warned of, a sentence or two each.
        transfer: against baselines of our own; None without.
        baseline: against a model of another library; None without.
        data: the pipeline's report of the examples, if there is one.
    """

    name: str
    kind: str
    source: str
    users: int
    replicates: int
    confidence: float
    caveat: str | None
    split: str
    rows: int
    tasks: dict[str, AssessedTask]
    groups: dict[str, AssessedGroup]
    loss: float
    experts_per_row: float
    experts: int
    gates: dict[str, GateSummary]
    union: list[float]
    ranking: RankingSummary
    tradeoff: TradeOff | None
    slices: SliceSummary
    leaks: LeakSummary
    explained: list[ExplainedRow]
    findings: list[str]
    history: list[Epoch]
    training_warnings: list[str]
    stability: Stability | None
    transfer: Transfer | None
    baseline: BaselineComparison | None
    comparison: Comparison | None
    data: dict[str, Any] | None
