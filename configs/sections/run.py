"""The nightly run: its guards, how training starts, what it keeps, whom it notifies."""

import shlex
from datetime import timedelta

from pydantic import Field, model_validator

from multigate.configs.sections.base import Duration, Frozen, contradiction

STAGES = ("pipeline", "guards", "training", "export", "evaluation", "decision", "publication")
"""Stages of every run, in their order."""

CANDIDATE_STAGES = ("candidates_training", "candidates_export", "candidates_report")
"""Stages of the candidate model; the report only where the configuration asks for it."""

ALL_STAGES = (*STAGES[:-2], *CANDIDATE_STAGES, *STAGES[-2:])
"""All stages that a run may have, in their order."""


class Guards(Frozen):
    """Limits that the night's examples must keep for a model to be trained on them.

    The first three need no earlier run; the others compare with the last run that passed. Rates and
    coverage are compared twice: over all examples, and over the newest day's, where a fault of one
    day shows. A difference within three standard errors never stops a run. null switches a guard
    off; `multigate run --accept GUARD` lifts it for one night.
    """

    min_rows: int | None = Field(1000, ge=1)
    """Examples in the training split."""
    min_test_rows: int | None = Field(100, ge=1)
    """Examples in the test split, on which versions are compared."""
    min_coverage: float | None = Field(0.0, ge=0, le=1)
    """Share of the examples in which a feature has a value, for every feature."""
    max_row_drop: float | None = Field(0.4, gt=0, le=1)
    """Share by which the impressions, all or the newest day's, may fall below the last run's."""
    max_label_change: float | None = Field(0.4, gt=0)
    """Relative change of a label's rate (binary) or mean (regression), up or down; and whether a
    label that the last run had is masked in every row."""
    max_coverage_drop: float | None = Field(0.2, gt=0, le=1)
    """Fall of the share of examples in which a feature has a value."""
    max_lost_rise: float | None = Field(0.1, gt=0, le=1)
    """Rise of the share of the log's rows that became neither example nor label: rejects, orphans,
    late ones, duplicates, dropped ones. (`pipeline.max_reject_rate` is the limit for rejects.)"""
    max_delay: Duration | None = timedelta(hours=12)
    """How much older than at the last run the newest impression may be, measured from the date."""


GUARDS = tuple(Guards.model_fields)
"""Names of the guards."""


class TrialShares(Frozen):
    """How much of the traffic a version on trial meets, in percent; see docs/operations.md."""

    canary: float = Field(0.0, ge=0, le=100)
    """Percentage of the users whom it answers."""
    shadow: float = Field(0.0, ge=0, le=100)
    """Percentage of the calls that it scores besides, without a change of the answer."""

    @model_validator(mode="after")
    def _check(self) -> "TrialShares":
        if not self.canary and not self.shadow:
            raise contradiction("trial: expected canary or shadow above 0, received 0 for both")
        return self


class RunConfig(Frozen):
    """`multigate run`."""

    days: int | None = Field(None, ge=1)
    """Days of the log to learn from, up to and including the date. Labels and features then need
    limits (see `pipeline.window`). Default: the whole log."""
    daily: bool = False
    """Make the examples of each day once, under `days` in the folder of runs, and join those of the
    last `days` days every night. A counter without a window then goes on from the night before
    instead of reading the whole log. Events that arrive after their day's night are not seen."""
    guards: Guards = Guards()
    full_retrain_days: int = Field(1, ge=1)
    """Days between trainings from scratch; in between, training starts from the weights of the
    version in production. 1 trains from scratch every night."""
    keep_versions: int = Field(5, ge=2)
    """Versions that stay in the base folder: the one in production, the one that a rollback returns
    to, and older ones; and as many withdrawn versions."""
    keep_runs: int = Field(14, ge=2)
    """Runs whose examples, checkpoints and exports stay. Records of older runs stay, and so do the
    checkpoints of versions that are still there."""
    trial: TrialShares | None = None
    """Put a night's version on trial beside the one in production instead of replacing it. A night
    whose predecessor is still on trial is refused. The first version goes into production."""
    notify: str | None = Field(None, min_length=1, examples=["mail -s night ops@example.org"])
    """A command that gets a JSON object on its standard input when a run ends: `event` (published,
    tried, refused, failed, interrupted), `name`, `date`, `stage`, `message`, `version`, `run`. It
    is split into words as a shell does, and run without a shell."""
    notify_timeout: Duration = timedelta(seconds=30)
    """Time after which the command is killed."""

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        if self.daily and (self.days is None or self.days < 2):
            raise contradiction(
                f"daily: expected days of at least 2, which are joined; received days: {self.days}"
            )
        try:
            words = shlex.split(self.notify or "true")
        except ValueError as error:
            raise contradiction(f"notify: {error}; received {self.notify!r}") from None
        if not words:
            raise contradiction(f"notify: expected a command, received {self.notify!r}")
        return self
