"""The last stages: compute the items' counters, write the examples, merge the statistics."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from multigate.configs.contract import FrozenContract, fingerprint
from multigate.configs.files import SAMPLED, SPLITS, TIME, write_json
from multigate.features import Slices
from multigate.pipeline import (
    catalogue,
    computed,
    crosses,
    data_report,
    measure,
    rates,
    snapshot,
    vocabulary,
)
from multigate.pipeline.assemble import assemble
from multigate.pipeline.buckets import parts_of, piece_rows, place, read_piece, spilled_path
from multigate.pipeline.columns import counters, example_schema
from multigate.pipeline.facts import FinishFacts, ItemFacts, SampleFacts, Verdict
from multigate.pipeline.plan import Plan
from multigate.pipeline.write import SplitWriter, part_path, write_parquet

Measured = dict[str, measure.Moments]  # of the training split, by column

_MIB = 1 << 20
_ROW = 64  # usual bytes of an item's event or query


def count_items(
    number: int, sampled: Iterable[SampleFacts], verdict: Verdict, plan: Plan
) -> ItemFacts:
    """Compute the counters that the buckets of users need of one bucket of items, and its snapshot.

    A bucket larger than the budget is processed in parts, by another part of the item's hash.
    """
    facts = list(sampled)
    users = sorted(fact.bucket for fact in facts)
    kinds = ["seen"]
    if counters(plan.config, "item"):
        kinds += ["counted", "asked"]
    if rates.of(plan.config, "item"):
        kinds += ["item_labels"]
    priors = rates.priors(plan.config, facts)
    spilled = {
        kind: [(user, spilled_path(plan.work, f"{kind}-{user:05d}")) for user in users]
        for kind in kinds
    }
    rows = sum(piece_rows(path, number) for paths in spilled.values() for _, path in paths)
    parts = parts_of(rows * _ROW, plan.config.pipeline.bucket_mib * _MIB)
    for at in range(parts):
        _count(number, (at, parts), spilled, verdict, priors, plan)
    return ItemFacts(number, parts, priors)


def _count(
    number: int,
    part_of: tuple[int, int],
    spilled: dict[str, list[tuple[int, Path]]],
    verdict: Verdict,
    priors: rates.Priors,
    plan: Plan,
) -> None:
    """Work through one part of a bucket of items."""
    config = plan.config
    at, parts = part_of

    def read(kind: str) -> list[tuple[int, pl.DataFrame]]:
        found = [(user, read_piece(path, number)) for user, path in spilled.get(kind, [])]
        if parts > 1:
            found = [
                (user, rows.filter(place(rows["item"], plan.buckets, parts) == at))
                for user, rows in found
            ]
        return [(user, rows) for user, rows in found if len(rows)]

    seen = [rows for _, rows in read("seen")]
    counted = pl.concat([computed.no_events(config), *(rows for _, rows in read("counted"))])
    labels = [
        rates.of_key(rates.no_labels(config), "item"),
        *(rows for _, rows in read("item_labels")),
    ]
    past_labels = rates.KeyRates(pl.concat(labels), config, "item", priors)
    if seen:
        table = plan.side_tables().get("items")
        of_items = snapshot.items(seen, counted, past_labels, config, verdict.cut_off, table)
        path = part_path(plan.examples.snapshot("items"), number + at * plan.buckets)
        write_parquet(of_items, path, snapshot.schema(config, "item"))
    asked = read("asked")
    if asked:
        queries = pl.concat([rows.with_columns(user=pl.lit(user)) for user, rows in asked])
        columns = computed.of_item(counted, queries, config) | past_labels.values(queries)
        answers = pl.DataFrame(columns)
        answers = answers.with_columns(queries["user", "at"])
        for (user,), rows in answers.partition_by("user", as_dict=True, include_key=False).items():
            path = plan.work / f"answers-{user:05d}-{number:05d}-{at:05d}.arrow"
            rows.write_ipc(path, compression="lz4")


def finish_bucket(
    fact: SampleFacts, counted: Iterable[ItemFacts], plan: Plan
) -> tuple[FinishFacts, Measured]:
    """Write one bucket's examples, when the items' counters are there.

    Returns:
        The facts, and the moments of the training rows.
    """
    config, number = plan.config, fact.bucket
    counted = list(counted)
    priors = counted[0].priors  # there is at least one bucket of items
    own, by_category = _user_rates(number, priors, plan)
    features = None
    if config.pipeline.negatives is not None and catalogue.item_features(config):
        features = pl.read_ipc(plan.work / "features.arrow")
    impressions = pl.read_ipc(plan.file("impressions", number))
    events = pl.read_ipc(plan.file("events", number))
    pieces = assemble(
        impressions,
        pl.read_ipc(plan.file("rows", number)),
        events,
        own,
        by_category,
        _histories(impressions, events, plan, number),
        _answers(number, counted, plan),
        features,
        plan.side_tables(),
        config,
        fact.starts,
    )
    measured: Measured = {}
    counts: dict[str, list[pl.DataFrame]] = {
        name: [] for name in vocabulary.features(config.contract)
    }
    lengths: dict[str, dict[str, int]] = {}
    paths = {name: part_path(plan.examples.split(name), number) for name in SPLITS}
    with SplitWriter(paths, example_schema(config), plan.records) as writer:
        for examples in pieces:
            found_lengths = data_report.lengths(examples, config.contract)
            lengths = data_report.add_lengths([lengths, found_lengths])
            training = writer.write(examples)["train"]
            measured = measure.add(measured, measure.measure(training, config.contract))
            logged = training.filter(~pl.col(SAMPLED))
            for name, found in vocabulary.count(logged, config.contract).items():
                counts[name].append(found)
    if not measured:
        nothing = pl.DataFrame(example_schema(config).empty_table())
        measured = measure.measure(nothing, config.contract)
        counts = {n: [c] for n, c in vocabulary.count(nothing, config.contract).items()}
    for name, found_ in counts.items():
        vocabulary.add(found_).write_ipc(plan.file(f"vocabulary-{name}", number), compression="lz4")
    return FinishFacts(fact, writer.rows, lengths, priors), measured


def _user_rates(
    number: int, priors: rates.Priors, plan: Plan
) -> tuple[rates.KeyRates, crosses.CrossRates]:
    """The users' features over past labels of one bucket; writes the snapshot that has them."""
    config = plan.config
    if not rates.reads_users(config):
        nothing = rates.no_labels(config)
        return rates.KeyRates(nothing, config, "user"), crosses.CrossRates(nothing, config)
    made = rates.with_values(pl.read_ipc(plan.file("users", number)), config, "user", priors)
    path = part_path(plan.examples.snapshot("users"), number)
    write_parquet(made, path, snapshot.schema(config, "user"))
    labels = pl.read_ipc(plan.file("user_labels", number))
    by_category = crosses.CrossRates(labels, config, priors)
    return rates.KeyRates(labels, config, "user", priors), by_category


