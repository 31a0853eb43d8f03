"""Rates by category through the whole job: by hand, limits, side tables and the audit."""

import json
import random

import polars as pl
import pytest

from multigate.configs import ConfigError, DataError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.compute.crosses import CrossRates
from multigate.pipeline.job import run

T = 1_700_000_000
HEADER = "time,event,item,user,session,value,device,shelf"
NAMES = ("rate", "count")
BASE = {
    "contract.tasks": {
        "view": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}},
        "like": {
            "group": "satisfaction",
            "type": "binary",
            "label": {"rule": "event", "events": ["LIKE"], "within": "30s"},
        },
    },
    "contract.features.topic": {
        "kind": "id",
        "side": "item",
        "column": "shelf",
        "missing": "indicator",
    },
    "contract.features.rate": {
        "kind": "number",
        "side": "item",
        "label_rate": {
            "of": ["user", "topic"],
            "task": "like",
            "strength": 2.0,
            "prior": 0.1,
            "last": 2,
        },
    },
    "contract.features.count": {
        "kind": "number",
        "side": "item",
        "label_count": {"of": ["user", "topic"], "task": "like", "last": 2},
    },
    "pipeline.hold_back": True,
    "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    "pipeline.cut_off": "2023-11-14T22:30:00Z",  # T + 1000
}


def line(time, event, item, user, shelf=""):
    return f"{T + time},{event},{item},{user},s,,web,{shelf}"


def make(event_config, folder, lines, **changes):
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    config = event_config(**BASE | changes)
    run(config, folder, folder / "out")
    return config


def random_lines(seed, rows=400):
    rng = random.Random(seed)
    lines = [line(1, event, "i0", "u0") for event in ("DISLIKE", "BUY", "RATE")]
    for _ in range(rows):
        number = rng.randint(0, 11)
        kind = rng.choice(["VIEW", "VIEW", "LIKE"])
        shelf = ["", "p", "q", "r", "s"][number % 5] if kind == "VIEW" else ""
        lines.append(
            line(5 * rng.randint(0, 190), kind, f"i{number}", f"u{rng.randint(0, 7)}", shelf)
        )
    return lines


HAND = [
    line(0, "VIEW", "x", "a", "news"),
    line(5, "LIKE", "x", "a"),
    line(40, "VIEW", "y", "a", "news"),  # (1 + .2) / 3 of the one news before
    line(50, "VIEW", "z", "a", "music"),
    line(81, "VIEW", "x", "a", "sport"),  # no sport before
    line(82, "VIEW", "y", "a", "news"),  # two news: (1 + .2) / 4
    line(83, "VIEW", "w", "a"),  # of no category
    line(84, "VIEW", "x", "b", "news"),  # another user
    # music, sport and news have closed by now, news last: music is no longer among the last two.
    line(120, "VIEW", "z", "a", "music"),
    line(121, "VIEW", "x", "a", "sport"),
    line(122, "VIEW", "y", "a", "news"),
    line(123, "BUY", "y", "a"),
]


def test_a_log_worked_out_by_hand(event_config, values, tmp_path):
    make(event_config, tmp_path / "log", HAND, **{"pipeline.negatives": None})
    found = values(tmp_path / "log", NAMES)
    expected = {
        (0, "x"): (0.1, 0),
        (40, "y"): (1.2 / 3, 1),
        (50, "z"): (0.1, 0),
        (81, "x"): (0.1, 0),
        (82, "y"): (1.2 / 4, 2),
        (83, "w"): (0.1, 0),
        (120, "z"): (0.1, 0),
        (121, "x"): (0.2 / 3, 1),
        (122, "y"): (1.2 / 5, 3),
    }
    of_a = {(t, i): tuple(row) for (u, i, t, _), row in found.items() if u == "a"}
    assert set(of_a) == set(expected)
    for key, row in expected.items():
        assert of_a[key] == pytest.approx(row), key
    assert found["b", "x", 84, False] == pytest.approx([0.1, 0])
    (stored,) = (
        pl.read_parquet(tmp_path / "log/out/snapshot/users/*.parquet")
        .filter(user_id="a")
        .to_dicts()
    )
    # Least recent first: sport was last shown at 121, news at 122; music is the third.
    assert stored["rate__keys"] == stored["count__keys"] == ["sport", "news"]
    assert (stored["rate__ones"], stored["rate__labels"]) == ([0, 1], [2, 4])
    items = pl.read_parquet(tmp_path / "log/out/snapshot/items/*.parquet")
    assert not {"rate", "count"} & set(items.columns)


