"""Pure functions over tables that the pipeline and clients share, so that both compute the same.

Imports polars and NumPy, nothing of ours but `configs`.
"""

from features.earlier import Timeline
from features.history import last_items

__all__ = ["Timeline", "last_items"]
