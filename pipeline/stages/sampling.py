"""The sampling stage: assigns splits, draws negatives and downsamples.

It makes one thin row for each example: which impression, which draw, which item. Examples are wide
(histories, features), and with four negatives there are five for each impression; `assemble` puts
them together piece by piece when they are written.
"""

from collections.abc import Iterator

import polars as pl

from multigate.configs import Config
from multigate.configs.contract import IdListFeature
from multigate.configs.files import IMPRESSION, LABEL, SPLITS, TIME
from multigate.features import Slices
from multigate.pipeline.compute import computed, rates
from multigate.pipeline.core.columns import POSITIVE, counters, history_features
from multigate.pipeline.core.facts import SampleFacts, SplitLimits
from multigate.pipeline.label import labels, split
from multigate.pipeline.plan import Plan
from multigate.pipeline.sample import negatives
from multigate.pipeline.shuffle.buckets import spread
from multigate.pipeline.shuffle.parcel import Bundle, Output, Parcel
from multigate.pipeline.window import held_elsewhere


def listed_items(config: Config) -> list[str]:
    """Lists of items that come with the user or context as columns: they share the vocabulary."""
    contract = config.contract
    return [
        name
        for name, feature in contract.features.items()
        if isinstance(feature, IdListFeature)
        and feature.history is None
        and feature.side != "item"
        and contract.vocabulary_of(name) == contract.vocabulary_of(contract.item)
    ]


def sample_bucket(
    bucket: tuple[int, Bundle], plan: Plan, limits: SplitLimits, catalogue: Bundle
) -> Iterator[Output]:
    """Split one bucket's impressions, sample their negatives, and ask for the items' counters.

    Yields:
        `state`: what it was given, where the next stages read it, and `rows`: the examples' `at`
        (row of their impression), `slot` (of the draw; -1 for the impression itself), `item`,
        `impression` (number), `split`, and with `unmatched: mask` the flags `matched`; in the
        examples' order. `of_items`: pairs (bucket of items, parcel) of questions for counters.
        `facts`.
    """
    number, state = bucket
    config, carrier = plan.config, plan.carrier
    contract, sampling = config.contract, config.pipeline.negatives
    read = [contract.user, contract.item, TIME, IMPRESSION]
    read += [LABEL + name for name in contract.tasks]
    if config.pipeline.downsample is not None:
        read.append(POSITIVE)
    if sampling is not None:
        read += listed_items(config)
    impressions = state["impressions"].read(read)
    splits = split.assign(
        impressions, contract.user, config.pipeline.split, config.pipeline.seed, limits.starts
    )
    flags = split.embargoed(config, limits.starts)
    impressions = impressions.with_columns(split=splits)
    others = {} if plan.window is None else held_elsewhere(config, plan.window)
    embargoed, some_left = _embargo(impressions, flags, others)
    impressions = impressions.with_columns(labels.masked(flags))
    logged = impressions.select(
        at=pl.int_range(pl.len()),
        slot=pl.lit(-1, pl.Int64),
        item=pl.col(contract.item),
        impression=pl.col(IMPRESSION),
        split=pl.col("split"),
    )
    stays = some_left & negatives.keep(impressions, splits, config)
    kept = logged.filter(stays)
    asked, unmatched, rows, histories = 0, 0, kept, Bundle()
    if sampling is not None:
        # Of an impression that `downsample` leaves out, negatives would be alone.
        told = labels.impression_tasks(contract)
        asking = (stays if told else some_left) & _told_apart(impressions, told)
        of = asking.arg_true().cast(pl.Int64)
        drawn, tables = _draw(impressions, of, plan, state, catalogue["pool"])
        histories = {kind: carrier.whole(table, kind, number) for kind, table in tables.items()}
        asked, unmatched = len(of) * sampling.per_positive, int((~drawn.complete).sum())
        at, slots = of.gather(drawn.negatives["positive"]), drawn.negatives["slot"]
        sampled = pl.DataFrame(
            {
                "at": at,
                "slot": slots,
                "item": drawn.negatives["item"],
                # The number of a negative is a function of its positive's and its slot.
                "impression": negatives.number_negatives(impressions[IMPRESSION].gather(at), slots),
                "split": splits.gather(at),
            }
        )
        rows = pl.concat([kept, sampled]).sort("at", "slot")
        if sampling.unmatched == "mask":
            incomplete = of.filter(~drawn.complete)
            rows = rows.with_columns(matched=~pl.col("at").is_in(incomplete.implode()))
    kept_on = {kind: parcel for kind, parcel in state.items() if kind != "touched"}
    kept_on["rows"] = carrier.whole(rows, "rows", number)
    yield "state", (number, kept_on | histories)
    if counters(config, "item"):
        times = impressions[TIME].gather(rows["at"])
        questions = rows.select(
            "item", time=times, at=pl.int_range(pl.len()), user=pl.lit(number, pl.Int64)
        )
        for keyed in spread(carrier, questions, plan.item_buckets, "asked", number, key="item"):
            yield "of_items", keyed
    made = len(rows) - len(kept)
    facts = SampleFacts(
        bucket=number,
        negatives=made,
        negatives_missing=asked - made,
        unmatched=unmatched,
        not_kept=int(some_left.sum()) - len(kept),
        left_out=int((~some_left).sum()),
        embargoed=embargoed,
        label_sums=rates.training_sums(impressions.filter(pl.col("split") == "train"), config),
    )
    yield "facts", facts


