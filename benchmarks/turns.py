"""What contenders took that ran in turns, a round of each at a time."""

import statistics
from typing import Any


def summary(times: dict[str, list[float]]) -> dict[str, Any]:
    """Median and best round of each contender, and the median of the rounds' ratios.

    Args:
        times: milliseconds of each round, by contender: the one that is judged, then the other.
    """
    ratios = [ours / theirs for ours, theirs in zip(*times.values(), strict=True)]
    return {
        "median_ms": {name: round(statistics.median(found), 3) for name, found in times.items()},
        "best_ms": {name: round(min(found), 3) for name, found in times.items()},
        "ratio": round(statistics.median(ratios), 3),
    }


def cells(found: dict[str, Any]) -> str:
    """A summary as the cells of a table's row: `median (best)` of each contender, and the ratio."""
    both = zip(found["median_ms"].values(), found["best_ms"].values(), strict=True)
    return " | ".join([*(f"{median} ({best})" for median, best in both), str(found["ratio"])])
