"""Drafts the pairs of features whose pairs of values get weights of their own, see `Wide.pairs`.

What users of a country do with a topic is more than what the country and the topic do apart. The
log says of which pairs that holds: what the first half of its labels has beyond `expected_apart`
for two values tells the later half, by a linear regression whose coefficient is beyond chance.
Weights of other pairs only learn the log by heart.
"""

import polars as pl

from multigate.configs import Config
from multigate.configs.files import LABEL, TIME
from multigate.configs.sections.rates import always_one
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.regression import (
    PRIOR,
    Evidence,
    binary_labels,
    choose,
    codes,
    expected_apart,
)
from multigate.jobs.onboarding.sample import Labelled

_VALUE = "value/"
_ROOM = 8192  # pairs of values, in a sample; the whole log may have more
_MOST = 4
_RATE = 4.0
_BEYOND_CHANCE = 3.0  # t value in the mean, 6 in one task; chance takes a pair beyond 2


def add_pairs(made: Draft, labelled: Labelled | None) -> None:
    """Add the pairs of features that tell more than each of the two.

    Args:
        made: a whole draft.
        labelled: a sample of the log; None where no row of it could be labelled.
    """
    chosen: dict[tuple[str, str], float] = {}
    if labelled is not None:
        chosen = pairs(made.config(), labelled.impressions.filter(labelled.splits == "train"))
    if chosen:
        wide = made.values["model"].setdefault("wide", {})
        wide |= {
            "crosses": 2 * _ROOM,
            "crosses_rate": _RATE,
            "pairs": [list(pair) for pair in chosen],
        }
        told = ", ".join(f"{' and '.join(pair)} {t_value:.1f}" for pair, t_value in chosen.items())
        before = made.notes.get("model.wide")
        made.notes["model.wide"] = "; ".join(
            one
            for one in (f"two values together tell more than each; t values: {told}", before)
            if one
        )


def pairs(config: Config, rows: pl.DataFrame) -> dict[tuple[str, str], float]:
    """The pairs of features whose values tell a label together, beyond what each tells.

    Args:
        config: says which features are ids, and the tasks.
        rows: labelled impressions.

    Returns:
        By pair of features, one of the user or the context and one of the item, the most telling
        first, the t value of what their values did together beyond each: the mean over the binary
        tasks, or half the largest, beside the pairs before it.  The ids of users and items
        themselves are in none: their rates are features.
    """
    contract = config.contract
    rows = rows.sort(TIME)
    values = {
        name: rows[name].n_unique()
        for name, feature in contract.features.items()
        if feature.kind == "id" and name not in (contract.user, contract.item)
    }
    names = {name: contract.features[name].side == "item" for name in values if values[name] > 1}
    coded = rows.select(
        *(LABEL + task for task in contract.tasks),
        **{_VALUE + name: codes(name).fill_null(0) for name in names},
    )
    known = [
        of_task
        for task, of_task in binary_labels(contract, coded).items()
        if not always_one(contract.tasks[task])
    ]
    candidates = (
        (
            (one, other),
            [
                _together(of_task.select("label", one=_VALUE + one, other=_VALUE + other))
                for of_task in known
            ],
        )
        for one, of_item in names.items()
        for other, of_other in names.items()
        if of_other and not of_item and values[one] * values[other] <= _ROOM
    )
    return choose(
        candidates,
        _BEYOND_CHANCE,
        _MOST,
        lambda chosen: sum(values[one] * values[other] for one, other in chosen) <= _ROOM,
    )


def _together(table: pl.DataFrame) -> Evidence:
    """Whether what two values did together beyond each tells what they do later."""
    keys = ["one", "other"]
    expected, labels = expected_apart(table, keys), table["label"].to_numpy()
    half = len(table) // 2
    left = table.head(half).with_columns(left=(labels - expected)[:half])
    sums = left.group_by(keys).agg(more=pl.col("left").sum() / (pl.len() + PRIOR))
    later = table.slice(half).join(sums, on=keys, how="left", maintain_order="left")
    more = later["more"].fill_null(0).to_numpy()
    return Evidence([expected[half:].copy(), more], labels[half:])
