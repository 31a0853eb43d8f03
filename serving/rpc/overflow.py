"""Refuses scores that are no numbers any more."""

from collections.abc import Callable

import numpy as np

from multigate.serving.core.layout import Arrays
from multigate.serving.core.status import InvalidRequestError


def refuse_overflow(
    outputs: Arrays, place: Callable[[int], int] = lambda row: row, what: str = "candidate"
) -> None:
    """Refuse scores that are not finite: finite inputs can be too large to compute with.

    Args:
        outputs: (N,) each, or (N, E).
        place: where a row stands in what was given.
        what: a row is there.

    Raises:
        InvalidRequestError: names the candidate, or the row.
    """
    for name, scores in outputs.items():
        finite = np.isfinite(scores)
        if not np.logical_and.reduce(finite, axis=None):
            row = int(np.argwhere(~finite)[0, 0])
            raise InvalidRequestError(
                f"{what} {place(row)}: output {name!r}: expected a finite score, the model "
                f"computes {scores[~finite][0]}: the request's numbers or weights are too large"
            )
