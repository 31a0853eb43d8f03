"""What a nightly run records and reports: the shapes of its JSON.

The files of one run (`jobs.night.folder`) hold a `Plan`, a `RunState` and one `StageRecord` per
finished stage, with the stage's result in it. `multigate run --json` prints an `Outcome`,
`multigate runs --json` a list of `RunSummary`, and the notification is a `Notification`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from multigate.candidates.verdict import CandidateVerdict


class Plan(TypedDict):
    """What was fixed when the run first began (`run.json`)."""

    parent: int | None
    """The version that was in production; None where there was none."""
    full_since: str | None
    """Date of the last training from scratch that the parent goes back to; None where unknown."""
    unfit: NotRequired[dict[str, str]]
    """Why the parent's weights do not fit the model, by `Night.training_identity`."""


class RunState(TypedDict):
    """How far the run is, or how it ended (`state.json`)."""

    state: str
    """absent (no file), running, failed, interrupted, published, tried or refused."""
    stage: NotRequired[str]
    message: NotRequired[str]
    identity: NotRequired[str]
    """Fingerprint of the configuration that an unfinished training depends on."""
    at: NotRequired[str]


class StageRecord(TypedDict):
    """A finished stage (`stages/STAGE.json`)."""

    stage: str
    inputs: dict[str, Any]
    """Fingerprints of the configuration and of earlier stages' outputs, and the plan."""
    output: str
    """Fingerprint of what the stage wrote; "" where it wrote nothing that others read."""
    result: dict[str, Any]
    started: str
    seconds: float


@dataclass(frozen=True)
class StageResult:
    """What a stage returns.

    Attributes:
        values: the record's `result`.
        output: the record's `output`.
    """

    values: Mapping[str, Any]
    output: str = ""


class LabelFacts(TypedDict):
    """One task's label over the impressions where it is not masked."""

    rows: int
    users: int
    mean: float | None
    std: float | None


class PeriodFacts(TypedDict):
    """The impressions of a period, sampled negatives left out."""

    impressions: int
    users: int
    labels: dict[str, LabelFacts]
    coverage: dict[str, float | None]
    """Feature -> share of the impressions in which it has a value."""


class Facts(TypedDict):
    """What the guards look at."""

    splits: dict[str, int]
    """Rows of each split."""
    lost: float
    """Share of the log's rows that became neither example nor label."""
    delay: float | None
    """Seconds from the newest impression to the end of the date; None where no row has a time."""
    all: PeriodFacts
    newest_day: PeriodFacts | None
    """The 24 hours up to the newest impression; None without times."""


class GuardsResult(TypedDict):
    """Result of the stage `guards`."""

    facts: Facts
    compared_with: str | None
    """Date of the last run that passed; None where there is none."""
    accepted: NotRequired[dict[str, list[str]]]
    """Guard that `--accept` lifted -> what it would have stopped the run for; empty where it held.
    Absent in records from before there was `--accept`."""


class CandidateDecision(CandidateVerdict):
    """The verdict on the night's candidate model, and what it was compared with."""

    production: int | None
    """Candidate version in production."""
    alone: str
    """Why the ranker may not be published without this candidate model; "" where it may."""


class Decision(TypedDict):
    """Result of the stage `decision`."""

    verdict: str
    """bless or refuse."""
    reasons: list[str]
    production: int | None
    """The version in production, with which the run's export was compared."""
    tasks: NotRequired[Mapping[str, Any]]
    """As `model.evaluation.comparison.compare` returns; absent where nothing was compared."""
    ranking: NotRequired[Mapping[str, Any] | None]
    baseline: NotRequired[Mapping[str, Any]]
    """As `model.evaluation.against_baseline` returns; only with the rule `beats`."""
    candidates: NotRequired[CandidateDecision]


class Published(TypedDict):
    """Result of the stage `publication`."""

    version: int | None
    """None where nothing was published."""
    trial: NotRequired[str]
    """The percentages of its trial, in words; absent where it went into production."""
    removed: NotRequired[list[int]]
    candidates: NotRequired[int | None]
    removed_candidates: NotRequired[list[int]]


class CandidateSummary(TypedDict):
    """What became of a run's candidate model."""

    version: int | None
    """None where it was not published."""
    verdict: str
    k: int
    recall: dict[str, float | None] | None
    """Of the candidate, production and popularity; None where nothing could be measured."""
    reasons: list[str]
    production: NotRequired[int | None]
    """Candidate version in production now."""


class Outcome(TypedDict):
    """What became of a finished run."""

    date: str
    state: str
    """published, tried (put on trial) or refused."""
    version: int | None
    production: int | None
    start: str
    """What training started from, in words."""
    tasks: dict[str, float | None]
    metrics: dict[str, str]
    """Task -> name of the metric in `tasks`."""
    reasons: list[str]
    accepted: dict[str, list[str]]
    """As in `GuardsResult`."""
    seconds: dict[str, float]
    """Stage -> how long it took."""
    trial: NotRequired[str]
    """As in `Published`."""
    candidates: NotRequired[CandidateSummary]


class RunSummary(TypedDict):
    """One run in the list of all, finished or not."""

    date: str
    state: str
    """running, killed, failed, interrupted, published, tried or refused."""
    stage: str | None
    """The stage that it is at, or failed in."""
    message: str
    at: str | None
    start: str | None
    parent: int | None
    version: int | None
    seconds: dict[str, float]
    """Finished stage -> how long it took."""
    tasks: dict[str, float | None]
    groups: dict[str, Any]
    reasons: list[str]
    accepted: dict[str, list[str]]
    """As in `GuardsResult`."""
    candidates: CandidateSummary | None


class Notification(TypedDict):
    """What the command `run.notify` gets on its standard input."""

    event: str
    """published, tried, refused, failed or interrupted."""
    name: str
    date: str
    stage: str
    message: str
    version: int | None
    run: str
    """Folder of the run."""
