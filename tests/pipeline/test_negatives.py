"""Sampled negatives: from what had been shown, not from what was touched, evenly, reproducibly."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from multigate.configs.sections.pipeline import Negatives
from multigate.pipeline.catalogue import as_of
from multigate.pipeline.negatives import draw, matched, numbers
from multigate.pipeline.urn import thin

START = datetime(2026, 1, 1, tzinfo=UTC)


def instants(seconds):
    values = [None if s is None else START + timedelta(seconds=s) for s in seconds]
    return pl.Series(values, dtype=pl.Datetime("us", "UTC"))


def table(**columns):
    if "time" in columns:
        columns["time"] = instants(columns["time"])
    return pl.DataFrame(columns)


def touched_by(**times):
    """touched_by(a={"x": 3}): user a touched x at 3."""
    rows = [(user, item, t) for user, items in times.items() for item, t in items.items()]
    frame = table(user=[r[0] for r in rows], item=[r[1] for r in rows], time=[r[2] for r in rows])
    return frame.with_columns(unknown=pl.col("time").is_null())


POOL = table(time=[0, 10, 20, 30], item=["w", "x", "y", "z"])


@pytest.mark.parametrize(
    ("time", "touched", "allowed"),
    [
        (25, {}, {"w", "x", "y"}),  # z had not been shown
        (20, {}, {"w", "x"}),  # nor y: strictly before
        (25, {"x": 25}, {"w", "y"}),  # touched at the very time
        (25, {"x": 26}, {"w", "x", "y"}),  # touched later: that is the future
        (25, {"x": None}, {"w", "y"}),  # touched at an unknown time
        (0, {}, set()),
        (None, {}, set()),
    ],
)
def test_past_draws_what_was_shown_and_not_touched_up_to_then(time, touched, allowed):
    positives = table(user=["a"] * 40, time=[time] * 40, impression=list(range(40)))
    drawn = draw(positives, touched_by(a={"q": 1, **touched}), POOL, Negatives(), 0)
    assert set(drawn["item"]) == allowed
    assert len(drawn) == (40 if allowed else 0)


def test_ever_draws_from_all_items_and_leaves_out_the_future_too():
    positives = table(user=["a"] * 40, time=[None] * 40, impression=list(range(40)))
    policy = Negatives(exclude="ever")
    pool = table(time=[None, 10, 20, 30], item=["w", "x", "y", "z"])
    drawn = draw(positives, touched_by(a={"x": 99}), pool, policy, 0)
    assert set(drawn["item"]) == {"w", "y", "z"}


def test_a_positive_has_no_negative_twice_and_fewer_where_nothing_is_left():
    positives = table(user=["a", "b"], time=[99, 99], impression=[1, 2])
    touched = touched_by(a={"w": 1, "x": 1}, b={"w": 1})
    drawn = draw(positives, touched, POOL, Negatives(per_positive=3), 0)
    found = drawn.group_by("positive").agg(pl.col("item").sort(), "slot").sort("positive")
    assert found["item"].to_list() == [["y", "z"], ["x", "y", "z"]]
    assert found["slot"].to_list() == [[0, 1], [0, 1, 2]]


def test_a_user_who_touched_nearly_all_gets_what_is_left():
    # 2,000 items, all but two touched: drawing and trying again would take 1,000 attempts.
    items = [f"i{n:04d}" for n in range(2000)]
    pool = table(time=[0] * 2000, item=items)
    touched = touched_by(a=dict.fromkeys(items[2:], 1))
    positives = table(user=["a"] * 50, time=[5] * 50, impression=list(range(50)))
    drawn = draw(positives, touched, pool, Negatives(), 0)
    assert drawn["item"].value_counts().sort("item")["item"].to_list() == items[:2]
    assert 10 < drawn["item"].value_counts().sort("item")["count"][0] < 40


def test_draws_are_even_or_by_popularity():
    n = 8000
    positives = table(user=["a"] * n, time=[99] * n, impression=list(range(n)))
    counts = draw(positives, touched_by(a={"w": 1}), POOL, Negatives(), 0)["item"].value_counts()
    # Binomial(8000, 1/3): mean 2667, standard deviation 42.
    assert counts["count"].to_list() == pytest.approx([2667] * 3, abs=4 * 42)
    pool = table(time=[0, 1, 2, 3, 4, 5], item=["w", "x", "x", "y", "x", "x"])
    popular = Negatives(sampling="popularity")
    drawn = draw(positives, touched_by(a={"w": 1}), pool, popular, 0)["item"].value_counts()
    # Four impressions of x for one of y: 6400 and 1600, standard deviation 36.
    assert dict(drawn.rows())["x"] == pytest.approx(6400, abs=4 * 36)


# x is shown at 0, 12 and 30, y at 10, z at 18, w at 29.
SHOWN = table(time=[0, 10, 12, 18, 29, 30], item=["x", "y", "x", "z", "w", "x"])


@pytest.mark.parametrize("sampling", ["uniform", "popularity"])
@pytest.mark.parametrize(
    ("time", "allowed"),
    [
        (20, {"x", "y", "z"}),  # from 10, which counts, to before 20
        (21, {"x", "z"}),  # from 11: y was at 10
        (12, {"y"}),  # from 2: x was at 0 and is now, at 12; neither is within
        (28, {"z"}),  # from 18
        (29, set()),  # from 19: nothing; w comes at the very time
        (31, {"w", "x"}),
        (60, set()),
        (None, set()),
    ],
)
def test_recent_draws_what_was_shown_within_the_span_before(time, allowed, sampling):
    policy = Negatives(recent=timedelta(seconds=10), sampling=sampling)
    positives = table(user=["a"] * 40, time=[time] * 40, impression=list(range(40)))
    drawn = draw(positives, touched_by(a={"q": 1}), thin(SHOWN, policy).sort("time"), policy, 0)
    assert set(drawn["item"]) == allowed
    assert len(drawn) == (40 if allowed else 0)


@pytest.mark.parametrize("sampling", ["uniform", "popularity"])
@pytest.mark.parametrize("recent", [None, 10])
def test_an_impression_is_matched_where_its_item_could_be_drawn_for_another_user(recent, sampling):
    policy = Negatives(recent=recent and timedelta(seconds=recent), sampling=sampling)
    pool = thin(SHOWN, policy).sort("time", "item", nulls_last=False)
    cases = [(time, item) for time in [*range(0, 62, 3), 20, 21, 29, None] for item in "wxyzn"]
    asked = table(time=[time for time, _ in cases], item=[item for _, item in cases])
    flags = matched(asked, pool, policy)
    for (time, item), flag in zip(cases, flags, strict=True):
        positives = table(user=["a"] * 60, time=[time] * 60, impression=list(range(60)))
        drawn = draw(positives, touched_by(a={"q": 1}), pool, policy, 0)
        assert flag == (item in set(drawn["item"])), (time, item)
    assert 0 < flags.sum() < len(flags)


def test_all_are_matched_where_draws_know_no_time():
    asked = table(time=[0, None], item=["w", "n"])
    assert matched(asked, POOL, Negatives(exclude="ever")).to_list() == [True, True]


def test_recent_draws_are_even_however_often_an_item_was_shown():
    # In [100, 200) v was shown 60 times, w 3 times, x and y once; y is excluded.
    rows = [("v", 100 + t) for t in range(60)] + [("w", 110), ("w", 150), ("w", 199)]
    rows += [("x", 199), ("y", 130), ("z", 99), ("z", 200)]
    shown = table(time=[t for _, t in rows], item=[i for i, _ in rows])
    n = 6000
    positives = table(user=["a"] * n, time=[200] * n, impression=list(range(n)))
    counts = {}
    for sampling in ("uniform", "popularity"):
        policy = Negatives(recent=timedelta(seconds=100), sampling=sampling)
        kept = thin(shown, policy).sort("time", "item")
        drawn = draw(positives, touched_by(a={"y": 1}), kept, policy, 0)
        counts[sampling] = dict(drawn["item"].value_counts().rows())
    # Binomial(6000, 1/3): standard deviation 37; of 64 impressions, 60, 3 and 1.
    assert counts["uniform"] == pytest.approx({"v": 2000, "w": 2000, "x": 2000}, abs=4 * 37)
    expected = {"v": 6000 * 60 / 64, "w": 6000 * 3 / 64, "x": 6000 / 64}
    assert counts["popularity"] == pytest.approx(expected, abs=4 * 20)


@pytest.mark.parametrize("seed", range(4))
def test_the_pool_holds_what_any_window_needs_in_few_rows(seed):
    rng = np.random.default_rng(seed)
    times, items = rng.integers(0, 500, 3000), rng.choice(list("uvwxyz"), 3000)
    shown = table(time=times.tolist(), item=items.tolist())
    policy = Negatives(recent=timedelta(seconds=40), per_positive=9)
    # Parts of the log, thinned one by one and together, make the same pool.
    parts = [thin(shown[at : at + 700], policy) for at in range(0, 3000, 700)]
    kept = thin(pl.concat(parts), policy).sort("time", "item")
    assert kept.equals(thin(shown, policy).sort("time", "item"))
    assert len(kept) <= 6 * 2 * 13  # six items, two rows in each of 13 spans
    queries = [*rng.integers(0, 560, 100).tolist(), 400, 440]
    positives = table(user=["a"] * 102, time=queries, impression=list(range(102)))
    drawn = draw(positives, touched_by(a={"q": 1}), kept, policy, seed)
    found = dict(drawn.group_by("positive").agg("item").rows())
    for at, time in enumerate(queries):
        allowed = {i for i, t in zip(items, times, strict=True) if time - 40 <= t < time}
        assert sorted(found.get(at, [])) == sorted(allowed)
    # What comes later changes no draw.
    early = positives.filter(pl.col("time") <= START + timedelta(seconds=300))
    past = thin(shown.filter(pl.col("time") < START + timedelta(seconds=300)), policy)
    drawn = drawn.filter(pl.col("positive").is_in(early["impression"].implode()))
    again = draw(early, touched_by(a={"q": 1}), past.sort("time", "item"), policy, seed)
    again = again.with_columns(early["impression"].gather(again["positive"]).alias("positive"))
    assert again.sort("positive", "slot").equals(drawn)


def test_draws_depend_on_the_seed_and_the_impression_alone():
    positives = table(
        user=["a", "b"] * 100, time=list(range(50, 250)), impression=list(range(1000, 1200))
    )
    touched = touched_by(a={"x": 3}, b={"y": 4})
    policy = Negatives(per_positive=2)
    drawn = draw(positives, touched, POOL, policy, 7)
    order = np.random.default_rng(0).permutation(200)
    mixed = draw(positives[order.tolist()], touched.reverse(), POOL, policy, 7)
    back = mixed.with_columns(positive=pl.Series(order[mixed["positive"].to_numpy()]))
    assert back.sort("positive", "slot").equals(drawn)
    assert not draw(positives, touched, POOL, policy, 8).equals(drawn)
    ids = numbers(positives["impression"].gather(drawn["positive"]), drawn["slot"])
    assert ids.n_unique() == 400
    assert ids.min() >= 0


def test_item_features_of_negatives_are_the_latest_earlier_ones(impression_config):
    features = pl.DataFrame(
        {
            "item": ["x", "x", "x", "y"],
            "time": instants([None, 10, 20, 30]),
            "price": [1.0, 2.0, 3.0, 4.0],
            "tags": [None, ["a"], ["b"], ["c"]],
        }
    )
    queries = pl.DataFrame(
        {"item": ["x", "x", "y", "x", "x", "y"], "time": instants([20, 21, 99, 5, None, 30])}
    )
    found = as_of(features, queries, impression_config())
    # At 20: the value of 10. Nothing earlier: the first there is.
    assert found["price"].to_list() == [2.0, 3.0, 4.0, 1.0, 1.0, 4.0]
    assert found["tags"].to_list() == [["a"], ["b"], ["c"], None, None, ["c"]]
