"""Drafts the features that columns of the log and of side tables hold."""

from typing import Any

import polars as pl

from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.feedback.afterwards import MAY_BE_OUTCOME, may_be_outcome
from multigate.jobs.onboarding.feedback.labels import Labels, snake
from multigate.jobs.onboarding.feedback.propensity import of_the_policy
from multigate.jobs.onboarding.tables.columns import (
    DECIDES,
    Column,
    Times,
    any_times,
    decides,
    goes_with,
    is_prose,
    look,
    names_code,
    separator,
    vector_size,
)
from multigate.jobs.onboarding.tables.raw import Table
from multigate.jobs.onboarding.tables.roles import Roles
from multigate.jobs.onboarding.tables.spellings import may_last
from multigate.pipeline.read.derive import ones_of
from multigate.pipeline.read.json_lines import as_text

_COUNT_OF_ROWS = 0.8
_FEW_IDS = 20
_LATE = 0.05  # of the rows
_FAMILY = 5  # flags
_CLIPPED = 0.01  # of the rows
_SEVERAL = 0.5  # values, of the ids: each has several
_GOES = 0.8  # of what differs
_RUNS = 3  # of one word, in the order of numbers
CLIP = 3.0
"""`model.number_clip` of a draft."""


def column_features(
    roles: Roles, labels: Labels, tables: dict[str, tuple[Table, str]], made: Draft
) -> dict[str, Any]:
    """Draft the features that columns of the log and of side tables hold.

    Args:
        roles: the log.
        labels: what columns no feature may read.
        tables: `users` and `items` -> the side table and its key.
        made: gets the reasons.
    """
    found: dict[str, Any] = {}
    for role in roles.ids:
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
        if name in roles.kinds:
            made.left_out[name] = (
                f"{roles.kinds[name]}, and it is not known whose row followed whose"
            )
            continue
        if name in roles.more_groups:
            made.left_out[name] = "each of its values is of one visit, which does not come again"
            continue
        column = look(name, known.raw if known.is_list else frame[name])
        if column.distinct == 0 and known.distinct > 1:
            made.left_out[name] = f"it is empty in rows of type {roles.impression!r}"
            continue
        policy = of_the_policy(frame, column, roles.item, roles.request, labels.position)
        if policy is not None:
            made.left_out[name] = policy
            continue
        side, why, is_decided = _side(frame, roles, name)
        times = any_times(column)
        if times is not None:
            # What differs from row to row of an item may be when something was done with it.
            late = _late(times.values, frame["__time"]) if is_decided else 1.0
            _add_age(found, times, side, why, late, labels, made)
            continue
        if not is_decided and may_be_outcome(frame, (roles.user, roles.item), column):
            why += f"; {MAY_BE_OUTCOME}"
        each = frame.unique(getattr(roles, side), keep="first") if is_decided else None
        _add(found, column, side, why, labels, made, ids=None, each=each)
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
        family = flag_family(table.frame, key)
        if family:
            _add_family(found, table, family, side, labels, made)
        for name in table.frame.columns:
            if name != key and name not in family:
                column = look(name, table.frame[name])
                follows, what = _follows_rows(roles, labels, side, table, key, column)
                if follows > _COUNT_OF_ROWS:
                    made.left_out[name] = (
                        f"it goes with how many {what} the {side} has in the log "
                        f"(correlation {follows:.2f}): a count up to the table's export knows the "
                        "log's future"
                    )
                    continue
                why = f"of the table {table.files[0]}, by its column {key!r}"
                times = any_times(column)
                if times is not None:
                    of_rows = roles.frame.select("__time", id=pl.col(getattr(roles, side))).join(
                        pl.DataFrame({"id": as_text(table.frame[key]), "then": times.values}),
                        on="id",
                    )
                    late = _late(of_rows["then"], of_rows["__time"])
                    _add_age(found, times, side, why, late, labels, made, source)
                    continue
                _add(found, column, side, why, labels, made, len(table.frame), table.frame, source)
    return found


def flag_family(frame: pl.DataFrame, key: str) -> list[str]:
    """Flags of which a row has few, such as one for each genre; empty where there are not many."""
    looked = [look(name, frame[name]) for name in frame.columns if name != key]
    flags = [column for column in looked if column.flag and column.whole and not column.missing]
    if len(flags) < _FAMILY:
        return []
    ones = sum(column.ones for column in flags) / max(len(frame), 1)
    return [column.name for column in flags] if 0.5 <= ones <= len(flags) / 3 else []


def _add_family(
    found: dict[str, Any],
    table: Table,
    family: list[str],
    side: str,
    labels: Labels,
    made: Draft,
) -> None:
    """Read a family of flags as one list of their names."""
    name = snake("flags", {**labels.tasks, **found, **dict.fromkeys(table.frame.columns)})
    table.derive[name] = {"ones_of": family}
    lists = ones_of([table.frame[one] for one in family], "|")
    longest = lists.drop_nulls().str.split("|").list.len().quantile(0.95) or 1
    found[name] = {
        "kind": "id_list",
        "side": side,
        "source": f"{side}s",
        "max_length": max(int(longest), 1),
    }
    table.derived[name] = lists
    made.notes[f"contract.features.{name}"] = (
        f"{len(family)} columns of 0 and 1 from {family[0]!r} to {family[-1]!r}, of which a row "
        "has few: read as one list of their names"
    )


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


