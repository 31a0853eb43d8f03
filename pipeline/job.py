"""The job: plans a run, has Beam run its transforms, and publishes a folder of examples.

`transforms` wires the stages. This process only finds files, reads the side tables to check them
before the work, and writes the manifest last.
"""

import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from multigate.configs import Config, DataError, progress
from multigate.configs.examples_store import new_examples
from multigate.configs.files import (
    ExamplesFolder,
    new_part,
    refuse_existing,
    remove_partial,
    write_json,
)
from multigate.configs.statistics import Statistics
from multigate.configs.storage import Place, place
from multigate.pipeline.compute import tables, totals
from multigate.pipeline.core import stage_bar
from multigate.pipeline.core.columns import check, counters
from multigate.pipeline.core.facts import RunFacts
from multigate.pipeline.core.runner import import_beam, local_options, plain_failures
from multigate.pipeline.plan import Plan, compress_rows, count_buckets
from multigate.pipeline.read import erasure, inputs
from multigate.pipeline.read.sources import Shard
from multigate.pipeline.shuffle.parcel import Carrier, InBeam, LocalFiles, Parcel
from multigate.pipeline.stages import reading
from multigate.pipeline.stages import records as stage_records
from multigate.pipeline.window import needed, plan_window
from multigate.pipeline.write import data_report, manifest

_LOCAL_RUNNERS = {
    "LocalRunner",
    "FnApiRunner",
    "DirectRunner",
    "SwitchingDirectRunner",
    "PrismRunner",
}

_PARTS = "part-*.parquet"

Tables = dict[str, Callable[[], Parcel | None]]
"""What makes the parcel of a side table."""

_log = logging.getLogger(__name__)


def run(
    config: Config,
    data: Place | str,
    out: Place | str,
    options: list[str] | None = None,
    *,
    span: tuple[datetime, datetime] | None = None,
    forget: Place | None = None,
    previous: Place | None = None,
    shuffle: Literal["files", "beam"] | None = None,
) -> dict[str, Any]:
    """Make examples from a log.

    Args:
        config: the log, the contract and the split.
        data: the folder that holds the log's files: a local path, or an address such as
            `s3://bucket/logs`.
        out: the folder to make, local or at an address; see `configs.files.ExamplesFolder` and
            `configs.examples_store`.
        options: Beam's own options, such as `--runner=FlinkRunner`.
        span: make only the examples whose labels close between these two instants, and read only
            what they need; see `window`.
        forget: ids of users to forget, one a line, beside those of `pipeline.forget`.
        previous: the previous run's folder of examples, for the drift in `report.json`, and for
            the totals that the counters of a run of some days go on from.
        shuffle: how rows travel between stages: through `files` on this machine's disk, or through
            `beam`, so that workers share nothing but the input and the output. By default files on
            Beam's local runner and Beam on every other.

    Returns:
        The manifest, as in `manifest.json`.

    Raises:
        ConfigError: the contract does not fit the log's shape.
        DataError: the log cannot be used, or `out` exists. Nothing is left of `out`; rejects,
            where there are too many, are left in `<out>.rejects`.
    """
    check(config)
    data, out = place(data), place(out)
    priors: dict[str, float] = {}
    if previous is not None:
        data_report.read(previous)  # before the work, not after it
        statistics = ExamplesFolder(previous).statistics
        priors = Statistics.read(statistics).priors if statistics.is_file() else {}
    log = config.pipeline.log
    forgotten = erasure.read_list(config, data, forget)
    before = None
    if span is not None and previous is not None:
        before = totals.find(config, previous, span[0], forgotten)
    window = None
    if span is not None:
        window = plan_window(config, *span, None if before is None else before.as_of)
    shards = inputs.shards(config, data)
    skipped = len(shards)
    if window is not None:
        shards = needed(shards, window, config)
    skipped -= len(shards)
    if not shards:
        raise DataError(f"{data}: no folder {log.partition}=... holds a day of this span")
    shards = inputs.divide_log(config, shards)
    options = options or local_options()
    usual = default_shuffle(options)
    local = (shuffle or usual) == "files"
    buckets = count_buckets(config, shards)
    if isinstance(out, Path):
        refuse_existing(out)  # before users' functions run for an hour
    sides = {
        source: tables.read_table(config, data, source, forgotten) for source in ("users", "items")
    }
    identity = None
    if local:
        vectors = [tables.digest(config, source, table) for source, table in sides.items()]
        made_of = (out, window, buckets, priors, vectors)
        identity = stage_records.identity(config, data, shards, forgotten, before, *made_of)
    with new_examples(out, identity) as made:
        if made.resumed:
            _log.warning("%s: going on with a run that was killed", out)
        carrier: Carrier = InBeam()
        if local:
            carrier = LocalFiles(made.work / "rows", compressed=compress_rows(shards))
            carrier.folder.mkdir(exist_ok=True)
        # Workers on this machine need no store between them and this process.
        folder = made.local if local else made.shared
        finished = made.work / "stages" if identity is not None else None
        plan = Plan(config, folder, out, buckets, carrier, window, finished, priors)
        small = _small_tables(plan, _absolute(data), sides, forgotten, before)
        with _bar(plan, len(shards), here=usual == "files"):
            _run_beam(shards, plan, small, options)
        facts = RunFacts.read(plan.facts)
        plan.facts.unlink()
        if not local:
            made.keep()
        remove_partial(made.local)
        problem = facts.log.verdict.problem
        if problem is not None:
            if str(manifest.rejects_beside(out)) in problem:
                _leave_rejects(plan.examples.rejects, out)  # the message sends the user there
            absent = facts.log.verdict.absent
            raise DataError(problem + ("" if absent is None else tables.hint(config, data, absent)))
        account = manifest.build(config, facts)
        if window is not None:
            account["window"] = {
                "begin": None if window.begin is None else window.begin.isoformat(),
                "first": window.first.isoformat(),
                "since": window.since.isoformat(),
                "end": window.end.isoformat(),
                "files_skipped": skipped,
            }
        counted = totals.identity(config, forgotten)
        totals.finish(plan, made.local, facts.log.verdict.cut_off, before, counted)
        _check_splits(account, config, some_days=window is not None)
        reading.write_no_rejects(plan, made.local)
        lists = data_report.add_lengths(fact.lengths for fact in facts.finished)
        report = data_report.report(config, plan.examples, account, lists, previous)
        write_json(ExamplesFolder(made.local).report, report)
        made.complete(account)
    for line in report["advice"]:
        _log.warning("%s", line)
    return account


