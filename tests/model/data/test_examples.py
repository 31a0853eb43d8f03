"""Reading examples, and cutting them into batches."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.configs.errors import DataError
from multigate.model.data import examples
from multigate.model.data.encoding import Encoder
from multigate.model.data.rows import read_rows


def read(tiny: Any, split: str = "train", folder: Path | None = None) -> examples.Examples:
    return examples.read_split(folder or tiny.examples, split, Encoder.read(tiny.examples))


def test_a_split_is_read_whole_and_nulls_are_masks(tiny: Any) -> None:
    rows = read(tiny)
    raw = pl.read_parquet(tiny.examples / "train" / "*.parquet")
    assert len(rows) == len(raw) == 300
    for t, task in enumerate(tiny.config.contract.tasks):
        np.testing.assert_array_equal(
            np.isnan(rows.labels[:, t]), raw[f"label/{task}"].is_null().to_numpy()
        )
    assert np.isnan(rows.labels[:, 1]).any()


def test_several_files_are_read_in_order(tiny: Any, tmp_path: Path) -> None:
    raw = pl.read_parquet(tiny.examples / "train" / "*.parquet")
    (tmp_path / "train").mkdir()
    raw[:100].write_parquet(tmp_path / "train" / "part-00000.parquet")
    raw[100:].write_parquet(tmp_path / "train" / "part-00001.parquet")
    whole, parts = read(tiny), read(tiny, folder=tmp_path)
    np.testing.assert_array_equal(whole.labels, parts.labels)
    for name, values in whole.features.items():
        np.testing.assert_array_equal(values, parts.features[name])


def test_targets_are_standardised_and_stay_masked(tiny: Any) -> None:
    rows = read(tiny)
    statistics = Encoder.read(tiny.examples).statistics
    found = examples.targets(rows, tiny.config.contract, statistics)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rows.labels))
    np.testing.assert_array_equal(found[:, 0], rows.labels[:, 0])
    dwell = found[~np.isnan(found[:, 1]), 1]
    assert dwell.mean() == pytest.approx(0, abs=1e-5)
    assert dwell.std() == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_read(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected one of train, validation, test; received 'dev'"):
        read(tiny, "dev")
    with pytest.raises(DataError, match="test: no examples in 0 Parquet files"):
        read(tiny, "test", tmp_path)
    folder = tmp_path / "test"
    folder.mkdir()
    good = pl.read_parquet(tiny.examples / "test" / "*.parquet")
    bad: dict[str, pl.DataFrame] = {
        "column 'label/like' is missing": good.drop("label/like"),
        "column 'age' is missing": good.drop("age"),
        "label/click: expected 0 or 1 or null, received 2": good.with_columns(
            pl.lit(2.0, pl.Float32).alias("label/click")
        ),
        "label/dwell: expected finite numbers or null, received inf": good.with_columns(
            pl.lit(float("inf"), pl.Float32).alias("label/dwell")
        ),
        "feature 'user_id': 100 of 100 rows": good.with_columns(
            pl.lit(None, pl.String).alias("user_id")
        ),
    }
    for message, table in bad.items():
        table.write_parquet(folder / "part-00000.parquet")
        with pytest.raises(DataError, match=f"part-00000.parquet: .*{message}"):
            read(tiny, "test", tmp_path)
        if "inf" not in message:  # which is counted there
            with pytest.raises(DataError, match=f"{folder}: {message}"):
                examples.encode(read_rows(tmp_path, "test"), Encoder.read(tiny.examples))
    (folder / "part-00000.parquet").write_text("no Parquet at all")
    with pytest.raises(DataError, match=r"part-00000\.parquet: not a Parquet file"):
        read(tiny, "test", tmp_path)
