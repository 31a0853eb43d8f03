"""An id enters after `min_count` and leaves after `max_age`; a warm start carries the rest over."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.configs.contract import Contract, IdFeature, IdListFeature
from multigate.configs.errors import ConfigError, DataError
from multigate.configs.sections.base import parse
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.optimizer.optimizers import make_optimizer
from multigate.model.training import admission, row_moments, train

START = datetime(2026, 1, 1, tzinfo=UTC)
FEATURE = IdFeature.model_validate({"kind": "id", "side": "item", "min_count": 2, "max_age": "10d"})


def write(folder: Path, rows: list[tuple[int, Any]], sampled: list[bool] | None = None) -> Path:
    """Training rows of day and id."""
    (folder / "train").mkdir(parents=True)
    days, ids = zip(*rows, strict=True)
    table = pl.DataFrame({"id": ids, "meta/time": [START + timedelta(days=day) for day in days]})
    table = table.with_columns(pl.Series("meta/sampled", sampled or [False] * len(rows)))
    table.with_columns(pl.col("meta/time").cast(pl.Datetime("us", "UTC"))).write_parquet(
        folder / "train" / "part-0.parquet"
    )
    return folder


def counts(found: pl.DataFrame) -> dict[Any, tuple[int, int]]:
    """Count and day of the last row by value."""
    return {value: (count, (last - START).days) for value, count, last in found.iter_rows()}


def test_counts_go_on_over_nights_whose_rows_overlap(tmp_path: Path) -> None:
    first = write(tmp_path / "1", [(0, "a"), (1, "a"), (2, "b"), (9, "c"), (9, None)])
    found = admission.seen(first, "id", FEATURE)
    assert counts(found) == {"a": (2, 1), "b": (1, 2), "c": (1, 9)}
    found.write_parquet(tmp_path / "seen.parquet")
    # Day 9 again, then new rows; a and b are older than ten days at day 12.5 and 13.
    second = write(tmp_path / "2", [(9, "c"), (12, "c"), (12, "b"), (13, "d")])
    found = admission.seen(second, "id", FEATURE, tmp_path / "seen.parquet")
    assert counts(found) == {"b": (2, 12), "c": (2, 12), "d": (1, 13)}
    found.write_parquet(tmp_path / "seen.parquet")
    third = write(tmp_path / "3", [(14, "a")])  # a is back, and counted from zero
    assert counts(admission.seen(third, "id", FEATURE, tmp_path / "seen.parquet"))["a"] == (1, 14)


def test_sampled_negatives_are_not_seen(tmp_path: Path) -> None:
    folder = write(tmp_path / "1", [(0, "a"), (1, "a"), (1, "b")], [False, True, True])
    assert counts(admission.seen(folder, "id", FEATURE)) == {"a": (1, 0)}


def test_the_values_of_lists_count_one_by_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "1", [(0, [7, 8]), (1, [7]), (2, []), (3, None)])
    feature = IdListFeature.model_validate(
        {"kind": "id_list", "side": "item", "dtype": "int", "max_age": "10d"}
    )
    assert counts(admission.seen(folder, "id", feature)) == {7: (2, 1), 8: (1, 0)}


def test_only_ids_seen_often_enough_enter_the_vocabulary(tiny: Any, tmp_path: Path) -> None:
    """The second night shows b and d often enough; c was seen once and stays out."""
    values = tiny.config.contract.model_dump(mode="json")
    values["features"] = {
        "id": {"kind": "id", "side": "item", "min_count": 3, "max_age": "10d"},
        "user": {"kind": "id", "side": "user"},
    }
    contract = parse(Contract, values | {"user": "user", "item": "id"}, "contract")
    nights = [
        [(0, "a"), (1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c")],
        [(6, "b"), (7, "d"), (7, "d"), (7, "d"), (7, "d")],
    ]
    expected = [["a"], ["d", "a", "b"]]
    before = None
    for number, (rows, known) in enumerate(zip(nights, expected, strict=True)):
        folder = tmp_path / str(number)
        (folder / "vocabularies").mkdir(parents=True)
        admission.add(folder, write(tmp_path / f"examples-{number}", rows), contract, before)
        vocabulary = pl.read_parquet(folder / "vocabularies" / "id.parquet")
        assert vocabulary["value"].to_list() == known
        before = folder
    seen = counts(pl.read_parquet(tmp_path / "1" / "seen" / "id.parquet"))
    assert seen == {"a": (3, 2), "b": (3, 6), "c": (1, 5), "d": (4, 7)}


def test_examples_without_times_are_refused(tiny: Any, tmp_path: Path) -> None:
    tiny.write_examples(tmp_path / "examples", config(tiny))
    with pytest.raises(DataError, match=r"'user_id': max_age: expected the time .* no such column"):
        train.train(config(tiny), tmp_path / "examples", tmp_path / "c", progress=False)


def test_max_age_belongs_to_the_owner_of_the_vocabulary(tiny: Any) -> None:
    contract = tiny.config.contract.model_dump(mode="json")
    contract["features"]["recent"]["max_age"] = "3d"
    with pytest.raises(ConfigError, match=r"'recent': max_age: expected none .* 'item_id'"):
        tiny.make_config(contract=contract)


def config(tiny: Any) -> Any:
    contract = tiny.config.contract.model_dump(mode="json")
    contract["features"]["user_id"] |= {"max_age": "10d", "min_count": 2}
    contract["features"]["item_id"] |= {"max_age": "10d", "hash_buckets": 97}
    return tiny.make_config(contract=contract, train={"epochs": 1, "batch_size": 64})


def night(tiny: Any, folder: Path, first_day: int, users: set[int], items: set[int]) -> Path:
    """Examples of twenty days, of some users and items in the training split."""
    tiny.write_examples(folder, config(tiny), seed=first_day)
    for split in ("train", "validation", "test"):
        path = folder / split / "part-0.parquet"
        table = pl.read_parquet(path)
        days = first_day + 20 * np.arange(len(table)) // len(table)
        table = table.with_columns(
            pl.Series("meta/time", [START + timedelta(days=int(day)) for day in days]).cast(
                pl.Datetime("us", "UTC")
            )
        )
        if split == "train":
            number = pl.col("user_id").str.slice(1).cast(pl.Int64)
            kept = number.is_in(users) & (pl.col("item_id") - 100).is_in(items)
            table = table.filter(kept)
        table.write_parquet(path)
    return folder


@pytest.mark.slow
def test_a_warm_start_carries_rows_and_moments_and_resets_what_left(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = config(tiny)
    first = night(tiny, tmp_path / "1", 0, set(range(12)), set(range(20)))
    second = night(tiny, tmp_path / "2", 20, set(range(4, 16)), set(range(10, 25)))
    train.train(options, first, tmp_path / "a", progress=False)
    old = Encoder.read(tmp_path / "a").vocabularies["user_id"].to_pylist()
    assert set(old) == {f"u{n}" for n in range(12)}
    path = tmp_path / "a" / checkpoint.WEIGHTS
    before, moments = weights.read(path), weights.read_moments(path)
    assert set(moments) == {"embeddings/user_id", "embeddings/item_id", "wide/user_id"}
    started: dict[str, Any] = {}
    real = row_moments.assign

    def assign(ranker: Any, found: Any) -> None:
        real(ranker, found)
        started.update(weights=weights.copy(ranker), moments=row_moments.read(ranker))

    monkeypatch.setattr(row_moments, "assign", assign)  # a look at it before the first step
    done = train.train(options, second, tmp_path / "b", progress=False, start_from=tmp_path / "a")
    assert done["started_from"] is not None
    new = Encoder.read(tmp_path / "b").vocabularies["user_id"].to_pylist()
    assert set(new) == {f"u{n}" for n in range(4, 16)}
    assert done["started_from"]["tables"]["user_id"] == {"kept": 8, "new": 4, "dropped": 4}
    key = "embeddings/user_id"
    for code, user in enumerate(new, 2):
        if user in old:
            place = 2 + old.index(user)
            np.testing.assert_array_equal(started["weights"][key][code], before[key][place])
            np.testing.assert_array_equal(started["moments"][key][code], moments[key][place])
            assert moments[key][place].any()
        else:
            assert not started["moments"][key][code].any()
            assert (np.abs(started["weights"][key][code]) <= 0.05).all()
    key = "embeddings/item_id"
    codes = {n: Encoder.read(first).code("item_id", 100 + n) for n in range(25)}
    alive = {codes[n] for n in range(10, 25)}
    kept = sorted({codes[n] for n in range(10, 20)})
    gone = sorted({codes[n] for n in range(10)} - alive)
    assert len(gone) > 5
    np.testing.assert_array_equal(started["weights"][key][kept], before[key][kept])
    np.testing.assert_array_equal(started["moments"][key][kept], moments[key][kept])
    assert moments[key][gone].any(axis=1).all()
    assert not started["moments"][key][gone].any()
    assert (started["weights"][key][gone] != before[key][gone]).any(axis=1).all()
    # What the checkpoint says is an ordinary vocabulary: it loads without anything else.
    loaded = checkpoint.load(tmp_path / "b")
    assert len(loaded.encoder.vocabularies["user_id"]) == 12


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_moments_are_assigned_as_they_were_read(tiny: Any, moments: str) -> None:
    options = config(tiny)
    encoder = Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(options.contract, options.model, encoder, seed=1)
    some = options.train.model_copy(update={"moments": moments})
    ranker.compile(optimizer=make_optimizer(some, 10, ranker=ranker))
    ranker.optimizer.build(ranker.trainable_variables)
    rng = np.random.default_rng(0)
    given = {  # numbers that bfloat16 holds
        name: rng.integers(0, 100, values.shape).astype(np.float32)
        for name, values in row_moments.read(ranker).items()
    }
    assert given["embeddings/item_id"].shape == (32, 1 + 2 * 4)
    row_moments.assign(ranker, given)
    for name, values in row_moments.read(ranker).items():
        np.testing.assert_array_equal(values, given[name], err_msg=name)
