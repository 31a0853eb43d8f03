"""The audit of labels: their values, and whether they had closed in time."""

import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.files import LABEL, SAMPLED, SPLITS, TIME, ExamplesFolder
from multigate.configs.sections.labels import DwellLabel, ImpressionLabel
from multigate.configs.sections.log import EventLog
from multigate.configs.sections.pipeline import TimeSplit
from multigate.pipeline.audit.recompute import Row, Times, plain
from multigate.pipeline.audit.relabel import Labels, closes_after, dwell, finished, labels_of
from multigate.pipeline.compute.tables import required

_MICROSECOND = timedelta(microseconds=1)

SHARED_IDS = (
    "; it leaves out an event as a duplicate whose event id is that of another event: impressions "
    "and feedback that has files of its own share no ids"
)
"""The hint where the ids of impressions and of feedback were taken for one space."""


@dataclass(frozen=True)
class Instants:
    """What the folder says of its run; times without a zone, in UTC."""

    cut_off: datetime | None
    """Up to when the log is whole; None where no event has a time."""
    begins: dict[str, datetime]
    """By split (`train`, `validation`): when the next one begins, at the latest."""
    ends: dict[str, datetime]
    """By split (`train`, `validation`): when the next one begins, at the earliest."""
    some_days: bool
    """Whether it is a run of some days, which holds the labels that close in them."""

    @classmethod
    def read(cls, config: Config, folder: ExamplesFolder) -> "Instants":
        """Read the manifest, and when each split's impressions were.

        Raises:
            DataError: there is no manifest.
        """
        try:
            manifest = json.loads(folder.manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder.manifest}: cannot be read: {error}; audit a folder that the job wrote"
            ) from None
        cut_off, split = manifest["cut_off"], config.pipeline.split
        begins, ends = {}, {}
        if isinstance(split, TimeSplit):
            for name, following in itertools.pairwise(SPLITS):
                limit = getattr(split, following)
                if isinstance(limit, datetime):
                    begins[name] = ends[name] = _plain(limit)
                    continue
                first = _times(folder, following).min().collect().item()
                last = _times(folder, name).max().collect().item()
                if first is not None and last is not None:
                    begins[name], ends[name] = first, last
        return cls(
            None if cut_off is None else _plain(datetime.fromisoformat(cut_off)),
            begins,
            ends,
            "window" in manifest,
        )


