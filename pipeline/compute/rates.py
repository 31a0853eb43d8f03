"""Rates: features over past labels, such as a user's smoothed rate of likes as of an impression.

The labels of all logged impressions count, whatever the run masks (hold-back, embargo, days of a
run, `unmatched`) or leaves out (`downsample`, side tables): a label counts for every impression
after it has closed, and for none before.  Sampled negatives have no labels here.

A user's rates are computed within the user's bucket.  Those of items need the labels of all users,
which travel to the buckets of items as events do (`computed`).  The prior, the task's mean over the
training split, is known after the split: until then, sums and counts stand in its place.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.contract import LabelCount, LabelCounter
from multigate.configs.files import LABEL
from multigate.configs.sections.labels import ColumnLabel, RatioLabel, Task
from multigate.configs.sections.log import EventLog
from multigate.features import PastLabels, Totals
from multigate.features.past_labels import Window
from multigate.pipeline.compute import measure
from multigate.pipeline.core.columns import COLUMN, KNOWN, id_type
from multigate.pipeline.core.facts import LabelSum
from multigate.pipeline.label.labels import waits

Columns = dict[str, pl.Series]
Priors = dict[str, float]
"""By feature, what a rate or mean is drawn towards."""

CATEGORY = "category/"
"""Prefix of the columns that say of which category an impression was."""

_SUM, _COUNT = "sum/", "labels/"


def reads_users(config: Config) -> bool:
    """Whether any feature is over past labels of the user, of all or by category."""
    return bool(of(config, "user") or config.contract.crosses())


def of(config: Config, key: str) -> dict[str, LabelCounter]:
    """The features over past labels of the `user` or of the `item`."""
    return {name: rule for name, rule in config.contract.label_counters().items() if rule.of == key}


def tasks_read(config: Config) -> list[str]:
    """The tasks whose labels these features read, in the contract's order."""
    read = {rule.task for rule in config.contract.label_counters().values()}
    return [name for name in config.contract.tasks if name in read]


def past_labels(
    config: Config, impressions: pl.DataFrame, labels: Mapping[str, pl.Series]
) -> pl.DataFrame:
    """The labels that count, of some logged impressions.

    Args:
        config: names the features.
        impressions: (B, ...) columns `user`, `item`, `time`, `repeated`, and those that the labels'
            rules read.
        labels: (B,) by task, before the masks of the run.

    Returns:
        Columns of `no_labels` without the categories; labels after their transform. Repeated
        impressions are left out.
    """
    names = tasks_read(config)
    if not names:
        return no_labels(config)
    known = _known(config, impressions)
    columns = {}
    for name in names:
        label = _transformed(labels[name], config.contract.tasks[name])
        nothing = pl.Series([None] * len(label), dtype=pl.Float32)
        columns[LABEL + name] = label.zip_with(known[name], nothing)
    rows = impressions.select("user", "item", "time").with_columns(**columns)
    return rows.filter(~impressions["repeated"])


def _transformed(label: pl.Series, task: Task) -> pl.Series:
    if task.transform != "log1p":
        return label
    return label.cast(pl.Float64).clip(lower_bound=0).log1p().cast(pl.Float32)


def _known(config: Config, impressions: pl.DataFrame) -> dict[str, pl.Series]:
    """By task, whether anybody ever knew what the label is made of.

    A value above zero whose own time (`known_at`) is empty was never known.
    """
    log, contract = config.pipeline.log, config.contract
    flags: dict[str, pl.Expr] = {}
    for name in contract.tasks_in_order():
        task = contract.tasks[name]
        flags[name] = pl.lit(True)
        if isinstance(task.label, ColumnLabel | RatioLabel) and not isinstance(log, EventLog):
            for column in task.label.columns:
                if column in log.known_at:
                    given = (pl.col(COLUMN + column) > 0).fill_null(False)
                    flags[name] &= ~given | pl.col(KNOWN + log.known_at[column]).is_not_null()
        for other in (task.without, task.when):
            if other is not None:
                flags[name] &= flags[other]
    return {
        name: pl.repeat(True, len(impressions), dtype=pl.Boolean, eager=True)
        & impressions.select(flags[name].alias(name)).to_series()
        for name in tasks_read(config)
    }


def no_labels(config: Config) -> pl.DataFrame:
    """An empty table of `past_labels`."""
    kinds = {"string": pl.String, "int": pl.Int64}
    ids = {"user": config.contract.user, "item": config.contract.item}
    schema = {key: kinds[id_type(config, name)] for key, name in ids.items()}
    read = {LABEL + name: pl.Float32 for name in tasks_read(config)}
    read |= {CATEGORY + name: kinds[id_type(config, name)] for name in categories(config)}
    return pl.DataFrame(schema=schema | {"time": pl.Datetime("us", "UTC")} | read)


def categories(config: Config) -> list[str]:
    """The features by whose categories the user's labels are divided."""
    rules = config.contract.crosses().values()
    return sorted({rule.category for rule in rules if rule.category is not None})


