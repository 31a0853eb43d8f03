"""Slices of the publishers' own files, read as the presets read them."""

import json
import lzma
import zipfile

import polars as pl
import pytest

from multigate.configs import load
from multigate.pipeline.job import run


@pytest.mark.slow
def test_deskdrop(real_data, read_examples, tmp_path):
    source = real_data("deskdrop/users_interactions.csv.zip")
    with zipfile.ZipFile(source) as archive:
        text = archive.read("users_interactions.csv").decode()
    lines = text.splitlines(keepends=True)[:6001]
    with zipfile.ZipFile(tmp_path / source.name, "w") as archive:
        archive.writestr("users_interactions.csv", "".join(lines))
    manifest = run(load("deskdrop"), tmp_path, tmp_path / "out")
    assert manifest["rows"]["rows_in"] == 6000
    assert manifest["rows"]["rejects"] == 0
    raw = pl.read_csv("".join(lines).encode(), infer_schema=False).unique()
    raw = raw.with_columns(pl.col("timestamp").cast(pl.Int64)).sort("timestamp")
    every = raw.filter(pl.col("eventType") == "VIEW")
    # A view at most 30 s after the last one of the same person and article repeats it.
    gap = pl.col("timestamp") - pl.col("timestamp").shift().over("personId", "contentId")
    views = every.filter((gap > 30).fill_null(True))
    assert manifest["rows"]["collapsed"] == len(every) - len(views) > 100
    assert manifest["rows"]["impressions"] == len(views)  # view itself is known at once
    examples = read_examples(tmp_path / "out")
    item = pl.col("item_id")
    match = item.is_in(pl.col("recent_views")) | item.is_in(pl.col("recent_likes"))
    examples = examples.with_columns(match=match)
    logged = examples.filter(~pl.col("meta/sampled"))
    # Every view's history, from a self-join of the raw log.
    past = views.select("personId", past="timestamp")
    seen = logged.select("user_id", "recent_views", t=pl.col("meta/time").dt.epoch("s"))
    seen = seen.with_row_index("at")
    before = seen.join(past, left_on="user_id", right_on="personId").filter(
        pl.col("past") < pl.col("t")
    )
    lengths = seen.join(before.group_by("at").len(), on="at", how="left")
    expected = lengths["len"].fill_null(0).clip(upper_bound=20)
    assert seen["recent_views"].list.len().to_list() == expected.to_list()
    # A like stays open for a week: up to the log's end, or to the next split's beginning.
    likes = raw.filter(pl.col("eventType") == "LIKE")
    liked = _liked_within(views, likes, 7 * 86400)
    starts = [logged.filter(split=name)["meta/time"].min() for name in ("validation", "test")]
    ends = {"train": starts[0], "validation": starts[1], "test": raw["timestamp"].max() + 1}
    ends = {
        name: end if isinstance(end, int) else int(end.timestamp()) for name, end in ends.items()
    }
    found = logged.select("user_id", "item_id", "split", "label/like", t=seen["t"]).rows()
    for user, item, split, like, time in found:
        closed = time + 7 * 86400 < ends[split]
        assert like == (float((user, item, time) in liked) if closed else None)
    assert logged["label/like"].sum() > 100
    embargoed = manifest["labels"]["embargoed"]
    assert embargoed["train"]["like"] > 100
    assert logged["label/like"].null_count() == manifest["labels"]["open"]["like"] + sum(
        counts["like"] for counts in embargoed.values()
    )
    sampled = examples.filter(pl.col("meta/sampled"))
    assert sampled["label/view"].sum() == 0
    assert sampled["label/dwell"].null_count() == len(sampled)
    own = sampled.join(views, left_on=["user_id", "item_id"], right_on=["personId", "contentId"])
    # A negative may be viewed later; before, only where its positive is viewed again too.
    early = own.filter(pl.col("timestamp") <= pl.col("meta/time").dt.epoch("s"))
    assert set(early["match"]) == {True}
    told = examples.filter(pl.col("label/view").is_not_null())
    for matching in told.partition_by("match"):
        assert len(matching) > 50
        assert matching["label/view"].mean() == pytest.approx(0.2)  # four negatives to each


