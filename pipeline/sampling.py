"""The stage that decides which examples a bucket gives: splits, negatives drawn, negatives kept.

It writes no example yet, but one thin row for each: which impression, which draw, which item.
Examples are wide (histories, features), and five times as many as impressions where four negatives
are drawn; they are put together piece by piece when they are written (`assemble`).
"""

from datetime import datetime

import polars as pl

from multigate.configs.files import IMPRESSION, LABEL, TIME
from multigate.pipeline import negatives, split
from multigate.pipeline.buckets import spill
from multigate.pipeline.columns import counters
from multigate.pipeline.manifest import Facts
from multigate.pipeline.plan import Plan


def sample_bucket(fact: Facts, known: Facts, plan: Plan) -> Facts:
    """Split one bucket's impressions, sample their negatives, and ask for the items' counters.

    Writes `rows`: the examples' `at` (row of their impression), `slot` (of the draw; -1 for the
    impression itself), `item`, `impression` (number), `split`, and with `unmatched: mask` the flags
    `matched`; in the examples' order.

    Returns:
        `bucket`, `negatives`, `negatives_missing`, `not_kept` (impressions left out by
        `downsample`).
    """
    config, number = plan.config, fact["bucket"]
    contract, sampling = config.contract, config.pipeline.negatives
    read = [contract.user, contract.item, TIME, IMPRESSION]
    if config.pipeline.downsample is not None:
        read += [LABEL + name for name in contract.tasks]
    impressions = pl.read_ipc(plan.file("impressions", number), columns=read)
    limits = known["limits"]
    if limits is not None:
        limits = (datetime.fromisoformat(limits[0]), datetime.fromisoformat(limits[1]))
    splits = split.assign(
        impressions, contract.user, config.pipeline.split, config.pipeline.seed, limits
    )
    logged = impressions.select(
        at=pl.int_range(pl.len()),
        slot=pl.lit(-1, pl.Int64),
        item=pl.col(contract.item),
        impression=pl.col(IMPRESSION),
    ).with_columns(split=splits)
    kept = logged
    if config.pipeline.downsample is not None:
        kept = logged.filter(negatives.keep(impressions, splits, config))
    asked, rows = 0, kept
    if sampling is not None:
        asked = len(logged) * sampling.per_positive
        positives = impressions.select(
            user=pl.col(contract.user), time=pl.col(TIME), impression=pl.col(IMPRESSION)
        )
        touched = pl.read_ipc(plan.file("touched", number))
        pool = pl.read_ipc(plan.work / "pool.arrow")
        drawn = negatives.draw(positives, touched, pool, sampling, config.pipeline.seed)
        of = drawn["positive"]
        drawn = drawn.select(
            at=pl.col("positive"),
            slot=pl.col("slot"),
            item=pl.col("item"),
            # The number of a negative is a function of its positive's and its slot.
            impression=negatives.numbers(positives["impression"].gather(of), drawn["slot"]),
            split=splits.gather(of),
        )
        rows = pl.concat([kept, drawn]).sort("at", "slot")
        if sampling.unmatched == "mask":
            asked_of = impressions.select(item=pl.col(contract.item), time=pl.col(TIME))
            flags = negatives.matched(asked_of, pool, sampling)
            rows = rows.with_columns(matched=flags.gather(rows["at"]))
    rows.write_ipc(plan.file("rows", number), compression="lz4")
    if counters(config, "item"):
        times = impressions[TIME].gather(rows["at"])
        questions = rows.select("item", time=times, at=pl.int_range(pl.len()))
        spill(questions, plan.buckets, plan.work, f"asked-{number:05d}", "item")
    made = len(rows) - len(kept)
    return {
        "bucket": number,
        "negatives": made,
        "negatives_missing": asked - made,
        "not_kept": len(logged) - len(kept),
    }
