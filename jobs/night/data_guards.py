"""Guards: checks that a night's examples are fit to train on, alone and against the last run's.

    lost share = (rejects + orphans + late + duplicates + dropped) / rows of the log

A mean changed if it differs by more than the configured limit and by more than three standard
errors: se^2 = s^2 / u + s0^2 / u0, with the standard deviations s of the rows and the numbers of
users u, now and at the last run. Users count, not rows, because one user's rows are alike. For
numbers of impressions n, se^2 = n + n0. Great Expectations and TensorFlow Data Validation were
considered: neither tests a change against its standard error over users.
"""

import json
import math
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import polars as pl

from multigate.configs.config import Config
from multigate.configs.contract import Contract
from multigate.configs.files import LABEL, SAMPLED, SPLITS, TIME, ExamplesFolder
from multigate.configs.sections.run import Guards
from multigate.jobs.night.records import Facts, GuardsResult, LabelFacts, PeriodFacts

_STANDARD_ERRORS = 3.0
_FEWEST_USERS = 10  # a deviation over fewer says nothing of the error
_LOST = ("rejects", "orphans", "late", "duplicates", "dropped")
_DAY = timedelta(days=1)


def measure(config: Config, examples: Path, day: date) -> Facts:
    """Measure what the guards look at.

    Args:
        config: says which labels and features there are.
        examples: the night's examples.
        day: the run's date.
    """
    folder = ExamplesFolder(examples)
    manifest = json.loads(folder.manifest.read_text(encoding="utf-8"))
    rows = pl.concat(
        [
            pl.scan_parquet(path)
            for name in SPLITS
            for path in sorted(folder.split(name).glob("*.parquet"))
        ]
    ).filter(~pl.col(SAMPLED))
    newest: datetime | None = rows.select(pl.col(TIME).max()).collect().item()
    facts: Facts = {
        "splits": {name: manifest["examples"]["splits"].get(name, 0) for name in SPLITS},
        "lost": sum(manifest["rows"][name] for name in _LOST) / max(manifest["rows"]["rows_in"], 1),
        "delay": None,
        "all": _describe(rows, config.contract),
        "newest_day": None,
    }
    if newest is not None:
        end = datetime(day.year, day.month, day.day, tzinfo=newest.tzinfo) + _DAY
        facts["delay"] = (end - newest).total_seconds()
        facts["newest_day"] = _describe(rows.filter(pl.col(TIME) > newest - _DAY), config.contract)
    return facts


def _describe(rows: pl.LazyFrame, contract: Contract) -> PeriodFacts:
    schema = rows.collect_schema()
    user = pl.col(contract.user)
    measures: list[pl.Expr] = [pl.len().alias("impressions"), user.n_unique().alias("users")]
    for task in contract.tasks:
        label = pl.col(LABEL + task)
        measures += [
            label.count().alias(f"rows/{task}"),
            user.filter(label.is_not_null()).n_unique().alias(f"users/{task}"),
            label.cast(pl.Float64).mean().alias(f"mean/{task}"),
            label.cast(pl.Float64).std(ddof=0).alias(f"std/{task}"),
        ]
    for feature in contract.features:
        column = pl.col(feature)
        known = column.is_not_null()
        if isinstance(schema[feature], pl.List):
            known &= column.list.len() > 0
        measures.append(known.mean().alias(f"coverage/{feature}"))
    values = rows.select(measures).collect().row(0, named=True)
    return {
        "impressions": values["impressions"],
        "users": values["users"],
        "labels": {
            task: {
                "rows": values[f"rows/{task}"],
                "users": values[f"users/{task}"],
                "mean": values[f"mean/{task}"],
                "std": values[f"std/{task}"],
            }
            for task in contract.tasks
        },
        "coverage": {name: values[f"coverage/{name}"] for name in contract.features},
    }


class Violation(NamedTuple):
    """A guard that stops the run, and what it saw."""

    guard: str
    seen: str

    @property
    def line(self) -> str:
        """The message: what was expected and found, and what governs it."""
        return (
            f"guard {self.guard}: {self.seen} (run.guards.{self.guard}; --accept {self.guard} "
            "lifts it for this night)"
        )


