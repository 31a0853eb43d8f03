"""Puts examples together, some at a time: an impression's labels and features, and its negatives.

The lists of histories and the user's counters are computed here, for some impressions at a time,
and are written only as part of examples. So a user with a million events, or a hundred negatives
for each impression, needs no more memory than others.
"""

from collections.abc import Iterator
from datetime import datetime

import polars as pl

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, LABEL, REQUEST, SAMPLED, TIME
from multigate.features import Slices
from multigate.pipeline.compute import ages, computed, tables
from multigate.pipeline.compute.crosses import CrossRates
from multigate.pipeline.compute.rates import KeyRates, categories
from multigate.pipeline.compute.totals import Totals
from multigate.pipeline.core.columns import example_schema, table_features
from multigate.pipeline.label import labels
from multigate.pipeline.label.split import embargoed
from multigate.pipeline.sample import catalogue

_IMPRESSIONS = 1 << 17  # whose lists are made at once
_EXAMPLES = 1 << 16  # put together at once


def assemble(
    impressions: pl.DataFrame,
    rows: pl.DataFrame,
    events: pl.DataFrame,
    past_labels: KeyRates,
    by_category: CrossRates,
    histories: dict[str, Slices],
    answers: pl.DataFrame | None,
    features: pl.DataFrame | None,
    side_tables: dict[str, pl.DataFrame],
    config: Config,
    limits: tuple[datetime, datetime] | None = None,
    totals: Totals | None = None,
) -> Iterator[pl.DataFrame]:
    """Make a bucket's examples.

    Args:
        impressions: see `examples.Bucket`.
        rows: which examples there are, see `sampling.sample_bucket`.
        events: of the bucket's users, see `computed.user_events`.
        past_labels: of the bucket's users, with the priors.
        by_category: of the bucket's users, with the priors.
        histories: of the impressions, see `computed.histories`.
        answers: the items' counters, one row per example in the order of `rows`; None where there
            are none.
        features: items' features of the log over time, see `catalogue.Catalogue`; None where no
            negative takes its features from them.
        side_tables: `users` and `items`, where there are.
        config: the contract and the sampling.
        limits: when validation and test begin, see `split.boundaries`.
        totals: what the users' counters without a window go on from.

    Yields:
        Examples with their `split`, in the order of `rows`.
    """
    contract, sampling = config.contract, config.pipeline.negatives
    few = max(1, _EXAMPLES // (1 if sampling is None else 1 + sampling.per_positive))
    embargo, told = embargoed(config, limits), labels.impression_tasks(contract)
    for start in range(0, len(impressions), _IMPRESSIONS):
        block = impressions[start : start + _IMPRESSIONS]
        queries = block.select(user=pl.col(contract.user), time=pl.col(TIME))
        block = block.with_columns(
            # An impression of no request is a request of its own: its negatives belong to it.
            pl.col(REQUEST).fill_null(pl.col(IMPRESSION).cast(pl.String)),
            **computed.history_lists(
                {name: one[start : start + _IMPRESSIONS] for name, one in histories.items()},
                queries["time"],
                config,
            ),
            **computed.user_counters(events, queries, config, totals),
            **past_labels.values(queries),
        )
        begin, end = _range(rows, start, start + len(block))
        chosen = rows[begin:end].with_columns(pl.col("at") - start)
        taken = None if features is None else _taken(features, block, chosen, config)
        for first in range(0, len(block), few):
            one, two = _range(chosen, first, first + few)
            some = chosen[one:two]
            if not len(some):
                continue
            made = block[some["at"].to_numpy()].with_columns(some["split"])
            if sampling is not None and sampling.unmatched == "mask":
                unmatched = dict.fromkeys(told, ~pl.lit(some["matched"]))
                made = made.with_columns(labels.masked(unmatched))
            made = _with_negatives(
                made, some, None if taken is None else taken[one:two], side_tables, config
            )
            if answers is not None:
                made = made.with_columns(answers[begin + one : begin + two].get_columns())
            made = made.with_columns(labels.masked(embargo))
            asked = {"user": pl.col(contract.user), "time": pl.col(TIME)}
            asked |= {name: pl.col(name) for name in categories(config)}
            made = made.with_columns(**by_category.values(made.select(**asked)))
            made = ages.measured(made, config)
            yield made.select(*example_schema(config).names, "split")


def _range(rows: pl.DataFrame, start: int, stop: int) -> tuple[int, int]:
    """Where the rows of the impressions [start, stop) are."""
    return int(rows["at"].search_sorted(start)), int(rows["at"].search_sorted(stop))


def _taken(
    features: pl.DataFrame, block: pl.DataFrame, chosen: pl.DataFrame, config: Config
) -> pl.DataFrame:
    """The features of the log of every row's item, as of its impression; null where not drawn."""
    queries = chosen.select("item", time=block[TIME].gather(chosen["at"]))
    drawn = (chosen["slot"] >= 0).arg_true()
    found = catalogue.as_of(features, queries[drawn.to_numpy()], config)
    every = pl.DataFrame({"at": pl.int_range(len(chosen), eager=True)})
    placed = every.join(
        found.with_columns(at=drawn.cast(pl.Int64)), on="at", how="left", maintain_order="left"
    )
    return placed.drop("at")


def _with_negatives(
    made: pl.DataFrame,
    chosen: pl.DataFrame,
    taken: pl.DataFrame | None,
    side_tables: dict[str, pl.DataFrame],
    config: Config,
) -> pl.DataFrame:
    """Turn copies of impressions into their sampled negatives, where `chosen` says so."""
    made = made.with_row_index("__place")
    drawn = chosen["slot"] >= 0
    if not drawn.any():
        return made
    contract = config.contract
    sampled = made.with_columns(
        chosen["item"].alias(contract.item),
        chosen["impression"].alias(IMPRESSION),
        pl.lit(True).alias(SAMPLED),
        *([] if taken is None else taken.get_columns()),
    ).filter(drawn)
    table = side_tables.get("items")
    if table is not None:
        sampled = sampled.drop(list(table_features(config, "items")))
        sampled = tables.join_table(sampled, config, "items", table)
    values = labels.apply_steps(contract, labels.sampled_values(contract, len(sampled)))
    sampled = sampled.with_columns([value.alias(LABEL + name) for name, value in values.items()])
    return pl.concat([made.filter(~drawn), sampled.select(made.columns)]).sort("__place")
