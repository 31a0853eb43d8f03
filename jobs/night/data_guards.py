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
from datetime import date, datetime, timedelta
from pathlib import Path

import polars as pl

from multigate.configs.config import Config
from multigate.configs.contract import Contract
from multigate.configs.files import LABEL, SAMPLED, SPLITS, TIME, ExamplesFolder
from multigate.configs.sections.run import Guards
from multigate.jobs.night.records import Facts, LabelFacts, PeriodFacts

_STANDARD_ERRORS = 3.0
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


def violations(facts: Facts, last: Facts | None, guards: Guards) -> list[str]:
    """Compare what was measured with the limits.

    Args:
        facts: of this run.
        last: of the last run that passed; None where there is none.
        guards: the limits.

    Returns:
        One line per guard that stops the run: which, what was expected, what was found. Tasks and
        features that the last run did not have are not compared.
    """
    found = []
    for split, key in (("train", "min_rows"), ("test", "min_test_rows")):
        count, least = facts["splits"][split], getattr(guards, key)
        if count < least:
            found.append(f"{key}: expected at least {least} examples to {split}, found {count}")
    for name, share in facts["all"]["coverage"].items():
        if share is not None and share < guards.min_coverage:
            found.append(
                f"min_coverage: feature {name!r}: expected a value in at least "
                f"{guards.min_coverage:.1%} of the examples, found {share:.1%}"
            )
    if last is None:
        return found
    rise = facts["lost"] - last["lost"]
    if rise > guards.max_lost_rise:
        found.append(
            f"max_lost_rise: {facts['lost']:.1%} of the log's rows were lost (rejects, orphans, "
            f"late, duplicates, dropped), at the last run {last['lost']:.1%}; expected a rise of "
            f"at most {guards.max_lost_rise:.1%}"
        )
    if facts["delay"] is not None and last["delay"] is not None:
        later = timedelta(seconds=round(facts["delay"] - last["delay"]))
        if later > guards.max_delay:
            found.append(
                f"max_delay: the newest impression is {later} older than at the last run, measured "
                f"from the date; expected at most {guards.max_delay}: the date's log is not there"
            )
    found += _compare(facts["all"], last["all"], guards, "all examples")
    if facts["newest_day"] is not None and last["newest_day"] is not None:
        newest = "the newest day's examples"
        found += _compare(facts["newest_day"], last["newest_day"], guards, newest)
    return found


def _compare(facts: PeriodFacts, last: PeriodFacts, guards: Guards, period: str) -> list[str]:
    found = []
    n, n0 = facts["impressions"], last["impressions"]
    if n < (1 - guards.max_row_drop) * n0 and n0 - n > _STANDARD_ERRORS * math.sqrt(n0 + n):
        found.append(
            f"max_row_drop: {period}: {n} impressions, at the last run {n0}; expected a fall of "
            f"at most {guards.max_row_drop:.0%}"
        )
    for task in facts["labels"].keys() & last["labels"].keys():
        now, before = facts["labels"][task], last["labels"][task]
        if _mean_changed(now, before, guards.max_label_change):
            found.append(
                f"max_label_change: {period}: label {task!r} has mean {now['mean']:.4g} over "
                f"{now['rows']} rows, at the last run {before['mean']:.4g}; expected a change of "
                f"at most {guards.max_label_change:.0%}"
            )
        elif before["rows"] and not now["rows"]:
            found.append(
                f"max_label_change: {period}: label {task!r} is masked in every row, at the last "
                f"run {before['rows']} rows had it"
            )
    for name in facts["coverage"].keys() & last["coverage"].keys():
        share, share0 = facts["coverage"][name], last["coverage"][name]
        if share is None or share0 is None:
            continue
        variances = share * (1 - share) / facts["users"], share0 * (1 - share0) / last["users"]
        error = math.sqrt(sum(variances))
        if share0 - share > max(guards.max_coverage_drop, _STANDARD_ERRORS * error):
            found.append(
                f"max_coverage_drop: {period}: feature {name!r} has a value in {share:.1%} of the "
                f"examples, at the last run {share0:.1%}; expected a fall of at most "
                f"{guards.max_coverage_drop:.0%}"
            )
    return sorted(found)


def _mean_changed(now: LabelFacts, before: LabelFacts, limit: float) -> bool:
    """Whether a label's mean moved by more than the limit and by more than chance explains."""
    mean, mean0, std, std0 = now["mean"], before["mean"], now["std"], before["std"]
    if mean is None or mean0 is None or std is None or std0 is None:  # masked in every row
        return False
    error = math.sqrt(std**2 / now["users"] + std0**2 / before["users"])
    return abs(mean - mean0) > max(limit * abs(mean0), _STANDARD_ERRORS * error)
