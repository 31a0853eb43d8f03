"""A feature store as a request sees it: as of now, and with what unknown ids have.

Counters, rates and histories stay as of the cut-off.  Times `since` an event, ages, and those of a
history's entries grow with the clock, as they would in the pipeline if nothing new happened.  An id
that is not in the log had no events and no labels: as in the pipeline, its counts are 0, its rates
are their priors, and its other features are missing.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np

from multigate.configs.contract import Contract, IdListFeature, NumberFeature
from multigate.serving.core.tracing import current
from multigate.serving.feature_store.crosses import Crosses
from multigate.serving.feature_store.interface import (
    Column,
    FeatureAnswer,
    FeatureQuery,
    FeatureStore,
    all_present,
)


class OnlineFeatures:
    """A feature store as a request sees it: as of now, with counts and priors for unknown ids."""

    def __init__(
        self,
        contract: Contract,
        store: FeatureStore,
        clock: Callable[[], float] | None = time.time,
        observe: Callable[[FeatureAnswer, float], None] = lambda stored, seconds: None,
    ) -> None:
        """Wrap a store.

        Args:
            contract: describes the features.
            store: holds the features as of the cut-off.
            clock: seconds since 1970; None keeps all times as of the cut-off.
            observe: called with every answer and its seconds.
        """
        self._store = store
        self.remote = store.remote
        self._observe = observe
        self._crosses = Crosses(contract)
        self._clock = clock
        self._advancing = {
            name: None if feature.since is None else feature.since.within
            for name, feature in contract.features.items()
            if isinstance(feature, NumberFeature) and (feature.since or feature.age)
        }
        self._ages = [
            name
            for name, feature in contract.features.items()
            if isinstance(feature, IdListFeature) and feature.is_age
        ]
        self._counted = [
            name
            for name, feature in contract.features.items()
            if isinstance(feature, NumberFeature) and (feature.count or feature.label_count)
        ]

    def read(self, query: FeatureQuery) -> FeatureAnswer:
        """Look up features, as of now."""
        started = time.perf_counter()
        answer = self._store.read(self._crosses.stored(query))
        ended = time.perf_counter()
        self._observe(answer, ended - started)
        if (trace := current()) is not None:
            trace.add("store", started, ended, problem=answer.problem)
        counted = {
            name: Column(column.values, all_present(len(column.present)))
            for name in self._counted
            if (column := answer.columns.get(name)) is not None
        }
        rated = {
            name: _filled(column, prior)
            for name, prior in answer.priors.items()
            if (column := answer.columns.get(name)) is not None
        }
        made = self._crosses.answer(query, answer)
        answer = replace(answer, columns={**answer.columns, **counted, **rated, **made})
        if self._clock is None or answer.cut_off is None:
            return answer
        passed = max(self._clock() - answer.cut_off, 0.0)
        advanced = {
            name: advance(answer.columns[name], passed, within)
            for name, within in self._advancing.items()
            if name in answer.columns
        }
        advanced |= {
            name: replace(column, values=column.values + int(passed))
            for name in self._ages
            if (column := answer.columns.get(name)) is not None
        }
        return replace(answer, columns={**answer.columns, **advanced})

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _filled(column: Column, value: float) -> Column:
    """A column of numbers with a value in place of missing ones."""
    if column.count() == len(column.present):
        return column
    values = np.where(column.present, column.values, np.float32(value))
    return Column(values, all_present(len(values)))


def advance(column: Column, seconds: float, within: timedelta | None = None) -> Column:
    """Move times since an event forward, as if nothing happened in between.

    Args:
        column: seconds since the event.
        seconds: how much later it is now.
        within: the value becomes missing once the event is longer ago than this.
    """
    later = column.values.astype(np.float64) + seconds
    limit = np.inf if within is None else within.total_seconds()
    present = column.present & (later <= limit)
    return replace(column, values=np.where(present, later, 0).astype(np.float32), present=present)
