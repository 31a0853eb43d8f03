"""What the test split looked like to a version: `assets.extra/reference.json`, and how far off is.

The export records shares of missing values and unseen ids, and a histogram of every task's scores;
the server compares them with what it sees (`serving.observe.drift`).
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = "assets.extra/reference.json"


@dataclass(frozen=True)
class Shares:
    """Of one feature."""

    missing: float
    """Of rows; of a list, of rows where it is empty."""
    unseen: float | None
    """Of rows, or of a list's values; None where the feature keeps no vocabulary."""


@dataclass(frozen=True)
class Histogram:
    """Scores of one task."""

    inner: np.ndarray
    """(K - 1,) edges between K bins; the outermost bins take what lies beyond."""
    counts: np.ndarray
    """(K,)."""

    def count(self, scores: np.ndarray) -> np.ndarray:
        """Scores (N,) by bin, (K,)."""
        places = np.searchsorted(self.inner, scores, side="right")
        return np.bincount(places, minlength=len(self.counts))


@dataclass(frozen=True)
class Reference:
    """A version's test split."""

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
            said = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        try:
            return cls(
                {
                    name: Shares(float(shares["missing"]), shares["unseen"])
                    for name, shares in said["features"].items()
                },
                {
                    task: Histogram(np.array(one["edges"][1:-1], float), np.array(one["counts"]))
                    for task, one in said["scores"].items()
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: expected shares and histograms: {error!r}") from None


def stability_index(expected: np.ndarray, received: np.ndarray) -> float:
    """Population stability index of two histograms.

    The sum over bins of (q - p) * ln(q / p), where p and q are the shares of the bin: the
    symmetrised Kullback-Leibler divergence.  By convention, below 0.1 they agree, above 0.25 they
    do not.  Half a row is added to every bin, so that an empty one is no infinity.

    Args:
        expected: (K,) counts.
        received: (K,) counts.
    """
    p = (expected + 0.5) / (expected + 0.5).sum()
    q = (received + 0.5) / (received + 0.5).sum()
    return float(((q - p) * np.log(q / p)).sum())
