"""Finds lists whose text another separator splits than the configuration says."""

import polars as pl

from multigate.configs.contract import IdListFeature

_SEPARATORS = (",", ";", "|", "\t", "/")
_FEWEST, _MOST = 10, 0.5


def other_separator(name: str, feature: IdListFeature, lists: pl.Series) -> str | None:
    """Say that most lists look like texts that are not split, in one sentence.

    Args:
        name: of the feature.
        feature: gives its separator.
        lists: (B,) lists of texts; null and empty ones do not count.

    Returns:
        The sentence; None where some list has several values, or no other separator stands in most
        of the texts.
    """
    if feature.dtype != "string" or lists.dtype != pl.List(pl.String):
        return None
    given = lists.filter(lists.list.len() > 0)
    if len(given) < _FEWEST or given.list.len().max() != 1:
        return None
    texts = given.list.first()
    for separator in _SEPARATORS:
        if separator == feature.separator:
            continue
        found = texts.filter(texts.str.contains(separator, literal=True))
        if len(found) > _MOST * len(texts):
            return (
                f"{name}: every list is one value, and {len(found) / len(texts):.0%} of them hold "
                f"{separator!r}, such as {found[0][:60]!r}: set separator: {separator!r} (now "
                f"{feature.separator!r})"
            )
    return None
