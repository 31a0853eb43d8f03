"""The audit of features over past labels: computed again, one label at a time."""

import math
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from multigate.configs import Config, Statistics
from multigate.configs.contract import LabelCount, LabelCounter
from multigate.configs.files import LABEL, SAMPLED, TIME, ExamplesFolder
from multigate.configs.sections.labels import (
    ColumnLabel,
    DwellLabel,
    ImpressionLabel,
    RatioLabel,
    Task,
)
from multigate.configs.sections.log import EventLog
from multigate.pipeline.audit.recompute import Row, groups
from multigate.pipeline.audit.relabel import closes_after, labels_of
from multigate.pipeline.compute.tables import SINCE
from multigate.pipeline.core.columns import COLUMN, FEATURE, KNOWN

_MOST = 10_000  # sums that ties leave open; with more, nothing is checked

Counts = Callable[[datetime, datetime], bool]
"""Whether a label counts, by its impression's time and the instant at which it closes."""


def needs_whole_users(config: Config) -> bool:
    """Whether items' features read dwells, which any event of a user may end."""
    contract = config.contract
    return any(
        isinstance(contract.tasks[name].label, DwellLabel)
        for rule in contract.label_counters().values()
        if rule.of == "item"
        for name in contract.depends_on(rule.task)
    )


class AuditedRates:
    """The features over past labels of any example, from the events of the log.

    Args:
        config: names the features.
        events: see `recompute.events_of`; of all users of the sample's items, all that their
            labels read.
        priors: by feature, as the run recorded them.
        items: the items' side table, where there is one.
    """

    def __init__(
        self,
        config: Config,
        events: list[Row],
        priors: dict[str, float],
        items: pl.DataFrame | None,
    ) -> None:
        self._config, self._priors = config, priors
        self._items = {} if items is None else groups(items.to_dicts(), config.contract.item)
        log = config.pipeline.log
        shown = [e for e in events if not isinstance(log, EventLog) or e["event"] == log.impression]
        self._shown = {key: groups(shown, key) for key in ("user", "item")}
        self._read: dict[Any, list[Row]] = defaultdict(list)
        for event in events:
            self._read[event["user"], "item", event["item"]].append(event)
            if event.get("session") is not None:
                self._read[event["user"], "session", event["session"]].append(event)
        self._labels: dict[int, list[dict[str, float | None]]] = {}

    def problem(self, name: str, rule: LabelCounter, row: Row) -> str | None:
        """Say what is wrong with an example's value of a feature, if anything is."""
        time, found = row[TIME], row[name]
        possible = self._values(name, rule, row, lambda _, closes: closes < time)
        if _among(found, possible):
            return None
        assert possible is not None
        return (
            f"expected {min(possible)!r} from the labels that had closed before {time}, received "
            f"{found!r}{self._leak(name, rule, row)}"
        )

    def _leak(self, name: str, rule: LabelCounter, row: Row) -> str:
        """Name the leak that explains a wrong value, for the message."""
        time, found = row[TIME], row[name]
        leaks: list[tuple[str, Counts, bool]] = [
            ("labels that closed at that very time", lambda _, closes: closes <= time, False),
            ("labels that had not closed by then", lambda shown, _: shown < time, False),
            ("labels of that time, its own among them", lambda shown, _: shown <= time, False),
            ("labels of that time or later", lambda shown, _: True, False),
            (
                "labels of repeated impressions, which collapse leaves out",
                lambda _, closes: closes < time,
                True,
            ),
        ]
        for what, counts, repeated in leaks:
            if _among(found, self._values(name, rule, row, counts, repeated=repeated)):
                return f"; it counts {what}"
        return ""

    def _values(
        self, name: str, rule: LabelCounter, row: Row, counts: Counts, *, repeated: bool = False
    ) -> set[float] | None:
        """The values that the feature may have: one, or several where ties leave them open.

        None where there are too many of them.
        """
        contract, since = self._config.contract, datetime.min
        task, wait = contract.tasks[rule.task], closes_after(rule.task, self._config)
        if rule.within is not None:
            since = row[TIME] - rule.within
        of = "item" if rule.of == "item" else "user"
        key = row[contract.item if of == "item" else contract.user]
        recent = self._recent(rule, row, wait, counts)
        sure: list[float] = []
        open_: list[list[float | None]] = []
        for event in self._shown[of][key]:
            closes = event["time"] + wait
            if event["repeated"] and not repeated:
                continue
            if recent is not None and self._category(rule, event) not in recent:
                continue
            if closes < since or not counts(event["time"], closes):
                continue
            if not self._known(rule.task, event):
                continue
            labels = [_transformed(found[rule.task], task) for found in self._labels_of(event)]
            if len(set(labels)) > 1:
                open_.append(labels)
            elif labels[0] is not None:
                sure.append(labels[0])
        totals = {(math.fsum(sure), len(sure))}
        for labels in open_:
            totals = {
                (total + (label or 0.0), count + (label is not None))
                for total, count in totals
                for label in labels
            }
            if len(totals) > _MOST:
                return None
        if isinstance(rule, LabelCount):
            return {float(count) for _, count in totals}
        prior = self._priors[name]
        return {(t + rule.strength * prior) / (n + rule.strength) for t, n in totals}

    def _recent(
        self, rule: LabelCounter, row: Row, wait: timedelta, counts: Counts
    ) -> set[Any] | None:
        """The candidate's category if it is one of the user's most recent; None without a cross."""
        if rule.category is None:
            return None
        latest: dict[Any, datetime] = {}
        for event in self._shown["user"][row[self._config.contract.user]]:
            category = self._category(rule, event)
            if category is None or event["repeated"]:
                continue
            if counts(event["time"], event["time"] + wait):
                latest[category] = max(event["time"], latest.get(category, event["time"]))
        ordered = sorted(latest, key=lambda category: (latest[category], category))
        return {row[rule.category]} & set(ordered[-rule.most :])

    def _category(self, rule: LabelCounter, event: Row) -> Any:
        """The category of an impression, as its example holds it."""
        name = str(rule.category)
        if self._config.contract.features[name].source == "log":
            return event[FEATURE + name]
        known: Row = {}
        for candidate in self._items.get(event["item"], []):  # in the order of time
            since = candidate.get(SINCE)
            if since is None or since.replace(tzinfo=None) <= event["time"]:
                known = candidate
        return known.get(name)

    def _labels_of(self, event: Row) -> list[dict[str, float | None]]:
        """All labels that an impression may have, before any mask of the run."""
        if id(event) not in self._labels:
            user, read = event["user"], self._read
            own = [*read[user, "item", event["item"]]]
            if event.get("session") is not None:
                same = read[user, "session", event["session"]]
                own += [other for other in same if other["item"] != event["item"]]
            self._labels[id(event)] = list(labels_of(event, own, self._config))
        return self._labels[id(event)]

    def _known(self, name: str, event: Row) -> bool:
        """Whether the columns above zero that a label is made of were ever known."""
        task, log = self._config.contract.tasks[name], self._config.pipeline.log
        if isinstance(task.label, ColumnLabel | RatioLabel) and not isinstance(log, EventLog):
            for column in task.label.columns:
                at = log.known_at.get(column)
                if at and (event[COLUMN + column] or 0) > 0 and event[KNOWN + at] is None:
                    return False
        return all(self._known(other, event) for other in (task.without, task.when) if other)


