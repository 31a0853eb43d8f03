"""The audit passes what the job makes, and finds planted leaks."""

import random

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.features import earlier
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run

T = 1_700_000_000
COUNTERS = {
    "contract.features.item_views_100s": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"], "within": "100s"},
    },
    "contract.features.item_age": {
        "kind": "number",
        "side": "item",
        "since": {"of": "item", "events": ["impression"], "which": "first"},
        "missing": "indicator",
    },
    "contract.features.user_likes": {
        "kind": "number",
        "side": "user",
        "count": {"of": "user", "events": ["LIKE"]},
    },
    "contract.features.item_likes_per_view": {
        "kind": "number",
        "side": "item",
        "rate": {"of": "item", "events": ["LIKE"], "per": ["VIEW", "BUY"], "within": "400s"},
        "missing": "indicator",
    },
    "contract.features.user_rest": {
        "kind": "number",
        "side": "user",
        "since": {"of": "user", "events": ["VIEW"], "within": "60s"},
        "missing": "indicator",
    },
    "contract.features.lately": {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "history": {"events": ["VIEW"], "last": 3, "within": "90s"},
    },
    "pipeline.log.columns.event_id": "id",
    "pipeline.negatives": {"per_positive": 2, "recent": "300s"},
}


def write_log(folder, seed=0, rows=300):
    rng = random.Random(seed)
    kinds = ["VIEW"] * 6 + ["LIKE"] * 2 + ["DISLIKE", "BUY", "RATE"]
    lines = ["time,event,item,user,session,value,device,id"]
    for _ in range(rows):
        # Some ids occur twice, with other items: the first row counts.
        number = rng.choice(["", f"e{rng.randint(0, 30)}"])
        time, item = T + 10 * rng.randint(0, 90), f"i{rng.randint(0, 19)}"
        lines.append(f"{time},{rng.choice(kinds)},{item},u{rng.randint(0, 9)},s,,,{number}")
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def made(event_config, tmp_path_factory):
    folder = write_log(tmp_path_factory.mktemp("audit") / "log")
    config = event_config(**COUNTERS)
    manifest = run(config, folder, folder / "out")
    assert manifest["rows"]["duplicates"] > 20
    return config, folder, manifest


def test_what_the_job_makes_passes(made):
    config, folder, manifest = made
    found = audit(config, folder, folder / "out", sample=10_000)
    assert found["examples"] == manifest["examples"]["total"]
    assert found["negatives"] == manifest["examples"]["sampled_negatives"] > 100
    names = ["recent", "liked", "lately", "user_likes", "user_rest"]
    names += ["item_views_100s", "item_age", "item_likes_per_view"]
    assert found["features"] == names
    assert found["values"] == found["examples"] * len(names)
    assert audit(config, folder, folder / "out", sample=7)["examples"] == 7


def test_an_impression_log_passes(impression_config, tmp_path):
    rng = random.Random(0)
    lines = ["time,user_id,item_id,request,price,tags,place,click,stars"]
    for _ in range(200):
        user, item = rng.randint(0, 5), rng.randint(0, 9)
        lines.append(f"{T + rng.randint(0, 60)},{user},{item},r,,,,{rng.randint(0, 1)},")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    count = {"of": "item", "events": ["click"], "within": "20s"}
    counter = {"kind": "number", "side": "item", "count": count}
    config = impression_config(**{"contract.features.item_clicks": counter})
    run(config, tmp_path, tmp_path / "out")
    found = audit(config, tmp_path, tmp_path / "out")
    assert found["features"] == ["clicked", "item_clicks"]
    assert found["negatives"] == 0
    assert found["examples"] > 150


