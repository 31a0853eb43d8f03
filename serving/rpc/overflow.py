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
        outputs: (N,) each.
        place: where a row stands in what was given.
        what: a row is there.

    Raises:
        InvalidRequestError: names the candidate, or the row.
    """
    for name, scores in outputs.items():
        finite = np.isfinite(scores)
        if not np.logical_and.reduce(finite):
            row = int(np.argmin(finite))
            raise InvalidRequestError(
                f"{what} {place(row)}: output {name!r}: expected a finite score, the "
                f"model computes {scores[row]}: the request's numbers or weights are too large"
            )