def _histories(
    impressions: pl.DataFrame, events: pl.DataFrame, plan: Plan, number: int
) -> dict[str, Slices]:
    """The impressions' histories, which the draw of negatives left where it needed them."""
    path = plan.file("histories", number)
    if path.exists():
        return computed.read_histories(path, plan.config)
    queries = impressions.select(user=pl.col(plan.config.contract.user), time=pl.col(TIME))
    return computed.histories(events, queries, plan.config)


def _answers(number: int, counted: Iterable[ItemFacts], plan: Plan) -> pl.DataFrame | None:
    """The items' counters of a bucket's examples, one row each; None where there are none."""
    names = list(counters(plan.config, "item"))
    if not names:
        return None
    paths = [
        plan.work / f"answers-{number:05d}-{items.bucket:05d}-{at:05d}.arrow"
        for items in counted
        for at in range(items.parts)
    ]
    answers = [pl.read_ipc(path) for path in paths if path.exists()]
    return pl.concat(answers).sort("at").select(names) if answers else None


def finish(_: Any, finished: Iterable[tuple[FinishFacts, Measured]], plan: Plan) -> None:
    """Merge vocabularies and statistics and write them with the contract."""
    config, contract = plan.config, plan.config.contract
    found = sorted(finished, key=lambda one: one[0].sampled.bucket)
    facts = [fact for fact, _ in found]
    measured: Measured = {}
    for _, part_measured in found:
        measured = measure.add(measured, part_measured)
    FinishFacts.write(facts, plan.finished_facts)
    if not facts:
        return
    hashes = {}
    for name, feature in vocabulary.features(contract).items():
        parts = [pl.read_ipc(plan.file(f"vocabulary-{name}", f.sampled.bucket)) for f in facts]
        merged = vocabulary.merge(parts, feature)
        value = pa.string() if feature.dtype == "string" else pa.int64()
        schema = pa.schema([("value", value), ("count", pa.int64())])
        write_parquet(merged, plan.examples.vocabulary(name), schema)
        hashes[name] = fingerprint(merged["value"].to_list())
    rows = {name: sum(fact.examples[name] for fact in facts) for name in SPLITS}
    downsample = config.pipeline.downsample
    kept = 1.0 if downsample is None else downsample.keep
    priors = facts[0].priors
    statistics = measure.statistics(measured, contract, rows, kept, priors).model_dump(mode="json")
    for name in ("priors", "vectors"):
        if not statistics[name]:
            del statistics[name]
    write_json(plan.examples.statistics, statistics)
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint=fingerprint({"vocabularies": hashes, "statistics": statistics}),
    )
    write_json(plan.examples.contract, frozen.model_dump(mode="json"))
    nothing = example_schema(config).empty_table()
    for name in SPLITS:
        if not rows[name]:
            path = part_path(plan.examples.split(name), 0)
            write_parquet(pl.DataFrame(nothing), path, example_schema(config))