@pytest.fixture(scope="module")
def made(event_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("crosses") / "log"
    return folder, make(event_config, folder, random_lines(0))


def test_neither_buckets_nor_order_matter(made, event_config, read_examples, tmp_path):
    lines = random_lines(0)
    random.Random(1).shuffle(lines)
    make(event_config, tmp_path / "log", lines, **{"pipeline.buckets": 8})
    out = tmp_path / "log/out"
    assert read_examples(out).equals(read_examples(made[0] / "out"))
    tables = [
        pl.read_parquet(folder / "snapshot/users/*.parquet").sort("user_id")
        for folder in (out, made[0] / "out")
    ]
    assert tables[0].equals(tables[1])


def test_negatives_have_the_rate_of_their_own_topic(made, read_examples):
    examples = read_examples(made[0] / "out")
    pairs = examples.filter("meta/sampled").join(
        examples, on=["user_id", "meta/time", "topic"], suffix="/other"
    )
    assert len(pairs) > 30
    assert pairs["rate"].to_list() == pairs["rate/other"].to_list()
    sampled = examples.filter("meta/sampled").join(
        examples.filter(~pl.col("meta/sampled")), on=["user_id", "meta/time"], suffix="/logged"
    )
    assert (sampled["rate"] != sampled["rate/logged"]).sum() > 30


def test_a_limit_that_nobody_reaches_changes_nothing(made, event_config, values, tmp_path):
    for name, last in (("four", 4), ("fifty", None)):
        changes = {f"contract.features.{key}.label_{key}.last": last for key in ("rate", "count")}
        make(event_config, tmp_path / name, random_lines(0), **changes)
    four, fifty = (values(tmp_path / name, NAMES) for name in ("four", "fifty"))
    assert four == fifty  # there are four topics
    few = values(made[0], NAMES)
    assert all(few[key][1] in (0, four[key][1]) for key in few)
    assert sum(few[key] != four[key] for key in few) > 50


def test_topics_of_a_dated_side_table(event_config, values, tmp_path):
    """x changes its topic at 60: a view counts for the topic that it had then."""
    (tmp_path / "log").mkdir()
    rows = ["id,since,topic", f"x,{T},news", f"x,{T + 60},music", f"y,{T},music"]
    (tmp_path / "log/items.csv").write_text("\n".join(rows) + "\n")
    lines = [
        line(0, "VIEW", "x", "a"),
        line(5, "LIKE", "x", "a"),
        line(40, "VIEW", "y", "a"),
        line(100, "VIEW", "x", "a"),
        line(200, "BUY", "x", "a"),
    ]
    (tmp_path / "log/log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    topic = {"kind": "id", "side": "item", "source": "items", "missing": "indicator"}
    items = {"files": ["items.csv"], "key": "id", "time": "since"}
    changes = {
        "contract.features.topic": topic,
        "pipeline.items": items,
        "pipeline.negatives": None,
    }
    config = event_config(**BASE | changes)
    run(config, tmp_path / "log", tmp_path / "log/out")
    found = values(tmp_path / "log", NAMES)
    assert found["a", "y", 40, False] == pytest.approx([0.1, 0])  # x was news at 0
    assert found["a", "x", 100, False] == pytest.approx([0.2 / 3, 1])  # y at 40
    audit(config, tmp_path / "log", tmp_path / "log/out")


def test_the_audit_passes_what_the_job_makes(made):
    folder, config = made
    assert {"rate", "count"} <= set(audit(config, folder, folder / "out", 10_000)["features"])


@pytest.mark.parametrize("leak", ["early", "unlimited"])
def test_a_planted_leak_is_found(leak, event_config, monkeypatch, tmp_path):
    honest = CrossRates.__init__

    def early(self, labels, config, priors=None):
        honest(self, labels, config, priors)
        self._waits = dict.fromkeys(self._waits, 0 * self._waits["like"])

    if leak == "early":
        monkeypatch.setattr(CrossRates, "__init__", early)
    else:
        monkeypatch.setattr(CrossRates, "_recent", lambda self, category, queries, most: True)
    config = make(event_config, tmp_path / "log", random_lines(3))
    named = "labels that had not closed by then" if leak == "early" else ""
    with pytest.raises(DataError, match=rf"feature '(rate|count)': expected .*{named}"):
        audit(config, tmp_path / "log", tmp_path / "log/out", 10_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"contract.features.rate.label_rate.of": ["user", "item_id"]},
            "an id feature of the item or the context other than 'item_id', received 'item_id'",
        ),
        ({"contract.features.rate.label_rate.of": ["user", "color"]}, "received 'color'"),
        (
            {
                "contract.features.tags": {"kind": "id_list", "side": "item", "separator": "."},
                "contract.features.rate.label_rate.of": ["user", "tags"],
            },
            r"'tags' is a list, and a rate has one category: derive a column that holds the first "
            r"one, {first: tags, separator: '.'}",
        ),
        ({"contract.features.rate.label_rate.of": "user"}, "is of side 'user', received side"),
        (
            {
                "contract.features.rate.label_rate.of": "user",
                "contract.features.rate.side": "user",
            },
            "last is for categories, of: [user, topic]; received of: user",
        ),
        ({"contract.features.rate.side": "user"}, "of the user and the topic is of side 'item'"),
        ({"export.items": "features"}, "export.items: expected none, received features: feature"),
    ],
)
def test_wrong_crosses_are_named(changes, message, event_config):
    with pytest.raises(ConfigError) as caught:
        event_config(**BASE | changes)
    assert message in str(caught.value)


