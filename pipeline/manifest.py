"""The account of a run: every row that went in and every example that came out.

    rows in  = impressions kept + feedback attributed + orphans + late + duplicates + rejects
               + held back + dropped + outside (look-back and other runs) + forgotten + collapsed
               + after the cut-off
    examples = impressions kept + sampled negatives - negatives left out by `downsample`
               - impressions left out by the embargo

The job does not publish unless both sums hold.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from multigate.configs import Config, DataError
from multigate.configs.sections.log import JsonLinesFormat
from multigate.pipeline import log_end
from multigate.pipeline.columns import event_types
from multigate.pipeline.facts import FinishFacts, LabelFacts, LogFacts, ShardFacts
from multigate.pipeline.inputs import form, roles, wanted_columns

_FEWEST_ADVICE, _SHARE_ADVICE = 10, 0.001


def problem(
    config: Config, shards: Sequence[ShardFacts], out: Path, some_days: bool = False
) -> str | None:
    """Say what makes the log unusable, once all of it has been read.

    Args:
        config: what the log should hold.
        shards: what `reading.read_shard` said of each file.
        out: the output folder, beside which rejects are left.
        some_days: whether only some days were read: what is rare may be absent from them.

    Returns:
        One line for the user, or None.
    """
    names = sorted({shard.file for shard in shards})
    files = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    rows = sum(shard.rows for shard in shards)
    damaged = _damaged_files(config, shards) or _wrong_unit(config, shards)
    if damaged is not None:
        return damaged
    missing = missing_column(config, shards, some_days)
    if missing is not None:
        return missing
    if rows == 0:
        return f"{files}: the log has no rows"
    reasons = _reasons(shards)
    rejects = sum(reasons.values())
    allowed = config.pipeline.max_reject_rate
    if rejects > allowed * rows:
        reason, times = reasons.most_common(1)[0]
        return (
            f"{files}: {rejects} of {rows} rows were rejected ({rejects / rows:.1%}; "
            f"pipeline.max_reject_rate allows {allowed:.1%}), most often {times} times: {reason}; "
            f"look at {rejects_beside(out)}"
        )
    if rejects == rows:
        return f"{files}: all {rows} rows were rejected; look at {rejects_beside(out)}"
    occurring: Counter[str] = Counter()
    for shard in shards:
        occurring.update(shard.events)
    if some_days:
        return None
    for event, where in event_types(config).items():
        if event not in occurring:
            found = ", ".join(f"{name} ({n})" for name, n in occurring.most_common(20))
            return f"{where}: event type {event!r} never occurs in the log; it holds {found}"
    return None


def missing_column(
    config: Config, shards: Sequence[ShardFacts], some_days: bool = False
) -> str | None:
    """Name the first column that the log lacks.

    A CSV or Parquet file must have every column; in JSON, a name may be absent from many rows,
    even from whole files, but not from all; of some days' files only time, user and item must
    occur.
    """
    for feedback in (False, True):
        asked = [s for s in shards if s.columns and s.feedback == feedback]
        wanted = wanted_columns(config, feedback)
        if isinstance(form(config, feedback), JsonLinesFormat) and asked:
            together = tuple(dict.fromkeys(name for shard in asked for name in shard.columns))
            asked = [replace(asked[0], columns=together)]
            if some_days:
                columns, _ = roles(config, feedback)
                wanted = [columns.time, columns.user, columns.item]
        for shard in asked:
            for name in wanted:
                if name not in shard.columns:
                    found = ", ".join(shard.columns[:40])
                    return f"{shard.file}: no column {name!r}; the file has {found}"
    return None


def _damaged_files(config: Config, shards: Sequence[ShardFacts]) -> str | None:
    damages = [shard.damage for shard in shards if shard.damage is not None]
    names = sorted({damage.file for damage in damages})
    allowed = config.pipeline.max_damaged_files
    if len(names) <= allowed:
        return None
    first = damages[0]
    many = "1 file is" if len(names) == 1 else f"{len(names)} files are"
    others = f"; the others: {', '.join(names[1:10])}" if len(names) > 1 else ""
    return (
        f"{first.file}: {first.reason}; {first.rows} rows were read, lost: {first.lost}{others}; "
        f"{many} damaged or cut off, and pipeline.max_damaged_files allows {allowed}: fetch them "
        "again, or allow them"
    )


def _wrong_unit(config: Config, shards: Sequence[ShardFacts]) -> str | None:
    for feedback in (False, True):
        side = [shard for shard in shards if shard.feedback == feedback]
        problem = log_end.wrong_unit(side, roles(config, feedback)[1])
        if problem is not None:
            return problem
    return None


def advice(shards: Sequence[ShardFacts]) -> list[str]:
    """Say which users and items look like missing values, one line each."""
    rows = sum(shard.rows for shard in shards)
    found: Counter[str] = Counter()
    for shard in shards:
        found.update(shard.null_like)
    return [
        f"{name} has {count} of {rows} rows: if it stands for a missing value, add it to "
        "null_values of the log's format"
        for name, count in sorted(found.items())
        if count >= max(_FEWEST_ADVICE, _SHARE_ADVICE * rows)
    ]


def rejects_beside(out: Path) -> Path:
    """Where a failed run leaves its rejects."""
    return out.with_name(f"{out.name}.rejects")


def _reasons(shards: Sequence[ShardFacts]) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for shard in shards:
        reasons.update(shard.reasons)
    return reasons


def build(
    config: Config,
    log: LogFacts,
    labelled: Sequence[LabelFacts],
    finished: Sequence[FinishFacts],
) -> dict[str, Any]:
    """Add up the account.

    Args:
        config: names the run.
        log: what was read, by file.
        labelled: what became of the rows, by bucket.
        finished: what was written, by bucket.

    Raises:
        DataError: rows or examples do not add up: a defect of the pipeline, not of the log.
    """
    of_rows = Counter(_add_up(asdict(fact.counts) for fact in labelled))  # 0 where no row is left
    of_samples = [fact.sampled for fact in finished]
    shards, cut_off = log.shards, log.verdict.cut_off
    reasons = _reasons(shards)
    unused: Counter[str] = Counter()
    for shard in shards:
        unused.update(shard.unused)
    counts = {
        "rows_in": sum(shard.rows for shard in shards),
        "impressions": of_rows["impressions"],
        "feedback": of_rows["feedback"],
        "orphans": of_rows["orphans"],
        "late": of_rows["late"],
        "duplicates": of_rows["duplicates"],
        "rejects": sum(reasons.values()),
        "held_back": of_rows["held_back"],
        "dropped": of_rows["dropped"],
        "outside": of_rows["outside"] + unused["outside"],
        "forgotten": unused["forgotten"],
        "after_cut_off": unused["after_cut_off"],
        "collapsed": of_rows["collapsed"],
    }
    splits: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for shard in shards:
        files[shard.file] += shard.rows
    for fact in finished:
        splits.update(fact.examples)
    examples: dict[str, Any] = {
        "total": sum(splits.values()),
        "impressions": counts["impressions"],
        "sampled_negatives": sum(fact.negatives for fact in of_samples),
        "negatives_not_kept": sum(fact.not_kept for fact in of_samples),
        "negatives_missing": sum(fact.negatives_missing for fact in of_samples),
        "embargoed": sum(fact.left_out for fact in of_samples),
        "unmatched": sum(fact.unmatched for fact in of_samples),
        "splits": dict(splits),
    }
    accounted = sum(counts.values()) - counts["rows_in"]
    if accounted != counts["rows_in"]:
        raise DataError(f"rows do not add up: {counts['rows_in']} came in, {accounted} accounted")
    made = examples["impressions"] + examples["sampled_negatives"]
    made -= examples["negatives_not_kept"] + examples["embargoed"]
    if made != examples["total"]:
        raise DataError(f"examples do not add up: {made} were made, {examples['total']} written")
    return {
        "name": config.name,
        "cut_off": None if cut_off is None else cut_off.isoformat(),
        "rows": counts,
        "examples": examples,
        "labels": {
            "open": _add_up(fact.open for fact in labelled),
            "embargoed": {
                name: _add_up(fact.embargoed.get(name, {}) for fact in of_samples)
                for name in dict.fromkeys(n for fact in of_samples for n in fact.embargoed)
            },
        },
        "rejected": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "files": dict(sorted(files.items())),
        "damaged": [asdict(shard.damage) for shard in shards if shard.damage is not None],
        "advice": advice(shards),
    }


def _add_up(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
