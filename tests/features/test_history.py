"""History: the last items strictly before, for many users at once."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from multigate.features import Slices, Timeline, last_items


def times(*seconds):
    instants = [None if s is None else datetime.fromtimestamp(s, UTC) for s in seconds]
    return pl.Series("time", instants, dtype=pl.Datetime("us", "UTC"))


EVENTS = pl.DataFrame(
    {
        "user": ["b", "a", "a", "b", "a", "a"],
        "time": times(5, 30, 10, 7, 20, 20),
        "item": ["p", "z", "x", "q", "y2", "y1"],
    }
)


def ask(user, seconds, last, events=EVENTS):
    queries = pl.DataFrame({"user": [user], "time": times(seconds)})
    return last_items(events, queries, last).to_list()[0]


@pytest.mark.parametrize(
    ("user", "seconds", "last", "expected"),
    [
        ("a", 10, 5, []),  # the event at 10 has not happened yet
        ("a", 11, 5, ["x"]),
        ("a", 20, 5, ["x"]),  # neither event of the same time is visible
        ("a", 21, 5, ["x", "y1", "y2"]),  # the same time: in the items' order
        ("a", 99, 2, ["y2", "z"]),  # the last two, oldest first
        ("a", 99, 1, ["z"]),
        ("b", 99, 5, ["p", "q"]),
        ("nobody", 99, 5, []),
        ("a", None, 5, []),  # an unknown time sees nothing
    ],
)
def test_only_what_was_strictly_before_oldest_first(user, seconds, last, expected):
    assert ask(user, seconds, last) == expected


def test_many_queries_are_answered_in_their_order():
    queries = pl.DataFrame({"user": ["b", "a", "b"], "time": times(6, 25, 0)})
    assert last_items(EVENTS, queries, 9).to_list() == [["p"], ["x", "y1", "y2"], []]


def test_events_without_a_time_or_user_are_in_no_history():
    more = pl.DataFrame({"user": ["a", None], "time": times(None, 1), "item": ["n", "m"]})
    assert ask("a", 99, 9, pl.concat([EVENTS, more])) == ["x", "y1", "y2", "z"]


def test_integer_items_keep_their_type_and_no_events_give_empty_lists():
    events = EVENTS.with_columns(item=pl.int_range(pl.len(), dtype=pl.Int64))
    queries = pl.DataFrame({"user": ["a"], "time": times(15)})
    found = last_items(events, queries, 3)
    assert (found.dtype, found.to_list()) == (pl.List(pl.Int64), [[2]])
    assert last_items(events.clear(), queries, 3).to_list() == [[]]


def test_clients_may_count_time_in_another_unit():
    # A table whose times have milliseconds, as a client's store may give them.
    events = EVENTS.with_columns(pl.col("time").dt.cast_time_unit("ms"))
    assert ask("a", 21, 9, events) == ["x", "y1", "y2"]


def test_the_order_of_the_table_makes_no_difference():
    for seed in range(5):
        events = EVENTS.sample(fraction=1, shuffle=True, seed=seed)
        assert ask("a", 99, 3, events) == ["y1", "y2", "z"]


@pytest.mark.parametrize(
    "items", [["p", "z", None, "p"], [], [3, 1, None, 3]], ids=["texts", "nothing", "numbers"]
)
def test_lists_of_codes_are_the_same_lists(items):
    kind = pl.Int64 if items[:1] == [3] else pl.String
    start, stop = np.array([0, 2, 1]), np.array([2, 2, 4])
    slices = Slices(
        pl.Series("item", items, dtype=kind),
        np.minimum(start, len(items)),
        np.minimum(stop, len(items)),
    )
    coded = slices.coded().lists()
    assert coded.cast(pl.List(kind)).to_list() == slices.lists().to_list()
    assert coded.to_list() == ([items[:2], [], items[1:]] if items else [[], [], []])


def test_timeline_says_where_a_group_begins_how_much_is_earlier_and_where_it_ends():
    timeline = Timeline(EVENTS, ["user"])
    queries = pl.DataFrame({"user": ["a", "b", "c"], "time": times(20, 7, 7)})
    for inclusive, earlier in ((False, [1, 1, 0]), (True, [3, 2, 0])):
        start, stop, end = timeline.earlier(queries, inclusive=inclusive)
        assert (stop - start).tolist() == earlier
        assert (end - start).tolist() == [4, 2, 0]
    start, stop, _ = timeline.earlier(queries)
    assert EVENTS["item"].gather(timeline.rows[start[0] : stop[0]]).to_list() == ["x"]


@pytest.mark.parametrize("step", [1, 10**17])  # ten times 10**17 for 9 groups leave 64 bits
@pytest.mark.parametrize("inclusive", [False, True])
def test_timeline_counts_what_is_earlier_however_far_the_times_are_apart(step, inclusive):
    rng = np.random.default_rng(3)
    group, time = rng.integers(0, 9, 80), rng.integers(-5, 6, 80) * step
    asked, at = rng.integers(0, 10, 60), rng.integers(-7, 8, 60) * step
    timeline = Timeline(pl.DataFrame({"user": group, "time": time}), ["user"])
    queries = pl.DataFrame({"user": asked, "time": at})
    start, stop, end = timeline.earlier(queries, inclusive=inclusive)
    for row in range(60):
        mine = time[group == asked[row]]
        earlier = mine <= at[row] if inclusive else mine < at[row]
        assert stop[row] - start[row] == earlier.sum()
        assert end[row] - start[row] == len(mine)
        assert sorted(time[timeline.rows[start[row] : end[row]]]) == sorted(mine)
