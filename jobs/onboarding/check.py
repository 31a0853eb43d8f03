"""Checks a configuration against a sample of its log, with the pipeline's own code.

Great Expectations and pandera were considered: they check rules that somebody has written down;
here the configuration is the rule, and the pipeline's own reading and labelling decides.
"""

import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import polars as pl

from multigate.configs import Config, ConfigError, DataError, progress
from multigate.configs.files import LABEL, SPLITS
from multigate.configs.sections.nearest import did_you_mean
from multigate.configs.storage import Place
from multigate.jobs.onboarding.check_features import (
    FEW_POSITIVES,
    check_alone,
    check_crowd,
    check_features,
    check_given_away,
    check_outcomes,
    check_required,
)
from multigate.jobs.onboarding.cost import pipeline_cost, training_cost
from multigate.jobs.onboarding.findings import Checked, Finding
from multigate.jobs.onboarding.sample import BadValue, Sample, divide, label, read_sample
from multigate.model.data import funnels
from multigate.pipeline.compute import ages, tables
from multigate.pipeline.core.columns import check as check_columns
from multigate.pipeline.core.columns import event_types
from multigate.pipeline.read import drift, erasure, log_end
from multigate.pipeline.read.inputs import roles
from multigate.pipeline.read.parse import parse_time
from multigate.pipeline.write import manifest

_PARTS = ("time", "user", "item")


@progress.stepwise("check", 5)
def check(config: Config, data: Place, rows: int = 200_000) -> Checked:
    """Check a configuration against its log.

    Args:
        config: the log, the contract and the split.
        data: the folder of the log.
        rows: how many rows to look at.

    Raises:
        DataError: there is no such folder, or no file for a pattern.
    """
    found = Checked()
    try:
        check_columns(config)
    except ConfigError as error:
        found.fail("contract", str(error))
        return found
    progress.step("read a sample")
    sample = read_sample(config, data, rows)
    found.facts["rows"] = {
        "sample": sample.rows,
        "log": sample.log_rows,
        "whole": sample.whole,
        "rejected": sample.rejected,
    }
    progress.step("side tables")
    side_tables = _side_tables(config, data, found)
    _check_log(config, data, sample, found)
    if found.fails or not len(sample.events):
        return found
    started = time.process_time()
    progress.step("label the sample")
    made = label(sample, config, side_tables)
    seconds = sample.seconds + time.process_time() - started
    impressions = ages.measured(made.impressions, config)
    found.facts["impressions"] = len(impressions)
    found.facts["feedback"] = {
        "attributed": made.counts.feedback,
        "orphans": made.counts.orphans,
        "late": made.counts.late,
        "duplicates": made.counts.duplicates,
        "held_back": made.counts.held_back,
    }
    found.facts["dropped"] = made.counts.dropped
    check_required(config, sample.events, side_tables, found)
    if not len(impressions):
        found.fail(
            "pipeline",
            f"no example is left of {sample.rows} rows: {made.counts.held_back} impressions were "
            f"held back because their labels were open at the end of the sample, "
            f"{made.counts.dropped} lack a row in a side table; shorten contract.tasks.NAME.label."
            "within, or set pipeline.hold_back: false",
        )
        return found
    impressions, splits = divide(config, impressions)
    _check_labels(config, impressions, splits, sample, found)
    progress.step("features")
    check_features(config, impressions, found)
    check_crowd(config, impressions, found)
    progress.step("leaks and cost")
    check_alone(config, impressions, splits, found)
    check_given_away(config, impressions, found)
    check_outcomes(config, impressions, found)
    share = len(impressions) / max(sample.rows, 1)
    training = float((splits == "train").mean() or 0.0)
    negatives = config.pipeline.negatives
    drawn = 1 if negatives is None else 1 + negatives.per_positive
    rows_to_train = round(sample.log_rows * share * training * drawn)
    labelled = {
        # Sampled negatives have the label of the impression itself, and no other.
        name: rows_to_train
        if task.label.rule == "impression"
        else round(known["labels_by_split"]["train"] * sample.log_rows / max(sample.rows, 1))
        for (name, task), known in zip(
            config.contract.tasks.items(), found.facts["tasks"].values(), strict=True
        )
    }
    found.facts["cost"] = {
        "pipeline": asdict(pipeline_cost(config, seconds, sample.rows, sample.log_rows)),
        "training": asdict(training_cost(config, impressions, rows_to_train, labelled)),
    }
    least = config.run.guards.min_rows
    if least is not None and rows_to_train < least:
        found.warn(
            "run.guards.min_rows",
            f"about {rows_to_train} training rows; `multigate run` asks for {least}",
        )
    return found


def _side_tables(config: Config, data: Place, found: Checked) -> dict[str, pl.DataFrame]:
    made: dict[str, pl.DataFrame] = {}
    try:
        forgotten = erasure.read_list(config, data, None)
    except DataError as error:
        found.fail("pipeline.forget", str(error))
        return made
    for source in ("users", "items"):
        try:
            table = tables.read_table(config, data, source, forgotten)
        except DataError as error:
            found.fail(f"pipeline.{source}", str(error))
            continue
        if table is not None:
            made[source] = table
    return made


