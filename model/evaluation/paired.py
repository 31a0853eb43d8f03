"""A measure of two models on the same resamples of the users, and the difference in words."""

import numpy as np

from multigate.model.evaluation.measures import tasks
from multigate.model.evaluation.measures.bootstrap import Resamples, limits
from multigate.model.evaluation.measures.names import title
from multigate.model.evaluation.results import Compared, PairedDifference

RELATIVE = frozenset({"rmse", "rmse_transformed", "pinball", "pinball_transformed", "log_loss"})
"""Measures whose difference is divided by production's value; lower is better."""


def paired_difference(
    resamples: Resamples,
    labels: np.ndarray,
    new: np.ndarray,
    old: np.ndarray | None,
    relative: bool,
) -> PairedDifference:
    """A measure of two models, and the difference.

    Args:
        resamples: the draws, of N rows.
        labels: (N,) NaN where masked.
        new: the candidate's replicates, (1 + R,).
        old: production's, (1 + R,); None where there is none.
        relative: divide the difference by production's value; lower is then better.
    """
    values = {"candidate": new}
    if old is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.where(old > 0, (new - old) / old, new - old) if relative else new - old
        values |= {"production": old, "difference": gap}
    found = tasks.summaries(resamples, labels, values)
    difference = found.get("difference")
    ends = limits(difference)
    wins = None
    if ends is not None and (ends[0] > 0 or ends[1] < 0):
        wins = (ends[0] > 0) != relative
    return {
        "candidate": found["candidate"],
        "production": found.get("production"),
        "difference": difference,
        "wins": wins,
    }


def in_words(task: Compared) -> str:
    """A difference in words, with its interval."""
    change, interval = signed(task)
    within = f" (95 % interval {interval})" if interval else ""
    return f"{title(task['metric'])} {change}{within}"


def signed(task: Compared) -> tuple[str, str]:
    """A difference and its interval as text, in percent where relative; empty without."""

    def show(value: float) -> str:
        return f"{100 * value:+.2f} %" if task["metric"] in RELATIVE else f"{value:+.4f}"

    found = task["difference"]
    if found is None or found["value"] is None:
        return "", ""
    ends = limits(found)
    return show(found["value"]), "" if ends is None else f"{show(ends[0])} to {show(ends[1])}"
