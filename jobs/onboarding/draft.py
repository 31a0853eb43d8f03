"""Drafts a commented configuration from a folder that holds a log.

ydata-profiling was considered: it describes columns, and drafts neither roles nor labels.
"""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.configs.storage import Place
from multigate.jobs.onboarding.columns import (
    Column,
    as_times,
    decides,
    is_prose,
    look,
    separator,
)
from multigate.jobs.onboarding.labels import Labels, feedback_columns, feedback_events, snake
from multigate.jobs.onboarding.raw import Table, find_tables
from multigate.jobs.onboarding.roles import Roles, guess_roles, side_tables

_ROWS = 200_000
_POLICY = r"propensity|pscore|sample_weight"  # of the policy that chose what was shown
_WINDOWS = ((60, "1d", "7d"), (14, "1d", "3d"), (2, "6h", "1d"), (0, "1h", "6h"))
_SIZES = (
    # rows, embedding_dim, experts, units, batch_size
    (50_000, 16, 4, 64, 512),
    (1_000_000, 32, 8, 128, 2048),
    (2**63, 32, 8, 128, 4096),
)


@dataclass
class Draft:
    """A configuration and what was guessed."""

    values: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)
    """Dotted key -> why it was guessed; `left out` for columns that nothing reads."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Column -> why no feature reads it."""

    def config(self) -> Config:
        """The typed configuration."""
        return parse(Config, self.values, "the draft")


def draft(data: Place, name: str) -> Draft:
    """Look at a folder and draft a configuration.

    Args:
        data: the folder of the log.
        name: of the model.

    Raises:
        DataError: there is no such folder, no table in it, or no column of times, users or items.
    """
    log, *others = find_tables(data, _ROWS)
    roles = guess_roles(log)
    labels = feedback_columns(roles) if roles.event is None else feedback_events(roles)
    made = Draft({})
    tables = side_tables(roles, others)
    features = _features(roles, labels, tables, made)
    over_time = roles.time.unknown is None
    if over_time:
        features |= _features_over_time(roles, labels, features, made)
    contract: dict[str, Any] = {
        "user": made.notes.pop("user feature"),
        "item": made.notes.pop("item feature"),
        "features": features,
    }
    if over_time and any(one["label"]["rule"] != "impression" for one in labels.tasks.values()):
        contract["rates"] = _rates(roles, labels, features, contract, made)
    contract["tasks"] = labels.tasks
    for task, why in labels.reasons.items():
        made.notes[f"contract.tasks.{task}"] = why
    rows = log.rows if roles.event is None else round(log.rows * _share_shown(roles))
    pipeline = _pipeline(log, roles, labels, tables, rows, made)
    drawn = pipeline.get("negatives", {}).get("per_positive", 0)
    made.values = {
        "name": name,
        "contract": contract,
        "pipeline": pipeline,
        **_model(rows * (1 + drawn), made),
    }
    if labels.shown_only:
        made.values["evaluation"] = {"rules": {"calibration": None}}
        made.notes["evaluation"] = (
            "sampled negatives make the rate of the first task a choice, so that predicted over "
            "observed is not judged"
        )
    made.notes["pipeline.log.columns"] = "; ".join(
        f"{role}: {why}" for role, why in roles.reasons.items()
    )
    return made


def _share_shown(roles: Roles) -> float:
    counts = roles.event_counts
    return counts.get(str(roles.impression), 0) / max(sum(counts.values()), 1)