def _check_log(config: Config, data: Place, sample: Sample, found: Checked) -> None:
    """What the pipeline refuses once it has read the log."""
    facts = sample.facts
    if not sample.rows:
        found.fail(facts[0].file, "the log has no rows; bring at least one impression")
        return
    absent = manifest.missing_column(config, facts)
    if absent is not None:
        hint = tables.hint(config, data, absent.name)
        found.fail("pipeline.log", absent.message + hint)
        return
    for problem in (drift.changed_type(config, facts), _wrong_unit(config, sample)):
        if problem is not None:
            found.fail("pipeline.log", problem)
    allowed = config.pipeline.max_reject_rate
    fails = sample.reject_rate > allowed or sample.rejected == sample.rows
    for one in sample.bad[:10]:
        share = f"{one.rows} of {sample.rows} rows ({one.rows / sample.rows:.1%})"
        received = repr(one.value) if one.value or not one.column else "an empty cell"
        message = f"line {one.line}: {one.reason}; received {received}"
        message += f" in column {one.column!r}" if one.column else ""
        message += f"; {share}{_advice(one, config)}"
        found.findings.append(Finding(fails, one.file, message))
    if fails:
        found.fail(
            "pipeline.max_reject_rate",
            f"{sample.rejected} of {sample.rows} rows are rejected ({sample.reject_rate:.1%}); "
            f"{allowed:.1%} are allowed; raise it if such rows may be left out",
        )
    events: Counter[str] = Counter()
    for fact in facts:
        events.update(fact.events)
    for event, where in event_types(config).items():
        if events and event not in events:
            names = ", ".join(f"{name} ({count})" for name, count in events.most_common(20))
            message = f"event type {event!r} does not occur in the sample; "
            message += f"{did_you_mean(event, events)}it holds {names}"
            found.findings.append(Finding(sample.whole, where, message))


def _wrong_unit(config: Config, sample: Sample) -> str | None:
    return log_end.wrong_unit(sample.facts, roles(config, False)[1])


def _advice(one: BadValue, config: Config) -> str:
    """What to do about a bad value, where it is known."""
    name, _, reason = one.reason.partition(": ")
    if name == "time" and one.value:
        unit = roles(config, False)[1]
        zone = config.pipeline.log.time_zone
        for other in ("s", "ms", "us", "iso"):
            parsed = parse_time(pl.Series([one.value]), other, None, zone).values[0]
            if other != unit and parsed is not None and parsed.year >= 1990:
                return f"; pipeline.log.time_unit is {unit}: {other} reads it as {parsed}"
        return f"; pipeline.log.time_unit is {unit}, and no other unit reads it either"
    if (name, reason) == ("user", "missing"):
        return (
            "; such rows are left out; where another column names those who are not logged in, "
            f"derive the user: {{coalesce: [{config.pipeline.log.columns.user}, THAT]}}"
        )
    if "missing: error" in reason:
        return f"; set contract.features.{name}.missing: indicator, or default with a default"
    if reason == "expected an integer":
        feature = name if name not in _PARTS else getattr(config.contract, name, name)
        return f"; set contract.features.{feature}.dtype: string"
    return ""


def _check_labels(
    config: Config,
    impressions: pl.DataFrame,
    splits: pl.Series,
    sample: Sample,
    found: Checked,
) -> None:
    found.facts["tasks"] = {}
    labelled = impressions.with_columns(split=splits)
    for name, task in config.contract.tasks.items():
        where = f"contract.tasks.{name}"
        values = impressions[LABEL + name]
        by_split = {part: labelled.filter(pl.col("split") == part)[LABEL + name] for part in SPLITS}
        facts: dict[str, Any] = {
            "labels": values.count(),
            "mean": values.mean(),
            "labels_by_split": {part: one.count() for part, one in by_split.items()},
        }
        if task.type == "binary":
            ones = {part: int((one == 1).sum()) for part, one in by_split.items()}
            facts["positives"] = ones
            always = task.label.rule == "impression"
            if not always:
                for part, count in ones.items():
                    if count < FEW_POSITIVES:
                        found.warn(
                            where,
                            f"{count} positives in the {part} split of the sample; its AUC needs "
                            "more: bring more data, widen the label, or give the split a larger "
                            "share",
                        )
            if always and config.pipeline.negatives is None:
                found.warn(
                    where,
                    "every label is 1 (rule impression) and no negatives are sampled; set "
                    "pipeline.negatives",
                )
        elif values.count() and values.n_unique() <= 1 + (values.null_count() > 0):
            found.warn(where, f"every label is {values.drop_nulls()[0]:g}; nothing can be learnt")
        if task.given is not None:
            ones = impressions.filter(pl.col(LABEL + name) == 1)
            wrong = len(ones.filter(pl.col(LABEL + task.given) == 0))
            if wrong:
                found.fail(where, funnels.contradiction(name, task.given, wrong, len(ones)))
        if not values.count():
            message = "no impression of the sample has a label; the rule finds nothing"
            found.findings.append(Finding(sample.whole, where, message))
        found.facts["tasks"][name] = facts
    for part in ("train", "validation"):
        of_all = [one["labels_by_split"][part] for one in found.facts["tasks"].values()]
        if not sum(of_all):
            message = (
                f"no row of the {part} split has a label: those whose labels close after the next "
                "split begins are left out; give the splits a larger share, or shorten "
                "pipeline.log.known_after or contract.tasks.NAME.label.within"
            )
            found.findings.append(Finding(sample.whole, "pipeline.split", message))
