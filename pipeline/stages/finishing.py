"""The last stages: compute the items' counters, write the examples, vocabularies, statistics."""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from multigate.configs.files import SAMPLED, SPLITS, TIME
from multigate.features import Slices
from multigate.pipeline.compute import computed, crosses, measure, rates, snapshot, totals
from multigate.pipeline.core.columns import POSITIVE, counters, example_schema
from multigate.pipeline.core.counts import add_counts
from multigate.pipeline.core.facts import (
    FinishFacts,
    LabelFacts,
    LogFacts,
    RunFacts,
    SampleFacts,
    SplitLimits,
    Verdict,
)
from multigate.pipeline.plan import Plan
from multigate.pipeline.sample.catalogue import item_features
from multigate.pipeline.shuffle.buckets import Keyed
from multigate.pipeline.shuffle.parcel import Bundle, Output, Parcel, in_order
from multigate.pipeline.stages.labelling import side_tables
from multigate.pipeline.write import data_report, vocabulary
from multigate.pipeline.write.assemble import assemble
from multigate.pipeline.write.frozen import write_frozen
from multigate.pipeline.write.parts import SplitWriter, part_path, write_parquet

Measured = dict[str, measure.Moments]  # of the training split, by column


def count_items(
    bucket: tuple[int, Iterable[Parcel]],
    plan: Plan,
    verdict: Verdict,
    priors: rates.Priors,
    tables: Bundle,
) -> Iterator[Keyed]:
    """Compute the counters that the buckets of users need of one bucket of items, and its snapshot.

    Yields:
        Pairs (bucket of users, parcel) of answers.
    """
    number, parcels = bucket
    config, found = plan.config, list(parcels)

    def read(kind: str) -> list[pl.DataFrame]:
        return [parcel.read() for parcel in in_order(found, kind)]

    seen, asked = read("seen"), read("asked")
    counted = pl.concat([computed.no_events(config), *read("counted")])
    labels = [rates.of_key(rates.no_labels(config), "item"), *read("item_labels")]
    past_labels = rates.KeyRates(pl.concat(labels), config, "item", priors)
    ids = [rows["item"] for rows in (*seen, *asked, counted)]
    known = totals.before(plan, tables, "items", pl.concat(ids))
    until = totals.until_of(plan, verdict.cut_off)
    if until is not None:
        more = computed.item_totals(counted, config, totals.since_of(plan), until)
        totals.write_part(plan, "items", number, more, known)
    if seen:
        table = side_tables(tables).get("items")
        of_items = snapshot.items(seen, counted, past_labels, config, verdict.cut_off, table, known)
        path = part_path(plan.examples.snapshot("items"), number)
        write_parquet(of_items, path, snapshot.schema(config, "item"))
    if asked:
        queries = pl.concat(asked)
        columns = computed.of_item(counted, queries, config, known)
        columns |= past_labels.values(queries)
        answers = pl.DataFrame(columns).with_columns(queries["at"])
        users = queries["user"].unique().sort()
        places = users.search_sorted(queries["user"]).to_numpy().astype(np.int64)
        for place, parcel in plan.carrier.shares(answers, places, len(users), "answers", number):
            yield int(users[place]), parcel


def finish_bucket(
    bucket: tuple[int, Iterable[Parcel]],
    plan: Plan,
    limits: SplitLimits,
    priors: rates.Priors,
    catalogue: Bundle,
    tables: Bundle,
) -> Iterator[Output]:
    """Write one bucket's examples, once the items' counters are known.

    Yields:
        `measured`: the moments of the training rows. `counts`: pairs (feature, how often each
        value occurs in logged training rows). `facts`.
    """
    config, (number, arrived) = plan.config, bucket
    parcels = list(arrived)
    state = {parcel.kind: parcel for parcel in parcels if parcel.kind != "answers"}
    own, by_category = _user_rates(number, state, priors, plan)
    features = None
    if config.pipeline.negatives is not None and item_features(config):
        features = catalogue["features"].read()
    impressions = state["impressions"].read().drop(POSITIVE, strict=False)
    events = state["events"].read()
    pieces = assemble(
        impressions,
        state["rows"].read(),
        events,
        own,
        by_category,
        _histories(impressions, events, state, plan),
        _answers(parcels, plan),
        features,
        side_tables(tables),
        config,
        limits.starts,
        totals.before(plan, tables, "users", impressions[config.contract.user]),
    )
    measured: Measured = {}
    counts: dict[str, list[pl.DataFrame]] = {
        name: [] for name in vocabulary.features(config.contract)
    }
    lengths: dict[str, dict[str, int]] = {}
    paths = {name: part_path(plan.examples.split(name), number) for name in SPLITS}
    with SplitWriter(paths, example_schema(config)) as writer:
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
    for name, tables_ in counts.items():
        yield "counts", (name, add_counts(tables_))
    yield "measured", measured
    yield "facts", FinishFacts(number, writer.rows, lengths)


