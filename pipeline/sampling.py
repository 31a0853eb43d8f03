"""The stage that decides which examples a bucket gives: splits, negatives drawn, negatives kept.

It writes no example yet, but one thin row for each: which impression, which draw, which item.
Examples are wide (histories, features), and five times as many as impressions where four negatives
are drawn; they are put together piece by piece when they are written (`assemble`).
"""

import polars as pl

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, LABEL, SPLITS, TIME
from multigate.configs.sections.labels import ImpressionLabel
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
        `downsample`), `embargoed` (labels, by split and task), `left_out` (impressions without a
        label after the embargo), `limits`.
    """
    config, number = plan.config, fact["bucket"]
    contract, sampling = config.contract, config.pipeline.negatives
    read = [contract.user, contract.item, TIME, IMPRESSION]
    read += [LABEL + name for name in contract.tasks]
    impressions = pl.read_ipc(plan.file("impressions", number), columns=read)
    limits = split.instants(known["limits"])
    splits = split.assign(
        impressions, contract.user, config.pipeline.split, config.pipeline.seed, limits
    )
    flags = split.embargoed(config, limits)
    embargoed, some_left = _embargo(impressions.with_columns(split=splits), flags)
    impressions = split.mask_embargoed(impressions.with_columns(split=splits), flags)
    logged = impressions.select(
        at=pl.int_range(pl.len()),
        slot=pl.lit(-1, pl.Int64),
        item=pl.col(contract.item),
        impression=pl.col(IMPRESSION),
        split=pl.col("split"),
    )
    kept = logged.filter(some_left & negatives.keep(impressions, splits, config))
    asked, rows = 0, kept
    if sampling is not None:
        told_apart = (some_left & _has_counterparts(impressions, config)).arg_true()
        asked = len(told_apart) * sampling.per_positive
        positives = impressions[told_apart].select(
            user=pl.col(contract.user), time=pl.col(TIME), impression=pl.col(IMPRESSION)
        )
        touched = pl.read_ipc(plan.file("touched", number))
        pool = pl.read_ipc(plan.work / "pool.arrow")
        drawn = negatives.draw(positives, touched, pool, sampling, config.pipeline.seed)
        of = told_apart.cast(pl.Int64).gather(drawn["positive"])
        drawn = drawn.select(
            at=of,
            slot=pl.col("slot"),
            item=pl.col("item"),
            # The number of a negative is a function of its positive's and its slot.
            impression=negatives.numbers(impressions[IMPRESSION].gather(of), drawn["slot"]),
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
        "not_kept": int(some_left.sum()) - len(kept),
        "embargoed": embargoed,
        "left_out": int((~some_left).sum()),
        "limits": known["limits"],
    }


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


def _has_counterparts(impressions: pl.DataFrame, config: Config) -> pl.Series:
    """Which impressions have a label that tells them from their negatives."""
    told = [
        pl.col(LABEL + name).is_not_null()
        for name, task in config.contract.tasks.items()
        if isinstance(task.label, ImpressionLabel)
    ]
    return impressions.with_columns(__told=pl.any_horizontal(told) if told else True)["__told"]
