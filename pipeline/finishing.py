"""The last stages: answer what was asked of items, write the examples, merge what was measured."""

from collections.abc import Iterable
from typing import Any

import polars as pl
import pyarrow as pa

from configs.contract import FrozenContract, fingerprint
from configs.files import SAMPLED, SPLITS, write_json
from pipeline import computed, measure, snapshot, vocabulary
from pipeline.buckets import spilled_path
from pipeline.columns import counters, example_schema
from pipeline.labelling import instant
from pipeline.manifest import Facts
from pipeline.plan import Plan
from pipeline.write import part, write_parquet


def count_items(number: int, sampled: Iterable[Facts], verdict: Facts, plan: Plan) -> Facts:
    """Answer what the buckets of users asked about the items of one bucket; write its snapshot.

    Returns:
        `bucket`: of items.
    """
    config, work = plan.config, plan.work
    users = sorted(fact["bucket"] for fact in sampled)

    def spilled(kind: str) -> list[tuple[int, pl.DataFrame]]:
        paths = [(user, spilled_path(work, f"{kind}-{user:05d}", number)) for user in users]
        return [(user, pl.read_ipc(path)) for user, path in paths if path.exists()]

    seen = [rows for _, rows in spilled("seen")]
    counted = pl.concat([computed.no_events(config), *(rows for _, rows in spilled("counted"))])
    if seen:
        table = plan.side_tables().get("items")
        of_items = snapshot.items(seen, counted, config, instant(verdict["cut_off"]), table)
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
    examples = pl.read_ipc(plan.work / f"examples-{number}.arrow")
    names = list(counters(config, "item"))
    if names and len(examples):
        paths = [
            spilled_path(plan.work, f"answers-{number:05d}", items["bucket"]) for items in counted
        ]
        answers = pl.concat([pl.read_ipc(path) for path in paths if path.exists()]).sort("at")
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
        parts = [pl.read_ipc(plan.work / f"vocabulary-{name}-{f['bucket']}.arrow") for f in facts]
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