def _follows_rows(
    roles: Roles, labels: Labels, side: str, table: Table, key: str, column: Column
) -> tuple[float, str]:
    """Highest correlation, of ranks or values, of a side table's number with rows by id.

    Returns:
        The correlation, and what was counted.
    """
    if column.number is None or column.distinct < 10:
        return 0.0, ""
    frame = roles.frame.with_columns(id=pl.col(getattr(roles, side))).drop_nulls("id")
    parts = {"rows": frame}
    for task, of in labels.events.items():
        if roles.event is not None:
            parts[task] = frame.filter(pl.col(roles.event) == of)
        elif roles.columns[of].number is not None:
            parts[task] = frame.filter(look(of, frame[of]).number == 1)
    known = pl.DataFrame({"id": as_text(table.frame[key]), "x": column.number}).drop_nulls()
    best = (0.0, "")
    for what, rows in parts.items():
        counts = rows["id"].value_counts(name="count")
        both = known.join(counts, on="id", how="left").with_columns(pl.col("count").fill_null(0))
        if len(counts) >= _FEW_IDS:
            for method in ("spearman", "pearson"):
                found = both.select(pl.corr("x", "count", method=method).fill_nan(0.0)).item()
                best = max(best, (float(found or 0.0), what))
    return best


def _late(then: pl.Series, seen: pl.Series) -> float:
    """The share of rows that are before the time that a column gives them."""
    return float((then > seen).mean() or 0.0)


def _side(frame: pl.DataFrame, roles: Roles, name: str) -> tuple[str, str, bool]:
    """The side of a column of the log, why, and whether its user or item decides it."""
    shares = {
        side: decides(frame, by, name) for side, by in (("user", roles.user), ("item", roles.item))
    }
    side = max(shares, key=lambda one: shares[one])
    if shares[side] < DECIDES:
        if roles.request is not None and decides(frame, roles.request, name) < DECIDES:
            return "item", "rows of one request differ in it, so that it is the candidate's", False
        if roles.request is None and goes_with(frame, roles.item, look(name, frame[name])) > _GOES:
            # Sampled negatives would have the positive's: a price that is not theirs.
            return "item", "it goes with the item and changes at times", False
        return (
            "context",
            "neither the user nor the item decides it, so that requests send it",
            False,
        )
    return side, f"{shares[side]:.0%} of the rows of one {side} have one value", True


def _named(
    found: dict[str, Any], column: Column, side: str, labels: Labels, source: str
) -> tuple[str, dict[str, Any]]:
    """A free name for a column's feature, and the keys that say where the column stands."""
    taken = {**labels.tasks, **found}
    name = snake(column.name, taken)
    if source != "log" and name != snake(column.name):
        name = snake(f"{side}_{column.name}", taken)
    place = {"source": source} if source != "log" else {}
    if name != column.name:
        place["column"] = column.name
    return name, place


def _add_age(
    found: dict[str, Any],
    times: Times,
    side: str,
    why: str,
    late: float,
    labels: Labels,
    made: Draft,
    source: str = "log",
) -> None:
    """Add the age that a column of times gives, or say why there is none."""
    column = times.column
    reason = _hardly_told(column)
    if reason is None and late > _LATE:
        reason = "it holds times" + (
            "" if late == 1.0 else f", {late:.0%} of them later than their rows"
        )
    if reason is None and times.unknown is not None:
        reason = f"it holds times, and {times.unknown} where none is known"
    if reason is not None:
        made.left_out[column.name] = reason
        return
    name, place = _named(found, column, side, labels, source)
    found[name] = {
        "kind": "number",
        "side": side,
        **place,
        "age": times.unit,
        # Ages of people are of one magnitude, those of offers of several.
        **({} if times.old else {"transform": "log1p"}),
        "missing": "indicator",
    }
    made.notes[f"contract.features.{name}"] = f"seconds since the time in {column.name!r}; {why}"