@pytest.mark.slow
def test_negatives_that_leave_out_the_future_pass_where_the_split_allows_it(event_config, tmp_path):
    changes = {"pipeline.negatives": {"per_positive": 2, "exclude": "ever"}}
    folder = write_log(tmp_path / "log")
    config = event_config(**COUNTERS | changes)
    run(config, folder, tmp_path / "out")
    assert audit(config, folder, tmp_path / "out")["negatives"] > 100


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "name", ["item_views_100s", "item_likes_per_view", "user_rest", "lately", "nothing"]
)
def test_a_pipeline_that_sees_the_present_is_found(name, event_config, monkeypatch, tmp_path):
    """The leak, in a counter or in the histories: events at the impression's very time count."""
    honest = earlier.Timeline.earlier

    def leaky(self, queries, time=None, *, inclusive=False):
        return honest(self, queries, time, inclusive=True)

    folder = write_log(tmp_path / "log")
    config = event_config(**{k: v for k, v in COUNTERS.items() if name in k or "pipeline" in k})
    monkeypatch.setattr(earlier.Timeline, "earlier", leaky)
    run(config, folder, tmp_path / "out")
    monkeypatch.undo()
    message = r"meta/impression \d+: feature '\w+': expected .*; it counts what happened at that"
    with pytest.raises(DataError, match=message):
        audit(config, folder, tmp_path / "out")


def planted(made, tmp_path, change):
    """A copy of the examples with some rows of the training split changed."""
    config, folder, _ = made
    out = tmp_path / "out"
    for path in sorted((folder / "out").rglob("*")):
        if path.is_file():
            target = out / path.relative_to(folder / "out")
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.parent.name == "train":
                pl.read_parquet(path).with_columns(**change).write_parquet(target)
            else:
                target.write_bytes(path.read_bytes())
    return config, folder, out


SAMPLED = pl.col("meta/sampled")
LAST_VIEWED = pl.coalesce(pl.col("recent").list.last(), "item_id")
PLANTED = [
    (
        {"item_views_100s": pl.col("item_views_100s") + 1},
        r"train: meta/impression \d+: feature 'item_views_100s': expected \d+\.0 from the events",
    ),
    ({"item_age": pl.lit(None, pl.Float32)}, r"feature 'item_age': expected .*, received None"),
    ({"recent": pl.col("recent").list.reverse()}, r"feature 'recent': expected \["),
    # Views at 1 s later: they are in no log.
    (
        {"meta/time": pl.col("meta/time").dt.offset_by("1s")},
        r"no impression of this user and item at this time|negative",
    ),
    (
        {"item_id": pl.when(SAMPLED).then(LAST_VIEWED).otherwise("item_id")},
        r"a sampled negative that stands \d times in 'recent', .*, and no positive of its request",
    ),
    (
        {"item_id": pl.when(SAMPLED).then(pl.lit("new")).otherwise("item_id")},
        r"a sampled negative that was not shown between 2023-11-14 \S+ and 2023-11-14",
    ),
]


def test_a_negative_that_its_user_had_touched_long_ago_is_found(made, tmp_path):
    log = pl.read_csv(made[1] / "log.csv").sort("time")
    first = dict(log.group_by("user", maintain_order=True).agg(pl.col("item").first()).rows())
    item = pl.col("user_id").replace_strict(first)
    names = ["recent", "liked", "lately"]
    unlisted = pl.all_horizontal(~pl.col(name).list.contains(item) for name in names)
    late = pl.col("meta/time").dt.epoch("s") > T + 300
    changed = pl.when(SAMPLED & unlisted & late).then(item).otherwise("item_id")
    config, folder, out = planted(made, tmp_path, {"item_id": changed})
    with pytest.raises(DataError, match="a sampled negative that its user had touched at 2023-11"):
        audit(config, folder, out, sample=10_000)


@pytest.mark.parametrize(("change", "message"), PLANTED)
def test_planted_differences_are_found(change, message, made, tmp_path):
    config, folder, out = planted(made, tmp_path, change)
    with pytest.raises(DataError, match=message) as error:
        audit(config, folder, out, sample=10_000)
    assert "\n" not in str(error.value)


def test_examples_of_another_contract_are_refused(made, event_config):
    _, folder, _ = made
    with pytest.raises(DataError, match="audit with the configuration that made the examples"):
        audit(event_config(), folder, folder / "out")
