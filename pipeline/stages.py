"""The stages that Beam runs: each reads files, computes with tables, writes files.

A stage's arguments and its result are small plain values: elements carry paths and counts, not
rows. Doing a stage again writes the same files again, as runners that retry expect.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from configs import Config
from configs.contract import FrozenContract, fingerprint
from configs.files import IMPRESSION, LABEL, SAMPLED, SPLITS, TIME, ExamplesFolder, write_json
from configs.log import JsonLinesFormat
from pipeline import (
    catalogue,
    computed,
    labels,
    manifest,
    measure,
    negatives,
    snapshot,
    split,
    tables,
    vocabulary,
)
from pipeline.buckets import gather, spill, spilled_path
from pipeline.columns import counters, example_schema, wanted_columns
from pipeline.examples import make_examples
from pipeline.manifest import Facts
from pipeline.normalise import REJECTS, normalise
from pipeline.sources import Shard, read
from pipeline.write import part, write_parquet

_REJECTS = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)


@dataclass(frozen=True)
class Plan:
    """What every stage knows: the configuration, the folder being made and the final one's name.

    `work` holds spilled files; it must be reachable from all workers.
    """

    config: Config
    folder: Path
    work: Path
    out: Path

    @property
    def examples(self) -> ExamplesFolder:
        """The folder being made."""
        return ExamplesFolder(self.folder)

    def table(self, source: str) -> Path:
        """A side table, once read."""
        return self.work / f"{source}.arrow"

    def side_tables(self) -> dict[str, pl.DataFrame]:
        """The side tables that there are."""
        paths = {source: self.table(source) for source in ("users", "items")}
        return {s: pl.read_ipc(p) for s, p in paths.items() if p.exists()}


def read_shard(shard: tuple[int, Shard], plan: Plan) -> Facts:
    """Read one file, write its rejects and spill its events into buckets.

    Returns:
        `spilled` pairs (bucket, path), and facts for `manifest`: `file`, `rows`, `reasons`,
        `columns`, `events`, `latest` (ISO 8601; None where no row has a time).
    """
    number, source = shard
    config = plan.config
    wanted, form = wanted_columns(config), config.pipeline.log.format
    reasons: Counter[str] = Counter()
    events: Counter[str] = Counter()
    columns: list[str] = []
    spilled: list[tuple[int, str]] = []
    rejected = []
    rows, latest = 0, None
    for at, chunk in enumerate(read(source, form, wanted)):
        columns = list(dict.fromkeys([*columns, *chunk.columns]))
        if not isinstance(form, JsonLinesFormat) and not set(wanted) <= set(columns) and columns:
            break  # `manifest.problem` names the column
        good, rejects = normalise(chunk, config, source.name)
        rows += len(good) + len(rejects)
        reasons.update(rejects["reason"].to_list())
        rejected.append(rejects)
        times = [t for t in (latest, good["time"].max()) if t is not None]
        latest = max(times, default=None)
        if "event" in good.columns:
            events.update(dict(good["event"].value_counts().iter_rows()))
        spilled += spill(good, config.pipeline.buckets, plan.work, f"{number:05d}-{at:05d}")
    if sum(reasons.values()):
        write_parquet(pl.concat(rejected), part(plan.examples.rejects, number), _REJECTS)
    return {
        "file": source.name,
        "rows": rows,
        "reasons": dict(reasons),
        "columns": columns,
        "events": dict(events),
        "latest": latest.isoformat() if latest is not None else None,
        "spilled": spilled,
    }


def judge(_: Any, shards: Iterable[Facts], plan: Plan) -> Facts:
    """Once all is read: whether the log can be used.

    Returns:
        `problem`: None, or what to tell the user; then the later stages do nothing. `cut_off`:
        of labels and snapshots, as ISO 8601; None where no row has a time.
    """
    ordered = sorted(shards, key=lambda shard: shard["file"])
    facts = [{k: v for k, v in shard.items() if k != "spilled"} for shard in ordered]
    verdict = {
        "problem": manifest.problem(plan.config, facts, plan.out),
        "cut_off": _cut_off(plan.config, [fact["latest"] for fact in facts]),
    }
    write_json(plan.work / "read.json", {**verdict, "shards": facts})
    return verdict


def _cut_off(config: Config, latest: list[str | None]) -> str | None:
    if config.pipeline.cut_off is not None:
        return config.pipeline.cut_off.astimezone(UTC).isoformat()
    times = [datetime.fromisoformat(time) for time in latest if time is not None]
    return (max(times) + timedelta(microseconds=1)).isoformat() if times else None


def label_bucket(bucket: tuple[int, Iterable[str]], verdict: Facts, plan: Plan) -> list[Facts]:
    """Make the examples of one bucket's logged impressions, and the snapshot of its users.

    Returns:
        One fact: `bucket`, the counts of `examples.Bucket`; nothing where the log is unusable.
    """
    if verdict["problem"] is not None:
        return []
    number, paths = bucket
    config, side_tables = plan.config, plan.side_tables()
    cut_off = _instant(verdict["cut_off"])
    open_at = cut_off if config.pipeline.hold_back else None
    made = make_examples(gather(list(paths)), config, side_tables, open_at)
    made.impressions.write_ipc(plan.work / f"impressions-{number}.arrow", compression="lz4")
    if plan.config.pipeline.negatives is not None:
        made.touched.write_ipc(plan.work / f"touched-{number}.arrow", compression="lz4")
    of_users = snapshot.users(made.events, config, cut_off, side_tables.get("users"))
    path = part(plan.examples.snapshot("users"), number)
    write_parquet(of_users, path, snapshot.schema(config, "user"))
    for kind, rows in (
        ("counted", computed.item_events(made.events, config)),
        ("seen", snapshot.part_of_items(made.events, config, cut_off)),
    ):
        spill(rows, config.pipeline.buckets, plan.work, f"{kind}-{number:05d}", "item")
    shown, times = catalogue.part(made.impressions, plan.config)
    shown.write_ipc(plan.work / f"shown-{number}.arrow", compression="lz4")
    times.write_ipc(plan.work / f"times-{number}.arrow", compression="lz4")
    return [{"bucket": number, **made.counts}]


def merge_catalogue(_: Any, labelled: Iterable[Facts], plan: Plan) -> Facts:
    """Merge what all buckets know of items and times; writes `pool` and `features`.

    Returns:
        `limits`: the instants at which validation and test begin, as ISO 8601, or None.
    """
    facts = sorted(labelled, key=lambda fact: fact["bucket"])
    write_json(plan.work / "labelled.json", facts)
    if not facts:
        return {"limits": None}
    parts = [
        tuple(_read(plan.work / f"{kind}-{fact['bucket']}.arrow") for kind in ("shown", "times"))
        for fact in facts
    ]
    items = plan.side_tables().get("items")
    merged = catalogue.merge([(a, b) for a, b in parts], plan.config, items)
    merged.pool.write_ipc(plan.work / "pool.arrow", compression="lz4")
    merged.features.write_ipc(plan.work / "features.arrow", compression="lz4")
    limits = [limit.isoformat() for limit in merged.limits] if merged.limits is not None else None
    return {"limits": limits}


def sample_bucket(fact: Facts, known: Facts, plan: Plan) -> Facts:
    """Split one bucket's impressions, sample their negatives, and ask for the items' counters.

    Returns:
        `bucket`, `negatives`, `negatives_missing`.
    """
    config, number = plan.config, fact["bucket"]
    impressions = _read(plan.work / f"impressions-{number}.arrow")
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


def count_items(number: int, sampled: Iterable[Facts], verdict: Facts, plan: Plan) -> Facts:
    """Answer what the buckets of users asked about the items of one bucket; write its snapshot.

    Returns:
        `bucket`: of items.
    """
    config, work = plan.config, plan.work
    users = sorted(fact["bucket"] for fact in sampled)

    def spilled(kind: str) -> list[tuple[int, pl.DataFrame]]:
        paths = [(user, spilled_path(work, f"{kind}-{user:05d}", number)) for user in users]
        return [(user, _read(path)) for user, path in paths if path.exists()]

    seen = [rows for _, rows in spilled("seen")]
    counted = pl.concat([computed.no_events(config), *(rows for _, rows in spilled("counted"))])
    if seen:
        table = plan.side_tables().get("items")
        of_items = snapshot.items(seen, counted, config, _instant(verdict["cut_off"]), table)
        path = part(plan.examples.snapshot("items"), number)
        write_parquet(of_items, path, snapshot.schema(config, "item"))
    asked = spilled("asked")
    if asked:
        queries = pl.concat([rows.with_columns(user=pl.lit(user)) for user, rows in asked])
        answers = pl.DataFrame(computed.of_item(counted, queries, config))
        answers = answers.with_columns(queries["user", "at"])
        for (user,), rows in answers.partition_by("user", as_dict=True, include_key=False).items():
            path = spilled_path(work, f"answers-{user:05d}", number)
            rows.write_ipc(path, compression="lz4")
    return {"bucket": number}


def finish_bucket(fact: Facts, counted: Iterable[Facts], plan: Plan) -> Facts:
    """Write one bucket's examples, once the items' counters are known.

    Returns:
        What `sample_bucket` returned, `examples` by split, and `measured`: the moments of its
        training rows.
    """
    config, number = plan.config, fact["bucket"]
    examples = _read(plan.work / f"examples-{number}.arrow")
    names = list(counters(config, "item"))
    if names and len(examples):
        paths = [
            spilled_path(plan.work, f"answers-{number:05d}", items["bucket"]) for items in counted
        ]
        answers = pl.concat([_read(path) for path in paths if path.exists()]).sort("at")
        examples = examples.with_columns(answers.select(names).get_columns())
    written = {}
    for name in SPLITS:
        rows = examples.filter(pl.col("split") == name)
        written[name] = len(rows)
        if len(rows):
            path = part(plan.examples.split(name), number)
            write_parquet(rows, path, example_schema(config))
    training = examples.filter(pl.col("split") == "train")
    for name, counts in vocabulary.count(
        training.filter(~pl.col(SAMPLED)), config.contract
    ).items():
        counts.write_ipc(plan.work / f"vocabulary-{name}-{number}.arrow", compression="lz4")
    return {
        **fact,
        "examples": written,
        "measured": measure.measure(training, config.contract),
    }


def _negatives(named: pl.DataFrame, number: int, plan: Plan) -> pl.DataFrame:
    """Examples of sampled negatives: copies of their positive with another item."""
    config, contract = plan.config, plan.config.contract
    if config.pipeline.negatives is None:
        return named.clear()
    touched = _read(plan.work / f"touched-{number}.arrow")
    pool = _read(plan.work / "pool.arrow")
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
        found = catalogue.as_of(_read(plan.work / "features.arrow"), queries, config)
        sampled = sampled.with_columns(found.get_columns())
    table = plan.side_tables().get("items")
    if table is not None:
        sampled = sampled.drop([name for name in table.columns if name != contract.item])
        sampled = tables.join(sampled, config, "items", table)
    values = labels.finish(contract, labels.sampled_values(contract, len(sampled)))
    return sampled.with_columns([value.alias(LABEL + name) for name, value in values.items()])


def finish(_: Any, finished: Iterable[Facts], plan: Plan) -> None:
    """Merge vocabularies and statistics and write them with the contract."""
    config, contract = plan.config, plan.config.contract
    facts = sorted(finished, key=lambda fact: fact["bucket"])
    measured: dict[str, measure.Moments] = {}
    for fact in facts:
        for name, found in fact.pop("measured").items():
            measured[name] = measured[name] + found if name in measured else found
    write_json(plan.work / "finished.json", facts)
    if not facts:
        return
    hashes = {}
    for name, feature in vocabulary.features(contract).items():
        parts = [_read(plan.work / f"vocabulary-{name}-{f['bucket']}.arrow") for f in facts]
        merged = vocabulary.merge(parts, feature)
        value = pa.string() if feature.dtype == "string" else pa.int64()
        schema = pa.schema([("value", value), ("count", pa.int64())])
        write_parquet(merged, plan.examples.vocabulary(name), schema)
        hashes[name] = fingerprint(merged["value"].to_list())
    rows = {name: sum(fact["examples"][name] for fact in facts) for name in SPLITS}
    statistics = measure.statistics(measured, contract, rows).model_dump(mode="json")
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
            path = part(plan.examples.split(name), 0)
            write_parquet(pl.DataFrame(nothing), path, example_schema(config))


def write_no_rejects(plan: Plan) -> None:
    """Write an empty part where nothing was rejected, so that readers need no special case."""
    if not plan.examples.rejects.exists():
        write_parquet(pl.DataFrame(schema=REJECTS), part(plan.examples.rejects, 0), _REJECTS)


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _read(path: Path) -> pl.DataFrame:
    return pl.read_ipc(path)