def _bar(plan: Plan, shards: int, *, here: bool) -> AbstractContextManager[object]:
    """The run's bar; without counts where stages do not run `here`, on this machine."""
    if not here:
        return progress.bar("examples")
    config = plan.config
    return stage_bar.drawn(
        shards,
        plan.buckets,
        plan.item_buckets,
        negatives=config.pipeline.negatives is not None,
        counters=bool(counters(config, "item")),
    )


def default_shuffle(options: list[str]) -> Literal["files", "beam"]:
    """The default of `shuffle`: files if all workers are on this machine, else Beam."""
    _, pipeline_options = import_beam()
    runner = pipeline_options(options).get_all_options().get("runner") or "DirectRunner"
    return "files" if runner.rpartition(".")[2] in _LOCAL_RUNNERS else "beam"


def _small_tables(
    plan: Plan,
    data: Place,
    sides: dict[str, pl.DataFrame | None],
    forgotten: pl.Series | None,
    before: totals.Found | None,
) -> Tables:
    """The functions that make the side tables' parcels; takes the tables out of `sides`.

    Where rows travel through Beam, workers read the tables again: a table within the job's
    description would make it too large to submit.
    """
    found: Tables = {}
    if forgotten is not None:
        parcel = plan.carrier.whole(forgotten.to_frame("user"), "forgotten", 0)
        found["forgotten"] = partial(_given, parcel)
    for source in list(sides):
        table = sides.pop(source)
        if table is not None and isinstance(plan.carrier, LocalFiles):
            found[source] = partial(_given, _parcel(plan, source, table))
        elif table is not None:
            found[source] = partial(_read_table, plan, data, source, forgotten)
        if before is not None and totals.since_of(plan) is not None:
            found[f"totals/{source}"] = partial(_read_totals, plan, before, source)
    return found


def _absolute(data: Place) -> Place:
    """The data's place, independent of the working directory."""
    return data.absolute() if isinstance(data, Path) else data


def _given(parcel: Parcel) -> Parcel:
    return parcel


def _read_table(plan: Plan, data: Place, source: str, forgotten: pl.Series | None) -> Parcel | None:
    table = tables.read_table(plan.config, data, source, forgotten)
    return None if table is None else _parcel(plan, source, table)


def _parcel(plan: Plan, source: str, table: pl.DataFrame) -> Parcel:
    # A kind of its own: buckets of users hand on parcels of the kind `users`.
    return plan.carrier.whole(table, f"table/{source}", 0)


def _read_totals(plan: Plan, before: totals.Found, source: str) -> Parcel:
    return plan.carrier.whole(before.rows(source), f"totals/{source}", 0)


def _run_beam(
    shards: list[Shard],
    plan: Plan,
    small: Tables,
    options: list[str],
) -> None:
    beam, pipeline_options = import_beam()
    from multigate.pipeline import transforms

    with plain_failures(), beam.Pipeline(options=pipeline_options(options)) as pipeline:
        transforms.build(pipeline, shards, plan, small)


def _leave_rejects(rejects: Place, out: Place) -> None:
    """Keep the rejects of a failed run beside its output folder, which does not exist."""
    beside = manifest.rejects_beside(out)
    found: list[Any] = list(rejects.glob(_PARTS))
    if found:
        for old in beside.glob(_PARTS):
            old.unlink()
    for path in found:
        with path.open("rb") as source, new_part(beside / path.name) as part, part.open("wb") as to:
            shutil.copyfileobj(source, to)


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
