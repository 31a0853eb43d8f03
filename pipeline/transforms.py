"""The job's steps as Beam transforms: they wire the plain functions of `stages`.

    Read ──► Type ... SpreadByUser ──► Label ──► SampleNegatives ──► Assemble ──► Write
    (files)  (with Read: events,         │              │               ▲
              rejects, facts)            └──► CountItems (by item) ─────┘

Rows travel as parcels (`shuffle.parcel`), keyed by the number of a bucket of users or items. Small
tables and decisions are side inputs: the verdict on the log, the side tables, the candidate pool,
the instants of the split, the priors of rates. Statistics, vocabularies, sums of labels and counts
of times are combines, exact in any order of merging. What stages report (`core.facts`) is counted
in Beam's metrics and, at the end, written for the manifest.
"""

from collections.abc import Callable, Iterator
from typing import Any

from multigate.pipeline.compute import measure, rates
from multigate.pipeline.core.columns import counters
from multigate.pipeline.core.facts import FinishFacts, SampleFacts, ShardFacts
from multigate.pipeline.core.runner import import_beam
from multigate.pipeline.core.stage_bar import counted
from multigate.pipeline.label.split import by_shares, find_cells
from multigate.pipeline.plan import Plan
from multigate.pipeline.read.sources import Shard
from multigate.pipeline.shuffle.buckets import Keyed, divide
from multigate.pipeline.shuffle.combines import AddCounts, Merge
from multigate.pipeline.shuffle.parcel import Bundle, Parcel
from multigate.pipeline.stages import finishing, labelling, reading, sampling
from multigate.pipeline.stages.records import recorded

import_beam()
import apache_beam as beam  # noqa: E402

_one, _list, _dict = beam.pvalue.AsSingleton, beam.pvalue.AsList, beam.pvalue.AsDict
_KEYED = beam.typehints.KV[int, Parcel]
_ROW = 64  # usual bytes of an item's event or query


class _Stage(beam.DoFn):
    """Runs a stage, tags its outputs by name, and counts rows."""

    def __init__(self, stage: Callable[..., Iterator[tuple[str, Any]]]) -> None:
        self._stage = stage

    def process(self, element: Any, *rest: Any) -> Iterator[Any]:
        """Run the stage on one element."""
        for name, value in self._stage(element, *rest):
            if name == "facts":
                for what, count in _counted(value).items():
                    beam.metrics.Metrics.counter("multigate", what).inc(count)
            yield beam.pvalue.TaggedOutput(name, value)


def _counted(facts: Any) -> dict[str, int]:
    """The values of Beam's counters from a stage's facts."""
    if isinstance(facts, ShardFacts):
        return {"rows_in": facts.rows, "rows_rejected": sum(facts.reasons.values())}
    if isinstance(facts, SampleFacts):
        return {"negatives": facts.negatives}
    if isinstance(facts, FinishFacts):
        return {f"examples_{name}": rows for name, rows in facts.examples.items()}
    return {}


def _outputs(
    stage: Any, plan: Plan, *rest: Any, keyed: tuple[str, ...] = (), others: tuple[str, ...]
) -> Any:
    """A transform that runs a stage; `keyed` are its outputs of pairs (bucket, parcel)."""

    def expand(elements: Any) -> Any:
        run = beam.ParDo(_Stage(counted(recorded(stage, plan))), plan, *rest)
        found = elements | run.with_outputs(*keyed, *others)
        for name in keyed:
            found[name].element_type = _KEYED  # so that Beam uses the parcels' coder
        return found

    return beam.ptransform_fn(expand)()


class SpreadBy(beam.PTransform):
    """Groups parcels by bucket; a bucket that is too large is divided first.

    Args:
        key: `user` or `item`.
        plan: the run.
        row: bytes that a row stands for; None for the bytes that parcels say.
    """

    def __init__(self, key: str, plan: Plan, row: int | None = None) -> None:
        super().__init__(f"SpreadBy{key.title()}")
        self._key, self._plan, self._row = key, plan, row

    def expand(self, parcels: Any) -> Any:
        """(bucket, parcel) -> (bucket, parcels)."""
        sizes = (
            parcels
            | "Sizes" >> beam.Map(_size, self._row).with_output_types(tuple[int, int])
            | "Of buckets" >> beam.CombinePerKey(sum)
        )
        return (
            parcels
            | "Divide"
            >> beam.FlatMap(_divide, _dict(sizes), self._plan, self._key).with_output_types(_KEYED)
            | "Group" >> beam.GroupByKey()
        )


def _size(keyed: Keyed, row: int | None) -> tuple[int, int]:
    number, parcel = keyed
    return number, parcel.size if row is None else parcel.rows * row


def _divide(keyed: Keyed, sizes: dict[int, int], plan: Plan, key: str) -> list[Keyed]:
    buckets = plan.buckets if key == "user" else plan.item_buckets
    return divide(keyed, sizes[keyed[0]], buckets, plan.bucket_bytes, plan.carrier, key)


def _once(pipeline: Any, label: str, function: Any, *rest: Any) -> Any:
    """A collection of one element: a function of side inputs."""
    start = pipeline | f"Once {label}" >> beam.Create([None], reshuffle=False)
    return start | label >> beam.Map(lambda _, *given: function(*given), *rest)


