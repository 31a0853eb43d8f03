"""The order of the scored candidates of one request."""

import numpy as np

from multigate.serving.core.layout import SCORE, Arrays
from multigate.serving.request.rank_request import ParsedRequest


def rank_order(outputs: Arrays, parsed: ParsedRequest) -> np.ndarray:
    """Indices of the ranked candidates, best first; equal scores keep the caller's order.

    Args:
        outputs: of the `rank` signature, (N,) each.
        parsed: gives floors and limit.

    Returns:
        (K,) with K <= limit.
    """
    if not parsed.floors:
        return np.argsort(-outputs[SCORE], kind="stable")[: parsed.limit]
    stays = np.ones(parsed.rows, bool)
    for task, (low, high) in parsed.floors.items():
        stays &= (outputs[task] >= low) & (outputs[task] <= high)
    candidates = np.flatnonzero(stays)
    order = np.argsort(-outputs[SCORE][candidates], kind="stable")
    return candidates[order][: parsed.limit]
