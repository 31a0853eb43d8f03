"""Ages: how long before the impression the time of a column was, such as an item's listing.

The job carries the times themselves, which no impression changes: of sampled negatives, of
catalogues and of side tables as well. Examples and snapshots hold the seconds.
"""

import polars as pl

from multigate.configs import Config
from multigate.configs.contract import NumberFeature
from multigate.configs.files import TIME


def measured(rows: pl.DataFrame, config: Config) -> pl.DataFrame:
    """Put the ages in the place of the times that they are measured from.

    Args:
        rows: (B, ...) features, and the column `TIME`.
        config: names the features; those that the rows lack are left out.

    Returns:
        The rows; ages in seconds, float32, from 0; null where either time is unknown.
    """
    microseconds = {
        name: (pl.col(TIME).dt.epoch("us") - pl.col(name).dt.epoch("us")).clip(lower_bound=0)
        for name, feature in config.contract.features.items()
        if isinstance(feature, NumberFeature) and feature.age is not None and name in rows.columns
    }
    return rows.with_columns(
        **{name: (passed / 1e6).cast(pl.Float32) for name, passed in microseconds.items()}
    )
