"""Pure functions over tables that the pipeline and clients share, so that both compute the same.

Imports polars and NumPy, nothing of ours but `configs`.
"""

from features.counters import count_events, event_rate, seconds_since
from features.earlier import Timeline
from features.history import last_items

__all__ = ["Timeline", "count_events", "event_rate", "last_items", "seconds_since"]
