"""Attributes feedback to impressions: what the user did belongs to the view it followed."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.features import Timeline


@dataclass(frozen=True)
class Attribution:
    """What `attribute` returns.

    `feedback`: the attributed events, with columns `impression` (row number of the impression)
    and `delay` (microseconds since it) beside their own; and how many found none.
    """

    feedback: pl.DataFrame
    late: int
    orphans: int


def attribute(
    impressions: pl.DataFrame,
    feedback: pl.DataFrame,
    within: timedelta | None,
    by: Literal["latest", "request"] = "latest",
    starts: NDArray[np.int64] | None = None,
) -> Attribution:
    """Give each feedback event to the user's latest impression of the item up to its time.

    Args:
        impressions: columns `user`, `item`, `time`; of two at the same time, the later row counts
            as the later one.
        feedback: columns `user`, `item`, `time` and more.
        within: later feedback is late and belongs to no impression; no limit where None.
        by: under `request`, feedback that names a request belongs to the impression of that
            request, though the item may have been shown again since; column `request` of both.
        starts: (B,) rows of the impressions that stand for these, see `chain_starts`; each for
            itself where None.

    Returns:
        The attributed feedback. Feedback without an earlier impression, or without a time, is an
        orphan.
    """
    rows = _latest(impressions, feedback, ["user", "item"])
    if by == "request":
        named = feedback["request"].is_not_null().to_numpy()
        rows = np.where(named, _latest(impressions, feedback, ["user", "item", "request"]), rows)
    found = rows >= 0
    rows = rows[found] if starts is None else starts[rows[found]]
    given = feedback.filter(found)
    given = given.with_columns(
        impression=pl.Series(rows, dtype=pl.Int64),
        delay=(given["time"] - impressions["time"].gather(rows)).dt.total_microseconds(),
    )
    late = np.zeros(len(given), bool)
    if within is not None:
        late = (given["delay"] > within // timedelta(microseconds=1)).to_numpy()
    return Attribution(given.filter(~late), int(late.sum()), int((~found).sum()))


def repeated(events: pl.DataFrame, impression: str, collapse: timedelta | None) -> pl.Series:
    """Find impressions that repeat the pair's previous one, kept or not, within `collapse`.

    Args:
        events: columns `user`, `item`, `time`, `event`, in the order of `buckets.gather`.
        impression: the event type that is an impression.
        collapse: how soon after; nothing is a repetition where None.

    Returns:
        (B,) flags.
    """
    if collapse is None:
        return pl.repeat(False, len(events), dtype=pl.Boolean, eager=True)
    shown = pl.col("event") == impression
    gap = pl.col("time") - pl.col("time").shift().over("user", "item", "event")
    return events.select((shown & (gap <= collapse)).fill_null(False)).to_series()


def chain_starts(impressions: pl.DataFrame) -> NDArray[np.int64]:
    """(B,) for each impression the row of the kept one that it repeats; its own where kept."""
    rows = impressions.select("user", "item", "repeated", row=pl.int_range(pl.len()))
    kept = pl.when(~pl.col("repeated")).then(pl.col("row"))
    return rows.select(kept.forward_fill().over("user", "item")).to_series().to_numpy()


def without_skew(
    events: pl.DataFrame,
    impression: str,
    skew: timedelta | None,
    within: timedelta | None,
    by: Literal["latest", "request"],
) -> pl.DataFrame:
    """Move feedback that clocks put before its impression to the time of the impression.

    Args:
        events: of both kinds, in the order of `buckets.gather`; column `repeated`, see `repeated`.
        impression: the event type that is an impression.
        skew: how far feedback may be before its impression; nothing moves where None.
        within: see `attribute`.
        by: see `attribute`.

    Returns:
        The events, in the same order by their new times. What moves is feedback that would belong
        to no impression, where the next one of its pair (of its request, where it names one under
        `request`) comes soon enough.
    """
    if skew is None:
        return events
    events = events.with_row_index("__event")
    shown = events.filter(pl.col("event") == impression)
    feedback = events.filter(pl.col("event") != impression)
    held = attribute(shown, feedback, within, by, chain_starts(shown)).feedback["__event"]
    lost = feedback.filter(~pl.col("__event").is_in(held.implode()))
    named = pl.lit(False) if by == "latest" else pl.col("request").is_not_null()
    moved = []
    for keys, rows in (
        (["user", "item"], lost.filter(~named)),
        (["user", "item", "request"], lost.filter(named)),
    ):
        if len(rows):
            found = _following(shown, rows, keys)
            soon = (found - rows["time"] <= skew).fill_null(False)
            moved.append(rows.select("__event", moved=found).filter(soon))
    if not moved:
        return events.drop("__event")
    events = events.join(pl.concat(moved), on="__event", how="left", maintain_order="left")
    events = events.with_columns(time=pl.coalesce("moved", "time")).drop("__event", "moved")
    return events.sort("user", "time", "fingerprint", nulls_last=False)


def _following(impressions: pl.DataFrame, feedback: pl.DataFrame, keys: list[str]) -> pl.Series:
    """(B,) time of the first impression of the same keys after each event; null where none is."""
    known = impressions.drop_nulls(keys)
    if not len(known):
        return pl.Series([None] * len(feedback), dtype=feedback["time"].dtype)
    timeline = Timeline(known, keys)
    _, stop, end = timeline.earlier(feedback, inclusive=True)
    at = np.minimum(stop, len(timeline.rows) - 1)
    times = known["time"].gather(timeline.rows[at])
    nothing = pl.Series([None] * len(times), dtype=times.dtype)
    return times.zip_with(pl.Series(stop < end), nothing)


def _latest(
    impressions: pl.DataFrame, feedback: pl.DataFrame, keys: list[str]
) -> NDArray[np.int64]:
    """(B,) row of the latest impression of the same keys up to each event; -1 where none is."""
    known = impressions.with_row_index("__at").drop_nulls(keys)
    timeline = Timeline(known, keys)
    start, stop, _ = timeline.earlier(feedback, inclusive=True)
    found = stop > start
    rows = np.full(len(feedback), -1, np.int64)
    rows[found] = known["__at"].to_numpy()[timeline.rows[stop[found] - 1]]
    return rows
