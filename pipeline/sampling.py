"""The stage that splits a bucket's impressions and samples their negatives."""

from datetime import datetime

import polars as pl

from configs.files import IMPRESSION, LABEL, SAMPLED, TIME
from pipeline import catalogue, labels, negatives, split, tables
from pipeline.buckets import spill
from pipeline.columns import counters
from pipeline.manifest import Facts
from pipeline.plan import Plan


def sample_bucket(fact: Facts, known: Facts, plan: Plan) -> Facts:
    """Split one bucket's impressions, sample their negatives, and ask for the items' counters.

    Returns:
        `bucket`, `negatives`, `negatives_missing`.
    """
    config, number = plan.config, fact["bucket"]
    impressions = pl.read_ipc(plan.work / f"impressions-{number}.arrow")
    limits = known["limits"]
    if limits is not None:
        limits = (datetime.fromisoformat(limits[0]), datetime.fromisoformat(limits[1]))
    named = impressions.with_columns(
        split.assign(
            impressions, config.contract.user, config.pipeline.split, config.pipeline.seed, limits
        )
    )
    examples = named.with_columns(__slot=pl.lit(-1, pl.Int64), __at=pl.int_range(pl.len()))
    asked = 0
    if config.pipeline.negatives is not None:
        asked = len(named) * config.pipeline.negatives.per_positive
        sampled = _negatives(named, number, plan)
        examples = pl.concat([examples, sampled.select(examples.columns)])
        examples = examples.sort("__at", "__slot")
    examples = examples.drop("__at", "__slot")
    examples.write_ipc(plan.work / f"examples-{number}.arrow", compression="lz4")
    if counters(config, "item"):
        asked_of = examples.select(
            item=pl.col(config.contract.item), time=pl.col(TIME), at=pl.int_range(pl.len())
        )
        spill(asked_of, config.pipeline.buckets, plan.work, f"asked-{number:05d}", "item")
    made = len(examples) - len(named)
    return {"bucket": number, "negatives": made, "negatives_missing": asked - made}


def _negatives(named: pl.DataFrame, number: int, plan: Plan) -> pl.DataFrame:
    """Examples of sampled negatives: copies of their positive with another item."""
    config, contract = plan.config, plan.config.contract
    if config.pipeline.negatives is None:
        return named.clear()
    touched = pl.read_ipc(plan.work / f"touched-{number}.arrow")
    pool = pl.read_ipc(plan.work / "pool.arrow")
    positives = named.select(
        user=pl.col(contract.user), time=pl.col(TIME), impression=pl.col(IMPRESSION)
    )
    drawn = negatives.draw(
        positives, touched, pool, config.pipeline.negatives, config.pipeline.seed
    )
    sampled = named[drawn["positive"].to_list()]
    sampled = sampled.with_columns(
        drawn["item"].alias(contract.item),
        pl.lit(True).alias(SAMPLED),
        __at=drawn["positive"],
        __slot=drawn["slot"],
    )
    # The number of a negative is a function of its positive's and its slot.
    keys = negatives.numbers(sampled[IMPRESSION], sampled["__slot"])
    sampled = sampled.with_columns(keys.alias(IMPRESSION))
    if contract.position is not None:
        nothing = pl.lit(None, pl.Int64)
        sampled = sampled.with_columns(nothing.alias(contract.position))
    if catalogue.item_features(config):
        queries = sampled.select(item=pl.col(contract.item), time=pl.col(TIME))
        found = catalogue.as_of(pl.read_ipc(plan.work / "features.arrow"), queries, config)
        sampled = sampled.with_columns(found.get_columns())
    table = plan.side_tables().get("items")
    if table is not None:
        sampled = sampled.drop([name for name in table.columns if name != contract.item])
        sampled = tables.join(sampled, config, "items", table)
    values = labels.finish(contract, labels.sampled_values(contract, len(sampled)))
    return sampled.with_columns([value.alias(LABEL + name) for name, value in values.items()])