def _add(
    found: dict[str, Any],
    column: Column,
    side: str,
    why: str,
    labels: Labels,
    made: Draft,
    ids: int | None,
    each: pl.DataFrame | None,
    source: str = "log",
) -> None:
    """Add the feature of a column, or say why there is none.

    Args:
        found: gets it.
        column: of the log or of a side table.
        side: whose feature it is.
        why: it is that side's.
        labels: the tasks.
        made: gets the reasons.
        ids: how many the side table has.
        each: a row for each user or item that decides the column; None where none does.
        source: of the column.
    """
    name, place = _named(found, column, side, labels, source)
    reason = _useless(column, ids)
    unclear = (
        "; times of day, unless they are minutes and seconds: then derive "
        f"{{{column.name}: {{number: {column.name}}}}} reads seconds"
        if may_last(column.raw)
        else ""
    )
    if reason is not None:
        made.left_out[column.name] = reason + unclear
        return
    mark = separator(column)
    lost = {"missing": "indicator"}
    note = f"{column.distinct} values; {why}{unclear}"
    if column.missing:
        note += f"; {column.missing:.1%} missing"
    size = vector_size(column)
    if size:
        feature: dict[str, Any] = {"kind": "vector", "side": side, **place, "size": size, **lost}
        note = f"lists of {size} numbers each; {why}"
    elif column.is_list or mark is not None:
        made_of = column.raw.drop_nulls()
        lengths = (
            made_of.list.len() if column.is_list else made_of.str.split(mark or "|").list.len()
        )
        longest = max(int(lengths.quantile(0.95) or 1), 1)
        feature = {"kind": "id_list", "side": side, **place}
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
            if column.raw.dtype == pl.String and (
                alike := column.distinct - column.raw.drop_nulls().str.to_lowercase().n_unique()
            ):
                note += f"; {alike} differ from another one by capitals only, see derive: lower"
            if ids is None and column.distinct > 20:
                feature["min_count"] = 5
    elif _is_code(column) or (each is not None and _decides_words(each, column)):
        made_id = _id(column, name, side, **({"source": source} if source != "log" else {}))
        feature = made_id | lost
    else:
        feature = {"kind": "number", "side": side, **place, **lost}
        if column.lowest >= 0 and not column.flag and _is_skewed(column.number):
            feature["transform"] = "log1p"
            note += "; its largest values are far from its middle, so that it is taken as log1p"
    found[name] = feature
    made.notes[f"contract.features.{name}"] = note


def _is_skewed(numbers: pl.Series) -> bool:
    """Whether large numbers are far from the middle: ten times as large, or clipped by the model.

    The model reads numbers up to `CLIP` deviations from the mean; of several that lie beyond, it
    cannot tell one from another, unless their logarithms lie within.
    """
    middle, high = numbers.quantile(0.5) or 0.0, numbers.quantile(0.99) or 0.0
    if high > 10 * max(middle, 1e-9):
        return True
    beyond = _beyond(numbers)
    return beyond > _CLIPPED and _beyond(numbers.log1p()) < 0.5 * beyond


def _beyond(numbers: pl.Series) -> float:
    """The share of numbers that the model clips."""
    far = (numbers - numbers.mean()).abs() > CLIP * (numbers.std() or 0.0)
    return float(far.mean() or 0.0)


def _is_code(column: Column) -> bool:
    """Whether whole numbers name something, by their column's name or as few or dense ones.

    Counts have gaps.
    """
    if not column.whole or column.flag:
        return False
    if column.distinct > 60:
        return names_code(column.name)
    return column.distinct <= 21 or column.distinct >= 0.95 * (column.highest - column.lowest + 1)


def _decides_words(each: pl.DataFrame, column: Column) -> bool:
    """Whether whole numbers name what has words of its own, as an employer has a country.

    Of numbers that measure something, those of one word stand together, as prices of a class do.

    Args:
        each: a row for each user or item.
        column: of it.
    """
    known = column.whole and not column.flag and column.number is not None
    if not known or column.distinct > _SEVERAL * len(each):
        return False
    for name, values in each.to_dict().items():
        if values.dtype != pl.String or name == column.name:
            continue
        words = values.n_unique()
        if not 2 <= words < _SEVERAL * column.distinct:
            continue
        if decides(each, column.name, name) < DECIDES:
            continue
        number = pl.col(column.name).cast(pl.Float64, strict=False)
        pairs = each.select(number=number, word=name).drop_nulls()
        in_order = pairs.unique("number", keep="first").sort("number")["word"]
        if int((in_order != in_order.shift()).sum()) > _RUNS * words:
            return True
    return False


def _hardly_told(column: Column) -> str | None:
    """Why a column tells nothing; None where it may."""
    if not column.name:
        return "it has no name"
    if column.distinct < 2:
        return "it is constant"
    if column.missing > 0.99:
        return "it is nearly always missing"
    if not column.is_list:
        most = column.raw.drop_nulls().value_counts(sort=True)["count"][0] / len(column.raw)
        if most > 0.995:
            return f"{most:.1%} of its values are the same"
    return None


def _useless(column: Column, ids: int | None) -> str | None:
    """Why a column is no feature; None where it is one."""
    reason = _hardly_told(column)
    if reason is not None:
        return reason
    each = ids if ids is not None else column.rows
    names = column.number is None or (column.whole and column.distinct > 1000)
    if column.is_list and not vector_size(column) and _are_measures(column):
        return "its lists hold measures and are of several lengths, so that they are no vectors"
    if names and not column.is_list and not is_prose(column) and separator(column) is None:
        share = 0.5 if ids is not None else 0.3
        if column.distinct > share * each:
            return f"its {column.distinct} values hardly repeat"
    return None


def _are_measures(column: Column) -> bool:
    """Whether a list's values are numbers with a fraction."""
    values = column.raw.drop_nulls().head(1000).explode().drop_nulls().cast(pl.String)
    numbers = values.cast(pl.Float64, strict=False)
    return not numbers.null_count() and float((numbers % 1 != 0).mean() or 0.0) > 0.5
