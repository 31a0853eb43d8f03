"""Rates by category: the user's past labels on candidates of one category, such as a topic.

The category of a past impression is the one that its example holds.  The value for a candidate is
looked up by the candidate's own raw category.  So a sampled negative has that of its own item, and
a server finds it in a list of the user's categories (`lists`), which the snapshot holds.

Only a user's `last` most recent categories count, by the latest impression with a closed label; of
equal times, the greater category is the later one.
"""

from datetime import datetime
from itertools import islice

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import Config
from multigate.configs.contract import LabelCount, LabelCounter
from multigate.configs.files import LABEL
from multigate.configs.sections.features import CROSS_COUNTS, CROSS_KEYS, CROSS_ONES
from multigate.features import PastLabels, Totals
from multigate.pipeline.compute.rates import CATEGORY, Columns, Priors, categories, feature_totals
from multigate.pipeline.label.labels import waits


class CrossRates:
    """The features over past labels by category of some users, for any instant.

    Args:
        labels: see `rates.past_labels`; all labels of these users, with their categories.
        config: names the features.
        priors: see `rates.priors`; not needed for `lists`.
    """

    def __init__(self, labels: pl.DataFrame, config: Config, priors: Priors | None = None) -> None:
        self._config, self._priors, self._waits = config, priors or {}, waits(config)
        self._rows = {
            name: labels.filter(
                pl.col(CATEGORY + name).is_not_null() & pl.col("time").is_not_null()
            )
            for name in categories(config)
        }
        self._past = {
            name: PastLabels(rows, "user", CATEGORY + name) for name, rows in self._rows.items()
        }

    def values(self, queries: pl.DataFrame) -> Columns:
        """The features of some candidates.

        Args:
            queries: columns `user`, `time`, and the candidates' categories by feature.

        Returns:
            (B,) float64 by feature; of a candidate without a category, as of one without labels.

        Raises:
            DataError: a label is too large to be added up.
        """
        found, windows, recents = Columns(), {}, {}
        for name, rule in self._config.contract.crosses().items():
            category, wait = str(rule.category), self._waits[rule.task]
            asked = queries.select("user", "time", pl.col(category).alias(CATEGORY + category))
            past, span, kept = self._past[category], (rule.within, wait), (rule.most, wait)
            if (category, span) not in windows:
                windows[category, span] = past.closed(asked, wait, rule.within)
            if (category, kept) not in recents:
                shifted = asked.with_columns(pl.col("time") - wait)
                recents[category, kept] = self._recent(category, shifted, rule.most)
            recent = recents[category, kept]
            total = feature_totals(past, name, rule.task, windows[category, span])
            total = Totals(np.where(recent, total.sums, 0.0), np.where(recent, total.counts, 0.0))
            if isinstance(rule, LabelCount):
                found[name] = pl.Series(total.counts)
            else:
                found[name] = pl.Series(total.mean(rule.strength, self._priors[name]))
        return found

    def _recent(self, category: str, queries: pl.DataFrame, most: int) -> NDArray[np.bool_]:
        """Whether a query's category is one of its user's `most` recent ones before its time."""
        column, rows = CATEGORY + category, self._rows[category]
        found = np.ones(len(queries), bool)
        several = rows.group_by("user").agg(pl.col(column).n_unique())
        many = several.filter(pl.col(column) > most)["user"]
        asked = queries.with_row_index("at").filter(pl.col("user").is_in(many.implode()))
        past = rows.filter(pl.col("user").is_in(many.implode())).sort("time", column)
        of_user = past.select("user", "time", column).partition_by("user", as_dict=True)
        for user, some in asked.sort("time").partition_by("user", as_dict=True).items():
            impressions = iter([*of_user[user].select("time", column).iter_rows(), None])
            following = next(impressions)
            latest: dict[object, None] = {}  # in the order of their latest impressions
            for at, time, value in some.select("at", "time", column).iter_rows():
                while following is not None and following[0] < time:
                    latest.pop(following[1], None)
                    latest[following[1]] = None
                    following = next(impressions)
                found[at] = value in islice(reversed(latest), most)
        return found

    def lists(self, users: pl.Series, time: datetime | None) -> Columns:
        """What the snapshot holds for a server, to which `serving.feature_store.crosses` adds.

        Args:
            users: (B,) users.
            time: of the snapshot; None where no event has a time.

        Returns:
            By feature and suffix, (B,) lists: the categories, least recent first, and for each the
            labels that are 1 and all labels.
        """
        found = Columns()
        for name, rule in self._config.contract.crosses().items():
            made = self._of_rule(rule, time)
            every = pl.DataFrame({"user": users})
            made = every.join(made, on="user", how="left", maintain_order="left")
            found |= {
                name + suffix: made[suffix] for suffix in (CROSS_KEYS, CROSS_ONES, CROSS_COUNTS)
            }
        return {name: found[name] for name in self._config.contract.cross_lists()}

    def _of_rule(self, rule: LabelCounter, time: datetime | None) -> pl.DataFrame:
        category, label = CATEGORY + str(rule.category), pl.col(LABEL + rule.task)
        rows, closes = self._rows[str(rule.category)], pl.col("time") + self._waits[rule.task]
        closed = pl.lit(False) if time is None else closes < time
        if time is not None and rule.within is not None:
            closed &= closes >= time - rule.within
        found = rows.filter(closed).group_by("user", category)
        totals = found.agg(
            pl.col("time").max(),
            label.sum().cast(pl.Int64).alias(CROSS_ONES),
            label.count().cast(pl.Int64).alias(CROSS_COUNTS),
        ).sort("user", "time", category)
        some = totals.rename({category: CROSS_KEYS}).group_by("user", maintain_order=True)
        return some.agg(pl.col(CROSS_KEYS, CROSS_ONES, CROSS_COUNTS).tail(rule.most))
