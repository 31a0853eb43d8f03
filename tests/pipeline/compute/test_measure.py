"""Splits, vocabularies and statistics: exact, and the same in any order."""

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from multigate.configs.contract import IdFeature, VectorFeature
from multigate.configs.sections.pipeline import HashSplit, TimeSplit
from multigate.pipeline.compute import measure
from multigate.pipeline.compute.measure import Moments, moments
from multigate.pipeline.core.counts import add_counts
from multigate.pipeline.core.hashing import hash_column
from multigate.pipeline.label import split as splits
from multigate.pipeline.label.split import assign
from multigate.pipeline.write import vocabulary

START = datetime(2026, 1, 1, tzinfo=UTC)


def impressions(seconds, users=None):
    n = len(seconds)
    return pl.DataFrame(
        {
            "meta/time": pl.Series(
                [START + timedelta(seconds=s) for s in seconds], dtype=pl.Datetime("us", "UTC")
            ),
            "meta/impression": np.arange(n),
            "user": users or ["u"] * n,
        }
    )


def in_parts(frame):
    """The times, dealt to three parts, each sorted, and a part of none."""
    return [frame["meta/time"].gather_every(3, at).sort() for at in (2, 0, 1)] + [
        frame["meta/time"].clear()
    ]


def boundaries(split, parts):
    """When validation and test begin, by two passes over the parts' times as in the job."""
    counts = add_counts(splits.count_cells(part) for part in parts)
    cells = splits.find_cells(split, counts)
    if cells is None:
        return None
    return splits.boundaries(cells, add_counts(splits.count_instants(p, cells) for p in parts))


def test_shares_of_time_are_those_of_all_times_sorted():
    random = np.random.default_rng(2)
    for _ in range(30):
        # Seconds apart or months: many times share a cell, or hardly any two.
        spread = int(random.choice([3, 1000, 10_000_000]))
        frame = impressions(random.integers(0, spread, random.integers(1, 60)).tolist())
        one, two = (float(share) for share in random.uniform(0.01, 0.45, 2))
        split, total = TimeSplit(by="time", validation=one, test=two), len(frame)
        ordered = frame["meta/time"].sort().to_list()
        ranks = total - round((one + two) * total), total - round(two * total)
        expected = tuple(ordered[min(rank, total - 1)] for rank in ranks)
        assert boundaries(split, in_parts(frame)) == expected