def _user_rates(
    number: int, state: Bundle, priors: rates.Priors, plan: Plan
) -> tuple[rates.KeyRates, crosses.CrossRates]:
    """The users' features over past labels of one bucket; also writes their snapshot."""
    config = plan.config
    if not rates.reads_users(config):
        nothing = rates.no_labels(config)
        return rates.KeyRates(nothing, config, "user"), crosses.CrossRates(nothing, config)
    made = rates.with_values(state["users"].read(), config, "user", priors)
    path = part_path(plan.examples.snapshot("users"), number)
    write_parquet(made, path, snapshot.schema(config, "user"))
    labels = state["user_labels"].read()
    by_category = crosses.CrossRates(labels, config, priors)
    return rates.KeyRates(labels, config, "user", priors), by_category


def _histories(
    impressions: pl.DataFrame, events: pl.DataFrame, state: Bundle, plan: Plan
) -> dict[str, Slices]:
    """The impressions' histories: those that drawing negatives has stored, or computed here."""
    if "histories" in state:
        found = computed.histories_from_tables(lambda kind: state[kind].read(), plan.config)
    else:
        queries = impressions.select(user=pl.col(plan.config.contract.user), time=pl.col(TIME))
        found = computed.histories(events, queries, plan.config)
    return {name: one.coded() for name, one in found.items()}


def _answers(parcels: list[Parcel], plan: Plan) -> pl.DataFrame | None:
    """The items' counters of a bucket's examples, one row each; None where there are none."""
    names = list(counters(plan.config, "item"))
    answers = [parcel.read() for parcel in in_order(parcels, "answers")]
    return pl.concat(answers).sort("at").select(names) if answers else None


def write_vocabulary(counts: tuple[str, pl.DataFrame], plan: Plan) -> tuple[str, str]:
    """Write one feature's vocabulary; returns the feature and the vocabulary's fingerprint."""
    name, total = counts
    feature = vocabulary.features(plan.config.contract)[name]
    return name, vocabulary.write(total, feature, plan.examples.vocabulary(name))


def write_statistics(
    measured: Measured,
    plan: Plan,
    priors: rates.Priors,
    hashes: dict[str, str],
    log: LogFacts,
    labelled: Iterable[LabelFacts],
    sampled: Iterable[SampleFacts],
    finished: Iterable[FinishFacts],
) -> None:
    """Write the statistics and the contract, and what the stages report to the manifest."""
    config, contract = plan.config, plan.config.contract
    facts = RunFacts(
        log,
        tuple(sorted(labelled, key=lambda fact: fact.bucket)),
        tuple(sorted(sampled, key=lambda fact: fact.bucket)),
        tuple(sorted(finished, key=lambda fact: fact.bucket)),
    )
    facts.write(plan.facts)
    if not facts.finished:
        return
    rows = {name: sum(fact.examples[name] for fact in facts.finished) for name in SPLITS}
    downsample = config.pipeline.downsample
    kept = 1.0 if downsample is None else downsample.keep
    statistics = measure.statistics(measured, contract, rows, kept, priors)
    write_frozen(plan.examples, contract, statistics, hashes)
    nothing = example_schema(config).empty_table()
    for name in SPLITS:
        if not rows[name]:
            path = part_path(plan.examples.split(name), 0)
            write_parquet(pl.DataFrame(nothing), path, example_schema(config))
