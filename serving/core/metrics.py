"""Counters, gauges and histograms of the server, read by Prometheus.

Names follow TensorFlow Serving's where the meaning is the same; the others start with multigate.

The text format, the registry and the families are prometheus-client's.  Its own `Counter` and
`Histogram` are not used: they rename `request_count` to `request_count_total`, write bounds as
`1.0` where our dashboards have `1`, and take one number at a time.  CPU time of one call, theirs
and ours: `add` 1.8 and 0.5 us, `observe` 2.3 and 0.5 us, `add_all` of 12 features 21 and 3 us,
`observe_all` of 500 scores 642 and 13 us (docs/serving.md lists the names).
"""

import itertools
import operator
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

_LATENCY = (50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1, 5)
_LAG = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5)
_MICROSECONDS = tuple(round(10 * 1.8**power, 4) for power in range(33))
"""TensorFlow Serving's bounds."""
_EXAMPLES = tuple(2**power for power in range(15))
"""TensorFlow Serving's, too."""
_RUNTIME = "TF1"
"""TensorFlow Serving's word for a session's run, as ours are."""
_ROWS = (1, 2, 5, 10, 25, 50, 100, 200, 400, 800, 1600)
_EXPERTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_MODEL = ("model",)
_RUN = ("model", "signature")
_VERSION = ("model", "version")
_SCORES = tuple(digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5))
_AGREEMENT = (*tuple(round(0.1 * tenth, 1) for tenth in range(1, 10)), 0.95, 0.99)
_LOAD = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)
_SHARES = (0.25, 0.5, 0.75, 0.9)  # of scores; probabilities crowd below 1


class _Metric(Collector):
    """What all kinds share: name, help text, labels and a lock."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._text = text
        self.labels = tuple(labels)
        self._lock = threading.Lock()


class _NumberByLabels(_Metric):
    """One number per combination of label values."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._numbers: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        """Add `by` for these label values."""
        with self._lock:
            self._numbers[values] = self._numbers.get(values, 0) + by

    def forget(self, *first: str) -> None:
        """Remove the samples whose first labels have these values."""
        with self._lock:
            _forget(self._numbers, first)

    def collect(self) -> Iterable[Metric]:
        """The samples, ordered by label values."""
        with self._lock:
            numbers = sorted(self._numbers.items())
        family = self._family()
        for values, number in numbers:
            family.add_metric(values, number)
        return [family]

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        raise NotImplementedError


class Counter(_NumberByLabels):
    """A number that only grows."""

    def add_all(self, value: str, numbers: Mapping[str, float]) -> None:
        """Add each number for the label values (value, its key); takes the lock once."""
        with self._lock:
            for key, by in numbers.items():
                self._numbers[value, key] = self._numbers.get((value, key), 0) + by

    def _family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(self._name, self._text, labels=self.labels)
        if not self._name.endswith("_total"):
            family.name = _NameWithoutTotal(self._name)
        return family


class _NameWithoutTotal(str):
    """A counter's name that stays as it is: prometheus-client appends `_total` to every other."""

    __slots__ = ()

    def __add__(self, suffix: str) -> str:
        return self if suffix == "_total" else str(self) + suffix


class Gauge(_NumberByLabels):
    """A number that moves either way."""

    def set(self, number: float, *values: str) -> None:
        """Replace the number for these label values."""
        with self._lock:
            self._numbers[values] = number

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._name, self._text, labels=self.labels)


