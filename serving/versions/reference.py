"""The drift reference of a version: statistics of its test split (`assets.extra/reference.json`).

Export records shares of missing values and unseen ids, and a histogram of each task's scores.  The
server compares live calls with them (`serving.observe.drift`).
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = "assets.extra/reference.json"


@dataclass(frozen=True)
class Shares:
    """Shares of missing and unseen values of one feature."""

    missing: float
    """Share of rows without a value; for a list, of rows where it is empty."""
    unseen: float | None
    """Share of ids outside the vocabulary; None where the feature has no vocabulary."""


@dataclass(frozen=True)
class Histogram:
    """Histogram of one task's scores."""

    inner: np.ndarray
    """(K - 1,) edges between K bins; the first and the last bin are open-ended."""
    counts: np.ndarray
    """(K,)."""

    def count(self, scores: np.ndarray) -> np.ndarray:
        """Count scores (N,) by bin: (K,)."""
        places = np.searchsorted(self.inner, scores, side="right")
        return np.bincount(places, minlength=len(self.counts))


@dataclass(frozen=True)
class Reference:
    """Statistics of a version's test split."""

    features: dict[str, Shares]
    scores: dict[str, Histogram]

    @classmethod
    def read(cls, version: Path) -> "Reference | None":
        """Read a version's file; None where it has none.

        Raises:
            ValueError: the file is damaged.
        """
        path = version / FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        try:
            return cls(
                {
                    name: Shares(float(shares["missing"]), shares["unseen"])
                    for name, shares in values["features"].items()
                },
                {
                    task: Histogram(np.array(one["edges"][1:-1], float), np.array(one["counts"]))
                    for task, one in values["scores"].items()
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: expected shares of features and histograms of scores: {error!r}"
            ) from None


def stability_index(expected: np.ndarray, received: np.ndarray) -> float:
    """Population stability index of two histograms.

    The sum over bins of (q - p) * ln(q / p), where p and q are the shares of the bin: the
    symmetrised Kullback-Leibler divergence.  By convention, below 0.1 the histograms agree, and
    above 0.25 they do not.  Half a row is added to every bin, so that an empty bin does not give
    infinity.

    Args:
        expected: (K,) counts.
        received: (K,) counts.
    """
    p = (expected + 0.5) / (expected + 0.5).sum()
    q = (received + 0.5) / (received + 0.5).sum()
    return float(((q - p) * np.log(q / p)).sum())
