"""Trade-off of engagement against satisfaction, as the weights of the combined score change.

The score weights of the satisfaction tasks are multiplied by a ratio; those of the engagement tasks
stay.  The lists are then judged twice: by the gains of the engagement labels, and of the
satisfaction labels.
"""

import numpy as np

from multigate.configs.contract import Contract
from multigate.model.assessment.results import Point, TradeOff
from multigate.model.evaluation.combine import combine, gains
from multigate.model.evaluation.measures import ranking
from multigate.model.evaluation.measures.bootstrap import Interval, Resamples, interval

RATIOS = (0.0, *(2.0**power for power in range(-5, 6)), None)
"""Of satisfaction to engagement; None is satisfaction alone."""
GROUPS = ("engagement", "satisfaction")


def trade_off(
    contract: Contract,
    labels: np.ndarray,
    scores: dict[str, np.ndarray],
    lists: np.ndarray,
    resamples: Resamples,
) -> TradeOff | None:
    """NDCG of both groups for every ratio.

    Args:
        contract: tasks, groups and score weights.
        labels: (N, T), NaN where masked.
        scores: (N,) by task.
        lists: (N,) ranked list of each row.
        resamples: of the users.

    Returns:
        None where a group has no task with a score weight, or no list that can be judged.
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
    points: list[Point] = []
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
        found = {group: _measure(lists, gain, score, resamples) for group, gain in by_group.items()}
        if any(measured["value"] is None for measured in found.values()):
            return None
        points.append(
            {
                "ratio": ratio,
                "chosen": ratio == 1.0,
                "engagement": found["engagement"],
                "satisfaction": found["satisfaction"],
                "front": False,
            }
        )
    for point in points:
        point["front"] = not any(_beats(other, point) for other in points)
    return {"measure": ranking.MAIN, "points": points}


def _measure(
    lists: np.ndarray, gain: np.ndarray, score: np.ndarray, resamples: Resamples
) -> Interval:
    """NDCG of the lists in the score's order."""
    values = ranking.measure_lists(resamples, lists, gain, score, only=ranking.MAIN)[ranking.MAIN]
    usable = ranking.usable_lists(lists, gain)[lists]
    users = resamples.users_of(usable)
    return interval(values, users, rows=int(usable.sum()))


def _beats(a: Point, b: Point) -> bool:
    """Whether `a` is at least as good for both groups, and better for one."""
    ahead = [
        (mine["value"] or 0.0) - (other["value"] or 0.0)
        for mine, other in (
            (a["engagement"], b["engagement"]),
            (a["satisfaction"], b["satisfaction"]),
        )
    ]
    return min(ahead) >= 0 and max(ahead) > 0
