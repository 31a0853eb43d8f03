"""Drafts the pairs of features whose pairs of values get weights of their own, see `Wide.pairs`.

What users of a country do with a topic is more than what the country and the topic tell apart. The
log says of which pairs that holds: a linear regression of the later half of the labels on the
rates that the first half gives the one value, the other and both together has a coefficient of the
last that is beyond chance.  Weights of other pairs only learn the log by heart.
"""

import numpy as np
import polars as pl

from multigate.configs import Config
from multigate.configs.files import LABEL, TIME
from multigate.configs.sections.rates import always_one
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.past_rates import PRIOR, last_t_value
from multigate.jobs.onboarding.sample import Labelled

_ROOM = 8192  # pairs of values
_MOST = 4
_BEYOND_CHANCE = 3.0  # t value, in the mean of the tasks; of many pairs, chance takes one beyond 2


def add_pairs(made: Draft, labelled: Labelled | None) -> None:
    """Add the pairs of features that tell more than each of the two.

    Args:
        made: a whole draft.
        labelled: a sample of the log; None where no row of it could be labelled.
    """
    found: dict[tuple[str, str], float] = {}
    if labelled is not None:
        found = pairs(made.config(), labelled.impressions.filter(labelled.splits == "train"))
    ranked = sorted(found, key=lambda pair: -found[pair])
    chosen = [pair for pair in ranked if found[pair] >= _BEYOND_CHANCE][:_MOST]
    if chosen:
        wide = made.values["model"].setdefault("wide", {})
        wide |= {"crosses": _ROOM, "pairs": [list(pair) for pair in chosen]}
        told = ", ".join(f"{' and '.join(pair)} {found[pair]:.1f}" for pair in chosen)
        before = made.notes.get("model.wide")
        made.notes["model.wide"] = "; ".join(
            one
            for one in (f"two values together tell more than each; t values: {told}", before)
            if one
        )


def pairs(config: Config, rows: pl.DataFrame) -> dict[tuple[str, str], float]:
    """How far two values tell a label together, beyond what each tells.

    Args:
        config: says which features are ids, and the tasks.
        rows: labelled impressions.

    Returns:
        By pair of features, one of the user or the context and one of the item, the t value of the
        coefficient of their common rate: the mean over the binary tasks.  The ids of users and
        items themselves are in none: their rates are features.
    """
    contract = config.contract
    rows = rows.sort(TIME)
    values = {
        name: rows[name].n_unique()
        for name, feature in contract.features.items()
        if feature.kind == "id" and name not in (contract.user, contract.item)
    }
    names = {name: contract.features[name].side == "item" for name in values if values[name] > 1}
    found: dict[tuple[str, str], list[float]] = {
        (one, other): []
        for one, of_item in names.items()
        for other, of_other in names.items()
        if of_other and not of_item and values[one] * values[other] <= _ROOM
    }
    for task, about in contract.tasks.items():
        known = rows.filter(pl.col(LABEL + task).is_not_null())
        if about.type != "binary" or always_one(about) or len(known) < 2:
            continue
        table = known.select(
            pl.col(name).cast(pl.String).fill_null("").alias(name) for name in names
        ).with_columns(known[LABEL + task].cast(pl.Float64).alias("label"))
        half = len(table) // 2
        rates = {name: _rate(table, half, [name]) for name in names}
        for (one, other), t_values in found.items():
            columns = [rates[one], rates[other], _rate(table, half, [one, other])]
            t_values.append(last_t_value(columns, table["label"].to_numpy()[half:]))
    return {pair: float(np.mean(t_values)) for pair, t_values in found.items() if t_values}


def _rate(table: pl.DataFrame, half: int, keys: list[str]) -> np.ndarray:
    """The rate that the first `half` rows give the values of each later row."""
    before, later = table.head(half), table.slice(half)
    sums = before.group_by(keys).agg(count=pl.len(), total=pl.col("label").sum())
    found = later.select(keys).join(sums, on=keys, how="left", maintain_order="left")
    mean = float(np.mean(before["label"].to_numpy()))
    rate = (pl.col("total").fill_null(0) + PRIOR * mean) / (pl.col("count").fill_null(0) + PRIOR)
    return found.select(rate=rate)["rate"].to_numpy()
