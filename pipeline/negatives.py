"""Negatives: drawn where the log holds none, left out where it holds more than it takes.

Every draw is a function of the seed, the positive's number and the draw's own number: it does not
matter in which bucket or order the positives come.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, LABEL
from multigate.configs.sections.pipeline import Negatives
from multigate.pipeline.hashing import combine
from multigate.pipeline.lately import Lately
from multigate.pipeline.split import uniform
from multigate.pipeline.urn import ALWAYS, NEVER, Urn

_ATTEMPTS = 32
_SALT = 0x4B45_4550  # keeps these draws apart from those of the negatives and the split


def draw(
    positives: pl.DataFrame,
    touched: pl.DataFrame,
    pool: pl.DataFrame,
    negatives: Negatives,
    seed: int,
) -> pl.DataFrame:
    """Draw negatives for logged impressions.

    Args:
        positives: columns `user`, `time`, `impression`; (B, 3).
        touched: columns `user`, `item`, `time` (first time), `unknown` (whether the time of any
            event of the pair is unknown: such a pair is excluded at all times); under
            `exclude_within` one row per event.
        pool: columns `time`, `item`, sorted by both, see `urn.thin`.
        negatives: how many, drawn how, excluding what.
        seed: of all draws.

    Returns:
        Columns `positive` (row number), `slot` (0, 1, ...), `item`; sorted by both. A positive has
        no item twice. It gets fewer than `per_positive` where fewer items are left: `past` and
        `recent` draw only items that the log had shown strictly before the positive's time, so
        that the log's first impressions, and those of unknown time, have none.
    """
    items = pool["item"].unique().sort()
    if len(items) == 0 or len(positives) == 0:
        return _table(np.zeros((0, 3), np.int64), items)
    codes = items.search_sorted(pool["item"]).to_numpy().astype(np.int64)
    excluded: _Excluded | Lately
    if negatives.exclude_within is not None:
        excluded = Lately(positives, touched, items, negatives.exclude_within)
    else:
        excluded = _Excluded(positives, touched, items, negatives.exclude == "ever")
    times = positives["time"].to_physical().fill_null(ALWAYS).to_numpy()
    urn = Urn(pool, codes, times, negatives)
    base = combine(positives["impression"].to_numpy(), np.full(len(positives), seed, np.int64))
    chosen = np.full((len(positives), negatives.per_positive), -1, np.int64)
    for slot in range(negatives.per_positive):
        _draw_slot(chosen, slot, base, urn, excluded)
    rows, slots = np.nonzero(chosen >= 0)
    return _table(np.stack([rows, slots, chosen[rows, slots]], axis=1), items)


def matched(impressions: pl.DataFrame, pool: pl.DataFrame, negatives: Negatives) -> pl.Series:
    """Which logged impressions have an item that somebody's negative at that time could have.

    Args:
        impressions: columns `item`, `time`.
        pool: as for `draw`.
        negatives: what may be drawn.

    Returns:
        (B,) flags: the log had shown the item strictly before, and within `recent`.
    """
    if negatives.exclude == "ever" and negatives.recent is None:
        return pl.Series([True] * len(impressions), dtype=pl.Boolean)
    queries = impressions.with_row_index("__row").sort("time", nulls_last=False)
    found = queries.join_asof(
        pool.filter(pl.col("time").is_not_null())
        .select("item", "time", shown=pl.col("time"))
        .sort("time"),
        on="time",
        by="item",
        strategy="backward",
        allow_exact_matches=False,
        tolerance=negatives.recent,
        check_sortedness=False,  # sorted above; Polars cannot tell within groups
    )
    return found.sort("__row")["shown"].is_not_null()


def keep(impressions: pl.DataFrame, splits: pl.Series, config: Config) -> pl.Series:
    """Which logged impressions stay where negatives are downsampled.

    Args:
        impressions: columns `meta/impression` and `label/<task>`.
        splits: (B,) names; all of validation and test stay.
        config: the share, the tasks and the seed.

    Returns:
        (B,) flags: a function of the impression, its labels, its split and the seed.
    """
    downsample, tasks = config.pipeline.downsample, config.contract.tasks
    if downsample is None:
        return pl.Series([True] * len(impressions), dtype=pl.Boolean)
    names = downsample.tasks or [name for name, task in tasks.items() if task.type == "binary"]
    key = impressions[IMPRESSION].to_numpy()
    drawn = uniform(combine(key, np.full(len(key), config.pipeline.seed ^ _SALT, np.uint64)))
    stays = pl.Series(drawn < downsample.keep) | (splits != "train")
    positive = pl.any_horizontal([(pl.col(LABEL + name) == 1).fill_null(False) for name in names])
    return stays | impressions.select(positive).to_series()


class _Excluded:
    """Answers whether a positive's user had touched an item by then."""

    def __init__(
        self, positives: pl.DataFrame, touched: pl.DataFrame, items: pl.Series, ever: bool
    ) -> None:
        users = touched["user"].unique().sort()
        known = touched.filter(pl.col("item").is_in(items.implode()))
        self._items = len(items)
        owner = users.search_sorted(known["user"]).to_numpy().astype(np.int64)
        keys = owner * self._items + items.search_sorted(known["item"]).to_numpy()
        since = known["time"].to_physical().fill_null(ALWAYS).to_numpy().copy()
        since[known["unknown"].to_numpy() | ever] = ALWAYS
        order = np.argsort(keys)
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._since = np.append(since[order], NEVER)
        self._user = users.search_sorted(positives["user"]).to_numpy().astype(np.int64)
        self._time = positives["time"].to_physical().fill_null(NEVER - 1).to_numpy()

    def __call__(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether positive `rows[i]` excludes item code `items[i]`; the two broadcast."""
        keys = self._user[rows] * self._items + items
        at = np.searchsorted(self._keys, keys)
        return (self._keys[at] == keys) & (self._since[at] <= self._time[rows])


def _draw_slot(
    chosen: NDArray[np.int64],
    slot: int,
    base: NDArray[np.uint64],
    urn: Urn,
    excluded: _Excluded | Lately,
) -> None:
    """Fill one column of `chosen`: draw until allowed, then choose among what is left."""
    left = np.flatnonzero(urn.sizes > 0)
    if slot:  # who found nothing left before finds nothing now
        left = left[chosen[left, slot - 1] >= 0]
    for attempt in range(_ATTEMPTS):
        if len(left) == 0:
            return
        number = np.full(len(left), (slot << 16) + attempt, np.int64)
        drawn = combine(base[left], number) % urn.sizes[left].astype(np.uint64)
        item, repeated = urn.items(left, drawn.astype(np.int64))
        refused = (
            repeated | excluded(left, item) | (chosen[left, :slot] == item[:, None]).any(axis=1)
        )
        chosen[left[~refused], slot] = item[~refused]
        left = left[refused]
    number = np.full(len(left), (slot << 16) + _ATTEMPTS, np.int64)
    for row, draw_ in zip(left.tolist(), combine(base[left], number).tolist(), strict=True):
        entries, repeated = urn.items(row, np.arange(urn.sizes[row]))
        refused = repeated | excluded(np.full(len(entries), row), entries)
        entries = entries[~refused & ~np.isin(entries, chosen[row, :slot])]
        if len(entries):
            chosen[row, slot] = entries[draw_ % len(entries)]


def _table(rows: NDArray[np.int64], items: pl.Series) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "positive": pl.Series(rows[:, 0], dtype=pl.Int64),
            "slot": pl.Series(rows[:, 1], dtype=pl.Int64),
            "item": items.gather(rows[:, 2]),
        }
    )


def numbers(positives: pl.Series, slots: pl.Series) -> pl.Series:
    """Numbers of sampled negatives, functions of their positives' numbers and their slots."""
    hashes = combine(positives.to_numpy(), slots.to_numpy() + 1)
    return pl.Series(hashes >> np.uint64(1), dtype=pl.Int64)