def test_the_short_key_names_crosses(event_config):
    rates = {"of": ["user", ["user", "topic"]], "tasks": "all", "last": 7}
    changes = {"contract.features.rate": None, "contract.features.count": None}
    config = event_config(**BASE | changes | {"contract.rates": rates})
    made = config.contract.crosses()
    assert list(made) == ["user_topic_view_count", "user_topic_like_rate", "user_topic_like_count"]
    assert {rule.last for rule in made.values()} == {7}
    again = json.loads(config.model_dump_json())
    assert again["contract"]["features"]["user_topic_like_rate"]["side"] == "item"


def test_a_label_that_is_too_large_is_refused_by_the_features_name(event_config, tmp_path):
    label = {"rule": "event", "events": ["RATE"], "within": "30s", "aggregate": "max"}
    changes = {
        "contract.tasks.rated": {"group": "satisfaction", "type": "regression", "label": label},
        "contract.features.count": {
            "kind": "number",
            "side": "item",
            "label_count": {"of": ["user", "topic"], "task": "rated"},
        },
    }
    lines = [line(10 * n, "VIEW", f"i{n}", "ann", "news") for n in range(9)]
    lines += [f"{T + 5},RATE,i0,ann,s,6e9,web,news"]
    lines += [line(20, kind, "i1", "ann", "news") for kind in ("LIKE", "BUY")]
    message = r"contract\.features\.count: .*at most 2\*\*32 .*received 6e\+09"
    with pytest.raises(DataError, match=message):
        make(event_config, tmp_path / "log", lines, **BASE | changes)
