"""The stages of a bucket of users: label its impressions, and merge what all buckets know."""

from collections.abc import Iterable, Iterator

import polars as pl

from multigate.configs import Config
from multigate.configs.files import TIME
from multigate.pipeline.compute import computed, crosses, rates, snapshot, totals
from multigate.pipeline.compute.examples import make_examples
from multigate.pipeline.core.facts import LabelFacts, SplitLimits, Verdict
from multigate.pipeline.label import split
from multigate.pipeline.plan import Plan
from multigate.pipeline.read.log_end import before
from multigate.pipeline.sample import catalogue
from multigate.pipeline.shuffle.buckets import gather, spread
from multigate.pipeline.shuffle.parcel import Bundle, Output, Parcel
from multigate.pipeline.write.parts import part_path, write_parquet


def side_tables(tables: Bundle) -> dict[str, pl.DataFrame]:
    """The side tables that there are."""
    return {name: tables[name].read() for name in ("users", "items") if name in tables}


def label_bucket(
    bucket: tuple[int, Iterable[Parcel]], plan: Plan, verdict: Verdict, tables: Bundle
) -> Iterator[Output]:
    """Make the examples of one bucket's logged impressions, and the snapshot of its users.

    Yields:
        Nothing where the log is unusable. `state`: the bucket's number and what its next stages
        read: `impressions`, `events`, and where they are needed `touched`, `users` and
        `user_labels`. `of_items`: pairs (bucket of items, parcel) of the events that count, of the
        items' labels and of what the log says of items. `shown`: such pairs of the impressions
        that negatives are drawn from. `facts`. `times`: how many impressions there are in each
        cell of time, where the split is by shares of it.
    """
    if verdict.problem is not None:
        return
    number, parcels = bucket
    config, carrier, joined = plan.config, plan.carrier, side_tables(tables)
    cut_off, negatives = verdict.cut_off, plan.config.pipeline.negatives
    events = before(gather(parcels), verdict.end)
    made = make_examples(events, config, joined, cut_off, plan.window)
    user_events = computed.with_entries(made.events, config, joined)
    state = {
        "impressions": made.impressions,
        "events": computed.user_events(user_events, config),
    }
    if negatives is not None:
        state["touched"] = made.touched
    own = rates.KeyRates(made.past_labels, config, "user")
    by_category = crosses.CrossRates(made.past_labels, config)
    known = totals.before(plan, tables, "users", events["user"])
    of_users = snapshot.users(
        user_events, own, by_category, config, cut_off, joined.get("users"), known
    )
    until = totals.until_of(plan, cut_off)
    if until is not None:
        more = computed.user_totals(made.events, config, totals.since_of(plan), until)
        totals.write_part(plan, "users", number, more, known)
    if rates.reads_users(config):
        # Rates are made of their sums once the priors are known (`finishing`).
        state |= {"users": of_users, "user_labels": rates.of_key(made.past_labels, "user")}
    else:
        path = part_path(plan.examples.snapshot("users"), number)
        write_parquet(of_users, path, snapshot.schema(config, "user"))
    yield "state", (number, {kind: carrier.whole(r, kind, number) for kind, r in state.items()})
    of_items = {
        "counted": computed.item_events(made.events, config),
        "seen": snapshot.part_of_items(made.events, config, cut_off),
    }
    if rates.of(config, "item"):
        of_items["item_labels"] = rates.of_key(made.past_labels, "item")
    for kind, rows in of_items.items():
        for keyed in spread(carrier, rows, plan.item_buckets, kind, number, key="item"):
            yield "of_items", keyed
    if negatives is not None:
        shown = catalogue.shown_items(made.shown, negatives, config)
        found = spread(carrier, shown, plan.item_buckets, "shown", number, key="item")
        # An empty parcel says at least which columns there are.
        for keyed in found or [(0, carrier.whole(shown, "shown", number))]:
            yield "shown", keyed
    if split.by_shares(config.pipeline.split):
        yield "times", split.count_cells(made.impressions[TIME])
    yield "facts", LabelFacts(number, made.counts, made.open)


def merge_shown(
    bucket: tuple[int, Iterable[Parcel]], plan: Plan, tables: Bundle
) -> Iterator[Parcel]:
    """Merge what all buckets of users hold about one bucket of items; yields `pool`, `features`."""
    number, parcels = bucket
    negatives = plan.config.pipeline.negatives
    assert negatives is not None
    parts = [parcel.read() for parcel in sorted(parcels, key=lambda one: one.place)]
    items = side_tables(tables).get("items")
    merged = catalogue.merge(parts, negatives, plan.config, items)
    yield plan.carrier.whole(merged.pool, "pool", number)
    yield plan.carrier.whole(merged.features, "features", number)


def concatenate_catalogue(parcels: Iterable[Parcel], plan: Plan) -> Bundle:
    """The catalogue of all items, which all buckets read: `pool` and `features`."""
    found: dict[str, list[pl.DataFrame]] = {"pool": [], "features": []}
    for parcel in sorted(parcels, key=lambda one: one.place):
        found[parcel.kind].append(parcel.read())
    if not found["pool"]:
        return {}
    pairs = zip(found["pool"], found["features"], strict=True)
    whole = catalogue.concatenate([catalogue.Catalogue(*pair) for pair in pairs])
    return {
        "pool": plan.carrier.whole(whole.pool, "catalogue/pool", 0),
        "features": plan.carrier.whole(whole.features, "catalogue/features", 0),
    }


def times_in_cells(state: tuple[int, Bundle], cells: split.Cells | None) -> pl.DataFrame | None:
    """How many impressions of a bucket there are at each instant of these cells of time."""
    if cells is None:
        return None
    return split.count_instants(state[1]["impressions"].read([TIME])[TIME], cells)


def split_limits(
    config: Config, cells: split.Cells | None = None, instants: pl.DataFrame | None = None
) -> SplitLimits:
    """When validation and test begin."""
    chosen = config.pipeline.split
    if not split.by_shares(chosen):
        return SplitLimits(split.instants(chosen))
    if cells is None or instants is None:
        return SplitLimits(None)
    return SplitLimits(split.boundaries(cells, instants))
