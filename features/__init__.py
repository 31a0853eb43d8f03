"""Pure functions over tables that the pipeline and clients share, so that both compute the same.

Imports polars and NumPy, nothing of ours but `configs`.
"""

from multigate.features.counters import (
    count_events,
    event_rate,
    largest_value,
    mean_value,
    seconds_since,
)
from multigate.features.earlier import Timeline
from multigate.features.history import Slices, last_entries, last_items, last_slices
from multigate.features.past_labels import PastLabels, Totals

__all__ = [
    "PastLabels",
    "Slices",
    "Timeline",
    "Totals",
    "count_events",
    "event_rate",
    "largest_value",
    "last_entries",
    "last_items",
    "last_slices",
    "mean_value",
    "seconds_since",
]
