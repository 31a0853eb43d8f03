"""Checks the features of a sample: constant, seen once, missing, of a request, or a leak."""

from pathlib import Path
from typing import Any

import polars as pl

from multigate.configs import Config
from multigate.configs.contract import IdFeature, IdListFeature, NumberFeature, PositionFeature
from multigate.configs.files import LABEL, REQUEST, TIME
from multigate.configs.sections.log import EventLog
from multigate.configs.sections.nearest import listed
from multigate.jobs.onboarding.feedback.afterwards import MAY_BE_OUTCOME, may_be_outcome
from multigate.jobs.onboarding.findings import Checked
from multigate.jobs.onboarding.tables.columns import look
from multigate.jobs.onboarding.tables.guests import crowd, of_the_crowd
from multigate.model.assessment.leaks import check_leaks
from multigate.model.data.rows import Rows
from multigate.pipeline.compute import tables
from multigate.pipeline.core.columns import log_features, table_features
from multigate.pipeline.write.separators import other_separator

FEW_POSITIVES = 10
"""With fewer of them an AUC says little."""
_CONSTANT = 0.995
_DIFFER = 0.03  # of the requests
_RARE, _ALWAYS = 0.5, 0.98
_ONCE = 0.5
_SUMS = 0.8


def check_features(config: Config, impressions: pl.DataFrame, found: Checked) -> None:
    """Check each feature on its own; see `Checked` for what is found.

    Args:
        config: the contract.
        impressions: examples of the sample, before features over time.
        found: gets the facts and findings.
    """
    found.facts["features"] = {}
    contract = config.contract
    for name in impressions.columns:
        feature = contract.features.get(name)
        if feature is None:
            continue
        where, values = f"contract.features.{name}", impressions[name]
        missing = values.null_count() / len(values)
        given = values.drop_nulls()
        _check_context(config, name, impressions, found)
        facts: dict[str, Any] = {"missing": missing}
        if isinstance(feature, IdFeature | NumberFeature | PositionFeature):
            counts = given.value_counts(sort=True)
            facts["distinct"] = len(counts)
            most = counts["count"][0] / len(values) if len(counts) else 0.0
            if most >= _CONSTANT:
                found.warn(
                    where,
                    f"{most:.1%} of the values are {counts[name][0]!r}: nearly constant, it tells "
                    "a model nothing; leave it out",
                )
            if isinstance(feature, IdFeature) and len(counts):
                once = counts.filter(pl.col("count") == 1)
                facts["seen_once"] = len(once)
                if len(once) >= _ONCE * len(counts) and len(counts) > 100:
                    found.warn(
                        where,
                        f"{len(once)} of {len(counts)} ids occur once in the sample, which trains "
                        f"no embedding; raise {where}.min_count (now {feature.min_count})",
                    )
        if isinstance(feature, IdListFeature) and feature.history is None:
            unsplit = other_separator(name, feature, values)
            if unsplit is not None:
                found.warn(where, unsplit.removeprefix(f"{name}: "))
        if missing == 1.0:
            found.warn(where, "every value is missing; check its column and source")
        found.facts["features"][name] = facts


def check_crowd(config: Config, impressions: pl.DataFrame, found: Checked) -> None:
    """One user of a large share of the rows may be a word for all who are not known."""
    user = config.contract.user
    most = crowd(impressions[user]) if user in impressions.columns else None
    if most is None:
        return
    column = config.pipeline.log.columns.user
    found.warn(f"contract.features.{user}", of_the_crowd(*most, str(column)))


def check_required(
    config: Config, events: pl.DataFrame, side_tables: dict[str, pl.DataFrame], found: Checked
) -> None:
    """Which features under `missing: error` a row, an item or a user can lack.

    Args:
        config: the contract and the log's shape.
        events: of the sample, typed.
        side_tables: `users` and `items`, where there are.
        found: gets, by feature, the share of the impressions that its side table leaves without a
            value, and the notes.
    """
    log, contract = config.pipeline.log, config.contract
    shown = events
    if isinstance(log, EventLog):
        shown = events.filter(pl.col("event") == log.impression)
    ids = {contract.user: "user", contract.item: "item", TIME: "time"}
    frame = shown.select(pl.col(column).alias(name) for name, column in ids.items())
    lacking: dict[str, float] = {}
    for source, table in side_tables.items():
        joined = tables.join_table(frame, config, source, table)
        for name in tables.required(config, source):
            lacking[name] = joined[name].null_count() / max(len(joined), 1)
            if lacking[name]:
                found.warn(
                    f"contract.features.{name}",
                    f"{lacking[name]:.1%} of the impressions have no value in pipeline.{source}, "
                    "and missing is error, so that the pipeline drops them; set missing: "
                    "indicator, or bring these rows of the table",
                )
    found.facts["lacking"] = lacking
    found.facts["needed"] = {}
    said = {
        "item": "a new item that no log and no table describes yet is not scored",
        "user": "a request for a new user that does not send them is refused",
    }
    held = {**log_features(config), **table_features(config, "users")}
    held |= table_features(config, "items")
    for side, lost in said.items():
        needed = [n for n, f in held.items() if f.side == side and f.missing == "error"]
        found.facts["needed"][side] = needed
        if needed:
            found.warn(
                "contract.features",
                f"{listed(needed)}: of the {side}, and missing is error: {lost}; set missing: "
                "indicator where that can happen",
            )


