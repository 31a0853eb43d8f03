"""Sampled negatives: from what had been shown, not from what was touched, evenly, reproducibly."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from multigate.configs.files import SPLITS
from multigate.configs.sections.pipeline import Negatives as Policy
from multigate.features import Slices
from multigate.pipeline import job
from multigate.pipeline.sample import matching
from multigate.pipeline.sample import negatives as module
from multigate.pipeline.sample.candidate_pool import thin
from multigate.pipeline.sample.catalogue import as_of
from multigate.pipeline.sample.negatives import number_negatives

START = datetime(2026, 1, 1, tzinfo=UTC)


def Negatives(**values):
    """What is tested one rule at a time draws what there is; `mask` is tested by itself."""
    return Policy(**{"unmatched": "keep", **values})


def draw(positives, touched, pool, policy, seed):
    """Negatives of positives that match nothing."""
    return module.draw(with_items(positives), touched, pool, policy, seed).negatives


def with_items(positives):
    """Positives of an item that nobody had seen before."""
    if "item" in positives.columns:
        return positives
    return positives.with_columns(item=pl.lit("own"))


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
def test_a_positive_is_complete_where_its_item_could_be_drawn_for_another_user(recent, sampling):
    policy = Policy(recent=recent and timedelta(seconds=recent), sampling=sampling)
    pool = thin(SHOWN, policy).sort("time", "item", nulls_last=False)
    cases = [(time, item) for time in [*range(0, 62, 3), 20, 21, 29, None] for item in "wxyzn"]
    asked = table(
        user=["a"] * len(cases),
        time=[time for time, _ in cases],
        item=[item for _, item in cases],
        impression=list(range(len(cases))),
    )
    found = module.draw(asked, touched_by(a={"q": 1}), pool, policy, 0)
    for at, ((time, item), flag) in enumerate(zip(cases, found.complete, strict=True)):
        positives = table(user=["a"] * 60, time=[time] * 60, impression=list(range(60)))
        keep = policy.model_copy(update={"unmatched": "keep"})
        drawn = draw(positives, touched_by(a={"q": 1}), pool, keep, 0)
        assert flag == (item in set(drawn["item"])), (time, item)
        assert len(found.negatives.filter(pl.col("positive") == at)) == int(flag)
    assert 0 < found.complete.sum() < len(found.complete)


def test_all_are_complete_where_draws_know_no_time():
    asked = table(user=["a", "a"], time=[0, None], item=["w", "x"], impression=[1, 2])
    found = module.draw(asked, touched_by(a={"q": 1}), POOL, Policy(exclude="ever"), 0)
    assert found.complete.to_list() == [True, True]


# Nine items, each shown at second 0 and once more; the user's two lists at second 50.
WIDE = table(time=[0] * 9 + list(range(10, 19)), item=[f"i{n}" for n in range(9)] * 2).sort(
    "time", "item"
)
VIEWS, LIKES = ["i0", "i1", "i2", "i2", "i3", "i4", "i5", "q"], ["i0", "i1", "i3", "r", "r"]


def lists_of(*rows):
    """The same two lists for each of `rows` positives."""
    return [
        Slices.of(pl.Series([one] * len(rows), dtype=pl.List(pl.String))) for one in (VIEWS, LIKES)
    ]


@pytest.mark.parametrize("exclude", ["past", "ever"])
@pytest.mark.parametrize("sampling", ["uniform", "popularity"])
@pytest.mark.parametrize(
    ("own", "allowed"),
    [
        ("i6", {"i7", "i8"}),  # in no list: of the pool, what is in no list and not touched
        ("i4", {"i5"}),  # viewed once and not liked, as i5; q is in no pool
        ("i0", {"i1", "i3"}),  # viewed once and liked once
        ("i2", set()),  # nothing else was viewed twice
    ],
)
def test_negatives_stand_in_the_lists_as_often_as_their_positive(own, allowed, sampling, exclude):
    n = 200
    positives = table(user=["a"] * n, item=[own] * n, time=[50] * n, impression=list(range(n)))
    touched = touched_by(a=dict.fromkeys([*VIEWS, *LIKES, own], 20))
    touched = touched.unique(["user", "item"])
    policy = Policy(sampling=sampling, exclude=exclude)
    found = module.draw(positives, touched, WIDE, policy, 0, lists_of(*range(n)))
    assert set(found.negatives["item"]) == allowed
    assert found.complete.to_list() == [bool(allowed)] * n
    if allowed:  # evenly: all items were shown twice
        counts = found.negatives["item"].value_counts()["count"]
        # Binomial(200, 1/2): standard deviation 7.
        assert counts.min() >= n / len(allowed) - 4 * 7
    # Two of each: only where there are two.
    twice = Policy(sampling=sampling, exclude=exclude, per_positive=2)
    found = module.draw(positives, touched, WIDE, twice, 0, lists_of(*range(n)))
    assert set(found.complete) == {len(allowed) >= 2}
    groups = found.negatives.group_by("positive").agg(pl.col("item").sort())
    assert set(map(tuple, groups["item"])) == (
        {tuple(sorted(allowed))} if len(allowed) > 1 else set()
    )


def test_among_alike_items_popularity_draws_in_proportion_to_impressions():
    # i4 was shown 8 times before 50 and i5 twice.
    more = table(time=[40] * 6, item=["i4"] * 6)
    pool = pl.concat([WIDE, more, table(time=[50] * 50, item=["i5"] * 50)]).sort("time", "item")
    n = 4000
    positives = table(user=["a"] * n, item=["i9"] * n, time=[50] * n, impression=list(range(n)))
    lists = [Slices.of(pl.Series([["i4", "i5", "i9"]] * n))]
    pool = pl.concat([table(time=[0], item=["i9"]), pool]).sort("time", "item")
    policy = Policy(sampling="popularity")
    found = module.draw(positives, touched_by(a={"q": 1}), pool, policy, 0, lists)
    counts = dict(found.negatives["item"].value_counts().rows())
    # Binomial(4000, 0.8): standard deviation 25.
    assert counts["i4"] == pytest.approx(3200, abs=4 * 25)
    assert counts["i4"] + counts["i5"] == n


def test_a_match_must_have_been_shown_lately_too():
    policy = Policy(recent=timedelta(seconds=35))
    pool = thin(WIDE, policy).sort("time", "item")
    lists = [Slices.of(pl.Series([["i1", "i4", "i5", "i8"]] * 3))]
    # At 50, i5 to i8 had been shown since 15; at 52 i7 and i8.
    positives = table(
        user=["a"] * 3, item=["i8", "i4", "i8"], time=[50, 50, 52], impression=[1, 2, 3]
    )
    found = module.draw(positives, touched_by(a={"i5": 9}), pool, policy, 0, lists)
    assert found.complete.to_list() == [True, False, False]
    assert found.negatives.rows() == [(0, 0, "i5")]


def test_what_stands_in_a_list_is_no_negative_of_what_does_not():
    # `exclude_within` would let what was touched long ago be drawn.
    policy = Policy(per_positive=3, exclude_within=timedelta(seconds=10))
    lists = [Slices.of(pl.Series([["i0", "i1", "i2", "i3", "i4"]] * 30))]
    positives = table(user=["a"] * 30, item=["i8"] * 30, time=[50] * 30, impression=list(range(30)))
    found = module.draw(positives, touched_by(a={"i0": 20, "i8": 50}), WIDE, policy, 0, lists)
    assert set(found.negatives["item"]) == {"i5", "i6", "i7"}


def test_draws_among_alike_items_depend_on_seed_and_positive_alone(monkeypatch):
    rng = np.random.default_rng(0)
    n, names = 300, np.array([f"i{at}" for at in range(9)])
    positives = table(
        user=[f"u{at % 7}" for at in range(n)],
        item=rng.choice(names, n).tolist(),
        time=rng.integers(20, 60, n).tolist(),
        impression=rng.permutation(n).tolist(),
    )
    listed = [rng.choice(names, rng.integers(0, 8)).tolist() for _ in range(n)]
    touched = touched_by(**{f"u{at}": {"i0": 30} for at in range(7)})
    policy = Policy(per_positive=2)

    def drawn(order, pool, seed=3):
        some = positives[order.tolist()]
        lists = [Slices.of(pl.Series([listed[at] for at in order], dtype=pl.List(pl.String)))]
        found = module.draw(some, touched, pool, policy, seed, lists)
        at = pl.Series(order[found.negatives["positive"].to_numpy()])
        return found.negatives.with_columns(positive=at).sort("positive", "slot")

    straight = drawn(np.arange(n), WIDE)
    matching_ = [row for row in range(n) if positives["item"][row] in listed[row]]
    assert len(straight.filter(pl.col("positive").is_in(matching_))) > 20
    assert drawn(rng.permutation(n), WIDE).equals(straight)
    later = pl.concat([WIDE, table(time=[70, 71], item=["i0", "j"])]).sort("time", "item")
    assert drawn(np.arange(n), later).equals(straight)
    monkeypatch.setattr(matching, "_AT_ONCE", 5)
    assert drawn(np.arange(n), WIDE).equals(straight)
    assert not drawn(np.arange(n), WIDE, seed=4).equals(straight)


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
    ids = number_negatives(positives["impression"].gather(drawn["positive"]), drawn["slot"])
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


@pytest.fixture(scope="module")
def twins(event_config, tmp_path_factory):
    """A log in which one view in two is a view of something viewed before, with positions."""
    rng = np.random.default_rng(11)
    lines, viewed = ["time,event,item,user,session,value,device,place"], {}
    for at in range(3000):
        user = f"u{rng.integers(20)}"
        mine = viewed.setdefault(user, [])
        again = mine and rng.random() < 0.5
        item = rng.choice(mine[-6:]) if again else f"i{rng.integers(60)}"
        mine.append(item)
        place, device = rng.integers(10), rng.choice(["phone", "desk", ""])
        lines.append(f"{1_700_000_000 + 20 * at},VIEW,{item},{user},s,,{device},{place}")
        if rng.random() < 0.2:
            lines.append(f"{1_700_000_001 + 20 * at},LIKE,{item},{user},s,,,")
    lines += [f"1700000000,{kind},i0,u0,s,,," for kind in ("DISLIKE", "BUY", "RATE")]
    folder = tmp_path_factory.mktemp("twins")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    config = event_config(
        **{
            "contract.features.place": {"kind": "position"},
            "contract.features.recent.history.last": 12,
            "contract.features.recent.max_length": 12,
            "contract.features.seen": {
                "kind": "number",
                "side": "item",
                "since": {"of": "item", "events": ["VIEW"], "which": "first"},
                "missing": "indicator",
            },
            "pipeline.negatives": {"per_positive": 2},
        }
    )
    return job.run(config, folder, folder / "out"), folder / "out"


def test_a_sampled_negative_differs_from_its_positive_in_the_item_alone(twins):
    manifest, out = twins
    examples = pl.concat(pl.read_parquet(out / name / "*.parquet") for name in SPLITS)
    examples = examples.with_columns(
        match=pl.Series(
            [
                [listed.count(item) for listed in lists]
                for item, *lists in examples.select("item_id", "recent", "liked").rows()
            ]
        )
    )
    told = examples.filter(pl.col("label/view").is_not_null())
    alike = ["user_id", "device", "place", "recent", "liked", "meta/time", "match"]
    groups = told.group_by("meta/request").agg(
        pl.col("label/view").sum(), pl.len(), *(pl.col(name).n_unique() for name in alike)
    )
    assert groups["label/view"].unique().to_list() == [1.0]
    assert groups["len"].unique().to_list() == [3]
    for name in alike:
        assert groups[name].unique().to_list() == [1], name
    assert told["seen"].null_count() == 0
    for name in ("place", "device"):
        rates = told.group_by("meta/sampled").agg(pl.col(name).is_null().mean())[name]
        assert rates[0] == pytest.approx(rates[1])
    matching_ = told.filter(pl.col("match").list.sum() > 0)
    assert len(matching_) > 300
    assert matching_["label/view"].mean() == pytest.approx(1 / 3)
    # What has no counterpart has no negatives, keeps its other labels, and is counted.
    rest = examples.filter(pl.col("label/view").is_null())
    assert not rest["meta/sampled"].any()
    assert rest["label/like"].null_count() == 0
    assert len(rest) == manifest["examples"]["unmatched"] > 100
    assert manifest["examples"]["negatives_missing"] == 2 * len(rest)
