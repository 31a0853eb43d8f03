"""The job: wires the stages with Apache Beam and publishes a folder of examples.

    files ─► read_shard ─► (bucket, piece) ─► GroupByKey ─► label_bucket ─► merge_catalogue
                 │                                           ▲      │            ▼
                 └──────────────► judge ─────────────────────┘      └────► sample_bucket ─┐
                                                      finish ◄─ finish_bucket ◄─ count_items

Beam moves names of files and counts; the stages move rows, as Arrow tables in files.
"""

import logging
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from multigate.configs import Config, DataError
from multigate.configs.files import new_folder, write_json
from multigate.pipeline import (
    data_report,
    erasure,
    finishing,
    inputs,
    labelling,
    manifest,
    reading,
    sampling,
    tables,
)
from multigate.pipeline.buckets import Piece
from multigate.pipeline.columns import check
from multigate.pipeline.facts import FinishFacts, LabelFacts, LogFacts, ShardFacts
from multigate.pipeline.plan import Plan, count_buckets
from multigate.pipeline.runner import import_beam, local_options, plain_failures
from multigate.pipeline.sources import Shard
from multigate.pipeline.window import needed, plan_window

_log = logging.getLogger(__name__)


def run(
    config: Config,
    data: Path | str,
    out: Path,
    options: list[str] | None = None,
    *,
    span: tuple[datetime, datetime] | None = None,
    forget: Path | None = None,
    previous: Path | None = None,
    records: bool = False,
) -> dict[str, Any]:
    """Make examples from a log.

    Args:
        config: the log, the contract and the split.
        data: the folder that holds the log's files: a local path, or an address such as
            `gs://bucket/logs`.
        out: the folder to make; see `configs.files.ExamplesFolder`.
        options: Beam's own options, such as `--runner=FlinkRunner`.
        span: make only the examples whose labels close between these two instants, and read only
            what they need; see `window`.
        forget: ids of users to forget, one a line, beside those of `pipeline.forget`.
        previous: the previous run's folder of examples, for the drift in `report.json`.
        records: whether to write tf.Example records beside the Parquet parts.

    Returns:
        The manifest, as in `manifest.json`.

    Raises:
        ConfigError: the contract does not fit the log's shape.
        DataError: the log cannot be used, or `out` exists. Nothing is left of `out`; rejects,
            where there are too many, are left in `<out>.rejects`.
    """
    check(config)
    if previous is not None:
        data_report.read(previous)  # before the work, not after it
    log = config.pipeline.log
    window = None if span is None else plan_window(config, *span)
    shards = inputs.shards(config, data)
    skipped = len(shards)
    if window is not None:
        shards = needed(shards, window, config)
    skipped -= len(shards)
    if not shards:
        raise DataError(f"{data}: no folder {log.partition}=... holds a day of this span")
    shards = inputs.divide_log(config, shards)
    forgotten = erasure.read_list(config, data, forget)
    with new_folder(out) as folder:
        # Workers need not share this process's working directory.
        work = folder.absolute() / ".work"
        work.mkdir()
        buckets = count_buckets(config, shards)
        plan = Plan(config, folder.absolute(), work, out, buckets, window, records)
        if forgotten is not None:
            forgotten.to_frame("user").write_ipc(plan.file("forgotten", 0))
        for source in ("users", "items"):
            table = tables.read_table(config, data, source)
            if table is not None:
                if source == "users":
                    table = erasure.without(table, config.contract.user, forgotten)
                table.write_ipc(plan.table(source))
        _run_beam(shards, plan, options or local_options())
        log_facts = LogFacts.read(plan.log_facts)
        problem = log_facts.verdict.problem
        if problem is not None:
            if str(manifest.rejects_beside(out)) in problem:
                _leave_rejects(plan)  # the message sends the user there
            raise DataError(problem)
        labelled = LabelFacts.read(plan.labelled_facts)
        finished = FinishFacts.read(plan.finished_facts)
        account = manifest.build(config, log_facts, labelled, finished)
        if window is not None:
            account["window"] = {
                "begin": None if window.begin is None else window.begin.isoformat(),
                "first": window.first.isoformat(),
                "end": window.end.isoformat(),
                "files_skipped": skipped,
            }
        _check_splits(account, config, some_days=window is not None)
        reading.write_no_rejects(plan)
        write_json(plan.examples.manifest, account)
        lists = data_report.add_lengths(fact.lengths for fact in finished)
        report = data_report.report(config, plan.examples, account, lists, previous)
        write_json(plan.examples.report, report)
        for line in report["advice"]:
            _log.warning("%s", line)
        shutil.rmtree(work)
    return account


