"""Rates of past labels through the whole job: by hand, and what must not change them."""

import json
import random

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.features import PastLabels, past_labels
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run

T = 1_700_000_000
HEADER = "time,event,item,user,session,value,device"
TASKS = {
    "view": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}},
    "like": {
        "group": "satisfaction",
        "type": "binary",
        "label": {"rule": "event", "events": ["LIKE"], "within": "60s"},
    },
    "rated": {
        "group": "satisfaction",
        "type": "regression",
        "label": {"rule": "event", "events": ["RATE"], "within": "30s", "aggregate": "max"},
        "transform": "log1p",
    },
    "dwell": {
        "group": "engagement",
        "type": "regression",
        "label": {"rule": "dwell", "cap": "50s", "within": "100s"},
    },
}
RATES = {"of": ["user", "item"], "tasks": "all", "strength": 2.0}
START, TEST = T + 500, T + 700
BASE = {
    "contract.tasks": TASKS,
    "contract.rates": RATES,
    "pipeline.hold_back": True,
    "pipeline.negatives": {"per_positive": 2, "unmatched": "keep"},
    "pipeline.split": {
        "by": "time",
        "validation": "2023-11-14T22:21:40Z",  # T + 500
        "test": "2023-11-14T22:25:00Z",  # T + 700
    },
    "pipeline.cut_off": "2023-11-14T22:30:00Z",  # T + 1000
}
NAMES = [
    f"{key}_{name}"
    for key in ("user", "item")
    for name in (
        "view_count",
        "like_rate",
        "like_count",
        "rated_mean",
        "rated_count",
        "dwell_mean",
        "dwell_count",
    )
]
FIXED = {
    f"contract.features.{key}_likes": {
        "kind": "number",
        "side": key,
        "label_rate": {"of": key, "task": "like", "strength": 2.0, "prior": 0.25},
    }
    for key in ("user", "item")
}


def line(time, event, item, user, session="s", value=""):
    return f"{T + time},{event},{item},{user},{session},{value},web"


def make(event_config, folder, lines, **changes):
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    config = event_config(**BASE | changes)
    run(config, folder, folder / "out")
    return config