def _transformed(label: float | None, task: Task) -> float | None:
    if label is None or task.transform != "log1p":
        return label
    return math.log1p(max(label, 0.0))


def _among(found: Any, possible: set[float] | None) -> bool:
    if possible is None:
        return True
    return found is not None and any(
        math.isclose(found, value, rel_tol=1e-6, abs_tol=1e-7) for value in possible
    )


def wrong_prior(config: Config, folder: ExamplesFolder) -> str | None:
    """Name a prior of the run that differs from what docs/labels.md says, if there is one.

    A mean is not checked where the examples hold only a part of the labels that it is of
    (`downsample`, rule `impression`).
    """
    recorded, contract = Statistics.read(folder.statistics).priors, config.contract
    frame = pl.scan_parquet(folder.split("train") / "*.parquet").filter(~pl.col(SAMPLED))
    for name, rule in contract.label_counters().items():
        if isinstance(rule, LabelCount):
            continue
        task, found = contract.tasks[rule.task], recorded.get(name)
        expected, what = rule.prior, "the prior that the configuration names"
        if expected is None:
            if config.pipeline.downsample is not None or isinstance(task.label, ImpressionLabel):
                continue
            label = pl.col(LABEL + rule.task).cast(pl.Float64)
            if task.transform == "log1p":
                label = label.clip(lower_bound=0).log1p()
            expected = frame.select(label.mean()).collect().item()
            if expected is None:  # of the run before, if there was one
                continue
            what = f"the mean of label {rule.task!r} over the training split"
        if found is None or not math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-7):
            return f"priors: feature {name!r}: expected {expected!r}, {what}, received {found!r}"
    return None
