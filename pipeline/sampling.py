"""The sampling stage: assigns splits, draws negatives and downsamples.

It writes one thin row for each example: which impression, which draw, which item. Examples are wide
(histories, features), and with four negatives there are five for each impression; `assemble` puts
them together piece by piece when they are written.
"""

import polars as pl

from multigate.configs import Config
from multigate.configs.contract import IdListFeature
from multigate.configs.files import IMPRESSION, LABEL, SPLITS, TIME
from multigate.features import Slices
from multigate.pipeline import computed, labels, negatives, rates, split
from multigate.pipeline.buckets import spill
from multigate.pipeline.columns import counters, history_features
from multigate.pipeline.facts import LabelFacts, SampleFacts, SplitLimits
from multigate.pipeline.plan import Plan


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


def sample_bucket(fact: LabelFacts, limits: SplitLimits, plan: Plan) -> SampleFacts:
    """Split one bucket's impressions, sample their negatives, and ask for the items' counters.

    Writes `rows`: the examples' `at` (row of their impression), `slot` (of the draw; -1 for the
    impression itself), `item`, `impression` (number), `split`, and with `unmatched: mask` the flags
    `matched`; in the examples' order.
    """
    config, number = plan.config, fact.bucket
    contract, sampling = config.contract, config.pipeline.negatives
    read = [contract.user, contract.item, TIME, IMPRESSION]
    read += [LABEL + name for name in contract.tasks]
    if sampling is not None:
        read += listed_items(config)
    impressions = pl.read_ipc(plan.file("impressions", number), columns=read)
    splits = split.assign(
        impressions, contract.user, config.pipeline.split, config.pipeline.seed, limits.starts
    )
    flags = split.embargoed(config, limits.starts)
    impressions = impressions.with_columns(split=splits)
    embargoed, some_left = _embargo(impressions, flags)
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
    asked, unmatched, rows = 0, 0, kept
    if sampling is not None:
        # Of an impression that `downsample` leaves out, negatives would be alone.
        told = labels.impression_tasks(contract)
        asking = (stays if told else some_left) & _told_apart(impressions, told)
        of = asking.arg_true().cast(pl.Int64)
        drawn = _draw(impressions, of, plan, number)
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
    rows.write_ipc(plan.file("rows", number), compression="lz4")
    if counters(config, "item"):
        times = impressions[TIME].gather(rows["at"])
        questions = rows.select("item", time=times, at=pl.int_range(pl.len()))
        spill(questions, plan.buckets, plan.work, f"asked-{number:05d}", "item")
    made = len(rows) - len(kept)
    return SampleFacts(
        bucket=number,
        starts=limits.starts,
        negatives=made,
        negatives_missing=asked - made,
        unmatched=unmatched,
        not_kept=int(some_left.sum()) - len(kept),
        left_out=int((~some_left).sum()),
        embargoed=embargoed,
        label_sums=rates.training_sums(impressions.filter(pl.col("split") == "train"), config),
    )


def _embargo(
    impressions: pl.DataFrame, flags: dict[str, pl.Expr]
) -> tuple[dict[str, dict[str, int]], pl.Series]:
    """Count the labels that the embargo masks, by split and task; and which rows it leaves."""
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
    return counts, impressions.select(~pl.all_horizontal(flags.values())).to_series()


def _told_apart(impressions: pl.DataFrame, tasks: list[str]) -> pl.Series:
    """Which impressions have a label that tells them from their negatives."""
    told = [pl.col(LABEL + name).is_not_null() for name in tasks]
    return impressions.with_columns(__told=pl.any_horizontal(told) if told else True)["__told"]


def _draw(impressions: pl.DataFrame, at: pl.Series, plan: Plan, number: int) -> negatives.Drawn:
    """Draw the negatives of the impressions at these rows; leaves the histories for `assemble`."""
    config, sampling = plan.config, plan.config.pipeline.negatives
    assert sampling is not None
    contract = config.contract
    positives = impressions.select(
        user=pl.col(contract.user),
        item=pl.col(contract.item),
        time=pl.col(TIME),
        impression=pl.col(IMPRESSION),
    )
    lists = [Slices.of(impressions[name]) for name in listed_items(config)]
    if history_features(config):
        events = pl.read_ipc(plan.file("events", number))
        histories = computed.histories(events, positives, config)
        computed.write_histories(histories, plan.file("histories", number))
        lists += [histories[name] for name in history_features(config)]
    chosen = at.to_numpy()
    return negatives.draw(
        positives[chosen],
        pl.read_ipc(plan.file("touched", number)),
        pl.read_ipc(plan.work / "pool.arrow"),
        sampling,
        config.pipeline.seed,
        [one[chosen] for one in lists],
    )
