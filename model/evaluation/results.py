"""What evaluation writes as JSON: the shapes of `metrics.json`, `report.json` and `--json`."""

from collections.abc import Iterator
from typing import Literal, NotRequired, TypedDict, final

from multigate.model.evaluation.measures.bootstrap import Interval


class Metrics(TypedDict):
    """Exact metrics of one task over the rows with a label; see `evaluation.metrics`.

    Attributes:
        metric: name of the main metric, "auc", "rmse" or "pinball".
        value: the main metric; None where it does not exist.
        reason: why there is no value.
        rows: with a label.
        masked: rows without.
        mean_score: None without rows, as all below.
        positives: rows with label 1; binary tasks only, as the next two.
        rate: mean label.
        log_loss: in nats.
        mse: mean squared error; regression tasks only, as all below.
        mae: mean absolute error.
        label_mean: mean label.
        label_std: standard deviation of the label.
        q: the quantile that is predicted; of such tasks only, as all below, which have no errors
            around a mean (`mse`, `mae`).
        pinball: mean pinball loss.
        pinball_of_constant: that of the best constant score, the labels' q-quantile.
        coverage: share of the labels at or below the score.
    """

    metric: str
    value: float | None
    reason: NotRequired[str]
    rows: int
    masked: int
    mean_score: float | None
    positives: NotRequired[int]
    rate: NotRequired[float | None]
    log_loss: NotRequired[float | None]
    mse: NotRequired[float | None]
    mae: NotRequired[float | None]
    label_mean: NotRequired[float | None]
    label_std: NotRequired[float | None]
    q: NotRequired[float]
    pinball: NotRequired[float | None]
    pinball_of_constant: NotRequired[float | None]
    coverage: NotRequired[float | None]


class TransformedMetrics(TypedDict):
    """Errors on the scale that a transformed label is trained on, such as `log1p`.

    A quantile has pinball losses in the place of `mse` and `rmse`.
    """

    scale: str
    label_std: float | None
    mse: NotRequired[float | None]
    rmse: NotRequired[float | None]
    pinball: NotRequired[float | None]
    pinball_of_constant: NotRequired[float | None]


class TaskMetrics(Metrics):
    """Metrics of a task of a contract."""

    group: str
    type: str
    trained_on: NotRequired[TransformedMetrics]


class GroupMetrics(TypedDict):
    """A summary of a group's tasks.

    Attributes:
        tasks: how many.
        measured: how many of them have a value.
        auc: mean over the binary tasks; None without.
        relative_rmse: mean over the regression tasks that predict a mean of RMSE / standard
            deviation of the label, on the scale that the task was trained on; None without.
    """

    tasks: int
    measured: int
    auc: float | None
    relative_rmse: float | None


class GateSummary(TypedDict):
    """What a task's gate did on a split; the gate may add scalars of its own.

    Attributes:
        gate: its name.
        own: the numbers, from 0, of the experts of this task alone, if it has any.
        shared: name of the gate, if tasks share gates (`model.shared_gate`).
        weights: (E,) mean weight of each expert.
        load: (E,) share of the rows that use each expert.
        experts_per_row: mean number of experts with a weight.
        overlap: by other task, mean over the rows of the Jaccard overlap of their experts.
        entropy: of the weights, nats.
    """

    gate: str
    own: NotRequired[list[int]]
    shared: NotRequired[str]
    weights: list[float]
    load: list[float]
    experts_per_row: float
    overlap: NotRequired[dict[str, float]]
    entropy: NotRequired[float]


class TaskSummary(TypedDict):
    """Metrics of one split.

    Attributes:
        split: its name.
        rows: of the split.
        tasks: by name.
        groups: by name.
        loss: weighted sum over tasks of the log loss or, for regression, of the mean squared error
            of the transformed label (the number in the tables of the papers on DSelect-k and
            MOESART) or its pinball loss.
    """

    split: str
    rows: int
    tasks: dict[str, TaskMetrics]
    groups: dict[str, GroupMetrics]
    loss: float


class Summary(TaskSummary):
    """Metrics of one split, and what the gates did.

    Attributes:
        experts_per_row: mean number of distinct experts evaluated per row, over all tasks.
        experts: how many there are, E.
        gates: by task.
        union: (E,) share of the rows on which some task uses each expert.
    """

    experts_per_row: float
    experts: int
    gates: dict[str, GateSummary]
    union: list[float]


class PairedDifference(TypedDict):
    """A measure of two models on the same rows and resamples.

    Attributes:
        candidate: its value.
        production: its value; None where there is nothing to compare with, as the next two.
        difference: candidate - production; for losses (`paired.RELATIVE`) divided by production's.
        wins: True where the whole interval of the difference is on the better side, False where it
            is on the worse one, else None.
    """

    candidate: Interval
    production: Interval | None
    difference: Interval | None
    wins: bool | None


class Compared(PairedDifference):
    """A named measure of two models."""

    metric: str


@final
class RankingComparison(Compared):
    """The combined score's lists."""

    rows: int


@final
class TaskComparison(Compared):
    """A task that the candidate has; `calibration` is predicted over observed."""

    rows: int
    group: str
    type: str
    calibration: Interval | None


@final
class MissingTask(TypedDict):
    """A task that production has and the candidate lacks."""

    missing: Literal[True]


@final
class BaselineTask(TypedDict):
    """A task of ours (`candidate`) and of a baseline (`production`) of another library.

    Attributes:
        group: of the task.
        type: "binary" or "regression".
        judged: the measure that decides: "auc"; the RMSE or pinball loss on the scale that both are
            trained on; or the RMSE in own units where our scores are means there
            (`export.smearing`).
        measures: by name; those that rows and contract allow.
        note: how the baseline was trained on this task.
    """

    group: str
    type: str
    judged: str
    measures: dict[str, Compared]
    note: str


@final
class BaselineComparison(TypedDict):
    """Ours and a baseline on the same rows and resamples.

    Attributes:
        name: such as "lightgbm".
        title: with its version.
        seconds: that training it took.
        left_out: features that it does not read.
        tasks: by name; without those that the baseline has no training label for.
        auc: mean AUC over the binary tasks that both have one for; None without.
        within_users: mean AUC within users over the binary tasks of which enough users have both
            classes; None without.
        ranking: NDCG@10 of the combined score; None where no list can be judged.
        sentences: what it means, the losses first.
    """

    name: str
    title: str
    seconds: float
    left_out: list[str]
    tasks: dict[str, BaselineTask]
    auc: Compared | None
    within_users: Compared | None
    ranking: Compared | None
    sentences: list[str]


class Differences(TypedDict):
    """All differences; `ranking` is None where no list can be judged."""

    tasks: dict[str, TaskComparison | MissingTask]
    ranking: RankingComparison | None
    baseline: NotRequired[BaselineComparison]


def compared_tasks(found: Differences) -> Iterator[tuple[str, TaskComparison]]:
    """Name and comparison of each task that the candidate has."""
    for name, task in found["tasks"].items():
        if "missing" not in task:
            yield name, task


class Verdict(TypedDict):
    """Whether a candidate may replace production, and at least one reason, each a sentence."""

    verdict: Literal["bless", "refuse"]
    reasons: list[str]


class Comparison(Verdict, Differences):
    """A verdict with its evidence.

    Attributes:
        production: folder; None where nothing was in production.
        candidate: folder.
        split: that both were measured on.
        rows: of the split.
        users: of the split.
        newest: time of the newest row, ISO 8601.
    """

    production: str | None
    candidate: NotRequired[str]
    split: NotRequired[str]
    rows: NotRequired[int]
    users: NotRequired[int]
    newest: NotRequired[str | None]