def _check_context(config: Config, name: str, impressions: pl.DataFrame, found: Checked) -> None:
    """A request has one value of each feature of the user and the context."""
    feature = config.contract.features[name]
    of_item = feature.side == "item" or isinstance(feature, PositionFeature)
    if of_item or config.pipeline.log.columns.request is None:
        return
    values = pl.col(name).drop_nulls().n_unique()
    requests = impressions.group_by(REQUEST).agg(rows=pl.len(), values=values)
    several = requests.filter(pl.col("rows") > 1)
    differ = float((several["values"] > 1).mean() or 0.0) if len(several) else 0.0
    if differ > _DIFFER:
        found.warn(
            f"contract.features.{name}",
            f"rows of one request differ in it in {differ:.0%} of the requests, but a request "
            f"sends one value of a feature of the {feature.side}; if it is known of each "
            "candidate, set side: item; if it came of what the user did, leave it out",
        )


def check_outcomes(config: Config, impressions: pl.DataFrame, found: Checked) -> None:
    """Numbers of the log that may as well be what users then did; the log does not say which."""
    rows, ids = impressions.sort(TIME), (config.contract.user, config.contract.item)
    for name, feature in log_features(config).items():
        if name not in rows.columns or not isinstance(feature, IdFeature | NumberFeature):
            continue
        column = look(name, rows[name])
        if name not in ids and may_be_outcome(rows, ids, column):
            found.warn(f"contract.features.{name}", f"suspect: {MAY_BE_OUTCOME}")


def check_given_away(config: Config, impressions: pl.DataFrame, found: Checked) -> None:
    """A number or flag without which a label is never 1 may be known only with the label."""
    for task, rule in config.contract.tasks.items():
        if rule.type != "binary" or rule.label.rule == "impression":
            continue
        positive = impressions.filter(pl.col(LABEL + task) == 1)
        if len(positive) < FEW_POSITIVES * 3:
            continue
        for name, feature in config.contract.features.items():
            if name not in impressions.columns or not isinstance(feature, NumberFeature):
                continue
            if feature.side == "context" and _sums(impressions, name, LABEL + task):
                found.warn(
                    f"contract.features.{name}",
                    f"leak suspect: it goes with how many positives of {task} its own request has; "
                    "is it known when the items are shown? If not, leave it out",
                )
                continue
            above = pl.col(name).fill_null(0.0) > 0
            share = float(impressions.select(above.mean()).item() or 0.0)
            with_it = float(positive.select(above.mean()).item() or 0.0)
            if share < _RARE and with_it > _ALWAYS:
                found.warn(
                    f"contract.features.{name}",
                    f"leak suspect: {with_it:.0%} of the positives of {task} have a value above 0, "
                    f"of all rows {share:.0%}; is it known when the item is shown? If not, leave "
                    "it out",
                )


def _sums(impressions: pl.DataFrame, name: str, label: str) -> bool:
    """Whether a number of the request goes with how many of its rows are positive."""
    rows = impressions.select(REQUEST, x=name, y=label).drop_nulls()
    requests = rows.group_by(REQUEST).agg(pl.col("x").max(), pl.col("y").sum(), n=pl.len())
    several = requests.filter(pl.col("n") > 1)
    if several["x"].n_unique() < 3 or len(several) < 3 * FEW_POSITIVES:
        return False
    together = several.select(pl.corr("x", "y", method="spearman").fill_nan(0.0)).item()
    return float(together or 0.0) > _SUMS


def check_alone(
    config: Config, impressions: pl.DataFrame, splits: pl.Series, found: Checked
) -> None:
    """Features that alone rank a label: judged by the code of the model report."""
    contract = config.contract
    present = {n: f for n, f in contract.features.items() if n in impressions.columns}
    known = contract.model_copy(update={"features": present})
    training, others = (
        Rows(Path("sample"), impressions.filter(chosen).to_arrow())
        for chosen in (splits == "train", splits != "train")
    )
    if not len(training) or not len(others):
        training = others = Rows(Path("sample"), impressions.to_arrow())
    limit = config.evaluation.largest_feature_auc
    judged = check_leaks(known, others, training, limit)
    tasks = contract.tasks
    for one in judged["features"]:
        positives = found.facts["tasks"][one["task"]].get("positives", {"validation": 10**9})
        enough = positives["validation"] + positives.get("test", 0) >= FEW_POSITIVES
        if one["leak"] and enough and one["task"] in tasks:
            found.warn(
                f"contract.features.{one['feature']}",
                f"leak suspect: alone (by its {one['by']}) it ranks {one['task']} with AUC "
                f"{one['auc']:.3f}, above {limit:g}; is it known when the item is shown? If not, "
                "leave it out",
            )
