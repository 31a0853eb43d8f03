"""The explanation of one row as plain JSON values; the shape is the same in every place.

Axes: B background rows, G groups of features, E experts, n rows to score.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np

from multigate.configs.contract import Contract
from multigate.explanation.groups import Group, groups
from multigate.explanation.shapley import Attribution, Sources, attribute
from multigate.explanation.terms import combined, terms

SCORE = "score"
"""Name of the combined score among the tasks' scores; no task has it."""

BACKGROUND = 32
"""Background rows, where nobody says how many."""
PAIRS = 2
"""Antithetic pairs of orders for each background row, likewise."""


class FeatureGroup(TypedDict):
    """Features that move together, and what they add.

    Attributes:
        features: names.
        together: why they move together; empty for one feature.
        values: of the explained row, by name; None where missing.
        contributions: by task and for `score`: what these values add to the background's mean.
        errors: standard errors of the contributions that drawing orders leaves; 0 where exact.
    """

    features: list[str]
    together: str
    values: dict[str, Any]
    contributions: dict[str, float]
    errors: dict[str, float]


class Term(TypedDict):
    """One task in the combined score; `term` is its addend or factor, as `rule` says."""

    score: float
    weight: float
    term: float


class SelectedExpert(TypedDict):
    """An expert with a weight above 0; experts are counted from 1."""

    expert: int
    weight: float


class Background(TypedDict):
    """What the row is compared with: how many rows of what, and their mean scores."""

    of: str
    rows: int
    scores: dict[str, float]


class Explanation(TypedDict):
    """Why a row has its scores.

    Attributes:
        user: the user's id.
        item: the item's id.
        score: the combined score.
        rule: "sum" or "product".
        terms: by task.
        background: what the row is compared with.
        features: groups; those that change the combined score most are first, and of equals those
            that have the largest share of what moves the tasks' scores.
        experts: by task, the experts that its gate selects, largest weight first; None where the
            model does not tell.
        exact: whether all orders of the groups were taken.
        rows_scored: how many rows were scored for this.
        model, version: that served; absent in a report.
        place: of the item among the request's candidates, 1 is best; absent without a request.
        candidates: how many there are.
        unseen: features with an id that is not in their vocabulary.
        warnings: such as values that were missing.
    """

    user: Any
    item: Any
    score: float
    rule: str
    terms: dict[str, Term]
    background: Background
    features: list[FeatureGroup]
    experts: dict[str, list[SelectedExpert]] | None
    exact: bool
    rows_scored: int
    model: NotRequired[str]
    version: NotRequired[int]
    place: NotRequired[int]
    candidates: NotRequired[int]
    unseen: NotRequired[list[str]]
    warnings: NotRequired[list[str]]


TaskScores = Callable[[Sources], Mapping[str, np.ndarray]]
"""Scores (n,) by task of rows that are mixed from the explained row and the background; sources
(n, G) in the order of `groups`."""


def explain(
    contract: Contract,
    score: TaskScores,
    differs: np.ndarray,
    values: Mapping[str, Any],
    *,
    background: str,
    experts: Mapping[str, np.ndarray] | None = None,
    weights: Mapping[str, float] | None = None,
    pairs: int | None = PAIRS,
    seed: int = 0,
) -> Explanation:
    """Explain a row.

    Args:
        contract: of the model.
        score: see `TaskScores`.
        differs: (B, G) as in `shapley.attribute`.
        values: of the row, by feature.
        background: what the background rows are, in words.
        experts: weights (E,) of the row's experts, by task; None where they are not known.
        weights: of tasks in the combined score that replace the contract's.
        pairs: as in `shapley.attribute`.
        seed: of the orders.

    Raises:
        ValueError: see `shapley.attribute`.
    """
    tasks = list(contract.tasks)
    w = {name: float(task.score_weight) for name, task in contract.tasks.items()} | dict(
        weights or {}
    )
    in_order = np.array([w[name] for name in tasks])

    def with_combined(sources: Sources) -> dict[str, np.ndarray]:
        found = score(sources)
        scores = np.stack([np.asarray(found[name], np.float64) for name in tasks], axis=1)
        total = combined(contract.combine, terms(contract.combine, scores, in_order))
        return dict(zip(tasks, scores.T, strict=True)) | {SCORE: total}

    found = attribute(with_combined, differs, pairs, seed)
    own = np.array([[found.explained[name] for name in tasks]])
    each = terms(contract.combine, own, in_order)[0]
    return {
        "user": values[contract.user],
        "item": values[contract.item],
        "score": found.explained[SCORE],
        "rule": contract.combine.kind,
        "terms": {
            name: {"score": found.explained[name], "weight": w[name], "term": float(term)}
            for name, term in zip(tasks, each, strict=True)
        },
        "background": {"of": background, "rows": len(differs), "scores": found.background},
        "features": _features(groups(contract), found, values),
        "experts": None if experts is None else {task: selected(experts[task]) for task in tasks},
        "exact": found.exact,
        "rows_scored": found.rows,
    }


def selected(weights: np.ndarray) -> list[SelectedExpert]:
    """The experts of weights (E,) above 0, largest first."""
    return [
        {"expert": int(e) + 1, "weight": float(weights[e])}
        for e in np.argsort(-weights, kind="stable")
        if weights[e] > 0
    ]


def _features(
    found: Sequence[Group], attribution: Attribution, values: Mapping[str, Any]
) -> list[FeatureGroup]:
    made: list[FeatureGroup] = [
        {
            "features": list(group.features),
            "together": group.because,
            "values": {name: values[name] for name in group.features},
            "contributions": {
                name: float(of_groups[g]) for name, of_groups in attribution.contributions.items()
            },
            "errors": {name: float(of_groups[g]) for name, of_groups in attribution.errors.items()},
        }
        for g, group in enumerate(found)
    ]
    # Where no task has a weight, the combined score says nothing: then by what moves the tasks.
    total = {
        name: float(np.abs(of_groups).sum()) or 1.0
        for name, of_groups in attribution.contributions.items()
    }

    def share(group: FeatureGroup) -> tuple[float, float]:
        each = group["contributions"]
        return abs(each[SCORE]), sum(abs(each[name]) / total[name] for name in each)

    return sorted(made, key=share, reverse=True)


def places_of(contract: Contract) -> dict[str, int]:
    """The group of each feature: its column in `Sources`."""
    return {name: g for g, group in enumerate(groups(contract)) for name in group.features}