def build(
    pipeline: Any, shards: list[Shard], plan: Plan, tables: dict[str, Callable[[], Parcel | None]]
) -> None:
    """Wire the whole job.

    Args:
        pipeline: Beam's.
        shards: the log's files.
        plan: the run.
        tables: makes the parcels of the side tables and of the users to forget, by name.
    """
    config = plan.config
    small = _dict(
        pipeline
        | "Tables" >> beam.Create(list(tables.items()), reshuffle=False)
        | "ReadTables" >> beam.Map(_load)
    )
    read = (
        pipeline
        | "Files" >> beam.Create(list(enumerate(shards)), reshuffle=False)
        | "Spread files" >> beam.Reshuffle()
        | "Read"
        >> _outputs(
            reading.read_shard, plan, small, keyed=("events", "rejected"), others=("facts",)
        )
    )
    log = _once(pipeline, "Judge", reading.judge, _list(read.facts), plan)
    verdict = _one(log | "Verdict" >> beam.Map(lambda facts: facts.verdict))
    (
        read.rejected
        | "Rejects of files" >> beam.GroupByKey()
        | "WriteRejects" >> beam.Map(reading.write_rejects, _one(log), plan)
    )
    labelled = (
        read.events
        | SpreadBy("user", plan)
        | "Label"
        >> _outputs(
            labelling.label_bucket,
            plan,
            verdict,
            small,
            keyed=("of_items", "shown"),
            others=("state", "facts", "times"),
        )
    )
    limits = _one(_limits(pipeline, labelled, plan))
    catalogue = _one(_catalogue(pipeline, labelled, plan, small))
    sampled = labelled.state | "SampleNegatives" >> _outputs(
        sampling.sample_bucket,
        plan,
        limits,
        catalogue,
        keyed=("of_items",),
        others=("state", "facts"),
    )
    priors = _one(
        sampled.facts
        | "Sums of labels" >> beam.Map(lambda facts: facts.label_sums)
        | "AddSums" >> beam.CombineGlobally(Merge(rates.add_label_sums, dict))
        | "Priors" >> beam.Map(lambda sums: rates.priors(config, sums, dict(plan.priors_before)))
    )
    answers = (
        (labelled.of_items, sampled.of_items)
        | beam.Flatten()
        | SpreadBy("item", plan, _ROW)
        | "CountItems"
        >> beam.FlatMap(
            counted(recorded(finishing.count_items, plan)), plan, verdict, priors, small
        ).with_output_types(_KEYED)
    )
    assembled = _with_answers(sampled.state, answers, plan) | "Assemble" >> _outputs(
        finishing.finish_bucket,
        plan,
        limits,
        priors,
        catalogue,
        small,
        others=("facts", "measured", "counts"),
    )
    measured = assembled.measured | "AddMoments" >> beam.CombineGlobally(Merge(measure.add, dict))
    hashes = (
        assembled.counts
        | "AddCounts" >> beam.CombinePerKey(AddCounts())
        | "WriteVocabularies" >> beam.Map(finishing.write_vocabulary, plan)
    )
    _once(
        pipeline,
        "WriteStatistics",
        finishing.write_statistics,
        _one(measured),
        plan,
        priors,
        _dict(hashes),
        _one(log),
        *(_list(stage.facts) for stage in (labelled, sampled, assembled)),
    )


def _load(table: tuple[str, Callable[[], Parcel | None]]) -> tuple[str, Parcel | None]:
    name, make = table
    return name, make()


def _limits(pipeline: Any, labelled: Any, plan: Plan) -> Any:
    """When the splits begin: two passes over the impressions' times if it depends on shares."""
    config, chosen = plan.config, plan.config.pipeline.split
    if not by_shares(chosen):
        limits = labelling.split_limits(config)
        return pipeline | "Limits" >> beam.Create([limits], reshuffle=False)
    cells = _one(
        labelled.times
        | "CountCells" >> beam.CombineGlobally(AddCounts())
        | "FindCells" >> beam.Map(lambda counts: find_cells(chosen, counts))
    )
    instants = (
        labelled.state
        | "TimesInCells" >> beam.Map(labelling.times_in_cells, cells)
        | "CountInstants" >> beam.CombineGlobally(AddCounts())
    )
    return instants | "Limits" >> beam.Map(
        lambda found, in_cells: labelling.split_limits(config, in_cells, found), cells
    )


def _catalogue(pipeline: Any, labelled: Any, plan: Plan, small: Any) -> Any:
    """The candidate pool and the items' features over time, where negatives are drawn."""
    if plan.config.pipeline.negatives is None:
        return pipeline | "No catalogue" >> beam.Create([Bundle()], reshuffle=False)
    merged = (
        labelled.shown
        | "Shown items" >> beam.GroupByKey()
        | "MergeShown" >> beam.FlatMap(labelling.merge_shown, plan, small)
    )
    return _once(pipeline, "Catalogue", labelling.concatenate_catalogue, _list(merged), plan)


def _with_answers(state: Any, answers: Any, plan: Plan) -> Any:
    """(bucket, parcels): what the buckets hold, with the items' answers where some are needed."""
    if not counters(plan.config, "item"):
        return state | "Parcels" >> beam.Map(lambda one: (one[0], list(one[1].values())))
    parcels = state | "Parcels" >> beam.FlatMap(
        lambda one: [(one[0], parcel) for parcel in one[1].values()]
    )
    for some in (parcels, answers):
        some.element_type = _KEYED
    return (parcels, answers) | "And answers" >> beam.Flatten() | beam.GroupByKey()