class LiveGauge(_Metric):
    """A number without labels that is read when the metrics are."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.read: Callable[[], float] = lambda: 0.0

    def collect(self) -> Iterable[Metric]:
        """The number as it is now."""
        return [GaugeMetricFamily(self._name, self._text, self.read())]


class _Observed:
    """What a histogram knows for one combination of label values."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        """Numbers per bucket, not cumulative; the last bucket has no bound."""
        self.total = 0.0


class Histogram(_Metric):
    """How many numbers fell below each of several bounds, with their count and sum."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._found: dict[tuple[str, ...], _Observed] = {}

    def observe(self, number: float, *values: str) -> None:
        """Record one number for these label values."""
        with self._lock:
            found = self._found.get(values) or self._begin(values)
            found.counts[bisect_left(self._bounds, number)] += 1
            found.total += number

    def observe_all(self, numbers: np.ndarray, *values: str) -> None:
        """Record numbers (N,) for these label values."""
        places = np.searchsorted(self._bounds, numbers)
        counts = np.bincount(places, minlength=len(self._bounds) + 1).tolist()
        with self._lock:
            found = self._found.get(values) or self._begin(values)
            found.counts = list(map(operator.add, found.counts, counts))
            found.total += float(numbers.sum())

    def forget(self, *first: str) -> None:
        """Remove the samples whose first labels have these values."""
        with self._lock:
            _forget(self._found, first)

    def _begin(self, values: tuple[str, ...]) -> "_Observed":
        self._found[values] = _Observed(len(self._bounds) + 1)
        return self._found[values]

    def collect(self) -> Iterable[Metric]:
        """The samples, ordered by label values; buckets are cumulative here."""
        with self._lock:
            found = [
                (values, list(one.counts), one.total) for values, one in sorted(self._found.items())
            ]
        names = [*map(str, self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._text, labels=self.labels)
        for values, counts, total in found:
            cumulative = itertools.accumulate(counts)
            family.add_metric(values, list(zip(names, cumulative, strict=True)), total)
        return [family]


def _forget(samples: dict[tuple[str, ...], Any], first: tuple[str, ...]) -> None:
    """Remove the samples whose label values begin with these."""
    for values in [one for one in samples if one[: len(first)] == first]:
        del samples[values]


class ServerMetrics:
    """All metrics of one server."""

    def __init__(self) -> None:
        self.requests = Counter(
            ":tensorflow:serving:request_count",
            "Answered calls.",
            ["method", "model_name", "status"],
        )
        self.request_latency = Histogram(
            ":tensorflow:serving:request_latency",
            "Time in the handler, in microseconds, by model and by how the call came.",
            _MICROSECONDS,
            ["model_name", "API", "entrypoint", "status"],
        )
        self.runtime_latency = Histogram(
            ":tensorflow:serving:runtime_latency",
            "Time of the runs of a call, in microseconds; a joined run counts for each of its "
            "calls.",
            _MICROSECONDS,
            ["model_name", "API", "runtime"],
        )
        self.example_counts = Histogram(
            ":tensorflow:serving:request_example_counts",
            "tf.Examples of one call of Classify, Regress or MultiInference.",
            _EXAMPLES,
            _MODEL,
        )
        self.example_total = Counter(
            ":tensorflow:serving:request_example_count_total", "tf.Examples of all calls.", _MODEL
        )
        self.calls = Counter(
            "multigate_requests_total",
            "Answered calls by the version and signature that they reached.",
            ["model", "version", "signature", "method", "status"],
        )
        self.spans = Counter(
            "multigate_spans_total",
            "Spans of traced calls: sent, dropped because many waited, failed to be sent.",
            ["result"],
        )
        self.in_flight = LiveGauge(
            "multigate_calls_in_flight", "Calls in flight, of which --max_concurrent_calls may be."
        )
        self.loop_lag = Histogram(
            "multigate_event_loop_lag_seconds",
            "By how much the loop that answers all calls was late, looked at a hundred times a "
            "second.",
            _LAG,
        )
        self.latency = Histogram(
            "multigate_request_seconds", "Time in the handler.", _LATENCY, ["method"]
        )
        self.candidates = Histogram(
            "multigate_candidates", "Candidates of one Rank call.", _ROWS, ["model"]
        )
        self.recommendations = Counter(
            "multigate_recommendations_total",
            "Recommend calls by where their candidates come from: retrieved, or popular and why.",
            ["model", "source"],
        )
        self.retrieval_time = Histogram(
            "multigate_retrieval_seconds",
            "Time until the candidate model answered or the server gave up.",
            _LATENCY,
            _MODEL,
        )
        self.missing = Counter(
            "multigate_missing_values_total",
            "Values that a Rank call left out and a missing rule replaced.",
            ["model", "feature"],
        )
        self.unscored = Counter(
            "multigate_unscored_items_total",
            "Candidates of Rank calls without a score, for lack of a required feature.",
            ["model", "feature"],
        )
        self.stored = Counter(
            "multigate_stored_values_total",
            "Values that a Rank call left out and the feature store provided.",
            ["model", "feature"],
        )
        self.store_time = Histogram(
            "multigate_feature_store_seconds", "Time of a request to the store.", _LATENCY, _MODEL
        )
        self.store_failures = Counter(
            "multigate_feature_store_failures_total", "Requests without an answer.", _MODEL
        )
        self.store_skips = Counter(
            "multigate_feature_store_skips_total",
            "Of these, requests not sent, because the circuit breaker was open.",
            _MODEL,
        )
        self.scores = Histogram(
            "multigate_score",
            "Scores of the watched calls.",
            sorted({*_SCORES, *_SHARES}),
            ["model", "task"],
        )
        self.ids = Counter(
            "multigate_watched_ids_total",
            "Ids of the watched calls, in the vocabulary or not.",
            ["model", "feature", "result"],
        )
        self.watched = Counter(
            "multigate_watched_calls_total",
            "Sampled calls: watched, dropped because many waited, failed.",
            ["model", "result"],
        )
        self.row_experts = Histogram(
            "multigate_watched_experts_per_row",
            "Experts evaluated for each candidate of the watched calls.",
            _EXPERTS,
            _MODEL,
        )
        self.share_shift = Gauge(
            "multigate_share_shift",
            "Share of missing values or unseen ids: last window minus test split.",
            ["model", "feature", "what"],
        )
        self.score_shift = Gauge(
            "multigate_score_stability_index",
            "How far the last window's scores differ from the test split's.",
            ["model", "task"],
        )
        self.impressions = Counter(
            "multigate_impression_rows_total",
            "Rows of the impression log.",
            ["model", "result"],
        )
        self.trial = Gauge(
            "multigate_trial_percent",
            "Of the version on trial: percentage of the users (canary) and of the calls (shadow).",
            ["model", "version", "side"],
        )
        self.canary_calls = Counter(
            "multigate_canary_calls_total",
            "Calls of the canary's users: answered by it; or by production's version, because it "
            "failed, was late, or had failed before (skipped).",
            ["model", "version", "result"],
        )
        self.shadow_calls = Counter(
            "multigate_shadow_calls_total",
            "Calls that two versions score: scored, dropped because many waited, failed.",
            ["model", "version", "result"],
        )
        self.shadow_rows = Counter(
            "multigate_shadow_rows_total", "Rows of the shadow log.", ["model", "result"]
        )
        self.shadow_pairs = Histogram(
            "multigate_shadow_pairs",
            "Share of a call's pairs of items that two versions put in the same order.",
            _AGREEMENT,
            ["model", "version"],
        )
        self.shadow_overlap = Histogram(
            "multigate_shadow_overlap",
            "Share of an answer's items that the other version would have answered too.",
            _AGREEMENT,
            ["model", "version"],
        )
        self.thread_failures = Counter(
            "multigate_thread_failures_total",
            "Failures of a background thread; it begins again after each.",
            ["thread"],
        )
        self.queue_time = Histogram(
            "multigate_queue_seconds", "Time from arrival to the run.", _LATENCY, _RUN
        )
        self.batch_rows = Histogram(
            "multigate_batch_rows", "Rows of one run of the model.", _ROWS, _RUN
        )
        self.batch_calls = Histogram(
            "multigate_batch_calls", "Calls joined into one run.", _ROWS[:7], _RUN
        )
        self.list_places = Counter(
            "multigate_list_places_total",
            "Places in the lists of runs, and what they hold: a value, or padding.",
            [*_RUN, "held"],
        )
        self.loads = Counter(
            "multigate_version_loads_total", "Attempts to load a version.", ["model", "result"]
        )
        self.load_time = Histogram(
            "multigate_version_load_seconds",
            "Time to load, check and warm up a version that then served.",
            _LOAD,
            _MODEL,
        )
        self.store_looks = Counter(
            "multigate_store_looks_total",
            "Looks at a base path in an object store: read, or failed.",
            ["model", "result"],
        )
        self.store_copies = Counter(
            "multigate_store_copies_total",
            "Versions from an object store: copied and intact, or failed.",
            ["model", "result"],
        )
        self.store_read_at = Gauge(
            "multigate_store_read_timestamp_seconds",
            "When a base path in an object store was last read.",
            _MODEL,
        )
        self.config_reloads = Counter(
            "multigate_config_reloads_total",
            "Changes of --model_config_file: applied, or failed.",
            ["result"],
        )
        self.version = Gauge("multigate_model_version", "Newest version that serves.", ["model"])
        self.loaded_at = Gauge(
            "multigate_model_loaded_timestamp_seconds", "When it began to serve.", ["model"]
        )
        self.exported_at = Gauge(
            "multigate_model_exported_timestamp_seconds", "When its file was written.", _MODEL
        )
        self.experts = Gauge(
            "multigate_experts_per_row", "Experts evaluated per row, as export measured.", _MODEL
        )
        self.features_at = Gauge(
            "multigate_features_cut_off_timestamp_seconds",
            "Time up to which the version's feature store has read the log.",
            _VERSION,
        )

        self.tell_thread_failure: Callable[[], None] = lambda: None
        """Called after each failure of a background thread; the server sets it."""

        self.registry = CollectorRegistry(auto_describe=True)
        for metric in vars(self).values():
            if isinstance(metric, _Metric):
                self.registry.register(metric)
        ProcessCollector(registry=self.registry)

    def answered(
        self,
        method: str,
        status: str,
        seconds: float,
        entrypoint: str = "GRPC",
        model: str = "",
        version: str = "",
        signature: str = "",
        run_seconds: float | None = None,
    ) -> None:
        """Record one call.

        Args:
            method: its name, or `refused`.
            status: name of its status.
            seconds: time in the handler.
            entrypoint: GRPC or REST.
            model: that answered; empty where the call reached none.
            version: likewise.
            signature: that ran; empty where none did.
            run_seconds: time of its runs; None where there were none.
        """
        self.requests.add(method, model, status)
        self.latency.observe(seconds, method)
        self.request_latency.observe(1e6 * seconds, model, method, entrypoint, status)
        if model:
            self.calls.add(model, version, signature, method, status)
        if run_seconds is not None:
            self.runtime_latency.observe(1e6 * run_seconds, model, method, _RUNTIME)

    def inferred(self, model: str, examples: int) -> None:
        """Record the tf.Examples of one call."""
        self.example_counts.observe(examples, model)
        self.example_total.add(model, by=examples)

    def thread_failed(self, name: str) -> None:
        """Record that a background thread failed."""
        self.thread_failures.add(name)
        self.tell_thread_failure()

    def forget_model(self, name: str) -> None:
        """Remove the gauges of a model that is no longer served; counters stay."""
        for metric in vars(self).values():
            if isinstance(metric, Gauge):
                metric.forget(name)

    def forget_version(self, model: str, version: int) -> None:
        """Remove all samples of a version that is long gone, counters too.

        Each version would leave some for ever.  To Prometheus they become stale; `rate` and
        `increase` over the time before keep their values.
        """
        for metric in vars(self).values():
            if isinstance(metric, Counter | Gauge | Histogram) and metric.labels[:2] == _VERSION:
                metric.forget(model, str(version))

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()
