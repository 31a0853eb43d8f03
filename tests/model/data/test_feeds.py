"""Batches from memory and from disk: every row once an epoch, in an order that can be resumed."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import keras
import numpy as np
import polars as pl
import pytest

from multigate.configs.errors import DataError
from multigate.configs.sections.model import TrainConfig
from multigate.model.data import examples, feeds
from multigate.model.data.encoding import Encoder

SIZE = 32


def numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))


@pytest.fixture(scope="module")
def groups(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny training split in three files of row groups of 25 rows.

    `length` names the row: the encoder standardises it, so that no two rows have the same.
    """
    folder = tmp_path_factory.mktemp("groups")
    raw = pl.read_parquet(tiny.examples / "train" / "*.parquet")
    raw = raw.with_columns(pl.Series("length", np.arange(300), pl.Float32))
    (folder / "train").mkdir()
    for number, part in enumerate((raw[:100], raw[100:130], raw[130:])):
        part.write_parquet(folder / "train" / f"part-{number}.parquet", row_group_size=25)
    return folder


def make(tiny: Any, groups: Path, kind: str, buffer: int = 60) -> Any:
    encoder = Encoder.read(tiny.examples)
    split = examples.Split(groups, "train", encoder)
    contract, statistics = tiny.config.contract, encoder.statistics
    if kind == "memory":
        rows = examples.concatenate(list(split.read(split.groups)))
        return feeds.MemoryFeed(rows, contract, statistics, SIZE, seed=1)
    return feeds.StreamFeed(split, contract, statistics, SIZE, seed=1, buffer=buffer)


def run(feed: Any, number: int | None, skip: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(numpy(x["length"]), numpy(y)) for x, y in feed.epoch(number, skip)]


@pytest.mark.parametrize("kind", ["memory", "stream"])
def test_every_row_comes_once_an_epoch_with_its_own_label(
    tiny: Any, groups: Path, kind: str
) -> None:
    feed = make(tiny, groups, kind)
    assert (feed.rows, feed.steps) == (300, 10)
    plain = run(feed, None)
    first = run(feed, 1)
    assert [len(x) for x, _ in first] == [SIZE] * 9 + [12]
    label_of = {
        row: tuple(np.nan_to_num(label, nan=-9))
        for x, y in plain
        for row, label in zip(x.tolist(), y, strict=True)
    }
    assert len(label_of) == 300
    seen = [row for x, _ in first for row in x.tolist()]
    assert sorted(seen) == sorted(label_of)
    for x, y in first:
        for row, label in zip(x.tolist(), y, strict=True):
            assert label_of[row] == tuple(np.nan_to_num(label, nan=-9))
    # As they stand where no epoch is named.
    order = np.concatenate([x for x, _ in plain])
    np.testing.assert_array_equal(order, np.sort(order))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["memory", "stream"])
def test_an_epoch_goes_on_where_it_was_left(tiny: Any, groups: Path, kind: str) -> None:
    feed, again = make(tiny, groups, kind), make(tiny, groups, kind)
    whole = run(feed, 2)
    for skip in (0, 1, 2, 5, 9):
        rest = run(again, 2, skip)
        assert len(rest) == 10 - skip
        for (x, y), (x_again, y_again) in zip(whole[skip:], rest, strict=True):
            np.testing.assert_array_equal(x, x_again)
            np.testing.assert_array_equal(y, y_again)
    other = run(feed, 3)
    assert (np.concatenate([x for x, _ in whole]) != np.concatenate([x for x, _ in other])).any()


@pytest.mark.parametrize(("buffer", "number"), [(60, None), (10**6, 1), (10**6, 2)])
def test_a_stream_in_the_same_order_gives_the_same_batches(
    tiny: Any, groups: Path, tmp_path: Path, buffer: int, number: int | None
) -> None:
    """Every feature and target, to the bit: as the files stand, and shuffled in one block."""
    folder = groups
    if number is not None:  # one row group: there is no order of groups
        folder = tmp_path
        (folder / "train").mkdir()
        whole = pl.read_parquet(groups / "train" / "*.parquet")
        whole.write_parquet(folder / "train" / "part-0.parquet")
    memory, stream = (make(tiny, folder, kind, buffer) for kind in ("memory", "stream"))
    pairs = list(zip(memory.epoch(number), stream.epoch(number), strict=True))
    assert len(pairs) == 10
    for (x, y), (x_streamed, y_streamed) in pairs:
        assert x.keys() == x_streamed.keys()
        for name, values in x.items():
            np.testing.assert_array_equal(numpy(values), numpy(x_streamed[name]), err_msg=name)
        np.testing.assert_array_equal(numpy(y), numpy(y_streamed))