def of_key(labels: pl.DataFrame, key: str) -> pl.DataFrame:
    """What the features of the `user` (`item`) read of `past_labels`."""
    read = f"^({LABEL}|{CATEGORY}).*$" if key == "user" else f"^{LABEL}.*$"
    return labels.select(key, "time", pl.col(read))


def feature_totals(past: PastLabels, name: str, task: str, window: Window) -> Totals:
    """`past.totals` of a task's labels, for the feature `name`.

    Raises:
        DataError: a label is too large to be added up.
    """
    try:
        return past.totals(LABEL + task, window)
    except ValueError as error:
        raise DataError(
            f"contract.features.{name}: {error}; clip the labels of task {task!r} or take their "
            "logarithm (transform: log1p)"
        ) from None


class KeyRates:
    """The features over past labels of some users (items), for any instant.

    Args:
        labels: see `past_labels`; all labels of these users (items).
        config: names the features.
        key: `user` or `item`.
        priors: see `priors`; not needed for `totals`.
    """

    def __init__(
        self, labels: pl.DataFrame, config: Config, key: str, priors: Priors | None = None
    ) -> None:
        self._config, self._key, self._priors = config, key, priors or {}
        self._past = PastLabels(labels, key) if of(config, key) else None

    def totals(self, queries: pl.DataFrame) -> Columns:
        """Sums and counts of past labels, by feature.

        Args:
            queries: columns `user` (`item`) and `time`.

        Returns:
            (B,) columns, of which `with_values` makes the features once the priors are known.

        Raises:
            DataError: a label is too large to be added up.
        """
        wait, found, windows = waits(self._config), Columns(), {}
        if self._past is None:
            return found
        for name, rule in of(self._config, self._key).items():
            span = wait[rule.task], rule.within
            if span not in windows:
                windows[span] = self._past.closed(queries, *span)
            total = feature_totals(self._past, name, rule.task, windows[span])
            found[_SUM + name] = pl.Series(total.sums)
            found[_COUNT + name] = pl.Series(total.counts)
        return found

    def values(self, queries: pl.DataFrame) -> Columns:
        """The features: (B,) float64 by name; see `totals`."""
        return _values(self.totals(queries), self._config, self._key, self._priors)


def _values(columns: Mapping[str, pl.Series], config: Config, key: str, priors: Priors) -> Columns:
    """The features, made of the columns of `KeyRates.totals`."""
    found = {}
    for name, rule in of(config, key).items():
        total = Totals(columns[_SUM + name].to_numpy(), columns[_COUNT + name].to_numpy())
        if isinstance(rule, LabelCount):
            found[name] = pl.Series(total.counts)
        else:
            found[name] = pl.Series(total.mean(rule.strength, priors[name]))
    return found


def with_values(frame: pl.DataFrame, config: Config, key: str, priors: Priors) -> pl.DataFrame:
    """A table with the columns of `KeyRates.totals`, with the features beside them."""
    return frame.with_columns(**_values(frame.to_dict(), config, key, priors))


def total_columns(config: Config, key: str) -> list[str]:
    """Names of the columns of `KeyRates.totals`."""
    return [prefix + name for name in of(config, key) for prefix in (_SUM, _COUNT)]


def training_sums(training: pl.DataFrame, config: Config) -> dict[str, LabelSum]:
    """Of each task whose mean is a prior, the sum of its labels in a part of the training split.

    Args:
        training: logged impressions, with labels under the embargo masked; before `downsample`.
        config: names the features.
    """
    found = {}
    for name in _with_prior(config):
        log = config.contract.tasks[name].transform == "log1p"
        moments = measure.moments(training[LABEL + name], log=log)
        found[name] = LabelSum(moments.count, moments.total)
    return found


def _with_prior(config: Config) -> list[str]:
    """The tasks whose mean in training is the prior of a feature."""
    rules = config.contract.label_counters().values()
    asked = {r.task for r in rules if not isinstance(r, LabelCount) and r.prior is None}
    return [name for name in config.contract.tasks if name in asked]


LabelSums = dict[str, LabelSum]


def add_label_sums(left: LabelSums, right: LabelSums) -> LabelSums:
    """Add up the sums of two parts; exact, either may be empty."""
    found = dict(left)
    for name, more in right.items():
        had = found.get(name, LabelSum(0, 0))
        found[name] = LabelSum(had.count + more.count, had.total + more.total)
    return found


def priors(config: Config, sums: LabelSums, before: Priors) -> Priors:
    """The prior of each rate and mean: as configured, or the task's mean over the training split.

    A task without any label in training has the prior of the run before: some days of a log may all
    be validation's, and what is served has the newest run's priors.  Without one it is 0.

    Args:
        config: names the features.
        sums: of the training split.
        before: the priors of the run before; empty without one.
    """
    means = {name: measure.Moments() for name in _with_prior(config)}
    for name, part in sums.items():
        means[name] = measure.Moments(count=part.count, total=part.total)
    found = {}
    for name, rule in config.contract.label_counters().items():
        if not isinstance(rule, LabelCount):
            prior = rule.prior
            if prior is None and means[rule.task].count == 0:
                prior = before.get(name)
            found[name] = float(np.float64(means[rule.task].mean if prior is None else prior))
    return found
