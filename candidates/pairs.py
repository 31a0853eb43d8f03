"""Positive pairs of a user and an item, and the catalogue of all items."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from multigate.configs.config import Config
from multigate.configs.contract import Contract
from multigate.configs.errors import ConfigError, DataError
from multigate.configs.files import LABEL, TIME
from multigate.model.data.encoding import Encoded, Encoder
from multigate.model.data.rows import read_rows

Ids = np.ndarray
"""Raw ids (N,): int64, or str objects."""


@dataclass(frozen=True)
class Pairs:
    """The positives of one split, encoded, in the order of its files.

    Attributes:
        features: arrays by user and item feature, N rows each.
        users: raw ids (N,).
        items: raw ids (N,).
        table: the rows as they are in the files.
    """

    features: Encoded
    users: Ids
    items: Ids
    table: pl.DataFrame

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Catalogue:
    """The items that can be retrieved.

    Attributes:
        ids: raw ids (I,), sorted.
        features: encoded item features, I rows each.
    """

    ids: Ids
    features: Encoded

    def __len__(self) -> int:
        return len(self.ids)


def positive_task(config: Config) -> str:
    """The task whose positives are the pairs, see `CandidatesConfig.positives`.

    Raises:
        ConfigError: no such task, or it is not a binary one.
    """
    tasks = config.contract.tasks
    binary = config.contract.binary_tasks()
    named = config.candidates.positives
    if named is not None:
        if named not in binary:
            raise ConfigError(
                f"candidates.positives: expected one of {', '.join(binary) or 'no task'} (binary), "
                f"received {named!r}"
            )
        return named
    engagement = [name for name in binary if tasks[name].group == "engagement"]
    if not binary:
        raise ConfigError(
            "candidates.positives: expected a binary task, whose positives are the pairs to learn "
            "from; the contract has none; add one, such as label: {rule: impression}"
        )
    return (engagement or binary)[0]


def tower_features(contract: Contract) -> tuple[list[str], list[str]]:
    """Names of the features of the user tower (context ones too) and of the item tower."""
    users = [name for name, _ in contract.of_side("user", "context")]
    items = [name for name, _ in contract.of_side("item") if name not in contract.crosses()]
    return users, items  # a rate of the user's by the item's topic is of neither tower


def read_pairs(examples: Path, split: str, encoder: Encoder, task: str) -> Pairs:
    """Read a split's rows whose label is 1.

    Raises:
        DataError: the split cannot be read, or has no positive.
    """
    contract = encoder.contract
    label = LABEL + task
    table = pl.from_arrow(read_rows(examples, split).table)
    assert isinstance(table, pl.DataFrame)
    if label not in table.columns:
        raise DataError(
            f"{examples}: no column {label}; build the examples with this configuration"
        )
    table = table.filter(pl.col(label) == 1)
    if not len(table):
        raise DataError(f"{examples}: no row of the {split} split has {label} = 1")
    return Pairs(
        encoder(table.to_arrow()),
        table[contract.user].to_numpy(),
        table[contract.item].to_numpy(),
        table,
    )


def catalogue_of_splits(examples: Path, encoder: Encoder, splits: tuple[str, ...]) -> Catalogue:
    """All items of some splits, negatives included, with the features of their latest rows.

    Raises:
        DataError: a split cannot be read.
    """
    contract = encoder.contract
    names = tower_features(contract)[1]
    parts = []
    for split in splits:
        rows = read_rows(examples, split, [*names, TIME]).table
        part = pl.from_arrow(rows)
        assert isinstance(part, pl.DataFrame)
        parts.append(part)
    latest = (
        pl.concat(parts)
        .sort(TIME, nulls_last=False, maintain_order=True)
        .group_by(contract.item, maintain_order=True)
        .agg(pl.all().last())
        .select(names)
    )
    return catalogue(latest.to_arrow(), encoder)


def catalogue(items: pa.Table, encoder: Encoder) -> Catalogue:
    """Encode a table of items, such as a snapshot's.

    Args:
        items: columns of the contract's item features, one row per item.
        encoder: of the model.

    Raises:
        DataError: no item, or a column is missing.
    """
    contract = encoder.contract
    names = tower_features(contract)[1]
    missing = [name for name in names if name not in items.column_names]
    if missing:
        raise DataError(
            f"items: column {missing[0]!r} is missing; received {', '.join(items.column_names)}"
        )
    table = pl.from_arrow(items.select(names))
    assert isinstance(table, pl.DataFrame)
    table = table.filter(pl.col(contract.item).is_not_null()).sort(contract.item)
    if not len(table):
        raise DataError("items: expected at least one item to retrieve, received an empty table")
    return Catalogue(table[contract.item].to_numpy(), encoder(table.to_arrow(), names))
