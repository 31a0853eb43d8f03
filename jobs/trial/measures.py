"""Measures of both versions of a trial, with intervals over resamples of whole users.

What can be compared.  Users are drawn for the canary by a hash, so that the outcomes of both groups
(rates of labels per item shown) may be compared: each user counts on the side that the hash gave,
whoever answered.  The rows of a group are what its own version chose to show: an AUC of one group
against that of the other would compare different rows, and is not made.

On the rows of the shadow log both versions have scores, so that their measures are of the same
rows.  These rows were chosen by the version that answered, which scores all of them high and so
tells them apart less well: the measures favour the other one.  A version that loses on rows that
its rival chose is worse; one that wins there may not be better.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import polars as pl
from scipy.stats import binomtest

from multigate.configs.contract import Contract
from multigate.jobs.trial.records import Records, label_of
from multigate.model.evaluation.combine import gains
from multigate.model.evaluation.measures import ranking, tasks
from multigate.model.evaluation.measures.bootstrap import Interval, Resamples, interval
from multigate.model.evaluation.paired import RELATIVE, paired_difference
from multigate.serving.observe.side import CANARY, STABLE


class Pair(TypedDict):
    """A measure of the version on trial, of the one in production, and the difference.

    Attributes:
        metric: rate, mean, score, predicted_over_observed, auc, rmse, pinball or ndcg@10.
        relative: the difference is divided by production's value.
        candidate: of the version on trial.
        production: of the other one.
        difference: candidate - production.
    """

    metric: str
    relative: bool
    candidate: Interval
    production: Interval
    difference: Interval


class Outcome(TypedDict):
    """A task over the canary's users and over the others.

    Attributes:
        label: the rate of the label, or its mean, per item shown.
        score: mean score of the version that answered.
        calibration: predicted over observed; None for a regression.
    """

    label: Pair
    score: Pair
    calibration: Pair | None


class CanaryMeasures(TypedDict):
    """The two groups of users.

    Attributes:
        users: of each group.
        calls: likewise.
        share: of the users that are the canary's.
        expected: share that the settings say.
        chance: probability of a share as far from it as this one, if the split is right.
        fallbacks: share of the canary's calls that the version in production answered.
        items_per_user: items shown to a user.
        tasks: those with labels, by name.
    """

    users: dict[str, int]
    calls: dict[str, int]
    share: float
    expected: float
    chance: float
    fallbacks: float
    items_per_user: Pair
    tasks: dict[str, Outcome]


class SameRows(TypedDict):
    """Both versions on the rows that one of them chose.

    Attributes:
        rows: how many.
        tasks: AUC, RMSE or pinball loss of those with labels, by name.
        ranking: NDCG of both orders of an answer's items; None without labels.
    """

    rows: int
    tasks: dict[str, Pair]
    ranking: Pair | None


class ShadowMeasures(TypedDict):
    """The calls that both versions scored.

    Attributes:
        due: calls that the impression log says must be there.
        calls: of these, how many are.
        lost: share of the others.
        pairs: share of a call's pairs of items that both put in the same order.
        overlap: share of an answer's items that the other version would have answered, too.
        scores: mean score of each task.
        chosen_by: the measures, by who chose the rows: stable, canary.
    """

    due: int
    calls: int
    lost: float
    pairs: Interval
    overlap: Interval
    scores: dict[str, Pair]
    chosen_by: dict[str, SameRows]


def canary_measures(
    records: Records, contract: Contract, percent: float, trial: int, draws: tuple[int, int]
) -> CanaryMeasures | None:
    """Compare the two groups of users; None where one of them is empty.

    Args:
        records: of the trial.
        contract: whose tasks are compared.
        percent: of the users who are the canary's.
        trial: number of the version on trial.
        draws: number of resamples, and their seed.
    """
    rows = records.shown
    ours = (rows["group"] == CANARY).to_numpy()
    if ours.all() or not ours.any():
        return None
    users: dict[str, int] = {
        group: rows.filter(pl.col("group") == group)["user"].n_unique()
        for group in (CANARY, STABLE)
    }
    calls: dict[str, int] = {
        group: rows.filter(pl.col("group") == group)["request"].n_unique()
        for group in (CANARY, STABLE)
    }
    of_canary = rows.filter(pl.col("group") == CANARY)
    elsewhere = of_canary.filter(pl.col("version") != trial)["request"].n_unique()
    total, share = users[CANARY] + users[STABLE], percent / 100
    resamples = Resamples(rows["user"].to_numpy(), *draws)
    one = np.ones(len(rows))
    sides = (ours, ~ours)
    drawn_users = [_users(resamples, side) for side in sides]
    items = [resamples.totals(one * side) for side in sides]
    per_user = [_ratio(a, b) for a, b in zip(items, drawn_users, strict=True)]
    found: dict[str, Outcome] = {}
    for name in records.labelled:
        labels = label_of(rows, name)
        known = ~np.isnan(labels)
        scores = rows[f"score/{name}"].cast(pl.Float64).to_numpy()
        y, p = np.where(known, labels, 0.0), np.where(known, scores, 0.0)
        binary = contract.tasks[name].type == "binary"
        seen = [resamples.totals((known & side).astype(float)) for side in sides]
        positives = [resamples.totals(y * side) for side in sides]
        predicted = [resamples.totals(p * side) for side in sides]
        rates = [_ratio(a, b) for a, b in zip(positives, seen, strict=True)]
        means = [_ratio(a, b) for a, b in zip(predicted, seen, strict=True)]
        ratios = [_ratio(a, b) for a, b in zip(predicted, positives, strict=True)]
        parts = [known & side for side in sides]
        found[name] = {
            "label": _pair("rate" if binary else "mean", rates, resamples, parts, relative=True),
            "score": _pair("score", means, resamples, parts),
            "calibration": _pair("predicted_over_observed", ratios, resamples, parts)
            if binary
            else None,
        }
    return {
        "users": users,
        "calls": calls,
        "share": users[CANARY] / total,
        "expected": share,
        "chance": float(binomtest(users[CANARY], total, share).pvalue),
        "fallbacks": elsewhere / calls[CANARY],
        "items_per_user": _pair("items", per_user, resamples, sides, relative=True),
        "tasks": found,
    }


def shadow_measures(
    records: Records, contract: Contract, trial: int, draws: tuple[int, int]
) -> ShadowMeasures | None:
    """Compare the two versions on the same calls; None where none was due.

    Args:
        records: of the trial.
        contract: whose tasks are compared.
        trial: number of the version on trial.
        draws: number of resamples, and their seed.
    """
    due = set(records.shown.filter(pl.col("due"))["request"].unique())
    if not due:
        return None
    rows = records.both.filter(pl.col("request").is_in(list(due)))
    calls = rows["request"].n_unique()
    nothing = interval(np.full(2, np.nan), 0, rows=0)
    found: ShadowMeasures = {
        "due": len(due),
        "calls": calls,
        "lost": 1 - calls / len(due),
        "pairs": nothing,
        "overlap": nothing,
        "scores": {},
        "chosen_by": {},
    }
    if not calls:
        return found
    by_call = rows.unique("request", keep="first", maintain_order=True)
    resamples = Resamples(by_call["user"].to_numpy(), *draws)
    for name in ("pairs", "overlap"):
        values = by_call[name].cast(pl.Float64).to_numpy()
        known = ~np.isnan(values)
        mean = _ratio(
            resamples.totals(np.where(known, values, 0.0)), resamples.totals(known.astype(float))
        )
        measured = interval(mean, resamples.users_of(known), rows=int(known.sum()))
        if name == "pairs":
            found["pairs"] = measured
        else:
            found["overlap"] = measured
    rows = rows.filter(pl.col("other").is_not_null())
    resamples = Resamples(rows["user"].to_numpy(), *draws)
    every = np.ones(len(rows), bool)
    count = resamples.totals(every.astype(float))
    for name in contract.tasks:
        means = [_ratio(resamples.totals(of), count) for of in _scores(rows, name, trial)]
        found["scores"][name] = _pair("score", means, resamples, [every] * 2)
    if records.labelled:
        for group, tried in ((STABLE, False), (CANARY, True)):
            part = rows.filter((pl.col("version") == trial) == tried)
            if len(part):
                found["chosen_by"][group] = _same_rows(part, records, contract, trial, draws)
    return found


def _same_rows(
    rows: pl.DataFrame, records: Records, contract: Contract, trial: int, draws: tuple[int, int]
) -> SameRows:
    resamples = Resamples(rows["user"].to_numpy(), *draws)
    measured: dict[str, Pair] = {}
    for name in records.labelled:
        task = contract.tasks[name]
        labels = label_of(rows, name)
        metric = tasks.MAIN[task.measured_as]
        new, old = (
            tasks.measure(task, resamples, labels, scores)[metric]
            for scores in _scores(rows, name, trial)
        )
        relative = metric in RELATIVE
        compared = paired_difference(resamples, labels, new, old, relative)
        production, difference = compared["production"], compared["difference"]
        assert production is not None
        assert difference is not None
        measured[name] = {
            "metric": metric,
            "relative": relative,
            "candidate": compared["candidate"],
            "production": production,
            "difference": difference,
        }
    lists = np.unique(rows["request"].to_numpy(), return_inverse=True)[1]
    labels = np.stack([label_of(rows, name) for name in contract.tasks], 1)
    gain = gains(contract, labels)
    values = [
        ranking.measure_lists(resamples, lists, gain, scores, only=ranking.MAIN)[ranking.MAIN]
        for scores in _scores(rows, None, trial)
    ]
    order = None
    if np.isfinite(values[0][0]):
        usable = ranking.usable_lists(lists, gain)[lists]
        order = _pair(ranking.MAIN, values, resamples, [usable] * 2)
    return {"rows": len(rows), "tasks": measured, "ranking": order}


def _scores(rows: pl.DataFrame, task: str | None, trial: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the version on trial and of the one in production, (N,) each; None: combined."""
    own, other = ("score", "other") if task is None else (f"score/{task}", f"other/{task}")
    answered, besides = (rows[name].cast(pl.Float64).to_numpy() for name in (own, other))
    tried = (rows["version"] == trial).to_numpy()
    return np.where(tried, answered, besides), np.where(tried, besides, answered)


def _users(resamples: Resamples, side: np.ndarray) -> np.ndarray:
    """How many users of a side are drawn, (1 + R,)."""
    there = np.zeros(resamples.users)
    there[np.unique(resamples.codes[side])] = 1
    return resamples.of_users(there)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return tasks.ratio(a, b)


def _pair(
    metric: str,
    values: Sequence[np.ndarray],
    resamples: Resamples,
    parts: Sequence[np.ndarray],
    relative: bool = False,
) -> Pair:
    """A measure of the version on trial and of the other one, and the difference.

    Args:
        metric: its name.
        values: (1 + R,) of both.
        resamples: of the N rows' users.
        parts: (N,) bool, the rows that each is measured on.
        relative: divide the difference by production's value.
    """
    new, old = values
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.where(old != 0, (new - old) / np.abs(old), np.nan) if relative else new - old
    users = [resamples.users_of(part) for part in parts]
    rows = [int(part.sum()) for part in parts]
    candidate, production = (
        interval(one, count, rows=n) for one, count, n in zip(values, users, rows, strict=True)
    )
    difference = interval(gap, min(users), rows=sum(rows))
    return {
        "metric": metric,
        "relative": relative,
        "candidate": candidate,
        "production": production,
        "difference": difference,
    }
