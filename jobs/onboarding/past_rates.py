"""Drafts rates of past labels: of the user, the item, and the user in a category of items.

A user's past labels in the candidate's category, such as its topic, say how the user likes it. The
log says which categories users have tastes in: a linear regression of the labels on what the user's
habit and the category's let expect, and on how much more than that the user liked the category in
the past, has a coefficient of the last that is beyond chance.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from multigate.configs import Config
from multigate.configs.files import LABEL, REQUEST, TIME
from multigate.configs.sections.rates import always_one
from multigate.jobs.onboarding.drafted import Draft, drop_feature
from multigate.jobs.onboarding.feedback.labels import snake
from multigate.jobs.onboarding.regression import (
    PRIOR,
    Evidence,
    binary_labels,
    choose,
    codes,
    expected_apart,
)
from multigate.jobs.onboarding.sample import Labelled
from multigate.jobs.onboarding.tables.raw import Table
from multigate.jobs.onboarding.tables.roles import Roles
from multigate.pipeline.compute.rates import CATEGORY
from multigate.pipeline.label.labels import waits
from multigate.pipeline.read.derive import first

_FEWEST_VALUES = 3
_MOST_CATEGORIES = 3  # each adds a rate for every task, and counts
_BEYOND_CHANCE = 2.0  # standard errors, in the mean of the tasks, or twice that in one
_SEED = 0


def of_users_and_items(
    roles: Roles, tasks: Iterable[str], features: Iterable[str], made: Draft
) -> dict[str, Any] | None:
    """The rates that every draft has; None where the log's columns have taken their names.

    Args:
        roles: says whether users are known.
        tasks: of the draft.
        features: of the draft.
        made: gets the reasons.
    """
    keys = ["item"] if roles.is_stranger else ["user", "item"]
    of: list[Any] = [key for key in keys if _is_free(key, tasks, features)]
    if not of:
        return None
    told = "of items came out"
    if not roles.is_stranger:
        told = "came out; they tell most about rare tasks"
    made.notes["contract.rates"] = f"how the past labels {told}"
    return {"of": of, "tasks": "all"}


def _is_free(key: str, tasks: Iterable[str], features: Iterable[str]) -> bool:
    """Whether the names of the rates of a key, such as `user_topic`, are free."""
    taken = {*tasks, *features}
    return taken.isdisjoint(
        f"{key}_{task}_{kind}" for task in tasks for kind in ("rate", "mean", "count")
    )


def add_first_values(
    roles: Roles,
    log: Table,
    tables: dict[str, tuple[Table, str]],
    features: dict[str, Any],
    made: Draft,
) -> list[str]:
    """Add the first value of each list of the item as a feature; returns the features' names.

    A rate has one category, and no list of them.
    """
    found: list[str] = []
    if roles.is_stranger:
        return found
    for name, feature in list(features.items()):
        if feature["kind"] != "id_list" or feature["side"] != "item" or "history" in feature:
            continue
        column, source = feature.get("column", name), feature.get("source")
        table = log if source is None else tables[source][0]
        mark = feature.get("separator", "|")
        values = table.derived[column] if column in table.derived else table.frame[column]
        if first(values, mark).n_unique() < _FEWEST_VALUES:
            continue
        main = snake(f"main_{name}", {**features, **dict.fromkeys(roles.columns)})
        table.derive[main] = {"first": column} | ({"separator": mark} if mark != "|" else {})
        features[main] = {"kind": "id", "side": "item", "missing": "indicator"} | (
            {} if source is None else {"source": source}
        )
        made.notes[f"contract.features.{main}"] = (
            f"the first of {column!r}: a rate of the past has one category, and no list"
        )
        found.append(main)
    return found


def add_tastes(made: Draft, labelled: Labelled | None, firsts: list[str]) -> None:
    """Add the user's rates in the categories of items that users have tastes in.

    Args:
        made: a draft with rates of users and items.
        labelled: a sample of the log; None where no row of it could be labelled.
        firsts: features that are there for such a rate alone; those without one are dropped.
    """
    chosen: dict[str, float] = {}
    if labelled is not None and "user" in made.values["contract"]["rates"]["of"]:
        chosen = tastes(made.config(), labelled.impressions.filter(labelled.splits == "train"))
    made.values["contract"]["rates"]["of"] += [["user", name] for name in chosen]
    if chosen:
        made.notes["contract.rates"] += (
            ". What users did in a category tells what they do later; t values: "
            + ", ".join(f"{name} {t_value:.1f}" for name, t_value in chosen.items())
        )
    for name in firsts:
        if name not in chosen:
            drop_feature(made, name)


def tastes(config: Config, rows: pl.DataFrame) -> dict[str, float]:
    """The categories in which a user's past labels tell the later ones, and that have no rates yet.

    Args:
        config: says which features are categories, and the tasks.
        rows: labelled impressions.

    Returns:
        By feature, the most telling first, the t value of the coefficient of the user's liking for
        it, beside the likings of those before it: the mean over the binary tasks with labels of
        both classes, or half the largest.  Of a task of which every impression is a positive, that
        of whether users come back to categories.
    """
    contract = config.contract
    items = rows[contract.item].n_unique()
    names = [
        name
        for name, feature in contract.features.items()
        if feature.kind == "id"
        and feature.side == "item"
        and name != contract.item
        and _FEWEST_VALUES <= rows[name].n_unique() <= items / 2
        and _is_free(f"user_{name}", contract.tasks, contract.features)
    ]
    # Rows of one request are shown together: none is another's past.
    request = pl.col(TIME).min().over(str(contract.user), REQUEST)
    coded = rows.select(
        TIME,
        *(LABEL + task for task in contract.tasks),
        at=pl.when(pl.col(REQUEST).is_null()).then(pl.col(TIME)).otherwise(request),
        user=codes(str(contract.user)),
        **{CATEGORY + name: codes(name).fill_null(0) for name in names},
    )
    wait = waits(config)
    known = binary_labels(contract, coded)

    def evidence(name: str) -> list[Evidence]:
        found = []
        for task, of_task in known.items():
            closed = pl.col(TIME) + wait[task]
            table = of_task.select("at", "user", "label", closed=closed, category=CATEGORY + name)
            comes_back = always_one(contract.tasks[task])
            found.append(_haunts(table) if comes_back else _likes(table))
        return found

    candidates = ((name, evidence(name)) for name in names)
    return choose(candidates, _BEYOND_CHANCE, _MOST_CATEGORIES)


def _likes(table: pl.DataFrame) -> Evidence:
    """Whether the user's past labels in a category tell the later ones.

    What is left of the past labels in the category beyond what is expected, less what is left of
    all past labels of the user, is about 0 in the mean of users without tastes, however much users
    and categories differ.  A rate in the category is not: the rate of a user who likes much is
    highest where all like more.
    """
    labels = table["label"].to_numpy()
    expected = expected_apart(table, ["user", "category"])
    left = table.with_columns(label=labels - expected)
    count, total = _past(left, left, ["user"])
    here, total_here = _past(left, left, ["user", "category"])
    liking = (total_here - here * total / np.maximum(count, 1)) / (here + PRIOR)
    return Evidence([expected, liking], labels)


def _haunts(table: pl.DataFrame) -> Evidence:
    """Whether users come back to a category: tells their rows from rows of drawn categories.

    The same row is drawn for each row, whatever the category.
    """
    drawn = table["category"].sample(fraction=1, shuffle=True, seed=_SEED)
    asked = pl.concat([table, table.with_columns(drawn)])
    share = asked.select(pl.len().over("category") / pl.len())["len"].to_numpy()
    count, _ = _past(table, asked, ["user"])
    here, _ = _past(table, asked, ["user", "category"])
    labels = np.repeat([1.0, 0.0], len(table))
    return Evidence([share, (here + PRIOR * share) / (count + PRIOR)], labels)


def _past(
    table: pl.DataFrame, asked: pl.DataFrame, keys: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """How many rows of a table have an asked row's keys and closed before it was shown.

    Returns:
        Their counts, and the sums of their labels; 0 for rows without a user.
    """
    sums = table.group_by(*keys, "closed", maintain_order=True).agg(
        count=pl.len(), total=pl.col("label").sum()
    )
    until = sums.sort("closed").select(
        *keys, "closed", *(pl.col(name).cum_sum().over(keys) for name in ("count", "total"))
    )
    before = asked.select(*keys, "at").with_row_index("row").sort("at")
    found = before.join_asof(
        until,
        left_on="at",
        right_on="closed",
        by=keys,
        allow_exact_matches=False,
        check_sortedness=False,
    ).sort("row")
    count, total = (found[name].fill_null(0).to_numpy() for name in ("count", "total"))
    return count.astype(np.float64), total
