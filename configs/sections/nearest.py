"""Answers an unknown name with the nearest known one."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_MOST = 40  # names that a message lists


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, whatever its case; None where none is alike."""
    lower = {one.lower(): one for one in reversed([*known])}
    found = get_close_matches(name.lower(), lower, 1)
    return lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question for a message, with a blank after it; "" where no known name is alike."""
    found = nearest(name, known)
    return "" if found is None else f"did you mean {found!r}? "


def listed(names: Sequence[str]) -> str:
    """Names for a message: the first ones, and how many more there are."""
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")
