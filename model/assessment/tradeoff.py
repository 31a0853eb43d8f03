"""Engagement against satisfaction, as the weights of the combined score move from one to the other.

The score weights of the satisfaction tasks are multiplied by a ratio, those of the engagement
tasks are left; ranked lists are then judged twice, by what each group's labels say is relevant.
"""

from typing import Any

import numpy as np

from multigate.configs.contract import Contract
from multigate.model.evaluation.combine import combine, gains
from multigate.model.evaluation.measures import ranking
from multigate.model.evaluation.measures.resamples import Resamples, interval

RATIOS = (0.0, *(2.0**power for power in range(-5, 6)), None)
"""Of satisfaction to engagement; None is satisfaction alone."""
MEASURE = "ndcg@10"
GROUPS = ("engagement", "satisfaction")


def trade_off(
    contract: Contract,
    labels: np.ndarray,
    scores: dict[str, np.ndarray],
    lists: np.ndarray,
    resamples: Resamples,
) -> dict[str, Any] | None:
    """NDCG of both groups for every ratio.

    Args:
        contract: tasks, groups and score weights.
        labels: (N, T), NaN where masked.
        scores: (N,) by task.
        lists: (N,) ranked list of each row.
        resamples: of the users.

    Returns:
        measure; points: ratio (None for satisfaction alone), engagement and satisfaction
        (intervals), front (no other point is better for one and no worse for the other), chosen
        (the contract's own weights).  None where a group has no task with a score weight, or no
        list that can be judged.
    """
    by_group = {}
    for group in GROUPS:
        weights = {
            name: task.score_weight if task.group == group else 0.0
            for name, task in contract.tasks.items()
        }
        if not any(weights.values()):
            return None
        by_group[group] = gains(contract, labels, weights)
    points = []
    for ratio in RATIOS:
        multipliers = {
            "engagement": 0.0 if ratio is None else 1.0,
            "satisfaction": 1.0 if ratio is None else ratio,
        }
        score = combine(
            contract,
            scores,
            {n: task.score_weight * multipliers[task.group] for n, task in contract.tasks.items()},
        )
        point: dict[str, Any] = {"ratio": ratio, "chosen": ratio == 1.0}
        for group, gain in by_group.items():
            values = ranking.ranking(resamples, lists, gain, score, only=MEASURE)[MEASURE]
            judged = ranking.judged(lists, gain)[lists]
            users = len(np.unique(resamples.codes[judged]))
            point[group] = interval(values, users, rows=int(judged.sum()))
            if point[group]["value"] is None:
                return None
        points.append(point)
    for point in points:
        point["front"] = not any(_beats(other, point) for other in points)
    return {"measure": MEASURE, "points": points}


def _beats(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether `a` is at least as good for both groups, and better for one."""
    ahead = [a[group]["value"] - b[group]["value"] for group in GROUPS]
    return min(ahead) >= 0 and max(ahead) > 0
