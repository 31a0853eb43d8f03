"""The account of a run: every row that went in and every example that came out.

    rows in  = impressions kept + feedback attributed + orphans + late + duplicates + rejects
               + held back + dropped + outside (look-back and other runs) + forgotten + collapsed
               + after the cut-off
    examples = impressions kept + sampled negatives - negatives left out by `downsample`
               - impressions left out by the embargo

The job does not publish unless both sums hold.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from multigate.configs import Config, DataError
from multigate.configs.sections.log import JsonLinesFormat
from multigate.configs.sections.nearest import did_you_mean, listed
from multigate.configs.storage import Place
from multigate.pipeline.compute import tables
from multigate.pipeline.core.columns import event_types
from multigate.pipeline.core.facts import RunFacts, ShardFacts
from multigate.pipeline.read import drift, log_end
from multigate.pipeline.read.inputs import roles, wanted_columns

NO_TIME = "time: expected"
"""How the reason of a row begins whose time cannot be read."""

_FEWEST_ADVICE, _SHARE_ADVICE = 10, 0.001
_SHARE_DROPPED = 0.01


def problem(
    config: Config, shards: Sequence[ShardFacts], out: Place, some_days: bool = False
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
        return missing.message
    if rows == 0:
        return f"{files}: the log has no rows"
    changed = drift.changed_type(config, shards)
    if changed is not None:
        return changed
    reasons = _reasons(shards)
    rejects = sum(reasons.values())
    allowed = config.pipeline.max_reject_rate
    if rejects > allowed * rows:
        reason, times = reasons.most_common(1)[0]
        hint = _time_hint(config, shards) if reason.startswith(NO_TIME) else ""
        return (
            f"{files}: {rejects} of {rows} rows were rejected ({rejects / rows:.1%}; "
            f"pipeline.max_reject_rate allows {allowed:.1%}), most often {times} times: {reason}"
            f"{hint}; look at {rejects_beside(out)}"
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


def _time_hint(config: Config, shards: Sequence[ShardFacts]) -> str:
    """The first value that is no time, and the key that says how times are read."""
    for shard in shards:
        if shard.bad_time is not None:
            where = "pipeline.log.feedback" if shard.feedback else "pipeline.log"
            unit = roles(config, shard.feedback)[1]
            return f"; received {shard.bad_time!r}, and {where}.time_unit is {unit}"
    return ""


@dataclass(frozen=True)
class MissingColumn:
    """A column that the configuration reads and the log lacks."""

    name: str
    message: str


def missing_column(
    config: Config, shards: Sequence[ShardFacts], some_days: bool = False
) -> MissingColumn | None:
    """Find the first column that the log lacks.

    A file must have every column but those of features that may be missing; in JSON, a name may be
    absent from many rows, even from whole files. A name must not be absent from all files; of some
    days' files only what every file must have, in JSON only time, user and item.
    """
    for feedback in (False, True):
        asked = [s for s in shards if s.columns and s.feedback == feedback]
        wanted = wanted_columns(config, feedback)
        optional = drift.optional_columns(config, feedback)
        columns, _ = roles(config, feedback)
        always = {columns.time, columns.user, columns.item}
        for shard in asked:
            lines = isinstance(drift.form_of(config, shard), JsonLinesFormat)
            for name in [] if lines else wanted:
                if name not in shard.columns and name not in optional:
                    return _no_column(name, shard)
        together = tuple(dict.fromkeys(name for shard in asked for name in shard.columns))
        for name in wanted:
            needed = name in always or not some_days
            if asked and needed and name not in together:
                return _no_column(name, replace(asked[0], columns=together))
    return None


def _no_column(name: str, shard: ShardFacts) -> MissingColumn:
    hint = did_you_mean(name, shard.columns)
    message = f"{shard.file}: no column {name!r}; {hint}the file has {listed(shard.columns)}"
    return MissingColumn(name, message)


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


def _without_side_row(config: Config, counts: Mapping[str, int]) -> list[str]:
    """Say how much of the log the side tables do without, and how to keep it."""
    shown = counts["impressions"] + counts["dropped"]
    if counts["dropped"] <= _SHARE_DROPPED * shown:
        return []
    names = [name for source in ("users", "items") for name in tables.required(config, source)]
    return [
        f"{counts['dropped']:,} of {shown:,} impressions are left out, because a side table has no "
        f"value of {', '.join(names)} for them: complete the table, or let the feature be missing "
        "(missing: indicator)"
    ]


def rejects_beside(out: Place) -> Place:
    """Where a failed run leaves its rejects."""
    return out.with_name(f"{out.name}.rejects")


def _reasons(shards: Sequence[ShardFacts]) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for shard in shards:
        reasons.update(shard.reasons)
    return reasons


def build(
    config: Config,
    facts: RunFacts,
) -> dict[str, Any]:
    """Build the manifest from all facts.

    Args:
        config: names the run.
        facts: what was read by file, what became of the rows and what was written, by bucket.

    Raises:
        DataError: rows or examples do not add up: a defect of the pipeline, not of the log.
    """
    of_rows = Counter(
        _add_up(asdict(fact.counts) for fact in facts.labelled)
    )  # 0 where no row is left
    of_samples = facts.sampled
    shards, cut_off = facts.log.shards, facts.log.verdict.cut_off
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
    for fact in facts.finished:
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
        "split": config.pipeline.split.model_dump(mode="json"),
        "rows": counts,
        "examples": examples,
        "labels": {
            "open": _add_up(fact.open for fact in facts.labelled),
            "embargoed": {
                name: _add_up(fact.embargoed.get(name, {}) for fact in of_samples)
                for name in dict.fromkeys(n for fact in of_samples for n in fact.embargoed)
            },
        },
        "rejected": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "files": dict(sorted(files.items())),
        "damaged": [asdict(shard.damage) for shard in shards if shard.damage is not None],
        "advice": [
            *advice(shards),
            *drift.absent_columns(config, shards),
            *_without_side_row(config, counts),
        ],
    }


def _add_up(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
