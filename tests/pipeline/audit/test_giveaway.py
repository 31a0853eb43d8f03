"""Sampled negatives that give themselves away are found, and what tells them is named."""

from bisect import bisect_left

import numpy as np
import polars as pl
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_info, threadpool_limits

from multigate.configs import DataError
from multigate.configs.files import SPLITS, ExamplesFolder
from multigate.pipeline import job
from multigate.pipeline.audit import giveaway
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.sample import matching

SAMPLED = pl.col("meta/sampled")


CHANGES = {
    "contract.features.place": {"kind": "position"},
    "contract.features.tastes": {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "column": "tastes",
    },
    "contract.features.age": {
        "kind": "number",
        "side": "item",
        "since": {"of": "item", "events": ["VIEW"], "which": "first"},
        "missing": "indicator",
    },
    "pipeline.negatives": {"per_positive": 2},
}


@pytest.fixture(scope="module")
def config(event_config):
    return event_config(**CHANGES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log in which popular items come early, one view in two is a second one, items are new."""
    rng = np.random.default_rng(3)
    lines, viewed = ["time,event,item,user,session,value,device,place,tastes"], {}
    for at in range(2500):
        user = f"u{rng.integers(25)}"
        mine = viewed.setdefault(user, [])
        again = mine and rng.random() < 0.5
        item = rng.choice(mine[-3:]) if again else f"i{at // 12 - int(rng.exponential(10))}"
        mine.append(item)
        device, tastes = rng.choice(["phone", "desk", ""]), "|".join(rng.choice(mine, 2))
        lines.append(
            f"{1_700_000_000 + 20 * at},VIEW,{item},{user},s,,{device},{rng.integers(9)},{tastes}"
        )
        if rng.random() < 0.1:
            lines.append(f"{1_700_000_001 + 20 * at},LIKE,{item},{user},s,,,,")
    lines += [f"1700000000,{kind},i0,u0,s,,,," for kind in ("DISLIKE", "BUY", "RATE")]
    made = tmp_path_factory.mktemp("giveaway")
    (made / "log.csv").write_text("\n".join(lines) + "\n")
    return made


@pytest.fixture(scope="module")
def honest(config, folder):
    job.run(config, folder, folder / "out")
    return folder / "out"


def changed(honest, out, **changes):
    """A copy of the examples with some columns changed."""
    (out / "contract.json").parent.mkdir(parents=True)
    (out / "contract.json").write_bytes((honest / "contract.json").read_bytes())
    for name in SPLITS:
        (out / name).mkdir()
        rows = pl.read_parquet(honest / name / "*.parquet").with_columns(**changes)
        rows.write_parquet(out / name / "part-00000.parquet")
    return ExamplesFolder(out)


def test_honest_negatives_pass(config, folder, honest):
    found = audit(config, folder, honest)["giveaway"]
    low, high = found["interval"]
    assert low <= 0.5 <= high
    assert found["pairs"] > 100


def of_sampled(value, otherwise):
    return pl.when(SAMPLED).then(value).otherwise(otherwise)


KINDS = [
    ({"place": of_sampled(None, "place")}, "feature 'place'"),
    ({"place": of_sampled(0, "place")}, "the position, feature 'place'"),
    ({"device": of_sampled(None, "device")}, "whether feature 'device' is missing"),
    # Only one in five, and only sampled.
    (
        {"age": of_sampled(pl.when(pl.col("meta/impression") % 5 > 0).then("age"), "age")},
        "whether feature 'age' is missing",
    ),
    ({"liked": of_sampled(pl.col("liked").list.tail(1), "liked")}, "the length of feature 'liked'"),
    ({"tastes": of_sampled(pl.col("tastes").list.head(1), "tastes")}, "feature 'tastes'"),
    # What is left of a list does not hold the item: of the same length, but it never matches.
    (
        {"recent": of_sampled(pl.col("recent").list.eval(pl.element() + "x"), pl.col("recent"))},
        "how often the item stands in feature 'recent'",
    ),
]


@pytest.mark.parametrize(("change", "named"), KINDS)
def test_a_planted_give_away_is_named(change, named, config, honest, tmp_path):
    examples = changed(honest, tmp_path / "out", **change)
    with pytest.raises(DataError, match=named) as error:
        giveaway.check(config, examples)
    assert "give themselves away" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_classifier_has_one_thread(config, honest, tmp_path, monkeypatch):
    """Threads that wait for one another took minutes instead of a second on busy cores."""
    fit, threads = HistGradientBoostingClassifier.fit, []

    def counted(self, *arguments, **keywords):
        threads.extend(
            pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"
        )
        return fit(self, *arguments, **keywords)

    monkeypatch.setattr(HistGradientBoostingClassifier, "fit", counted)
    examples = changed(honest, tmp_path / "out", place=of_sampled(0, "place"))
    more = threadpool_limits(2, user_api="openmp")
    with more, pytest.raises(DataError, match="give themselves away"):
        giveaway.check(config, examples)
    assert set(threads) == {1}


def test_two_columns_that_tell_only_together_are_found(config, honest, tmp_path):
    # place and device are missing in one row of two each, of both kinds; of sampled rows in others.
    some = pl.col("meta/time").dt.epoch("s") % 40 == 0
    change = {
        "place": pl.when(some).then("place"),
        "device": pl.when(some == SAMPLED).then(pl.lit("phone")),
    }
    examples = changed(honest, tmp_path / "out", **change)
    with pytest.raises(DataError, match="give themselves away"):
        giveaway.check(config, examples)


@pytest.mark.slow
def test_a_job_that_never_draws_what_the_user_knows_is_caught(
    config, folder, monkeypatch, tmp_path
):
    """The rule before: with `exclude: past`, whatever stands in the history is a positive."""
    monkeypatch.setattr(
        matching.UserLists, "counts", lambda self, rows, items: np.zeros((len(rows), 1), np.int64)
    )
    job.run(config, folder, tmp_path / "out")
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"how often the item stands in feature '(recent|tastes)'"):
        audit(config, folder, tmp_path / "out", sample=50)


@pytest.mark.slow
def test_first_views_that_keep_their_label_are_caught(event_config, folder, tmp_path):
    kept = event_config(**CHANGES | {"pipeline.negatives.unmatched": "keep"})
    job.run(kept, folder, tmp_path / "out")
    with pytest.raises(DataError, match="give themselves away"):
        audit(kept, folder, tmp_path / "out", sample=50)


def test_a_positive_without_its_negatives_is_named(config, honest, tmp_path):
    label = pl.when(pl.col("meta/sampled") | (pl.col("user_id") != "u3")).then("label/view")
    examples = changed(honest, tmp_path / "out", **{"label/view": label})
    with pytest.raises(DataError, match=r"expected 2 sampled negatives .* received 2 for 0 at"):
        giveaway.check(config, examples)


def test_popularity_is_no_give_away(config, honest, tmp_path):
    """Positives are popular, and what is popular is often known: that is what there is to learn."""
    rows = pl.concat(pl.read_parquet(honest / name / "*.parquet") for name in SPLITS)
    times = {}
    for item, time in rows.filter(~SAMPLED).sort("meta/time").select("item_id", "meta/time").rows():
        times.setdefault(item, []).append(time)
    shown = {
        number: bisect_left(times.get(item, []), time)
        for number, item, time in rows.select("meta/impression", "item_id", "meta/time").rows()
    }
    count = pl.col("meta/impression").replace_strict(shown)
    missing = rows.group_by(SAMPLED).agg((count > 8).mean().alias("share"))
    assert abs(missing["share"][0] - missing["share"][1]) > 0.05
    examples = changed(honest, tmp_path / "out", age=pl.when(count > 8).then("age"))
    found = giveaway.check(config, examples)
    assert found.interval[0] <= 0.5
