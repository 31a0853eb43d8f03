"""Rates by category, such as a user's rate of likes of the candidate's topic.

The store holds lists of the user: the categories, and for each its labels that are 1 and all its
labels.  Each candidate's category is looked up in them: the category that the request gives, else
the one that the store holds of the item.  A category that is not in the lists has no labels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from multigate.configs.contract import Contract, LabelCount
from multigate.configs.sections.features import CROSS_COUNTS, CROSS_KEYS, CROSS_ONES
from multigate.serving.feature_store.interface import Column, FeatureAnswer, FeatureQuery


@dataclass(frozen=True)
class _Cross:
    category: str
    of_item: bool
    """Whether the store holds the category, by item."""
    strength: float | None
    """Of a rate; None of a count."""

    def lists(self, name: str) -> list[str]:
        """The store's columns that the feature is made of."""
        suffixes = (CROSS_KEYS, CROSS_COUNTS) if self.strength is None else _ALL
        return [name + suffix for suffix in suffixes]


_ALL = (CROSS_KEYS, CROSS_ONES, CROSS_COUNTS)


class Crosses:
    """Makes a contract's rates by category from what a store holds."""

    def __init__(self, contract: Contract) -> None:
        self._crosses = {
            name: _Cross(
                str(rule.category),
                contract.features[str(rule.category)].side == "item",
                None if isinstance(rule, LabelCount) else rule.strength,
            )
            for name, rule in contract.crosses().items()
        }
        self.categories = sorted({cross.category for cross in self._crosses.values()})

    def named(self, names: Iterable[str]) -> list[str]:
        """Those of some features that are rates by category."""
        return [name for name in names if name in self._crosses]

    def stored(self, query: FeatureQuery) -> FeatureQuery:
        """The query that the store answers: for the lists and categories that a query needs."""
        named = self.named(query.item_features)
        if not named:
            return query
        wanted = [self._crosses[name] for name in named]
        of_items = [name for name in query.item_features if name not in self._crosses]
        of_items += [c.category for c in wanted if c.of_item and c.category not in query.categories]
        lists = [column for name in named for column in self._crosses[name].lists(name)]
        return replace(
            query,
            user_features=[*query.user_features, *lists],
            item_features=list(dict.fromkeys(of_items)),
        )

    def answer(self, query: FeatureQuery, stored: FeatureAnswer) -> dict[str, Column]:
        """The columns of a query's rates by category, (N,) each.

        There are none where the store has no table of users: the user may have labels.

        Args:
            query: the query before `stored`.
            stored: the store's answer to it; of one that failed there are no columns.
        """
        found: dict[str, Column] = {}
        if stored.problem:
            return found
        for name in self.named(query.item_features):
            if query.user is not None and name + CROSS_KEYS not in stored.columns:
                continue
            cross = self._crosses[name]
            category = query.categories.get(cross.category, stored.columns.get(cross.category))
            totals = _look_up(name, category, stored.columns, len(query.items))
            labels = totals[:, 1]
            values = labels
            if cross.strength is not None:
                prior = stored.priors[name]
                values = prior + (totals[:, 0] - labels * prior) / (labels + cross.strength)
            found[name] = Column(values.astype(np.float32), np.ones(len(query.items), bool))
        return found


def _look_up(
    name: str, category: Column | None, columns: Mapping[str, Column], rows: int
) -> np.ndarray:
    """Each candidate's labels that are 1 and all its labels: (N, 2) float64."""
    totals = np.zeros((rows, 2))
    keys = columns.get(name + CROSS_KEYS)
    if category is None or keys is None or keys.lengths is None:
        return totals
    length = int(keys.lengths[0])
    of_key = {key: place for place, key in enumerate(keys.values[0, :length].tolist())}
    values, present = category.values.tolist(), category.present.tolist()
    places = [of_key.get(v, -1) if p else -1 for v, p in zip(values, present, strict=True)]
    at = np.broadcast_to(np.array(places, np.int64), rows)
    for place, suffix in enumerate((CROSS_ONES, CROSS_COUNTS)):
        if (column := columns.get(name + suffix)) is not None and length:
            totals[:, place] = np.where(at >= 0, column.values[0][np.maximum(at, 0)], 0)
    return totals
