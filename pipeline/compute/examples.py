"""One bucket of events -> its impressions with their labels and features of the log and tables."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial

import numpy as np
import polars as pl

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, LABEL, REQUEST, SAMPLED, TIME, WEIGHT
from multigate.configs.sections.log import EventLog
from multigate.pipeline.compute import rates, tables
from multigate.pipeline.core.columns import (
    FEATURE,
    POSITIVE,
    counters,
    entry_lists,
    example_schema,
    history_features,
    log_features,
)
from multigate.pipeline.core.facts import RowCounts
from multigate.pipeline.core.hashing import mix
from multigate.pipeline.label import labels
from multigate.pipeline.label.attribute import attribute, chain_starts, repeated, without_skew
from multigate.pipeline.shuffle.buckets import deduplicate
from multigate.pipeline.window import Window, held_elsewhere


@dataclass(frozen=True)
class Bucket:
    """What `make_examples` returns.

    `impressions`: examples of the logged impressions, columns as in `example_schema` without
    histories, counters and made-up requests (see `assemble`), sorted by time and number.
    `shown`: these and the impressions whose labels are other runs', in the same columns: what
    negatives are drawn from. `events`: without duplicates and repetitions. `touched`: one row per
    user and item with an event: `user`, `item`, the first `time`, and whether any is `unknown`; no
    row where no negatives are drawn. `past_labels`: see `rates.past_labels`.
    `counts`: what became of the rows. `open`: by task, labels of `impressions` that were open.
    """

    impressions: pl.DataFrame
    shown: pl.DataFrame
    events: pl.DataFrame
    touched: pl.DataFrame
    past_labels: pl.DataFrame
    counts: RowCounts
    open: dict[str, int]


def make_examples(
    events: pl.DataFrame,
    config: Config,
    side_tables: dict[str, pl.DataFrame],
    cut_off: datetime | None = None,
    window: Window | None = None,
) -> Bucket:
    """Label a bucket's impressions and give them their features.

    Args:
        events: normalised events in the order of `buckets.gather`.
        config: the contract and the log's shape.
        side_tables: `users` and `items`, where there are.
        cut_off: where the log ends; None where no event has a time.
        window: of a run of some days, which labels it holds; the whole log's where None.
    """
    log, contract, pipeline = config.pipeline.log, config.contract, config.pipeline
    rows = len(events)
    events = deduplicate(events)
    duplicates, collapsed = rows - len(events), 0
    recent = pl.lit(True) if window is None else pl.col("time") >= window.first
    feedback, own_feedback, late, orphans = events.clear(), 0, 0, 0
    if isinstance(log, EventLog):
        events = events.with_columns(repeated=repeated(events, log.impression, pipeline.collapse))
        events = without_skew(
            events, log.impression, pipeline.clock_skew, pipeline.attribution, pipeline.attribute_by
        )
        shown = pl.col("event") == log.impression
        impressions = events.filter(shown)
        attributed = partial(
            attribute,
            impressions,
            within=pipeline.attribution,
            by=pipeline.attribute_by,
            starts=chain_starts(impressions),
        )
        # What came before the first impression to label cannot belong to it.
        given = attributed(events.filter(~shown & recent))
        feedback, late, orphans = given.feedback, given.late, given.orphans
        own_feedback = len(feedback)
        if window is not None and rates.tasks_read(config):
            feedback = attributed(events.filter(~shown)).feedback  # labels of the look-back, too
        collapsed = len(events.filter(recent & pl.col("repeated")))
    else:
        impressions = events.with_columns(repeated=pl.lit(False))
    outside = len(events) - len(events.filter(recent))
    values = labels.logged_values(config, impressions, events, feedback)
    finished = labels.apply_steps(contract, values)
    nothing = pl.Series([None] * len(impressions), dtype=pl.String)
    columns = {
        contract.user: impressions["user"],
        contract.item: impressions["item"],
        **{name: impressions[FEATURE + name] for name in log_features(config)},
        **{LABEL + name: label for name, label in finished.items()},
        TIME: impressions["time"],
        IMPRESSION: impression_numbers(impressions),
        REQUEST: impressions["request"] if "request" in impressions.columns else nothing,
        SAMPLED: pl.Series([False] * len(impressions), dtype=pl.Boolean),
    }
    if log.columns.weight is not None:
        columns[WEIGHT] = impressions["weight"].cast(pl.Float32)
    frame = pl.DataFrame([column.alias(name) for name, column in columns.items()])
    frame = frame.filter(~impressions["repeated"])
    frame, fates = _mask_open(frame, config, cut_off, window)
    if isinstance(log, EventLog):
        events = events.filter(~pl.col("repeated")).drop("repeated")
    kept = pl.lit(True)
    for source, table in side_tables.items():
        frame = tables.join_table(frame, config, source, table)
        for feature in tables.required(config, source):
            kept &= pl.col(feature).is_not_null()
    past_labels = rates.past_labels(config, impressions, finished).with_columns(
        frame[name].alias(rates.CATEGORY + name) for name in rates.categories(config)
    )
    complete = frame.filter(kept).sort(TIME, IMPRESSION, nulls_last=False)
    of_run = complete.filter(pl.col("__fate") == _HERE)
    counts = RowCounts(
        duplicates=duplicates,
        collapsed=collapsed,
        outside=outside + fates.get(_ELSEWHERE, 0),
        feedback=own_feedback,
        late=late,
        orphans=orphans,
        impressions=len(of_run),
        held_back=fates.get(_HELD_BACK, 0),
        dropped=fates.get(_HERE, 0) - len(of_run),
    )
    still_open = {name: int(of_run[_OPEN + name].sum()) for name in contract.tasks}
    negatives = config.pipeline.negatives
    if negatives is None:
        touched = events.select("user", "item", "time").clear()
    elif negatives.exclude_within is not None:
        touched = events.select("user", "item", "time").unique()
    else:
        touched = events.group_by("user", "item").agg(
            pl.col("time").min(), unknown=pl.col("time").is_null().any()
        )
    later = {
        *history_features(config),
        *entry_lists(config),
        *counters(config, "user"),
        *counters(config, "item"),
    }
    later |= set(contract.crosses())
    names = [name for name in example_schema(config).names if name not in later]
    if config.pipeline.downsample is not None:
        names.append(POSITIVE)
    return Bucket(
        impressions=of_run.select(names),
        shown=complete.select(names),
        events=events,
        touched=touched,
        past_labels=past_labels,
        counts=counts,
        open=still_open,
    )


_HERE, _HELD_BACK, _ELSEWHERE, _LOOK_BACK = range(4)
_OPEN = "__open/"


def _mask_open(
    frame: pl.DataFrame, config: Config, cut_off: datetime | None, window: Window | None
) -> tuple[pl.DataFrame, dict[int, int]]:
    """Mask labels that are still open at the cut-off, and those that an earlier run holds.

    Returns:
        The rows with `__fate` (whether this run holds a label of theirs, and if not, why) and the
        flags `__open/<task>`; and how many rows there are of each fate. Rows of the look-back
        count nowhere: they are among the events outside.
    """
    still_open = {name: pl.lit(False) for name in config.contract.tasks}
    if config.pipeline.hold_back and cut_off is not None:
        still_open = labels.open_at(pl.col(TIME), labels.waits(config), cut_off)
    elsewhere = still_open if window is None else held_elsewhere(config, window)
    fate = (
        pl.when(pl.lit(False) if window is None else pl.col(TIME) < window.first)
        .then(_LOOK_BACK)
        .when(pl.all_horizontal(still_open.values()))
        .then(_HELD_BACK)
        .when(pl.all_horizontal(elsewhere.values()))
        .then(_ELSEWHERE)
        .otherwise(_HERE)
    )
    frame = frame.with_columns(
        *(flag.alias(_OPEN + name) for name, flag in still_open.items()),
        *labels.masked(elsewhere),
        *_positive(config, still_open),
        __fate=fate,
    )
    return frame, dict(frame["__fate"].value_counts().iter_rows())


def _positive(config: Config, still_open: dict[str, pl.Expr]) -> list[pl.Expr]:
    """The flags `POSITIVE`, where negatives are downsampled.

    A label that an earlier run holds counts, so that runs agree on the rows that they keep: a click
    that closed yesterday keeps the like that closes today.
    """
    names = config.downsampled_by()
    if not names:
        return []
    ones = [((pl.col(LABEL + n) == 1) & ~still_open[n]).fill_null(False) for n in names]
    return [pl.any_horizontal(ones).alias(POSITIVE)]


def impression_numbers(events: pl.DataFrame) -> pl.Series:
    """Number impressions by their identity; several of one identity in the order of the rows."""
    identity = events["identity"]
    several = identity.is_duplicated()
    numbers = identity.to_numpy()
    if several.any():
        few = pl.DataFrame({"identity": identity, "at": pl.int_range(len(identity), eager=True)})
        few = few.filter(several).with_columns(nth=pl.int_range(pl.len()).over("identity"))
        numbers = numbers.copy()
        numbers[few["at"].to_numpy()] += few["nth"].to_numpy().astype(np.uint64)
    return pl.Series(mix(numbers) >> 1, dtype=pl.Int64)
