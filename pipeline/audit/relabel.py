"""Labels of single impressions, computed again one event at a time: for the audit.

Written from docs/labels.md alone: nothing is shared with the job's labels but the configuration.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from multigate.configs import Config
from multigate.configs.sections.labels import (
    ColumnLabel,
    DwellLabel,
    EventLabel,
    ImpressionLabel,
    LabelRule,
    Task,
)
from multigate.configs.sections.log import EventLog, Log
from multigate.pipeline.audit.recompute import Row, owners
from multigate.pipeline.core.columns import COLUMN, KNOWN

Labels = dict[str, float | None]


def labels_of(impression: Row, own: list[Row], config: Config) -> Iterator[Labels]:
    """Label a kept impression.

    Args:
        impression: one of `own`.
        own: the user's events, see `recompute.events_of`.
        config: the tasks.

    Yields:
        Labels by task before any mask. Twice where another impression of the item has the same
        time: one of the two has the feedback of both, and which one a hash decides.
    """
    log, pair = config.pipeline.log, [e for e in own if e["item"] == impression["item"]]
    feedback: list[Row] = []
    tied: list[Row] = []
    if isinstance(log, EventLog):
        shown = [event for event in pair if event["event"] == log.impression]
        for event in pair:
            found = [] if event["event"] == log.impression else owners(event, shown, config)
            if any(one is impression for one in found):
                (feedback if len(found) == 1 else tied).append(event)
    for events in ([*feedback, *tied], feedback)[: 2 if tied else 1]:
        values = {
            name: _value(task.label, impression, events, own, log)
            for name, task in config.contract.tasks.items()
        }
        yield finished(values, config)


def finished(values: Labels, config: Config) -> Labels:
    """Apply clip, at_least, without and when to the rules' values."""
    tasks, labels = config.contract.tasks, dict[str, float | None]()

    def label(name: str) -> float | None:
        if name not in labels:
            labels[name] = _finish(tasks[name], values[name], label)
        return labels[name]

    return {name: label(name) for name in tasks}


def _finish(task: Task, value: float | None, label: Callable[[str], float | None]) -> float | None:
    if value is not None and task.clip is not None:
        value = min(max(value, task.clip[0]), task.clip[1])
    if value is not None and task.at_least is not None:
        value = float(value >= task.at_least)
    elif value is not None and task.type == "binary":
        value = float(value > 0)
    if value is not None and task.without is not None and label(task.without) == 1:
        value = 0.0
    if task.when is not None and label(task.when) != 1:
        value = None
    return value


def closes_after(name: str, config: Config) -> timedelta:
    """How long after its impression a label may still change."""
    task, log = config.contract.tasks[name], config.pipeline.log
    rule = task.label
    waits = [timedelta(0)]
    if isinstance(rule, EventLabel):
        limits = [
            limit for limit in (rule.within, config.pipeline.attribution) if limit is not None
        ]
        waits += [min(limits)] if limits else []
    elif isinstance(rule, DwellLabel):
        waits.append(rule.within or max(rule.cap, timedelta(days=1)))
    elif not isinstance(rule, ImpressionLabel) and not isinstance(log, EventLog):
        waits.append(log.known_after or timedelta(0))
    waits += [closes_after(other, config) for other in (task.without, task.when) if other]
    return max(waits)


def _value(
    rule: LabelRule, impression: Row, feedback: list[Row], own: list[Row], log: Log
) -> float | None:
    if isinstance(rule, ImpressionLabel):
        return 1.0
    if isinstance(rule, DwellLabel):
        return dwell(rule, impression, own)
    if isinstance(rule, EventLabel):
        return _of_events(rule, impression["time"], feedback)
    if any(_known_late(column, impression, log) for column in rule.columns):
        return None
    if isinstance(rule, ColumnLabel):
        value: float | None = impression[COLUMN + rule.column]
        return value
    return _over(impression[COLUMN + rule.column], impression[COLUMN + rule.over])


def _known_late(column: str, impression: Row, log: Log) -> bool:
    """Whether a column of the impression's row was filled after its label had closed."""
    if isinstance(log, EventLog) or log.known_after is None or column not in log.known_at:
        return False
    known, time = impression[KNOWN + log.known_at[column]], impression["time"]
    return None not in (known, time) and known > time + log.known_after


def _of_events(rule: EventLabel, time: datetime, feedback: list[Row]) -> float | None:
    counting = [
        event
        for event in feedback
        if event["event"] in rule.events
        and (rule.within is None or event["time"] - time <= rule.within)
    ]
    if rule.aggregate == "presence":
        return float(bool(counting))
    if rule.aggregate == "count":
        return float(len(counting))
    values = [
        event["value"] if rule.over is None else _over(event["value"], event[COLUMN + rule.over])
        for event in counting
    ]
    given = [value for value in values if value is not None]
    if not given:
        return None
    return sum(given) if rule.aggregate == "sum" else max(given)


def _over(value: float | None, divisor: float | None) -> float | None:
    return value / divisor if value is not None and divisor is not None and divisor > 0 else None


def dwell(rule: DwellLabel, impression: Row, own: list[Row]) -> float | None:
    """Seconds to the next event of the session that ends the dwell; None where none does."""
    within = rule.within or max(rule.cap, timedelta(days=1))
    gaps = [
        event["time"] - impression["time"]
        for event in own
        if impression["session"] is not None
        and event["session"] == impression["session"]
        and None not in (event["time"], impression["time"])
        and event["time"] > impression["time"]
        and _ends(rule, event, impression)
    ]
    if not gaps or min(gaps) > within:
        return None
    return min([*gaps, rule.cap]).total_seconds()


def _ends(rule: DwellLabel, event: Row, impression: Row) -> bool:
    same_item = event["item"] == impression["item"]
    if same_item and event["repeated"]:
        return False
    if rule.ends == "other_item":
        return not same_item
    return rule.ends == "any" or event["event"] in rule.ends