def test_a_stream_shuffles_row_groups_and_rows(tiny: Any, groups: Path) -> None:
    feed = make(tiny, groups, "stream", buffer=60)
    order = np.concatenate([x for x, _ in run(feed, 1)])
    rows = np.argsort(np.argsort(order))  # ranks: `length` ascends with the row
    # Blocks hold whole row groups: each run of the order covers few of the 13, all of them.
    assert len(set(rows[:60] // 25)) <= 5
    assert (np.diff(rows) < 0).mean() > 0.3
    blocks = feed._plan(1)
    assert sum(len(block) for block in blocks) == len(feed._split.groups) == 13
    assert all(sum(group.rows for group in block) >= 60 for block in blocks[:-1])


def test_a_sample_is_spread_over_the_split(tiny: Any, groups: Path) -> None:
    for kind in ("memory", "stream"):
        sample = make(tiny, groups, kind).sample(40)
        assert len(sample) == 38  # every eighth row
        ordered = np.sort(np.concatenate([x for x, _ in run(make(tiny, groups, kind), None)]))
        np.testing.assert_array_equal(sample.features["length"], ordered[::8])


def test_rows_with_a_label_are_found_in_both(tiny: Any, groups: Path) -> None:
    """Every third dwell, and every like, of which some rows have both."""
    whole = make(tiny, groups, "memory").labelled({0: 1})
    labels = whole.labels
    dwells, likes = (np.flatnonzero(~np.isnan(labels[:, t])) for t in (1, 2))
    chosen = np.unique(np.concatenate([dwells[::3], likes]))
    assert len(chosen) < len(whole) == 300
    for kind in ("memory", "stream"):
        found = make(tiny, groups, kind).labelled({1: 3, 2: 1})
        np.testing.assert_array_equal(found.labels, labels[chosen])
        np.testing.assert_array_equal(found.features["length"], whole.features["length"][chosen])


def test_what_memory_does_not_hold_is_streamed(tiny: Any, groups: Path) -> None:
    encoder = Encoder.read(tiny.examples)
    split = examples.Split(groups, "train", encoder)
    contract = tiny.config.contract
    # user and its hash, item, country, age with its indicator, length, recent, position, labels
    assert feeds.row_bytes(contract) == 4 * (2 + 1 + 1 + 2 + 2 + 4 + 1 + 3)
    arguments = (split, contract, encoder.statistics, SIZE)
    room = 300 * feeds.row_bytes(contract) / 2**30
    assert isinstance(feeds.make_feed(*arguments, TrainConfig(memory=room)), feeds.MemoryFeed)
    small = TrainConfig(memory=0.99 * room)
    assert isinstance(feeds.make_feed(*arguments, small), feeds.StreamFeed)


def test_a_damaged_row_is_reported_from_within_the_stream(
    tiny: Any, groups: Path, tmp_path: Path
) -> None:
    (tmp_path / "train").mkdir()
    for path in (groups / "train").glob("*.parquet"):
        table = pl.read_parquet(path)
        if path.stem == "part-2":
            table = table.with_columns(pl.lit(2.0, pl.Float32).alias("label/click"))
        table.write_parquet(tmp_path / "train" / path.name)
    feed = make(tiny, tmp_path, "stream")
    with pytest.raises(Exception, match="expected 0 or 1 or null, received 2"):
        run(feed, 1)
    assert isinstance(feed.failure, DataError)


def requested(groups: Path, folder: Path) -> Path:
    """The rows of `groups`, each user's in requests of up to four, whose numbers users share."""
    (folder / "train").mkdir(parents=True)
    for path in sorted((groups / "train").glob("*.parquet")):
        table = pl.read_parquet(path).with_columns(
            (pl.int_range(pl.len()).over("user_id") // 4).cast(pl.String).alias("meta/request"),
        )
        table.write_parquet(folder / "train" / path.name, row_group_size=50)
    return folder


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["memory", "stream"])
def test_the_rows_of_a_request_come_together(
    tiny: Any, groups: Path, tmp_path: Path, kind: str
) -> None:
    """In an order drawn by seed and epoch, also within a request; an epoch can be resumed."""
    encoder = Encoder.read(tiny.examples)
    split = examples.Split(requested(groups, tmp_path / "e"), "train", encoder, requests=True)
    contract, statistics = tiny.config.contract, encoder.statistics

    def make_feed() -> Any:
        if kind == "memory":
            rows = examples.concatenate(list(split.read(split.groups)))
            return feeds.MemoryFeed(rows, contract, statistics, SIZE, seed=1)
        return feeds.StreamFeed(split, contract, statistics, SIZE, seed=1, buffer=300)

    raw = pl.read_parquet(tmp_path / "e" / "train" / "*.parquet").sort("length")
    of_row = list(zip(raw["user_id"], raw["meta/request"], strict=True))
    orders = {}
    for number in (1, 2):
        batches = [
            (numpy(x["length"]), numpy(x["meta/request"])) for x, _ in make_feed().epoch(number)
        ]
        rows = np.argsort(np.argsort(np.concatenate([x for x, _ in batches])))  # `length` names it
        assert sorted(rows) == list(range(300))
        runs = [of_row[row] for row in rows]
        starts = [one for one, before in zip(runs, [None, *runs], strict=False) if one != before]
        assert len(starts) == len(set(of_row))  # each request is one run
        codes = np.concatenate([code for _, code in batches])
        changed = [one != other for one, other in itertools.pairwise(runs)]
        np.testing.assert_array_equal(codes[1:] != codes[:-1], changed)
        assert codes.dtype == np.int32
        orders[number] = list(rows)
        rest = [numpy(x["length"]) for x, _ in make_feed().epoch(number, 4)]
        for (x, _), again in zip(batches[4:], rest, strict=True):
            np.testing.assert_array_equal(x, again)
    assert orders[1] != orders[2]
    some = [
        [row for row in orders[number] if of_row[row] == one]
        for one in set(of_row)
        for number in (1, 2)
    ]
    assert any(rows != sorted(rows) for rows in some)


def test_an_option_names_the_column_that_is_missing(tiny: Any, groups: Path) -> None:
    encoder = Encoder.read(tiny.examples)
    with pytest.raises(DataError, match=r"'meta/request' is missing.*correct train.ranking"):
        examples.Split(groups, "train", encoder, requests=True)
    with pytest.raises(DataError, match=r"'meta/time' is missing.*correct train.recency"):
        examples.Split(groups, "train", encoder, recency=timedelta(days=7))


@pytest.mark.parametrize("weight", [None, "meta/weight"])
def test_recency_halves_the_weight_with_each_half_life(
    tiny: Any, groups: Path, tmp_path: Path, weight: str | None
) -> None:
    rng = np.random.default_rng(0)
    newest, days = datetime(2026, 3, 1, tzinfo=UTC), {}
    (tmp_path / "train").mkdir()
    for path in sorted((groups / "train").glob("*.parquet")):
        table = pl.read_parquet(path)
        age = rng.integers(0, 40, len(table))
        age[0] = 0 if path.stem == "part-1" else age[0]
        days[path.stem] = age
        times = [newest - timedelta(days=int(day)) for day in age]
        table.with_columns(
            pl.Series("meta/time", times, pl.Datetime("us", "UTC")),
            pl.Series("meta/weight", np.full(len(table), 3.0)),
        ).write_parquet(tmp_path / "train" / path.name)
    encoder = Encoder.read(tiny.examples)
    split = examples.Split(tmp_path, "train", encoder, weight, recency=timedelta(days=7))
    found = examples.concatenate(list(split.read(split.groups))).weights
    expected = 0.5 ** (np.concatenate(list(days.values())) / 7.0) * (1.0 if weight is None else 3.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    unknown = pl.read_parquet(tmp_path / "train/part-1.parquet")
    unknown.with_columns(
        pl.lit(None).cast(unknown["meta/time"].dtype).alias("meta/time")
    ).write_parquet(tmp_path / "train/part-1.parquet")
    with pytest.raises(DataError, match=r"received 30 rows without one; remove train.recency"):
        examples.Split(tmp_path, "train", encoder, recency=timedelta(days=7))


@pytest.mark.parametrize("kind", ["memory", "stream"])
def test_the_end_of_an_epoch_does_not_wait_for_tuning(tiny: Any, groups: Path, kind: str) -> None:
    # Else the thread that tunes sleeps for as long as the epoch took, and its end waits for it.
    assert make(tiny, groups, kind).epoch(1).options().autotune.enabled is False


def test_the_order_is_a_function_of_its_seeds() -> None:
    first = feeds.shuffled(100, 1, 1)
    np.testing.assert_array_equal(first, feeds.shuffled(100, 1, 1))
    np.testing.assert_array_equal(np.sort(first), np.arange(100))
    assert (first != feeds.shuffled(100, 1, 2)).any()
    assert (first != feeds.shuffled(100, 2, 1)).any()