def _plain(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(tzinfo=None)


def _times(folder: ExamplesFolder, split: str) -> pl.LazyFrame:
    frame = pl.scan_parquet(folder.split(split) / "*.parquet")
    return frame.filter(~pl.col(SAMPLED)).select(plain(TIME))


def wrong_cut_off(config: Config, instants: Instants, times: Times) -> str | None:
    """Say why the run's cut-off is not where the log ends, if it is not.

    Args:
        config: may name the cut-off.
        instants: of the run.
        times: of all events of the log.
    """
    if instants.some_days:
        return None
    given, last, made = config.pipeline.cut_off, times.last(), instants.cut_off
    expected, what = None, "a microsecond after the log's last event"
    if given is not None:
        expected, what = _plain(given), "pipeline.cut_off"
    elif last is not None:
        expected = last + _MICROSECOND
        if made is not None and made < expected:
            return None  # the log has grown since the run
    if made == expected:
        return None
    why, latest = "", times.latest()
    if latest is not None and latest != last and made == latest + _MICROSECOND:
        why = "; a few rows after the log's end moved it"
    return f"expected {expected}, {what}, received {made}{why}"


def missing(
    config: Config, folder: ExamplesFolder, by_user: dict[Any, list[Row]], instants: Instants
) -> str | None:
    """Name an impression of these users that is missing from the examples, if there is one.

    It should where one of its labels had closed in time. Runs that leave out rows for other reasons
    (of some days, `downsample`, required features of side tables) are not checked.

    Args:
        config: the tasks.
        folder: the examples.
        by_user: each user's events, see `recompute.events_of`.
        instants: of the run.
    """
    asked = any(required(config, source) for source in ("users", "items"))
    if instants.some_days or asked or config.pipeline.downsample is not None:
        return None
    contract, log = config.contract, config.pipeline.log
    frames = [pl.scan_parquet(folder.split(name) / "*.parquet") for name in SPLITS]
    users = pl.Series(sorted(by_user)).implode()
    logged = pl.concat(frames).filter(~pl.col(SAMPLED) & pl.col(contract.user).is_in(users))
    names = contract.user, contract.item, plain(TIME)
    made = Counter(logged.select(*names).collect().iter_rows())
    for event in itertools.chain.from_iterable(by_user.values()):
        shown = not isinstance(log, EventLog) or event["event"] == log.impression
        if not shown or event["repeated"] or event["time"] is None:
            continue
        key = event["user"], event["item"], event["time"]
        made[key] -= 1
        closed = [
            name for name in contract.tasks if _in_time(config, name, event["time"], instants)
        ]
        if made[key] < 0 and closed:
            user, item = event["user"], event["item"]
            return (
                f"{event['time']}: no example of user {user!r} and item {item!r}, "
                f"though label {closed[0]!r} had closed in time (hold-back is per task)"
            )
    return None


def _in_time(config: Config, name: str, time: datetime, instants: Instants) -> bool:
    """Whether a label closed before the cut-off and before the next split began."""
    closes = time + closes_after(name, config)
    if config.pipeline.hold_back and (instants.cut_off is None or closes >= instants.cut_off):
        return False
    if not _embargo(config):
        return True
    for split in SPLITS[:2]:
        if split not in instants.ends:
            return False  # nobody knows where it ends
        if time < instants.ends[split]:
            return closes < instants.ends[split]
        if time < instants.begins[split]:
            return False
    return True


def problem(config: Config, row: Row, own: list[Row], instants: Instants) -> str | None:
    """Say what is wrong with an example's labels, if anything is.

    Args:
        config: the tasks.
        row: the example.
        own: its user's events, see `recompute.events_of`.
        instants: of the run.
    """
    if row[SAMPLED]:
        tasks = config.contract.tasks.items()
        zero = {n: 0.0 if isinstance(t.label, ImpressionLabel) else None for n, t in tasks}
        possible = [finished(zero, config)]
    else:
        impressions = _impressions(config, row, own)
        if all(event["repeated"] for event in impressions):
            return "it repeats an impression of the same user and item; collapse leaves it out"
        kept = [event for event in impressions if not event["repeated"]]
        possible = [labels for event in kept for labels in labels_of(event, own, config)]
    for name in config.contract.tasks:
        found = row[LABEL + name]
        if found is None:
            wrong = _masked(config, name, row, possible, instants)
        else:
            wrong = _too_early(config, name, row, instants)
            if wrong is None and not any(_same(labels[name], found) for labels in possible):
                wrong = _hint(config, name, row, own, possible, found)
        if wrong is not None:
            return f"label {name!r}: {wrong}"
    return None


def _impressions(config: Config, row: Row, own: list[Row]) -> list[Row]:
    log = config.pipeline.log
    return [
        event
        for event in own
        if event["item"] == row[config.contract.item]
        and event["time"] == row[TIME]
        and (not isinstance(log, EventLog) or event["event"] == log.impression)
    ]


def _too_early(config: Config, name: str, row: Row, instants: Instants) -> str | None:
    """Say why a label should be masked."""
    if row[TIME] is None:
        return None
    closes, split = row[TIME] + closes_after(name, config), row["split"]
    if config.pipeline.hold_back and instants.cut_off is not None and closes >= instants.cut_off:
        return (
            f"it closes at {closes} and the log ends at {instants.cut_off}: expected none "
            f"(hold-back), received {row[LABEL + name]!r}"
        )
    begins = instants.begins.get(split) if _embargo(config) else None
    if begins is not None and closes >= begins:
        return (
            f"it closes at {closes} and the split after {split} begins at {begins}: expected none "
            f"(embargo), received {row[LABEL + name]!r}"
        )
    return None


def _embargo(config: Config) -> bool:
    split = config.pipeline.split
    return isinstance(split, TimeSplit) and split.embargo


def _masked(
    config: Config, name: str, row: Row, possible: list[Labels], instants: Instants
) -> str | None:
    """Say why a label that is masked should not be."""
    expected = [labels[name] for labels in possible]
    unmatched = isinstance(config.contract.tasks[name].label, ImpressionLabel)
    if row[SAMPLED] or unmatched or instants.some_days or None in expected:
        return None
    if row[TIME] is not None:
        closes = row[TIME] + closes_after(name, config)
        limits = [instants.cut_off] if config.pipeline.hold_back else []
        limits += [instants.ends.get(row["split"])] if _embargo(config) else []
        if any(limit is not None and closes >= limit for limit in limits):
            return None
    return f"it had closed in time: expected {expected[0]!r}, received None"


def _hint(
    config: Config, name: str, row: Row, own: list[Row], possible: list[Labels], found: float
) -> str:
    rule, expected = config.contract.tasks[name].label, possible[0][name]
    why = ""
    apart = [event for event in own if not event["shares_id"]]
    if len(apart) < len(own) and not row[SAMPLED]:
        mixed = [
            one for e in _impressions(config, row, apart) for one in labels_of(e, apart, config)
        ]
        if any(_same(labels[name], found) for labels in mixed):
            why = SHARED_IDS
    if isinstance(rule, DwellLabel) and rule.ends != "any" and not row[SAMPLED]:
        any_event = rule.model_copy(update={"ends": "any"})
        early = [dwell(any_event, event, own) for event in _impressions(config, row, own)]
        if any(_same(seconds, found) for seconds in early):
            why = f"; it ends at an event that does not end it (ends: {rule.ends})"
    return f"expected {expected!r} from what followed the impression, received {found!r}{why}"


def _same(expected: float | None, found: float) -> bool:
    return expected is not None and math.isclose(expected, found, rel_tol=1e-6, abs_tol=1e-9)
