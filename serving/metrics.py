"""Counters, gauges and histograms of the server, and their Prometheus text form.

Names follow TensorFlow Serving's where the meaning is the same; the others start with multigate.
"""

import bisect
import threading
from collections.abc import Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY = (50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1, 5)
_ROWS = (1, 2, 5, 10, 25, 50, 100, 200, 400, 800, 1600)
_RUN = ("model", "signature")


class Metric:
    """One metric: a number per combination of label values."""

    kind = "untyped"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._text = text
        self._labels = tuple(labels)
        self._lock = threading.Lock()

    def lines(self) -> list[str]:
        """Help, type and samples, one line each."""
        with self._lock:
            samples = self._samples()
        return [f"# HELP {self.name} {self._text}", f"# TYPE {self.name} {self.kind}", *samples]

    def _samples(self) -> list[str]:
        return []

    def _sample(
        self, values: tuple[str, ...], number: float, suffix: str = "", bound: str | None = None
    ) -> str:
        pairs = list(zip(self._labels, values, strict=True))
        if bound is not None:
            pairs.append(("le", bound))
        inside = ",".join(f'{label}="{_escape(value)}"' for label, value in pairs)
        return (
            f"{self.name}{suffix}{{{inside}}} {number:.10g}"
            if inside
            else (f"{self.name}{suffix} {number:.10g}")
        )


class Counter(Metric):
    """A number that only grows."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._numbers: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        """Count `by` more for these label values."""
        with self._lock:
            self._numbers[values] = self._numbers.get(values, 0) + by

    def _samples(self) -> list[str]:
        return [self._sample(values, number) for values, number in sorted(self._numbers.items())]


class Gauge(Counter):
    """A number that moves either way."""

    kind = "gauge"

    def set(self, number: float, *values: str) -> None:
        """Replace the number for these label values."""
        with self._lock:
            self._numbers[values] = number

    def forget(self, *values: str) -> None:
        """Report no number for these label values any more."""
        with self._lock:
            self._numbers.pop(values, None)


class Histogram(Metric):
    """How often numbers fell below each of several bounds, with their count and sum."""

    kind = "histogram"

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, number: float, *values: str) -> None:
        """Record one number for these label values."""
        with self._lock:
            counts = self._counts.setdefault(values, [0] * (len(self._bounds) + 1))
            counts[bisect.bisect_left(self._bounds, number)] += 1
            self._sums[values] = self._sums.get(values, 0.0) + number

    def _samples(self) -> list[str]:
        found = []
        for values, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip((*self._bounds, "+Inf"), counts, strict=True):
                total += count
                found.append(self._sample(values, total, "_bucket", str(bound)))
            found.append(self._sample(values, self._sums[values], "_sum"))
            found.append(self._sample(values, total, "_count"))
        return found


class ServerMetrics:
    """All metrics of one server."""

    def __init__(self) -> None:
        self.requests = Counter(
            ":tensorflow:serving:request_count", "Answered calls.", ["method", "status"]
        )
        self.latency = Histogram(
            "multigate_request_seconds", "Time in the handler.", _LATENCY, ["method"]
        )
        self.candidates = Histogram(
            "multigate_candidates", "Candidates of one Rank call.", _ROWS, ["model"]
        )
        self.missing = Counter(
            "multigate_missing_values_total",
            "Values that a Rank call left out, for which the missing rule stood in.",
            ["model", "feature"],
        )
        self.impressions = Counter(
            "multigate_impression_rows_total",
            "Rows of the impression log.",
            ["model", "result"],
        )
        self.queue_time = Histogram(
            "multigate_queue_seconds", "Time from arrival to the run.", _LATENCY, _RUN
        )
        self.batch_rows = Histogram(
            "multigate_batch_rows", "Rows of one run of the model.", _ROWS, _RUN
        )
        self.batch_calls = Histogram(
            "multigate_batch_calls", "Calls joined in one run.", _ROWS[:7], _RUN
        )
        self.loads = Counter(
            "multigate_version_loads_total", "Attempts to load a version.", ["model", "result"]
        )
        self.version = Gauge("multigate_model_version", "Newest version that serves.", ["model"])
        self.loaded_at = Gauge(
            "multigate_model_loaded_timestamp_seconds", "When it began to serve.", ["model"]
        )

    def answered(self, method: str, status: str, seconds: float) -> None:
        """Record one call."""
        self.requests.add(method, status)
        self.latency.observe(seconds, method)

    def forget_model(self, name: str) -> None:
        """Report no version for a model that is served no longer."""
        self.version.forget(name)
        self.loaded_at.forget(name)

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        metrics = [metric for metric in vars(self).values() if isinstance(metric, Metric)]
        return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
