"""Past labels: what had closed strictly before, added up exactly."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from multigate.features import PastLabels, Totals


def times(*seconds):
    instants = [None if s is None else datetime.fromtimestamp(s, UTC) for s in seconds]
    return pl.Series("time", instants, dtype=pl.Datetime("us", "UTC"))


def seconds(number):
    return None if number is None else timedelta(seconds=number)


IMPRESSIONS = pl.DataFrame(
    {
        "user": ["a", "b", "a", "a", None, "a"],
        "time": times(30, 10, 10, 20, 15, None),
        "like": pl.Series([1, 1, 0, None, 1, 1], dtype=pl.Float32),
        "stars": pl.Series([2.5, 4, -1.25, None, 9, 9], dtype=pl.Float32),
    }
)


def ask(label, user, at, wait, within=None):
    past = PastLabels(IMPRESSIONS, "user")
    queries = pl.DataFrame({"user": [user], "time": times(at)})
    found = past.totals(label, past.closed(queries, seconds(wait), seconds(within)))
    return found.sums.tolist()[0], found.counts.tolist()[0]


@pytest.mark.parametrize(
    ("user", "at", "wait", "within", "expected"),
    [
        ("a", 10, 0, None, (0, 0)),  # the row's own label closes at that instant, not before it
        ("a", 11, 0, None, (0, 1)),
        ("a", 31, 0, None, (1, 2)),  # the label at 20 is masked
        ("a", 35, 5, None, (0, 1)),  # that of 30 closes at 35
        ("a", 35.000001, 5, None, (1, 2)),
        ("a", 20, 5, 5, (0, 1)),  # it closed at 15, which counts
        ("a", 20, 5, 4.999, (0, 0)),
        ("a", 36, 5, 2, (1, 1)),  # within looks back to the closing, not to the impression
        ("b", 99, 0, None, (1, 1)),
        ("c", 99, 0, None, (0, 0)),
        ("a", None, 0, None, (0, 0)),
    ],
)
def test_labels_count_once_they_have_closed(user, at, wait, within, expected):
    assert ask("like", user, at, wait, within) == expected


def test_sums_are_of_any_number_and_masked_labels_are_left_out():
    assert ask("stars", "a", 99, 0) == (1.25, 2)
    assert ask("stars", "a", 15, 0) == (-1.25, 1)


def test_the_mean_is_drawn_towards_the_prior():
    totals = Totals(np.array([0.0, 3.0, 30.0]), np.array([0.0, 4.0, 40.0]))
    # (0 + 2 * .1) / 2, (3 + 2 * .1) / 6, (30 + 2 * .1) / 42
    assert totals.mean(2.0, 0.1) == pytest.approx([0.1, 3.2 / 6, 30.2 / 42])
    assert totals.mean(3.0, 0.1)[0] == 0.1  # to the last bit


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_agree_to_the_last_bit_whatever_other_rows_there_are(seed):
    rng = np.random.default_rng(seed)
    size = 300
    who, when = rng.choice(list("abcd"), size).tolist(), rng.integers(0, 60, size).tolist()
    values = (rng.normal(size=size) * 10.0 ** rng.integers(-3, 7, size)).astype(np.float32)
    labels = [None if rng.random() < 0.2 else float(value) for value in values]
    label = pl.Series("x", labels, dtype=pl.Float32)
    rows = pl.DataFrame({"user": who, "time": times(*when)}).with_columns(label)
    asked, whom = rng.integers(0, 80, 90).tolist(), rng.choice(list("abcde"), 90).tolist()
    queries = pl.DataFrame({"user": whom, "time": times(*asked)})
    expected = []
    for user, at in zip(whom, asked, strict=True):
        mine = [
            Fraction(x)
            for w, t, x in zip(who, when, labels, strict=True)
            if w == user and x is not None and at - 25 <= t + 7 < at
        ]
        expected.append((sum(mine), len(mine)))
    tables = [rows, rows.sample(fraction=1, shuffle=True, seed=seed)]
    tables += [pl.concat([rows, rows.with_columns(user=pl.lit("z"), x=pl.lit(0.1, pl.Float32))])]
    found = []
    for table in tables:
        past = PastLabels(table, "user")
        found.append(past.totals("x", past.closed(queries, seconds(7), seconds(25))))
    for one in found:
        assert one.counts.tolist() == [count for _, count in expected]
        assert one.sums == pytest.approx([float(total) for total, _ in expected], abs=1e-12)
        assert one.sums.tobytes() == found[0].sums.tobytes()


@pytest.mark.parametrize("value", [1e10, float("inf"), float("nan")])
def test_a_label_that_cannot_be_added_up_is_named(value):
    rows = IMPRESSIONS.with_columns(pl.Series("stars", [value] * 6, dtype=pl.Float32))
    past = PastLabels(rows, "user")
    with pytest.raises(ValueError, match=r"stars: expected numbers of at most 2\*\*32"):
        past.totals("stars", past.closed(rows.head(1), seconds(0)))
    empty = PastLabels(rows.clear(), "user")
    assert empty.totals("stars", empty.closed(rows.head(2), seconds(0))).counts.tolist() == [0, 0]
