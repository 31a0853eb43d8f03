"""Drafts the section `pipeline`: how the log is read, negatives, the split."""

import math
from datetime import timedelta
from typing import Any

import polars as pl

from multigate.configs.sections.nearest import listed
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.feedback.labels import DELAYS, Labels
from multigate.jobs.onboarding.tables.raw import Table
from multigate.jobs.onboarding.tables.roles import Roles

_WAIT = 0.02  # of the log's time


def pipeline_section(
    log: Table,
    roles: Roles,
    labels: Labels,
    tables: dict[str, tuple[Table, str]],
    rows: int,
    made: Draft,
) -> dict[str, Any]:
    """Draft how the log is read, its negatives and its split.

    Args:
        log: the table of events or impressions.
        roles: what its columns are.
        labels: the tasks.
        tables: `users` and `items` -> the side table and its key.
        rows: impressions of the whole log, about.
        made: gets the reasons.
    """
    time = roles.time
    columns = {"time": time.column.name, "user": roles.user, "item": roles.item}
    if roles.is_stranger and roles.event is None:
        del columns["user"]
    elif roles.is_stranger:
        columns["user"] = roles.item  # feedback belongs to the last impression of its item
    for role in ("event", "session", "request"):
        value = getattr(roles, role)
        if value is not None and (roles.event is not None or role == "request"):
            columns[role] = value
    read: dict[str, Any] = {
        "shape": "impressions" if roles.event is None else "events",
        "files": list(log.files),
        "format": log.form,
        "time_unit": time.unit,
    }
    if log.explode is not None:
        read["explode"] = log.explode
        made.notes["pipeline.log.explode"] = (
            "a row is a whole request: one row for each item that it showed"
        )
    if time.unknown is not None:
        read["unknown_time"] = time.unknown
    if roles.event is not None:
        read["impression"] = roles.impression
        counts = ", ".join(f"{kind} ({count})" for kind, count in roles.event_counts.items())
        made.notes["pipeline.log.impression"] = f"event types: {counts}" + "".join(
            f"; {kind!r} {why}, so that it is no task" for kind, why in labels.no_task.items()
        )
    elif time.unknown is None and labels.columns:
        read["known_after"] = labels.wait
        made.notes["pipeline.log.known_after"] = (
            "an assumption: how long after the impression its feedback is complete"
        )
    if roles.weight is not None:
        columns["weight"] = roles.weight
    if labels.value is not None:
        columns["value"] = labels.value
    if roles.visits is not None:
        of_feedback = ("files", "format", "time_unit")
        read["feedback"] = {key: read[key] for key in of_feedback} | {"columns": columns}
        made.notes["pipeline.log.feedback"] = (
            f"the same rows once more: {listed([repr(one) for one in roles.visits.opens])} begin "
            "visits, and none is an impression of which the others are feedback. So each row is an "
            "impression, of which those of one visit are one (collapse), and each is feedback"
        )
        columns = {role: columns[role] for role in columns if role not in ("event", "value")}
    read["columns"] = columns
    made.notes["pipeline.log"] = f"about {log.rows} rows"
    found: dict[str, Any] = {"log": read}
    for source, (table, key) in tables.items():
        found[source] = {"files": list(table.files), "format": table.form, "key": key}
        made.notes[f"pipeline.{source}"] = (
            f"its column {key!r} holds the log's ids, each once; it has no dates, so that its "
            "values are those of the day of its export: leave out what was not known before"
        )
    if roles.visits is not None:
        found["collapse"] = roles.visits.within
        whose = "item" if roles.is_stranger else "user and item"
        made.notes["pipeline.collapse"] = (
            f"rows of the same {whose} within this time are of one visit"
            + (", whoever's they are" if roles.is_stranger else "")
        )
    elif roles.event is not None and _repeats(roles) > 0.005:
        found["collapse"] = "30s"
        made.notes["pipeline.collapse"] = (
            f"{_repeats(roles):.1%} of the impressions repeat one of the same user and item within "
            "30 s"
        )
    lost = _without_ids(roles)
    if sum(lost.values()) > 0.003:
        found["max_reject_rate"] = math.ceil(min(2 * sum(lost.values()), 1) * 100) / 100
        names = " and ".join(f"{part:.1%} no {name!r}" for name, part in lost.items() if part)
        made.notes["pipeline.max_reject_rate"] = (
            f"of the rows, {names}: such rows are rejected, and a run with more than twice as many "
            "is refused"
        )
    if labels.shown_only:
        found["negatives"] = _negatives(roles, rows, made)
    if time.unknown is not None:
        found["split"] = {"by": "random", "validation": 0.1, "test": 0.1}
        made.notes["pipeline.split"] = (
            "random, because some times are unknown; where they are known, by: time is honest"
        )
    else:
        reason = ""
        if _positives(roles, labels, rows) < 1000:
            reason = "; positives are few, so that their shares are large"
        elif _waits(labels) > _WAIT * roles.span.total_seconds():
            reason = "; labels wait long, which no split's last rows outlast: the shares are large"
        share = 0.2 if reason else 0.1
        found["split"] = {"by": "time", "validation": share, "test": share}
        made.notes["pipeline.split"] = (
            f"by time: training ends before validation and test begin{reason}"
        )
    return found