def _id(column: Column, name: str, side: str, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": "id", "side": side, **more}
    if name != column.name:
        made["column"] = column.name
    text = column.raw.drop_nulls()
    if column.number is not None and column.whole:
        whole = text.cast(pl.Int64, strict=False)
        if whole.null_count() == 0 and (whole.cast(pl.String) == text.cast(pl.String)).all():
            made["dtype"] = "int"
    return made


def _features(
    roles: Roles, labels: Labels, tables: dict[str, tuple[Table, str]], made: Draft
) -> dict[str, Any]:
    """The features that columns hold."""
    found: dict[str, Any] = {}
    for role in ("user", "item"):
        column = roles.columns[getattr(roles, role)]
        name = snake(column.name, {**labels.tasks, **found})
        counts = column.raw.drop_nulls().value_counts()["count"]
        rare = float((counts == 1).mean() or 0.0)
        least = 3 if rare > 0.1 else 1
        found[name] = _id(column, name, role) | ({"min_count": least} if least > 1 else {})
        made.notes[f"{role} feature"] = name
        made.notes[f"contract.features.{name}"] = f"{column.distinct} values" + (
            f", {rare:.0%} of them seen once" if rare > 0.1 else ""
        )
    frame = roles.frame
    if roles.event is not None:
        frame = frame.filter(pl.col(roles.event) == roles.impression)
    for name in roles.columns:
        if name in roles.named or name in labels.columns or name == labels.position:
            continue
        known = roles.columns[name]
        if known.serial:
            made.left_out[name] = "it numbers the rows"
            continue
        if re.search(_POLICY, name.lower()):
            made.left_out[name] = "its name says that it is known when logging, not when serving"
            continue
        column = look(name, known.raw if known.is_list else frame[name])
        side, why = _side(frame, roles, name)
        _add(found, column, side, why, labels, made, ids=None)
    if labels.position is not None:
        column = roles.columns[labels.position]
        name = snake(column.name, {**labels.tasks, **found})
        found[name] = {
            "kind": "position",
            "side": "context",
            "max_position": max(int(column.highest) + 1, 2),
        } | ({"column": column.name} if name != column.name else {})
        made.notes[f"contract.features.{name}"] = (
            "places: each once in a request, or all alike frequent; read in training only"
        )
    for source, (table, key) in tables.items():
        side = source.removesuffix("s")
        for name in table.frame.columns:
            if name != key:
                column = look(name, table.frame[name])
                why = f"of the table {table.files[0]}, by its column {key!r}"
                _add(found, column, side, why, labels, made, ids=len(table.frame), source=source)
    return found


def _side(frame: pl.DataFrame, roles: Roles, name: str) -> tuple[str, str]:
    shares = {
        side: decides(frame, by, name) for side, by in (("user", roles.user), ("item", roles.item))
    }
    side = max(shares, key=lambda one: shares[one])
    if shares[side] < 0.97:
        return "context", "neither the user nor the item decides it"
    return side, f"{shares[side]:.0%} of the rows of one {side} have one value"


def _add(
    found: dict[str, Any],
    column: Column,
    side: str,
    why: str,
    labels: Labels,
    made: Draft,
    ids: int | None,
    source: str = "log",
) -> None:
    """Add the feature of a column, or say why there is none."""
    taken = {**labels.tasks, **found}
    name = snake(column.name, taken)
    if source != "log" and name != snake(column.name):
        name = snake(f"{side}_{column.name}", taken)
    place = {"source": source} if source != "log" else {}
    if name != column.name:
        place["column"] = column.name
    reason = _useless(column, ids)
    if reason is not None:
        made.left_out[column.name] = reason
        return
    mark = separator(column)
    lost = {"missing": "indicator"}
    note = f"{column.distinct} values; {why}"
    if column.missing:
        note += f"; {column.missing:.1%} missing"
    if column.is_list or mark is not None:
        made_of = column.raw.drop_nulls()
        lengths = (
            made_of.list.len() if column.is_list else made_of.str.split(mark or "|").list.len()
        )
        longest = max(int(lengths.quantile(0.95) or 1), 1)
        feature: dict[str, Any] = {"kind": "id_list", "side": side, **place}
        if mark is not None and mark != "|":
            feature["separator"] = mark
        feature["max_length"] = longest
        note = f"lists of up to {longest} values; {why}"
    elif column.number is None:
        if is_prose(column) and (side != "context" or column.distinct > 0.2 * column.rows):
            feature = {"kind": "text", "side": side, **place}
            note = f"texts of several words; {why}"
        else:
            feature = {"kind": "id", "side": side, **place, **lost}
            if ids is None and column.distinct > 20:
                feature["min_count"] = 5
    elif column.whole and column.distinct <= 60 and not column.flag:
        made_id = _id(column, name, side, **({"source": source} if source != "log" else {}))
        feature = made_id | lost
    else:
        feature = {"kind": "number", "side": side, **place, **lost}
        numbers = column.number
        middle, high = numbers.quantile(0.5) or 0.0, numbers.quantile(0.99) or 0.0
        if column.lowest >= 0 and not column.flag and high > 10 * max(middle, 1e-9):
            feature["transform"] = "log1p"
            note += "; its largest values are far from its middle, so that it is taken as log1p"
    found[name] = feature
    made.notes[f"contract.features.{name}"] = note


def _useless(column: Column, ids: int | None) -> str | None:
    """Why a column is no feature; None where it is one."""
    if not column.name:
        return "it has no name"
    if column.distinct < 2:
        return "it is constant"
    if column.missing > 0.99:
        return "it is nearly always missing"
    counts = column.raw.drop_nulls()
    if not column.is_list:
        most = counts.value_counts(sort=True)["count"][0] / len(column.raw)
        if most > 0.995:
            return f"{most:.1%} of its values are the same"
    if as_times(column) is not None:
        return "it holds times"
    each = ids if ids is not None else column.rows
    names = column.number is None or (column.whole and column.distinct > 1000)
    if names and not column.is_list and not is_prose(column) and separator(column) is None:
        share = 0.5 if ids is not None else 0.3
        if column.distinct > share * each:
            return f"its {column.distinct} values hardly repeat"
    return None


def _features_over_time(
    roles: Roles, labels: Labels, features: dict[str, Any], made: Draft
) -> dict[str, Any]:
    """Histories and counters."""
    days = _span(roles) / timedelta(days=1)
    short, long = next((a, b) for least, a, b in _WINDOWS if days >= least)
    if roles.event is not None:
        shown, taken = [str(roles.impression)], list(labels.events.values())
        interest = shown
    else:
        shown = ["impression"]
        taken = list(labels.events.values())
        liked = [v for name, v in labels.events.items() if labels.tasks[name]["score_weight"] > 0]
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
    free: dict[str, Any] = {}
    for name, feature in found.items():
        free[snake(name, {**features, **free, **labels.tasks})] = feature
    made.notes[f"contract.features.{next(iter(free))}"] = (
        "the user's last items; the model reads how often the candidate stands among them (match)"
    )
    made.notes[f"contract.features.item_shown_{short}"] = (
        f"how items do at the moment; windows for a log of {days:.0f} days"
    )
    return free


def _rates(
    roles: Roles, labels: Labels, features: dict[str, Any], contract: dict[str, Any], made: Draft
) -> dict[str, Any]:
    """Past labels of the user, the item, and the user by a category of the item."""
    of: list[Any] = ["user", "item"]
    kinds = {
        name: feature
        for name, feature in features.items()
        if feature["kind"] == "id" and feature["side"] == "item" and name != contract["item"]
    }
    for name, feature in kinds.items():
        column = feature.get("column", name)
        known = roles.columns.get(column)
        if known is not None and 3 <= known.distinct <= 200:
            of.append(["user", name])
            break
    made.notes["contract.rates"] = "how the past labels came out; they tell most about rare tasks"
    return {"of": of, "tasks": "all"}


def _span(roles: Roles) -> timedelta:
    known = roles.time.values.drop_nulls()
    span = known.max() - known.min()
    return span if isinstance(span, timedelta) else timedelta(0)


def _pipeline(
    log: Table,
    roles: Roles,
    labels: Labels,
    tables: dict[str, tuple[Table, str]],
    rows: int,
    made: Draft,
) -> dict[str, Any]:
    time = roles.time
    columns = {"time": time.column.name, "user": roles.user, "item": roles.item}
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
    if time.unknown is not None:
        read["unknown_time"] = time.unknown
    if roles.event is not None:
        read["impression"] = roles.impression
        counts = ", ".join(f"{kind} ({count})" for kind, count in roles.event_counts.items())
        made.notes["pipeline.log.impression"] = f"event types: {counts}"
    elif time.unknown is None and labels.columns:
        read["known_after"] = labels.wait
        made.notes["pipeline.log.known_after"] = (
            "an assumption: how long after the impression its feedback is complete"
        )
    if labels.value is not None:
        columns["value"] = labels.value
    read["columns"] = columns
    made.notes["pipeline.log"] = f"about {log.rows} rows"
    found: dict[str, Any] = {"log": read}
    for source, (table, key) in tables.items():
        found[source] = {"files": list(table.files), "format": table.form, "key": key}
        made.notes[f"pipeline.{source}"] = f"its column {key!r} holds the log's ids, each once"
    if roles.event is not None and _repeats(roles) > 0.005:
        found["collapse"] = "30s"
        made.notes["pipeline.collapse"] = (
            f"{_repeats(roles):.1%} of the impressions repeat one of the same user and item within "
            "30 s"
        )
    if labels.shown_only:
        found["negatives"] = _negatives(roles, rows, made)
    if time.unknown is not None:
        found["split"] = {"by": "random", "validation": 0.1, "test": 0.1}
        made.notes["pipeline.split"] = (
            "random, because some times are unknown; where they are known, by: time is honest"
        )
    else:
        share = 0.1 if _positives(roles, labels, rows) >= 1000 else 0.2
        found["split"] = {"by": "time", "validation": share, "test": share}
        made.notes["pipeline.split"] = "by time: training ends before validation and test begin" + (
            "; positives are few, so that their shares are large" if share > 0.1 else ""
        )
    return found


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
    span = _span(roles)
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


def _model(rows: int, made: Draft) -> dict[str, Any]:
    dim, experts, units, batch = next(rest for least, *rest in _SIZES if rows < least)
    made.notes["model"] = f"for about {rows} examples"
    return {
        "model": {
            "embedding_dim": dim,
            "experts": {"count": experts, "units": [units], "dropout": 0.3},
            "gate": {"name": "dselect_k", "num_selected": 2, "entropy_weight": 0.01},
        },
        "train": {
            "epochs": 8,
            "batch_size": batch,
            "learning_rate": 0.002,
            "decay": "cosine",
            "ema": 0.99,
            "patience": 3,
        },
    }


def as_yaml(made: Draft, data: Place) -> str:
    """The draft as commented YAML."""
    lines = [
        f"# Drafted by `multigate init` from {Path(str(data)).name}. Every value is a guess from a "
        "sample of the",
        "# log; the comments say why. Check it:",
        "#",
        "#   multigate check --config THIS --data FOLDER",
        "#   multigate options KEY            says what a key means",
        "",
    ]
    for section, value in made.values.items():
        lines += _yaml(section, value, "", made.notes, 0)
        if section in ("name", "contract", "pipeline"):
            lines.append("")
    if made.left_out:
        lines += ["", "# Columns that nothing reads:"]
        lines += [f"#   {name or '(no name)'}: {why}" for name, why in made.left_out.items()]
    return "\n".join(lines) + "\n"


def _yaml(name: str, value: Any, above: str, notes: dict[str, str], depth: int) -> list[str]:
    key, pad = f"{above}.{name}".removeprefix("."), "  " * depth
    note = notes.get(key)
    lines = _comment(note, pad) if note else []
    flow = f"{_dump(name)}: {_dump(value)}"
    noted = any(one.startswith(f"{key}.") for one in notes)
    deep = isinstance(value, dict) and (depth == 0 or noted)
    if not deep and len(pad + flow) <= 100:
        return [*lines, pad + flow]
    if not isinstance(value, dict):
        return [*lines, pad + flow]
    lines.append(f"{pad}{_dump(name)}:")
    for part, inner in value.items():
        lines += _yaml(part, inner, key, notes, depth + 1)
    return lines


def _comment(text: str, pad: str) -> list[str]:
    lines, line = [], f"{pad}#"
    for word in text.split():
        if len(line) + len(word) > 98:
            lines.append(line)
            line = f"{pad}#"
        line += f" {word}"
    return [*lines, line]


def _dump(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
