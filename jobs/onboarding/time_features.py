"""Drafts the features that are computed over time: hours, histories, counters."""

from datetime import timedelta
from typing import Any

import polars as pl

from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.feedback.labels import Labels, snake
from multigate.jobs.onboarding.tables.roles import Roles

_SAME = 0.95
_ONE_TELLS = 0.1  # labels that the prior weighs as much as
_DAYS_FOR_HOUR, _DAYS_FOR_WEEKDAY = 3, 28
_WINDOWS = ((60, "1d", "7d"), (14, "1d", "3d"), (2, "6h", "1d"), (0, "1h", "6h"))


def times_of_day(
    roles: Roles, features: dict[str, Any], labels: Labels, made: Draft
) -> dict[str, Any]:
    """Adds the hour and the weekday of the time as features; returns how they are derived."""
    times = roles.frame["__time"]
    derive: dict[str, Any] = {}
    for rule, values, least, fewest in (
        ("hour_of", times.dt.hour(), _DAYS_FOR_HOUR, 8),
        ("weekday_of", times.dt.weekday(), _DAYS_FOR_WEEKDAY, 5),
    ):
        if roles.span < timedelta(days=least) or values.n_unique() < fewest:
            continue
        numbers = values.cast(pl.Float64)
        given = [
            name
            for name, column in roles.columns.items()
            if column.number is not None
            and column.distinct == values.n_unique()
            and float((roles.frame[name].cast(pl.Float64, strict=False) == numbers).mean() or 0)
            > _SAME
        ]
        if given:
            continue
        name = snake(rule.removesuffix("_of"), {**features, **labels.tasks, **_names(roles)})
        derive[name] = {rule: roles.time.column.name}
        features[name] = {"kind": "id", "side": "context", "dtype": "int", "missing": "indicator"}
        made.notes[f"contract.features.{name}"] = (
            f"of the time {roles.time.column.name!r}; a request sends it"
        )
    return derive


def _names(roles: Roles) -> dict[str, None]:
    return dict.fromkeys(roles.columns)


def features_over_time(
    roles: Roles, labels: Labels, features: dict[str, Any], made: Draft
) -> dict[str, Any]:
    """Histories and counters."""
    days = roles.span / timedelta(days=1)
    short, long = next((a, b) for least, a, b in _WINDOWS if days >= least)
    if roles.event is not None:
        shown, taken = [str(roles.impression)], list(labels.events.values())
        interest = shown
    else:
        shown = ["impression"]
        weights = {v: labels.tasks[name]["score_weight"] for name, v in labels.events.items()}
        taken = [value for value, weight in weights.items() if weight]  # 0: what was seen
        liked = [value for value, weight in weights.items() if weight > 0]
        interest = liked[:1] or shown
    item = made.notes["item feature"]
    dtype = {"dtype": features[item]["dtype"]} if "dtype" in features[item] else {}

    def history(events: list[str]) -> dict[str, Any]:
        return {
            "kind": "id_list",
            "side": "user",
            "share": item,
            **dtype,
            "history": {"events": events, "last": 20},
            "max_length": 20,
        }

    def count(of: str, events: list[str], within: str | None) -> dict[str, Any]:
        rule = {"of": of, "events": events} | ({"within": within} if within else {})
        return {"kind": "number", "side": of, "count": rule, "transform": "log1p"}

    found = {"recent_items": history(interest)}
    if taken and taken != interest:
        found["recent_feedback"] = history([one for one in taken if one not in interest])
    found |= {
        f"item_shown_{short}": count("item", shown, short),
        f"item_shown_{long}": count("item", shown, long),
        "item_shown": count("item", shown, None),
        "item_age": {
            "kind": "number",
            "side": "item",
            "since": {"of": "item", "events": shown, "which": "first"},
            "transform": "log1p",
            "missing": "indicator",
        },
        f"user_shown_{long}": count("user", shown, long),
    }
    if taken:
        found[f"item_feedback_{long}"] = count("item", taken, long)
    for task in labels.of_items:
        known = {"of": "item", "task": task, "strength": _ONE_TELLS}
        found[f"item_{task}"] = {"kind": "number", "side": "item", "label_mean": known}
    if roles.is_stranger:  # who has no past has none to count
        found = {name: one for name, one in found.items() if one["side"] != "user"}
    free: dict[str, Any] = {}
    for name, feature in found.items():
        free[snake(name, {**features, **free, **labels.tasks})] = feature
    for name, feature in free.items():
        if "history" in feature:
            made.notes[f"contract.features.{name}"] = (
                f"the user's last items with {' or '.join(feature['history']['events'])}; the "
                "model reads how often the candidate stands among them (match)"
            )
        if "label_mean" in feature:
            made.notes[f"contract.features.{name}"] = (
                "the item decides the label, so that one past label tells nearly all"
            )
    made.notes[f"contract.features.item_shown_{short}"] = (
        f"how items do at the moment; windows for a log of {days:.0f} days"
    )
    return free