def random_lines(seed, rows=500, until=950):
    rng = random.Random(seed)
    kinds = ["VIEW"] * 5 + ["LIKE"] * 3 + ["RATE"] * 2
    lines = []
    for _ in range(rows):
        kind, user = rng.choice(kinds), f"u{rng.randint(0, 9)}"
        value = rng.choice(["1", "2.5", "5"]) if kind == "RATE" else ""
        item = f"i{rng.randint(0, 14)}"
        lines.append(line(5 * rng.randint(0, until // 5), kind, item, user, "s", value))
    return lines + [line(t, "BUY", "i0", "u0") for t in (1, 2)]


def test_a_log_worked_out_by_hand(event_config, values, tmp_path):
    lines = [
        line(0, "VIEW", "x", "a"),
        line(10, "LIKE", "x", "a"),
        line(20, "VIEW", "y", "a"),  # ends the dwell on x after 20 s
        line(25, "RATE", "y", "a", value=3),
        line(30, "VIEW", "x", "b"),
        line(60, "VIEW", "x", "c"),
        line(61, "VIEW", "x", "d"),
        line(81, "VIEW", "x", "a"),
        line(600, "VIEW", "x", "a"),
        line(601, "BUY", "x", "a"),
        line(602, "LIKE", "x", "a"),
    ]
    changes = {"pipeline.negatives": None}
    make(event_config, tmp_path / "log", lines, **changes)
    priors = json.loads((tmp_path / "log/out/statistics.json").read_text())["priors"]
    # Training: five views with likes 1, 0, 0, 0, 0; one rating (log 4); dwells of 20 (x at 0) and
    # of 50 (y at 20, whose next event came after 61 s).
    assert priors["user_like_rate"] == priors["item_like_rate"] == pytest.approx(1 / 6)
    assert priors["user_rated_mean"] == pytest.approx(1.386294)
    assert priors["user_dwell_mean"] == pytest.approx(35)
    assert set(priors) == {name for name in NAMES if not name.endswith("count")}
    p, r, d = 1 / 6, priors["user_rated_mean"], 35
    nothing = [0, p, 0, r, 0, d, 0]
    found = values(tmp_path / "log", NAMES)
    approximately = pytest.approx
    assert found["a", "x", 0, False] == approximately([*nothing, *nothing])
    # At 60, the like of the view at 0 has been there for 50 s, and the label closes only now.
    assert found["c", "x", 60, False] == approximately([*nothing, 2, p, 0, r, 0, d, 0])
    # A second later it has closed: (1 + 2 p) / 3. The dwell of 20 s closes at 100.
    liked = (1 + 2 * p) / 3
    assert found["d", "x", 61, False] == approximately([*nothing, 3, liked, 1, r, 0, d, 0])
    # a's views at 0 and 20: the label of the latter closes at 80.
    twice = (1 + 2 * p) / 4
    rated = (1.386294 + 2 * r) / 3
    assert found["a", "x", 81, False] == approximately(
        [2, twice, 2, rated, 1, d, 0, 4, liked, 1, r, 0, d, 0]
    )
    # Much later, all have closed; the row's own like counts nowhere.
    assert found["a", "x", 600, False] == approximately(
        [
            *(3, (1 + 2 * p) / 5, 3, rated, 1, (70 + 2 * d) / 4, 2),
            *(5, (1 + 2 * p) / 7, 5, r, 0, (20 + 2 * d) / 3, 1),
        ]
    )


@pytest.fixture(scope="module")
def made(event_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rates") / "log"
    return folder, make(event_config, folder, random_lines(0), **FIXED)


def test_neither_buckets_nor_order_matter(made, event_config, read_examples, tmp_path):
    lines = random_lines(0)
    random.Random(1).shuffle(lines)
    make(event_config, tmp_path / "log", lines, **FIXED, **{"pipeline.buckets": 8})
    out = tmp_path / "log/out"
    assert read_examples(out).equals(read_examples(made[0] / "out"))
    for name in ("statistics.json", "contract.json"):
        assert (out / name).read_bytes() == (made[0] / "out" / name).read_bytes()
    for source, key in (("users", "user_id"), ("items", "item_id")):
        tables = [
            pl.read_parquet(folder / "snapshot" / source / "*.parquet").sort(key)
            for folder in (out, made[0] / "out")
        ]
        assert tables[0].equals(tables[1])
        assert tables[0].columns[-1] in FIXED or tables[0].columns[-1] in NAMES


def test_negatives_have_the_rates_of_their_own_item(made, read_examples):
    examples = read_examples(made[0] / "out")
    sampled = examples.filter("meta/sampled")
    assert len(sampled) > 100
    of_item = [name for name in NAMES if name.startswith("item")]
    of_user = [name for name in NAMES if name.startswith("user")]
    logged = examples.filter(~pl.col("meta/sampled"))
    same = sampled.join(
        logged.unique(["item_id", "meta/time"]), on=["item_id", "meta/time"], suffix="/logged"
    )
    assert len(same) > 10
    for name in of_item:
        assert same[name].to_list() == same[f"{name}/logged"].to_list()
    same = sampled.join(
        logged.unique(["user_id", "meta/time"]), on=["user_id", "meta/time"], suffix="/logged"
    )
    assert len(same) == len(sampled)
    for name in of_user:
        assert same[name].to_list() == same[f"{name}/logged"].to_list()


@pytest.mark.slow
def test_the_snapshot_holds_what_an_impression_at_the_cut_off_would(event_config, values, tmp_path):
    lines = random_lines(0)
    make(event_config, tmp_path / "then", lines)
    items = [f"i{n}" for n in range(15)]
    lines += [line(1000, "VIEW", item, f"u{n % 10}") for n, item in enumerate(items)]
    later = {"pipeline.cut_off": "2023-11-14T22:30:01Z", "pipeline.hold_back": False}
    make(event_config, tmp_path / "later", lines, **later)
    found = values(tmp_path / "later", NAMES)
    probes = {key: row for key, row in found.items() if key[2] == 1000 and not key[3]}
    assert len(probes) == 15
    for (user, item, _, _), row in probes.items():
        for source, key, name in (("users", "user_id", user), ("items", "item_id", item)):
            path = tmp_path / "then/out/snapshot" / source / "*.parquet"
            (stored,) = pl.read_parquet(path).filter(pl.col(key) == name).to_dicts()
            expected = {n: v for n, v in zip(NAMES, row, strict=True) if n in stored}
            assert len(expected) == 7
            assert {n: stored[n] for n in expected} == expected


def test_a_later_like_changes_no_earlier_row(made, event_config, values, tmp_path):
    before = values(made[0], NAMES)
    at, user, item = max((t, u, i) for (u, i, t, s) in before if not s and t < 850)
    lines = [*random_lines(0), line(at + 1, "LIKE", item, user)]
    make(event_config, tmp_path / "log", lines, **FIXED)
    after = values(tmp_path / "log", NAMES)
    # The like is of the split after training, so that the priors are the same as well.
    assert at > 500
    earlier = {key for key in before if key[2] <= at + 60}
    assert len(earlier) > 100
    assert {key: after[key] for key in earlier} == {key: before[key] for key in earlier}


@pytest.mark.parametrize("seed", range(2))
def test_a_like_never_lowers_a_later_rate(made, seed, event_config, values, tmp_path):
    """With a prior of its own: the mean of training is another one with one more like."""
    names = ["user_likes", "item_likes", "user_like_count"]
    before = values(made[0], names)
    rng = random.Random(seed)
    user, item, at, _ = rng.choice([key for key in sorted(before) if not key[3] and key[2] < 300])
    make(
        event_config,
        tmp_path / "log",
        [*random_lines(0), line(at + 1, "LIKE", item, user)],
        **FIXED,
    )
    after = values(tmp_path / "log", names)
    rows = [key for key in before if not key[3]]
    for key in rows:
        assert after[key][2] == before[key][2]
        for column, mine in ((0, key[0] == user), (1, key[1] == item)):
            new, old = after[key][column], before[key][column]
            assert new >= old if mine and key[2] > at + 60 else new == old


def test_a_longer_wait_only_removes(made, event_config, values, tmp_path):
    """Presence within 60 s and within 200 s: the same labels or more likes, known later."""
    tasks = TASKS | {"like": TASKS["like"] | {"label": TASKS["like"]["label"] | {"within": "200s"}}}
    make(event_config, tmp_path / "log", random_lines(0), **FIXED | {"contract.tasks": tasks})
    names = ["user_like_count", "item_like_count"]
    before, after = (
        values(made[0], names),
        values(tmp_path / "log", names),
    )
    shared = [key for key in before if key in after and not key[3]]
    assert all(after[key][at] <= before[key][at] for key in shared for at in (0, 1))
    assert any(after[key][0] < before[key][0] for key in shared)


@pytest.mark.slow
def test_what_the_run_masks_or_leaves_out_still_counts(made, event_config, values, tmp_path):
    """Downsampling, the embargo and hold-back change no rate, but for the prior."""
    names = ["user_likes", "item_likes", "user_like_count", "item_dwell_count"]
    before = values(made[0], names)
    for name, changes in {
        "downsample": {"pipeline.downsample": {"keep": 0.2, "tasks": ["like"]}},
        "no_embargo": {"pipeline.split": BASE["pipeline.split"] | {"embargo": False}},
        "no_hold_back": {"pipeline.hold_back": False},
        "random": {"pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2}},
    }.items():
        make(event_config, tmp_path / name, random_lines(0), **FIXED | changes)
        after = values(tmp_path / name, names)
        shared = [key for key in before if key in after and not key[3]]
        assert len(shared) > 80
        assert {key: after[key] for key in shared} == {key: before[key] for key in shared}


@pytest.mark.slow
def test_the_prior_is_of_all_logged_rows_of_training(event_config, tmp_path):
    changes = {"pipeline.downsample": {"keep": 0.2, "tasks": ["like"]}}
    make(event_config, tmp_path / "all", random_lines(0))
    make(event_config, tmp_path / "some", random_lines(0), **changes)
    paths = [tmp_path / name / "out/statistics.json" for name in ("all", "some")]
    found = [json.loads(path.read_text()) for path in paths]
    assert found[0]["priors"] == found[1]["priors"]
    assert found[0]["tasks"]["like"]["mean"] == pytest.approx(found[0]["priors"]["user_like_rate"])
    assert found[0]["tasks"]["like"]["mean"] < found[1]["tasks"]["like"]["mean"]


def test_users_to_forget_leave_no_trace_in_rates(event_config, tmp_path):
    (tmp_path / "few").mkdir()
    lines = random_lines(0)
    make(event_config, tmp_path / "without", [row for row in lines if ",u3," not in row])
    folder = tmp_path / "with"
    folder.mkdir()
    (folder / "forget.txt").write_text("u3\n")
    (folder / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    run(event_config(**BASE | {"pipeline.forget": "forget.txt"}), folder, folder / "out")
    for part in ("statistics.json", "snapshot/items/part-00000.parquet"):
        texts = [(tmp_path / name / "out" / part).read_bytes() for name in ("with", "without")]
        assert texts[0] == texts[1]


def test_without_rates_nothing_is_recorded(event_config, tmp_path):
    make(event_config, tmp_path / "log", random_lines(0), **{"contract.rates": None})
    assert "priors" not in json.loads((tmp_path / "log/out/statistics.json").read_text())


# The audit ---------------------------------------------------------------------------------------


def test_the_audit_passes_what_the_job_makes(made):
    folder, config = made
    found = audit(config, folder, folder / "out", sample=10_000)
    assert set(found["features"]) >= {*NAMES, "user_likes", "item_likes"}
    assert found["negatives"] > 100


@pytest.mark.parametrize(
    ("wait", "inclusive", "named"),
    [
        (0, False, "labels that had not closed by then"),
        (0, True, "labels of that time, its own among them"),
        (None, True, "labels that closed at that very time"),
        (-10_000, False, "labels of that time or later"),
    ],
)
@pytest.mark.parametrize("key", ["user", "item"])
def test_a_planted_leak_is_named(key, wait, inclusive, named, event_config, monkeypatch, tmp_path):
    honest = PastLabels.closed

    def leaky(self, queries, delay, within=None):
        shift = past_labels._MICROSECOND if inclusive else 0 * past_labels._MICROSECOND
        delay = delay if wait is None else wait * past_labels._MICROSECOND * 1_000_000
        late = queries.with_columns(pl.col("time") + shift)
        return honest(self, late, delay, within)

    monkeypatch.setattr(PastLabels, "closed", leaky)
    rates = RATES | {"of": [key], "tasks": ["like"]}
    changes = {"contract.rates": rates, "pipeline.negatives": None}
    config = make(event_config, tmp_path / "log", random_lines(2), **changes)
    with pytest.raises(DataError, match=rf"feature '{key}_like_\w+'.*it counts {named}"):
        audit(config, tmp_path / "log", tmp_path / "log/out", sample=10_000)


def test_a_wrong_prior_is_named(event_config, tmp_path):
    config = make(event_config, tmp_path / "log", random_lines(2))
    path = tmp_path / "log/out/statistics.json"
    found = json.loads(path.read_text())
    found["priors"]["item_like_rate"] += 0.01
    path.write_text(json.dumps(found))
    with pytest.raises(DataError, match=r"priors: feature 'item_like_rate': expected 0\.\d+, the"):
        audit(config, tmp_path / "log", tmp_path / "log/out")


def each_count(tasks):
    """A count of every task, asked for one by one."""
    return {
        f"contract.features.each_{key}_{task}": {
            "kind": "number",
            "side": key,
            "label_count": {"of": key, "task": task},
        }
        for key in ("user", "item")
        for task in tasks
    }


def test_equal_counts_of_events_are_one(event_config, read_examples, tmp_path):
    def liked(**rule):
        label = {"rule": "event", "events": ["LIKE"], "within": "60s"} | rule
        return {"group": "satisfaction", "type": "binary", "label": label}

    tasks = TASKS | {
        "rates": liked(events=["RATE"]),
        "twice": liked(aggregate="count") | {"at_least": 2},
        "soon": liked(within="30s"),
        "after": liked() | {"when": "soon"},
        "best": TASKS["rated"] | {"transform": "identity", "clip": [0, 3]},
    }
    changes = {"contract.tasks": tasks} | each_count(tasks)
    config = make(event_config, tmp_path / "log", random_lines(0), **changes)
    rows = read_examples(tmp_path / "log/out")
    stands_for = {task: task for task in tasks} | dict.fromkeys(["rates", "twice"], "like")
    stands_for["best"] = "rated"
    for key in ("user", "item"):
        counts = {task: rows[f"each_{key}_{task}"].to_list() for task in tasks}
        for task, first in stands_for.items():
            name = f"{key}_{task}_count"
            assert (name in config.contract.features) == (task == first)
            assert counts[task] == rows[f"{key}_{first}_count"].to_list()
        kept = [tuple(counts[task]) for task in set(stands_for.values())]
        assert len(set(kept)) == len(kept)  # no two that are kept are equal


def test_equal_counts_of_columns_are_one(impression_config, read_examples, tmp_path):
    def of_column(column, **more):
        label = {"rule": "column", "column": column}
        return {"group": "satisfaction", "type": "binary", "label": label} | more

    tasks = {
        "stars": {**of_column("stars"), "type": "regression"},
        "high": of_column("stars", at_least=4),
        "click": of_column("click"),
    }
    rng = random.Random(0)
    lines = ["time,user_id,item_id,request,price,tags,place,click,stars,buy"]
    for row in range(60):
        stars, click = rng.choice(["", "1", "5"]), rng.choice(["", "0", "1"])
        lines.append(f"{T + row},{row % 5},{row % 7},r{row},1,,0,{click},{stars},")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    changes = {"contract.tasks": tasks, "contract.rates": {"of": ["user", "item"]}}
    config = impression_config(**changes, **each_count(tasks))
    run(config, tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out")
    for key in ("user", "item"):
        assert f"{key}_high_count" not in config.contract.features
        stars = rows[f"{key}_stars_count"].to_list()
        assert stars == rows[f"each_{key}_high"].to_list()
        assert stars != rows[f"{key}_click_count"].to_list()
