"""Counters: events strictly before, within a window; seconds since the first and the last."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from multigate.features import count_events, event_rate, largest_value, mean_value, seconds_since


def times(*seconds):
    instants = [None if s is None else datetime.fromtimestamp(s, UTC) for s in seconds]
    return pl.Series("time", instants, dtype=pl.Datetime("us", "UTC"))


EVENTS = pl.DataFrame(
    {"item": ["y", "x", "x", "x", "x", "y"], "time": times(40, 10, 30, 20, 20, 55)}
)


@pytest.mark.parametrize(
    ("item", "seconds", "within", "expected"),
    [
        ("x", 10, None, 0),  # the event at 10 has not happened yet
        ("x", 11, None, 1),
        ("x", 20, None, 1),
        ("x", 21, None, 3),  # 10 and twice 20
        ("x", 99, None, 4),
        ("x", 30, 10, 2),  # from 20, which counts, to before 30
        ("x", 31, 10, 1),  # from 21: only 30
        ("x", 40.5, 10.5, 1),
        ("x", 40.5, 10.4, 0),
        ("y", 50, 20, 1),
        ("nothing", 50, None, 0),
        ("x", None, None, None),  # when nobody knows the time, nobody knows the count
    ],
)
def test_counts_are_of_the_window_before(item, seconds, within, expected):
    queries = pl.DataFrame({"item": [item], "time": times(seconds)})
    span = None if within is None else timedelta(seconds=within)
    assert count_events(EVENTS, queries, "item", span).to_list() == [expected]


@pytest.mark.parametrize(
    ("item", "seconds", "last", "first"),
    [
        ("x", 10, None, None),
        ("x", 10.25, 0.25, 0.25),
        ("x", 20, 10, 10),
        ("x", 26, 6, 16),
        ("x", 99, 69, 89),
        ("y", 99, 44, 59),
        ("nothing", 99, None, None),
        ("x", None, None, None),
    ],
)
def test_seconds_since_the_last_and_the_first(item, seconds, last, first):
    queries = pl.DataFrame({"item": [item], "time": times(seconds)})
    assert seconds_since(EVENTS, queries, "item").to_list() == [last]
    assert seconds_since(EVENTS, queries, "item", "first").to_list() == [first]


def test_events_without_a_key_or_a_time_count_for_nobody_and_no_events_are_fine():
    queries = pl.DataFrame({"item": ["x", "y"], "time": times(99, 99)})
    more = pl.DataFrame({"item": ["x", None], "time": times(None, 1)})
    assert count_events(pl.concat([EVENTS, more]), queries, "item").to_list() == [4, 2]
    assert count_events(EVENTS.clear(), queries, "item").to_list() == [0, 0]
    assert seconds_since(EVENTS.clear(), queries, "item").to_list() == [None, None]
    nobody = queries.clear()
    assert len(count_events(EVENTS, nobody, "item", timedelta(1))) == 0
    assert len(seconds_since(EVENTS, nobody, "item")) == 0


def test_clients_may_count_time_in_another_unit():
    coarse = EVENTS.with_columns(pl.col("time").dt.cast_time_unit("ms"))
    queries = pl.DataFrame({"item": ["x"], "time": times(30)})
    assert count_events(coarse, queries, "item", timedelta(seconds=10)).to_list() == [2]
    assert seconds_since(coarse, queries, "item").to_list() == [10]


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_agree_in_any_order(seed):
    rng = np.random.default_rng(seed)
    when, who = rng.integers(0, 60, 200).tolist(), rng.choice(list("abcd"), 200).tolist()
    events = pl.DataFrame({"user": who, "time": times(*when)})
    asked, whom = rng.integers(0, 70, 80).tolist(), rng.choice(list("abcde"), 80).tolist()
    queries = pl.DataFrame({"user": whom, "time": times(*asked)})
    before = [
        sorted(w for w, u in zip(when, who, strict=True) if u == user and w < t)
        for user, t in zip(whom, asked, strict=True)
    ]
    counts = [sum(w >= t - 15 for w in past) for past, t in zip(before, asked, strict=True)]
    last = [t - past[-1] if past else None for past, t in zip(before, asked, strict=True)]
    first = [t - past[0] if past else None for past, t in zip(before, asked, strict=True)]
    for table in (events, events.sample(fraction=1, shuffle=True, seed=seed)):
        assert count_events(table, queries, "user", timedelta(seconds=15)).to_list() == counts
        assert seconds_since(table, queries, "user").to_list() == last
        assert seconds_since(table, queries, "user", "first").to_list() == first


@pytest.mark.parametrize(
    ("item", "seconds", "within", "expected"),
    [
        ("x", 20, None, 1.0),  # one click, one impression
        ("x", 31, None, 0.5),  # 2 of 4
        ("x", 31, 10, 0.0),  # from 21: none of one
        ("y", 50, 5, None),  # nothing to divide by: missing, not 0
        ("y", 50, None, 0.0),
        ("x", None, None, None),
    ],
)
def test_a_rate_divides_what_came_before(item, seconds, within, expected):
    clicks = pl.DataFrame({"item": ["x", "x", "x"], "time": times(19, 20, 31)})
    within = within and timedelta(seconds=within)
    asked = pl.DataFrame({"item": [item], "time": times(seconds)})
    assert event_rate(clicks, EVENTS, asked, "item", within).to_list() == [expected]


def test_what_is_too_long_ago_leaves_no_recency():
    asked = pl.DataFrame({"item": ["x"] * 3, "time": times(41, 40, 39)})
    last = seconds_since(EVENTS, asked, "item", within=timedelta(seconds=10))
    assert last.to_list() == [None, 10, 9]
    first = seconds_since(EVENTS, asked, "item", "first", timedelta(seconds=20))
    assert first.to_list() == [11, 20, 19]  # of 30, and twice of 20


VALUES = EVENTS.with_columns(value=pl.Series([5.0, 1.0, 4.0, 2.0, None, -3.0]))


@pytest.mark.parametrize(
    ("item", "seconds", "within", "mean", "largest"),
    [
        ("x", 10, None, None, None),  # its value is not known yet
        ("x", 11, None, 1, 1),
        ("x", 21, None, 1.5, 2),  # at 20 there was one value for two events
        ("x", 99, None, 7 / 3, 4),
        ("x", 30, 10, 2, 2),
        ("x", 41, 10, None, None),
        ("y", 99, None, 1, 5),
        ("y", 99, 50, -3, -3),
        ("nothing", 50, None, None, None),
        ("x", None, None, None, None),
    ],
)
def test_values_are_those_of_the_window_before(item, seconds, within, mean, largest):
    queries = pl.DataFrame({"item": [item], "time": times(seconds)})
    span = None if within is None else timedelta(seconds=within)
    assert mean_value(VALUES, queries, "item", span).to_list() == [pytest.approx(mean)]
    assert largest_value(VALUES, queries, "item", span).to_list() == [largest]


@pytest.mark.parametrize("within", [None, 7, 300])
def test_the_largest_value_of_many_windows(within):
    """Against a plain loop, over windows of every length."""
    rng = np.random.default_rng(0)
    events = pl.DataFrame(
        {
            "user": rng.integers(0, 3, 400).astype(str),
            "time": times(*rng.integers(0, 1000, 400).tolist()),
            "value": rng.normal(size=400),
        }
    )
    queries = pl.DataFrame(
        {"user": rng.integers(0, 4, 300).astype(str), "time": times(*range(0, 1200, 4))}
    )
    span = None if within is None else timedelta(seconds=within)
    found = largest_value(events, queries, "user", span)
    for (user, time), largest in zip(queries.iter_rows(), found, strict=True):
        past = [
            value
            for other, then, value in events.iter_rows()
            if other == user and then < time and (span is None or then >= time - span)
        ]
        assert largest == max(past, default=None)
    assert found.null_count() < 299


def test_values_too_large_for_an_exact_mean_are_refused():
    events = VALUES.with_columns(value=pl.lit(1e10))
    queries = pl.DataFrame({"item": ["x"], "time": times(50)})
    with pytest.raises(ValueError, match=r"value: expected numbers of at most 2\*\*32"):
        mean_value(events, queries, "item")
    assert largest_value(events, queries, "item").to_list() == [1e10]