def _run_beam(shards: list[Shard], plan: Plan, options: list[str]) -> None:
    beam, pipeline_options = import_beam()
    one = beam.pvalue.AsSingleton
    every = beam.pvalue.AsList
    with plain_failures(), beam.Pipeline(options=pipeline_options(options)) as p:
        read = (
            p
            | "Files" >> beam.Create(list(enumerate(shards)), reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.Map(reading.read_shard, plan)
        )
        verdict = p | "Once read" >> beam.Create([None], reshuffle=False)
        verdict |= "Judge" >> beam.Map(reading.judge, every(read), plan)
        labelled = (
            read
            | "Spilled" >> beam.FlatMap(_spilled)
            | "By bucket" >> beam.GroupByKey()
            | "Divide" >> beam.FlatMap(labelling.divide_bucket, plan)
            | "Spread buckets" >> beam.Reshuffle()
            | "Label" >> beam.FlatMap(labelling.label_bucket, one(verdict), plan)
        )
        known = p | "Once labelled" >> beam.Create([None], reshuffle=False)
        known |= "Catalogue" >> beam.Map(labelling.merge_catalogue, every(labelled), plan)
        sampled = labelled | "Sample" >> beam.Map(sampling.sample_bucket, one(known), plan)
        counted = (
            p
            | "Items" >> beam.Create(list(range(plan.buckets)), reshuffle=False)
            | "Spread items" >> beam.Reshuffle()
            | "Count" >> beam.Map(finishing.count_items, every(sampled), one(verdict), plan)
        )
        finished = sampled | "Finish bucket" >> beam.Map(
            finishing.finish_bucket, every(counted), plan
        )
        last = p | "Once finished" >> beam.Create([None], reshuffle=False)
        last | "Finish" >> beam.Map(finishing.finish, every(finished), plan)


def _spilled(facts: ShardFacts) -> tuple[tuple[int, Piece], ...]:
    """Pairs (bucket, piece), to be grouped."""
    return facts.spilled


def _leave_rejects(plan: Plan) -> None:
    """Keep the rejects of a failed run beside the folder that it did not make."""
    beside = manifest.rejects_beside(plan.out)
    if plan.examples.rejects.exists():
        beside.mkdir(exist_ok=True)
        for old in beside.glob("part-*.parquet"):
            old.unlink()
        for path in plan.examples.rejects.iterdir():
            shutil.move(path, beside / path.name)


def _check_splits(account: dict[str, Any], config: Config, some_days: bool = False) -> None:
    examples = account["examples"]
    splits = examples["splits"]
    # A day of a split by instants may well be a day of the test split.
    if not (sum(splits.values()) if some_days else splits.get("train")):
        what = "there is no example" if some_days else "the training split is empty"
        rows = account["rows"]
        unused = {name: rows[name] for name in ("after_cut_off", "outside", "forgotten")}
        if sum(unused.values()) + rows["rejects"] == rows["rows_in"]:
            counts = ", ".join(f"{count} {name}" for name, count in unused.items() if count)
            raise DataError(
                f"{what}: none of the log's {rows['rows_in']} rows is left ({counts}, "
                f"{rows['rejects']} rejected): after_cut_off are those at or after "
                f"{account['cut_off']}; check pipeline.cut_off, the days of the run and the list "
                "of users to forget"
            )
        raise DataError(
            f"{what}: {examples['impressions']} impressions were split by "
            f"{config.pipeline.split.by}, {account['rows']['held_back']} were held back because "
            f"their labels were open at {account['cut_off']}, {examples['embargoed']} were left "
            "out because their labels close only after the next split begins (split.embargo); "
            "change pipeline.split or pipeline.hold_back, or bring more data"
        )
    for name in ("validation", "test"):
        if not splits.get(name):
            _log.warning("the %s split is empty", name)