def violations(facts: Facts, last: Facts | None, guards: Guards) -> list[Violation]:
    """Compare what was measured with the limits.

    Args:
        facts: of this run.
        last: of the last run that passed; None where there is none.
        guards: the limits; one that is None is not looked at.

    Returns:
        The guards that stop the run, one entry for each thing that they saw. Tasks and features
        that the last run did not have are not compared.
    """
    found = []
    least_rows = (
        ("min_rows", "train", guards.min_rows),
        ("min_test_rows", "test", guards.min_test_rows),
    )
    for guard, split, least in least_rows:
        count = facts["splits"][split]
        if least is not None and count < least:
            seen = f"expected at least {least} examples to {split}, found {count}"
            found.append(Violation(guard, seen))
    for name, share in facts["all"]["coverage"].items():
        if share is not None and guards.min_coverage is not None and share < guards.min_coverage:
            seen = (
                f"feature {name!r}: expected a value in at least {guards.min_coverage:.1%} of the "
                f"examples, found {share:.1%}"
            )
            found.append(Violation("min_coverage", seen))
    if last is None:
        return found
    rise = facts["lost"] - last["lost"]
    if guards.max_lost_rise is not None and rise > guards.max_lost_rise:
        seen = (
            f"{facts['lost']:.1%} of the log's rows were lost (rejects, orphans, late, duplicates, "
            f"dropped), at the last run {last['lost']:.1%}; expected a rise of at most "
            f"{guards.max_lost_rise:.1%}"
        )
        found.append(Violation("max_lost_rise", seen))
    if facts["delay"] is not None and last["delay"] is not None:
        later = timedelta(seconds=round(facts["delay"] - last["delay"]))
        if guards.max_delay is not None and later > guards.max_delay:
            seen = (
                f"the newest impression is {later} older than at the last run, measured from the "
                f"date; expected at most {guards.max_delay}: the date's log is not there"
            )
            found.append(Violation("max_delay", seen))
    found += _compare(facts["all"], last["all"], guards, "all examples")
    if facts["newest_day"] is not None and last["newest_day"] is not None:
        newest = "the newest day's examples"
        found += _compare(facts["newest_day"], last["newest_day"], guards, newest)
    return found


def passed(result: GuardsResult) -> bool:
    """Whether later runs are compared with a run, by the result of its guards.

    A run that passed because a change was accepted is no measure for what the next one may have:
    the same fault stops it again.
    """
    lifted = result.get("accepted", {})
    return not any(seen for guard, seen in lifted.items() if guard.startswith("max_"))


def _compare(facts: PeriodFacts, last: PeriodFacts, guards: Guards, period: str) -> list[Violation]:
    found: list[Violation] = []
    if guards.max_row_drop is not None:
        found += _row_drop(facts, last, guards.max_row_drop, period)
    if guards.max_label_change is not None:
        found += _label_changes(facts, last, guards.max_label_change, period)
    if guards.max_coverage_drop is not None:
        found += _coverage_drops(facts, last, guards.max_coverage_drop, period)
    return sorted(found)


def _row_drop(
    facts: PeriodFacts, last: PeriodFacts, limit: float, period: str
) -> Iterator[Violation]:
    n, n0 = facts["impressions"], last["impressions"]
    if n < (1 - limit) * n0 and n0 - n > _STANDARD_ERRORS * math.sqrt(n0 + n):
        expected = f"expected a fall of at most {limit:.0%}"
        seen = f"{period}: {n} impressions, at the last run {n0}; {expected}"
        yield Violation("max_row_drop", seen)


def _label_changes(
    facts: PeriodFacts, last: PeriodFacts, limit: float, period: str
) -> Iterator[Violation]:
    for task in facts["labels"].keys() & last["labels"].keys():
        now, before = facts["labels"][task], last["labels"][task]
        if _mean_changed(now, before, limit):
            seen = (
                f"{period}: label {task!r} has mean {now['mean']:.4g} over {now['rows']} rows, at "
                f"the last run {before['mean']:.4g}; expected a change of at most {limit:.0%}"
            )
            yield Violation("max_label_change", seen)
        elif before["rows"] and not now["rows"]:
            seen = (
                f"{period}: label {task!r} is masked in every row, at the last run "
                f"{before['rows']} rows had it"
            )
            yield Violation("max_label_change", seen)


def _coverage_drops(
    facts: PeriodFacts, last: PeriodFacts, limit: float, period: str
) -> Iterator[Violation]:
    for name in facts["coverage"].keys() & last["coverage"].keys():
        share, share0 = facts["coverage"][name], last["coverage"][name]
        if share is None or share0 is None:
            continue
        variances = share * (1 - share) / facts["users"], share0 * (1 - share0) / last["users"]
        if share0 - share > max(limit, _STANDARD_ERRORS * math.sqrt(sum(variances))):
            seen = (
                f"{period}: feature {name!r} has a value in {share:.1%} of the examples, at the "
                f"last run {share0:.1%}; expected a fall of at most {limit:.0%}"
            )
            yield Violation("max_coverage_drop", seen)


def _mean_changed(now: LabelFacts, before: LabelFacts, limit: float) -> bool:
    """Whether a label's mean moved by more than the limit and by more than chance explains."""
    mean, mean0, std, std0 = now["mean"], before["mean"], now["std"], before["std"]
    if mean is None or mean0 is None or std is None or std0 is None:  # masked in every row
        return False
    if min(now["users"], before["users"]) < _FEWEST_USERS:
        return False
    error = math.sqrt(std**2 / now["users"] + std0**2 / before["users"])
    return abs(mean - mean0) > max(limit * abs(mean0), _STANDARD_ERRORS * error)