def _embargo(
    impressions: pl.DataFrame, flags: dict[str, pl.Expr], others: dict[str, pl.Expr]
) -> tuple[dict[str, dict[str, int]], pl.Series]:
    """Count the labels that the embargo masks, by split and task; and flag the rows that remain.

    Args:
        impressions: with labels and splits.
        flags: by task, what the embargo masks.
        others: by task, which labels other runs hold; empty where this run holds all.
    """
    if not flags:
        return {}, pl.repeat(True, len(impressions), dtype=pl.Boolean, eager=True)
    masked = impressions.select(
        "split",
        *(flag & pl.col(LABEL + name).is_not_null() for name, flag in flags.items()),
    )
    counts = {
        name: {task: int(masked.filter(split=name)[task].sum()) for task in flags}
        for name in SPLITS[:2]
    }
    without = [flag | others[name] if others else flag for name, flag in flags.items()]
    return counts, impressions.select(~pl.all_horizontal(without)).to_series()


def _told_apart(impressions: pl.DataFrame, tasks: list[str]) -> pl.Series:
    """Which impressions have a label that tells them from their negatives."""
    told = [pl.col(LABEL + name).is_not_null() for name in tasks]
    return impressions.with_columns(__told=pl.any_horizontal(told) if told else True)["__told"]


def _draw(
    impressions: pl.DataFrame, at: pl.Series, plan: Plan, state: Bundle, pool: Parcel
) -> tuple[negatives.Drawn, dict[str, pl.DataFrame]]:
    """Draw the negatives of the impressions at these rows; and the histories, for `assemble`."""
    config, sampling = plan.config, plan.config.pipeline.negatives
    assert sampling is not None
    contract = config.contract
    positives = impressions.select(
        user=pl.col(contract.user),
        item=pl.col(contract.item),
        time=pl.col(TIME),
        impression=pl.col(IMPRESSION),
    )
    lists, tables = [Slices.of(impressions[name]) for name in listed_items(config)], {}
    if history_features(config):
        histories = computed.histories(state["events"].read(), positives, config)
        tables = computed.histories_to_tables(histories)
        lists += [histories[name] for name in history_features(config)]
    chosen = at.to_numpy()
    drawn = negatives.draw(
        positives[chosen],
        state["touched"].read(),
        pool.read(),
        sampling,
        config.pipeline.seed,
        [one[chosen] for one in lists],
    )
    return drawn, tables
