"""How alike the answers of two versions to one request are."""

import numpy as np

from multigate.serving.core.layout import SCORE, Arrays
from multigate.serving.request.rank_request import ParsedRequest

_COMPARED_ITEMS = 200
"""Items of a call, the best first, whose pairs are compared: 20,000 pairs take a millisecond."""


def places_of(parsed: ParsedRequest) -> np.ndarray:
    """(N,) where the candidates that a version can score stand in the request."""
    return np.arange(parsed.rows) if parsed.places is None else parsed.places


def _rows_at(places: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The rows of the other version at places of the request, (K,); -1 where it has none."""
    rows = np.full(1 + max(int(places.max(initial=-1)), int(theirs.max(initial=-1))), -1)
    rows[theirs] = np.arange(len(theirs))
    found: np.ndarray = rows[places]
    return found


def aligned(
    places: np.ndarray, order: np.ndarray, theirs: np.ndarray, outputs: Arrays
) -> tuple[np.ndarray, np.ndarray]:
    """What the other version has for the items of an answer.

    Args:
        places: (N,) of the answering version's rows in the request.
        order: (K,) its answer.
        theirs: (M,) places of the other version's rows.
        outputs: (M,) each, of the other version.

    Returns:
        (K,) its rows, -1 where it has none; (K,) their places in its order of all candidates.
    """
    rows = _rows_at(places[order], theirs)
    positions = np.empty(len(theirs), np.int64)
    positions[np.argsort(-outputs[SCORE], kind="stable")] = np.arange(len(theirs))
    return rows, positions[rows]


def pairs_agreement(
    places: np.ndarray, outputs: Arrays, theirs: np.ndarray, others: Arrays
) -> float | None:
    """Share of the pairs of candidates that two versions put in the same order.

    A tie agrees with a tie alone.  Of many candidates, those count that the first version has best.

    Args:
        places: (N,) of the first version's rows in the request.
        outputs: (N,) each, of the first version.
        theirs: (M,) places of the other version's rows.
        others: (M,) each, of the other version.

    Returns:
        None with fewer than two candidates that both can score.
    """
    best = np.argsort(-outputs[SCORE], kind="stable")
    rows = _rows_at(places[best], theirs)
    best, rows = best[rows >= 0][:_COMPARED_ITEMS], rows[rows >= 0][:_COMPARED_ITEMS]
    if len(best) < 2:
        return None
    ours, their_scores = outputs[SCORE][best], others[SCORE][rows]
    same = np.sign(ours[:, None] - ours) == np.sign(their_scores[:, None] - their_scores)
    # Each pair stands there twice, and each item beside itself.
    count = len(best)
    return float(np.count_nonzero(same) - count) / (count * (count - 1))


def overlap_of(
    places: np.ndarray, order: np.ndarray, theirs: np.ndarray, others: np.ndarray
) -> float:
    """Share of an answer's items that are in another answer to the same request, too.

    Args:
        places: (N,) of the first version's rows in the request.
        order: (K,) its answer, K > 0.
        theirs: (M,) places of the other version's rows.
        others: its answer.
    """
    return float(np.isin(places[order], theirs[others]).mean())
