"""Negative sampling where the log holds no negatives; downsampling where it holds too many.

A sampled negative differs from its positive in the item alone: it has the same user, time, context
and position, and its item stands in the user's lists as often as the positive's does (`matching`).
So only the item's features can tell sampled rows from logged ones.

Every draw is a function of the seed, the positive's number and the draw's own number: neither
buckets nor order change it. The samplers of RecBole and implicit were considered: they draw from
all items, whatever the log had shown by then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import Config
from multigate.configs.files import IMPRESSION
from multigate.configs.sections.pipeline import Negatives
from multigate.features import Slices
from multigate.pipeline.core.columns import POSITIVE
from multigate.pipeline.core.hashing import combine
from multigate.pipeline.label.split import uniform
from multigate.pipeline.sample.candidate_pool import ALWAYS, CandidatePool
from multigate.pipeline.sample.matching import UserLists, draw_alike
from multigate.pipeline.sample.occurrences import codes_of
from multigate.pipeline.sample.touched import TouchedBefore, TouchedWithin

_ATTEMPTS = 32
_SALT = 0x4B45_4550  # so that these draws differ from those of the negatives and the split

Refuse = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""Whether item code `items[i]` is no negative of positive `rows[i]`; the two broadcast."""


@dataclass(frozen=True)
class Drawn:
    """What `draw` returns."""

    negatives: pl.DataFrame
    """Columns `positive` (row number), `slot` (0, 1, ...), `item`; sorted by the first two. A
    positive has no item twice."""
    complete: pl.Series
    """(B,) whether a positive could itself be a negative at that time, and `per_positive` others
    were found that match as it does."""


def draw(
    positives: pl.DataFrame,
    touched: pl.DataFrame,
    pool: pl.DataFrame,
    negatives: Negatives,
    seed: int,
    lists: Sequence[Slices] = (),
) -> Drawn:
    """Draw negatives for logged impressions.

    A positive whose item stands in none of the user's lists draws from the candidate pool: items
    that stand in none either, and that the user had not touched. One whose item does stand there
    draws among the lists' other items that stand there as often, and that are in the pool.

    `past` and `recent` draw only items that the log had shown strictly before the positive's time,
    so that the log's first impressions, and those of unknown time, have none. A positive that is
    not `complete` gets none under `unmatched: mask`, and as many as there are under `keep`.

    Args:
        positives: columns `user`, `item`, `time`, `impression`; (B, 4).
        touched: columns `user`, `item`, `time` (first time), `unknown` (whether the time of any
            event of the pair is unknown: such a pair is excluded at all times); under
            `exclude_within` one row per event.
        pool: columns `time`, `item`, sorted by both, see `candidate_pool.thin`.
        negatives: how many, drawn how, excluding what.
        seed: of all draws.
        lists: the positives' lists of items, (B,) each.
    """
    items = pool["item"].unique().sort()
    mask = negatives.unmatched == "mask"
    if len(items) == 0 or len(positives) == 0:
        complete = pl.Series([False] * len(positives), dtype=pl.Boolean)
        return Drawn(_table(np.zeros((0, 3), np.int64), items), complete)
    codes = items.search_sorted(pool["item"]).to_numpy().astype(np.int64)
    times = positives["time"].to_physical().fill_null(ALWAYS).to_numpy()
    candidates = CandidatePool(pool, codes, times, negatives)
    base = combine(positives["impression"].to_numpy(), np.full(len(positives), seed, np.int64))
    chosen = np.full((len(positives), negatives.per_positive), -1, np.int64)
    rows = np.arange(len(positives))
    own, of_user = codes_of(positives["item"], items), UserLists(lists, items)
    counts = of_user.counts(rows, own)
    matching = counts.any(axis=1)
    possible = candidates.weights(rows, own) > 0
    asked = possible if mask else np.ones(len(positives), bool)
    alike = np.flatnonzero(asked & matching)
    drawn, slots, found = draw_alike(
        alike,
        own[alike],
        counts[alike],
        of_user,
        candidates,
        base,
        items,
        negatives.per_positive,
        negatives.sampling == "popularity",
    )
    chosen[drawn, slots] = found
    plain = np.flatnonzero(asked & ~matching & (candidates.sizes > 0))
    excluded: Refuse
    if negatives.exclude_within is not None:
        excluded = TouchedWithin(positives, touched, items, negatives.exclude_within)
    else:
        excluded = TouchedBefore(positives, touched, items, negatives.exclude == "ever")

    def refused(rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
        rows, items = np.broadcast_arrays(rows, items)
        return excluded(rows, items) | of_user.counts(rows, items).any(axis=1)

    for slot in range(negatives.per_positive):
        _draw_slot(chosen, slot, plain, base, candidates, refused if lists else excluded)
    complete = possible & (chosen >= 0).all(axis=1)
    if mask:
        chosen[~complete] = -1
    rows, slots = np.nonzero(chosen >= 0)
    table = _table(np.stack([rows, slots, chosen[rows, slots]], axis=1), items)
    return Drawn(table, pl.Series(complete))


def keep(impressions: pl.DataFrame, splits: pl.Series, config: Config) -> pl.Series:
    """Choose the logged impressions that stay after downsampling.

    Args:
        impressions: columns `meta/impression` and, where negatives are downsampled, `POSITIVE`.
        splits: (B,) names; all of validation and test stay.
        config: the share and the seed.

    Returns:
        (B,) flags: a function of the impression, its labels, its split and the seed.
    """
    downsample = config.pipeline.downsample
    if downsample is None:
        return pl.Series([True] * len(impressions), dtype=pl.Boolean)
    key = impressions[IMPRESSION].to_numpy()
    drawn = uniform(combine(key, np.full(len(key), config.pipeline.seed ^ _SALT, np.uint64)))
    return pl.Series(drawn < downsample.keep) | (splits != "train") | impressions[POSITIVE]


def _draw_slot(
    chosen: NDArray[np.int64],
    slot: int,
    rows: NDArray[np.int64],
    base: NDArray[np.uint64],
    pool: CandidatePool,
    excluded: Refuse,
) -> None:
    """Fill one column of `chosen` for some rows: draw until allowed, then among what is left."""
    left = rows
    if slot:  # who found nothing left before finds nothing now
        left = left[chosen[left, slot - 1] >= 0]
    for attempt in range(_ATTEMPTS):
        if len(left) == 0:
            return
        number = np.full(len(left), (slot << 16) + attempt, np.int64)
        drawn = combine(base[left], number) % pool.sizes[left].astype(np.uint64)
        item, repeated = pool.items(left, drawn.astype(np.int64))
        refused = (
            repeated | excluded(left, item) | (chosen[left, :slot] == item[:, None]).any(axis=1)
        )
        chosen[left[~refused], slot] = item[~refused]
        left = left[refused]
    number = np.full(len(left), (slot << 16) + _ATTEMPTS, np.int64)
    for row, draw_ in zip(left.tolist(), combine(base[left], number).tolist(), strict=True):
        entries, repeated = pool.items(row, np.arange(pool.sizes[row]))
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


def number_negatives(positives: pl.Series, slots: pl.Series) -> pl.Series:
    """Number sampled negatives by hashes of their positives' numbers and their slots."""
    hashes = combine(positives.to_numpy(), slots.to_numpy() + 1)
    return pl.Series(hashes >> np.uint64(1), dtype=pl.Int64)