def test_shares_of_time_tear_no_instant_apart():
    split = TimeSplit(by="time", validation=0.2, test=0.2)
    frame = impressions([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert assign(frame, "user", split, 0, boundaries(split, in_parts(frame))).to_list() == (
        ["train"] * 6 + ["validation"] * 2 + ["test"] * 2
    )
    # The impression of rank 6 is one of four at 5: all four are validation.
    frame = impressions([0, 1, 2, 3, 5, 5, 5, 5, 8, 9])
    assert assign(frame, "user", split, 0, boundaries(split, in_parts(frame))).to_list() == (
        ["train"] * 4 + ["validation"] * 4 + ["test"] * 2
    )
    # Shares so small that they round to nothing still have the last instant.
    assert boundaries(TimeSplit(by="time", validation=0.01, test=0.01), in_parts(frame)) == (
        (START + timedelta(seconds=9),) * 2
    )
    assert boundaries(split, in_parts(frame.clear())) is None


def test_instants_begin_their_split():
    split = TimeSplit(
        by="time", validation=START + timedelta(seconds=2), test=START + timedelta(seconds=3)
    )
    named = assign(impressions([1, 2, 3]), "user", split, 0, splits.instants(split))
    assert named.to_list() == ["train", "validation", "test"]


@pytest.mark.parametrize("by", ["random", "user"])
def test_hash_splits_have_their_shares_and_do_not_move(by):
    split = HashSplit(by=by, validation=0.1, test=0.2)
    users = [f"u{n // 2}" for n in range(20_000)]
    frame = impressions([0] * 20_000, users)
    named = assign(frame, "user", split, 3, None)
    counts = dict(named.value_counts().rows())
    # Standard deviations of 20,000 (or 10,000 pairs of) draws: below 85.
    assert counts["validation"] == pytest.approx(2000, abs=340)
    assert counts["test"] == pytest.approx(4000, abs=340)
    fewer = assign(frame[::-3], "user", split, 3, None)
    assert fewer.to_list() == named[::-3].to_list()
    assert assign(frame, "user", split, 4, None).to_list() != named.to_list()
    pairs = pl.DataFrame({"user": users, "split": named}).group_by("user").n_unique()["split"]
    assert (pairs.max() == 1) == (by == "user")


def test_vocabularies_are_cut_by_count_then_size():
    feature = IdFeature(kind="id", side="item", min_count=2, max_size=2)
    parts = [
        pl.DataFrame({"value": ["a", "b", "c"], "count": [1, 2, 3]}),
        pl.DataFrame({"value": ["a", "d", "b"], "count": [1, 1, 1]}),
    ]
    expected = [("b", 3), ("c", 3)]  # a has 2, d has 1; ties stand in the order of values
    assert vocabulary.cut(add_counts(parts), feature).rows() == expected
    assert vocabulary.cut(add_counts(parts[::-1]), feature).rows() == expected


def test_what_is_hashed_or_shared_has_no_vocabulary(impression_config):
    changes = {"hash_buckets": 100, "kind": "id_list", "side": "item", "max_length": 2}
    contract = impression_config(**{"contract.features.tags": changes}).contract
    assert list(vocabulary.features(contract)) == ["user_id", "item_id"]
    assert "tags" in vocabulary.features(impression_config().contract)


def test_lists_count_each_value(impression_config):
    frame = pl.DataFrame(
        {"user_id": [1, 1], "item_id": [5, 6], "tags": [["a", "b"], None], "clicked": [[5], [5, 6]]}
    )
    counts = vocabulary.count(frame, impression_config().contract)
    assert counts["tags"].rows() == [("a", 1), ("b", 1)]
    assert counts["item_id"].rows() == [(5, 1), (6, 1)]
    assert "clicked" not in counts  # shares item_id's, whose own values alone count


def test_moments_by_hand():
    found = moments(pl.Series([1.0, 3.0, None, 8.0]), log=False)
    # Mean 12 / 3; variance (1 + 9 + 64) / 3 - 16 = 26 / 3.
    assert (found.count, found.missing, found.mean) == (3, 1, 4.0)
    assert found.std == math.sqrt(26 / 3)
    logged = moments(pl.Series([0.0, -5.0, math.e - 1]), log=True)
    assert logged.mean == pytest.approx(1 / 3)  # log(1 + max(x, 0)): 0, 0, 1
    constant = moments(pl.Series([2.5, 2.5]), log=False)
    assert (constant.mean, constant.std) == (2.5, 1.0)
    assert (Moments().mean, Moments().std, Moments().quantiles(4)) == (0.0, 1.0, ())


def test_sums_are_exact_whatever_the_order():
    random = np.random.default_rng(0)
    # Numbers of all sizes: their sum in plain doubles depends on the order.
    values = (random.normal(size=3000) * 10.0 ** random.integers(-20, 20, 3000)).astype(np.float32)
    whole = moments(pl.Series(values), log=False, grid=True)
    mixed = random.permutation(values)
    parts = [moments(pl.Series(p), log=False, grid=True) for p in np.array_split(mixed, 7)]
    assert sum(parts, Moments()) == whole
    assert whole.mean == math.fsum(values.astype(float)) / 3000


def test_quantile_edges():
    ages = pl.Series(np.repeat([20, 30, 40, 50], [40, 10, 30, 20]).astype(float))
    # Ranks 25, 50 and 75 of 100 hold 20, 40 and 40. Below 20 there is nothing: one edge is left.
    assert moments(ages, log=False, grid=True).quantiles(4) == (40.0,)
    assert moments(ages, log=False, grid=True).quantiles(10) == (30.0, 40.0, 50.0)
    values = np.random.default_rng(1).normal(size=20_000)
    edges = moments(pl.Series(values), log=False, grid=True).quantiles(8)
    shares = np.diff(np.searchsorted(np.sort(values), [-np.inf, *edges, np.inf])) / 20_000
    assert shares == pytest.approx([1 / 8] * 8, abs=0.002)
    assert min(edges) < 0 < max(edges)


def reference_hash(text):
    """The hash of `hashing` in plain Python."""
    mask, base = (1 << 64) - 1, 0x9E3779B97F4A7C15
    data = (text or "").encode()
    total, power = 0, 1
    for at in range(0, max(len(data), 1), 8):
        word = int.from_bytes(data[at : at + 8], "little")
        word = ((word ^ (word >> 32)) * 0xD6E8FEB86659FD93) & mask
        total, power = (total + word * power) & mask, (power * base) & mask
    h = ((total ^ ((len(data) << 48) & mask)) + base) & mask
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & mask
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & mask
    return h ^ (h >> 31)


def test_hashes_of_text_are_those_of_plain_python():
    random = np.random.default_rng(2)
    letters = np.array(list("abcé0\0"))
    texts = ["".join(random.choice(letters, n)) for n in random.integers(0, 40, 500)]
    texts += [None, "", "x" * 100_000, "a", "a\0"]
    expected = [reference_hash(text) for text in texts]
    column = pl.Series(texts, dtype=pl.String)
    assert hash_column(column).tolist() == expected
    assert hash_column(column[7:90]).tolist() == expected[7:90]
    assert len(set(expected)) == len({text or "" for text in texts})


def test_each_place_of_a_vector_is_measured():
    vectors = [[1.0, 10.0], None, [3.0, 10.0]]
    table = pl.DataFrame({"v": pl.Series(vectors, dtype=pl.List(pl.Float32))})
    feature = VectorFeature(kind="vector", side="item", size=2)
    contract = SimpleNamespace(features={"v": feature}, tasks={})
    parts = measure.add(measure.measure(table, contract), measure.measure(table[:2], contract))
    found = measure.statistics(parts, contract, {}, 1.0, {}).vectors["v"]
    assert (found.count, found.missing) == (3, 2)
    assert found.mean == pytest.approx((5 / 3, 10.0))
    assert found.std == pytest.approx((math.sqrt(8 / 9), 1.0))  # never 0