def _liked_within(views, likes, seconds):
    """Views with a like of the same user and item, of which they are the latest view before."""
    by = {}
    for person, item, time in views.select("personId", "contentId", "timestamp").rows():
        by.setdefault((person, item), []).append(int(time))
    liked = set()
    for person, item, time in likes.select("personId", "contentId", "timestamp").rows():
        earlier = [t for t in by.get((person, item), []) if t <= int(time)]
        if earlier and int(time) - max(earlier) <= seconds:
            liked.add((person, item, max(earlier)))
    return liked


@pytest.mark.slow
def test_movielens_by_time(real_data, read_examples, tmp_path):
    """Its side tables join: rows against the publisher's files, read by plain code."""
    with lzma.open(real_data("ml-1m/ratings_users_1_2999.dat.xz"), "rt") as stream:
        lines = [next(stream) for _ in range(20_000)]
    with lzma.open(tmp_path / "ratings.dat.xz", "wt", preset=0) as stream:
        stream.writelines(lines)
    tables = {}
    for name in ("users", "movies"):
        text = real_data(f"ml-1m/{name}.dat").read_text("latin-1")
        (tmp_path / f"{name}.dat").write_bytes(text.encode("latin-1"))
        tables[name] = {int(row[0]): row for row in (x.split("::") for x in text.splitlines())}
    run(load("movielens_time"), tmp_path, tmp_path / "out")
    examples = read_examples(tmp_path / "out")
    assert examples["meta/sampled"].sum() > 10_000
    for row in examples.sample(500, seed=0).to_dicts():
        _, gender, age, occupation, _ = tables["users"][row["user_id"]]
        assert [row["gender"], row["age"], row["occupation"]] == [gender, int(age), int(occupation)]
        _, title, genres = tables["movies"][row["movie_id"]]
        assert row["genres"] == genres.split("|")
        assert row["year"] == int(title[-5:-1])
    # Each user's running mean of stars, from the publisher's file.
    ratings = [[int(x) for x in line.split("::")] for line in lines]
    logged = examples.filter(~pl.col("meta/sampled") & (pl.col("user_rating_count") >= 10))
    for row in logged.sample(100, seed=0).to_dicts():
        now = int(row["meta/time"].timestamp())
        past = [stars for user, _, stars, time in ratings if user == row["user_id"] and time < now]
        prior = json.loads((tmp_path / "out/statistics.json").read_text())["priors"]
        smoothed = (sum(past) + 10 * prior["user_rating_mean"]) / (len(past) + 10)
        counted = abs(row["user_rating_count"] - len(past)) / len(past)
        assert counted < 0.2  # stars of the last second are not known yet
        assert row["user_rating_mean"] == pytest.approx(smoothed, abs=0.2)


def test_movielens(real_data, read_examples, tmp_path):
    source = real_data("ml-1m/ratings.dat.xz")
    with lzma.open(source, "rt") as stream:
        lines = [next(stream) for _ in range(20_000)]
    with lzma.open(tmp_path / "ratings.dat.xz", "wt", preset=0) as stream:
        stream.writelines(lines)
    manifest = run(load("movielens"), tmp_path, tmp_path / "out")
    assert manifest["rows"]["impressions"] == 20_000
    assert manifest["examples"]["sampled_negatives"] == 20_000
    examples = read_examples(tmp_path / "out")
    ratings = {(int(u), int(m)): float(r) for u, m, r, _ in (x.split("::") for x in lines)}
    logged = examples.filter(~pl.col("meta/sampled"))
    assert {
        (u, m): r for u, m, r in logged.select("user_id", "movie_id", "label/rating").rows()
    } == (ratings)
    sampled = examples.filter(pl.col("meta/sampled"))
    assert sampled["label/rating"].null_count() == 20_000
    assert not any(pair in ratings for pair in sampled.select("user_id", "movie_id").rows())
    # A negative is in the split of its positive, and only its film differs.
    pairs = logged.join(sampled, on="meta/request", suffix="_negative")
    assert len(pairs) == 20_000
    assert (pairs["user_id"] == pairs["user_id_negative"]).all()
    assert (pairs["split"] == pairs["split_negative"]).all()
    counts = dict(logged["split"].value_counts().rows())
    assert counts["test"] == pytest.approx(2000, abs=200)
