"""The stages of a bucket of users: label its impressions, and merge what all buckets know."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from multigate.configs.files import TIME
from multigate.configs.sections.pipeline import Negatives
from multigate.pipeline import catalogue, computed, crosses, rates, snapshot
from multigate.pipeline.buckets import (
    Piece,
    gather,
    parts_of,
    read_piece,
    spill,
    spilled_path,
    subdivide,
)
from multigate.pipeline.examples import make_examples
from multigate.pipeline.facts import LabelFacts, SplitLimits, Verdict
from multigate.pipeline.log_end import before
from multigate.pipeline.plan import Plan
from multigate.pipeline.split import boundaries, by_shares
from multigate.pipeline.write import part_path, write_parquet

_MIB = 1 << 20


def divide_bucket(bucket: tuple[int, Iterable[Piece]], plan: Plan) -> list[tuple[int, list[Piece]]]:
    """Divide a bucket that holds more of the log than fits the budget; see `buckets.subdivide`."""
    number, pieces = bucket
    limit = plan.config.pipeline.bucket_mib * _MIB
    return subdivide(number, pieces, plan.buckets, limit, plan.work)


def label_bucket(bucket: tuple[int, list[Piece]], verdict: Verdict, plan: Plan) -> list[LabelFacts]:
    """Make the examples of one bucket's logged impressions, and the snapshot of its users.

    Returns:
        The bucket's facts, alone; nothing where the log is unusable.
    """
    if verdict.problem is not None:
        return []
    number, pieces = bucket
    config, side_tables = plan.config, plan.side_tables()
    cut_off = verdict.cut_off
    events = before(gather(pieces), verdict.end)
    made = make_examples(events, config, side_tables, cut_off, plan.window)
    impressions = made.impressions
    impressions.write_ipc(plan.file("impressions", number), compression="lz4")
    user_events = computed.with_entries(made.events, config, side_tables)
    computed.user_events(user_events, config).write_ipc(
        plan.file("events", number), compression="lz4"
    )
    if plan.config.pipeline.negatives is not None:
        made.touched.write_ipc(plan.file("touched", number), compression="lz4")
    own = rates.KeyRates(made.past_labels, config, "user")
    by_category = crosses.CrossRates(made.past_labels, config)
    table = side_tables.get("users")
    of_users = snapshot.users(user_events, own, by_category, config, cut_off, table)
    if rates.reads_users(config):
        # Rates are made of their sums once the priors are known (`finishing`).
        of_users.write_ipc(plan.file("users", number), compression="lz4")
        labels = rates.of_key(made.past_labels, "user")
        labels.write_ipc(plan.file("user_labels", number), compression="lz4")
    else:
        path = part_path(plan.examples.snapshot("users"), number)
        write_parquet(of_users, path, snapshot.schema(config, "user"))
    spilled_rows = {
        "counted": computed.item_events(made.events, config),
        "seen": snapshot.part_of_items(made.events, config, cut_off),
    }
    if rates.of(config, "item"):
        spilled_rows["item_labels"] = rates.of_key(made.past_labels, "item")
    for kind, rows in spilled_rows.items():
        spill(rows, plan.buckets, plan.work, f"{kind}-{number:05d}", "item")
    shown_bytes = 0
    negatives = config.pipeline.negatives
    if negatives is not None:
        shown = catalogue.shown_items(made.shown, negatives, config)
        spilled = spill(shown, plan.buckets, plan.work, f"shown-{number:05d}", "item")
        shown_bytes = sum(piece.size for _, piece in spilled)
    if by_shares(config.pipeline.split):
        # Not compressed: they are looked into where they lie.
        times = impressions.select(TIME).rechunk()
        times.write_ipc(plan.file("times", number), compression="uncompressed")
    return [LabelFacts(number, made.counts, made.open, shown_bytes)]


def merge_catalogue(_: Any, labelled: Iterable[LabelFacts], plan: Plan) -> SplitLimits:
    """Merge what all buckets know of items and times; writes `pool` and `features`."""
    facts = sorted(labelled, key=lambda fact: fact.bucket)
    LabelFacts.write(facts, plan.labelled_facts)
    split = plan.config.pipeline.split
    if not facts:
        return SplitLimits(None)
    negatives = plan.config.pipeline.negatives
    if negatives is not None:
        merged = _of_items(facts, negatives, plan)
        merged.pool.write_ipc(plan.work / "pool.arrow", compression="lz4")
        merged.features.write_ipc(plan.work / "features.arrow", compression="lz4")
    times = []
    if by_shares(split):
        times = [pl.read_ipc(plan.file("times", fact.bucket))[TIME] for fact in facts]
    return SplitLimits(boundaries(split, times))


def _of_items(facts: list[LabelFacts], negatives: Negatives, plan: Plan) -> catalogue.Catalogue:
    """Merge what the buckets of users know of items, so many buckets of items at a time as fit."""
    items = plan.side_tables().get("items")
    paths = [spilled_path(plan.work, f"shown-{fact.bucket:05d}") for fact in facts]
    limit = plan.config.pipeline.bucket_mib * _MIB
    turns = min(plan.buckets, parts_of(sum(fact.shown_bytes for fact in facts), limit))
    merged = []
    for turn in range(turns):
        buckets = range(turn, plan.buckets, turns)
        parts = [read_piece(path, *buckets) for path in paths]
        merged.append(catalogue.merge(parts, negatives, plan.config, items))
    return catalogue.concatenate(merged)