def _waits(labels: Labels) -> float:
    """After how many seconds all binary labels of a row are known."""
    seconds = dict(DELAYS)
    binary = [task["label"] for task in labels.tasks.values() if task["type"] == "binary"]
    return max(float(seconds[label.get("within", labels.wait)]) for label in binary)


def _without_ids(roles: Roles) -> dict[str, float]:
    """The share of rows without a user, an item or an event type, by the column's name."""
    names = [name for name in (roles.user, roles.item, roles.event) if name is not None]
    return {name: roles.columns[name].missing for name in names}


def _positives(roles: Roles, labels: Labels, rows: int) -> float:
    """Positives of the rarest task, about."""
    found = [float(rows)]
    for value in labels.events.values():
        if roles.event is not None:
            found.append(roles.event_counts[value] / max(len(roles.frame), 1) * rows)
        elif (numbers := roles.columns[value].number) is not None:
            found.append(float((numbers == 1).mean() or 0.0) * rows)
    return min(found)


def _repeats(roles: Roles) -> float:
    shown = roles.frame.filter(pl.col(str(roles.event)) == roles.impression)
    gap = (pl.col("__time") - pl.col("__time").shift()).over(roles.user, roles.item)
    return float(shown.select((gap <= timedelta(seconds=30)).fill_null(False).mean()).item() or 0)


def _negatives(roles: Roles, rows: int, made: Draft) -> dict[str, Any]:
    many = 4 if rows < 300_000 else 1
    if roles.time.unknown is not None:
        return {"per_positive": 1, "sampling": "uniform", "exclude": "ever"}
    made.notes["pipeline.negatives"] = f"{many} items that were in circulation for each positive"
    life = (
        roles.frame.group_by(roles.item)
        .agg(pl.col("__time").max() - pl.col("__time").min(), pl.len())
        .filter(pl.col("len") > 4)["__time"]
        .median()
    )
    found = {"per_positive": many, "sampling": "uniform", "exclude": "past", "unmatched": "mask"}
    span = roles.span
    if isinstance(life, timedelta) and life < 0.5 * span:
        recent = "7d" if span > timedelta(days=30) else "1d"
        found["recent"] = recent
        made.notes["pipeline.negatives"] += (
            f"; half of the items live at most {life / timedelta(days=1):.0f} of "
            f"{span / timedelta(days=1):.0f} days, so that those of the last {recent} are drawn"
        )
    elif span > timedelta(days=60):
        found["recent"] = "30d"
    return found
