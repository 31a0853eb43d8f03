"""The job against the independent labeller: every row, label, history, counter and count."""

import itertools
import json
import math
import random
import zipfile
from collections import Counter
from datetime import UTC, datetime

import polars as pl
import pytest
from tests.pipeline.label.labeller import Labelled, micros

from multigate.configs import load
from multigate.pipeline.job import run

T = 1_767_225_600_000  # 2026-01-01, in milliseconds
DAY = 86_400_000
VIEWS = ["VIEW"]


def same(a, b):
    """Whether two values agree, up to what 32 bits hold."""
    if isinstance(a, list) or a is None or b is None:
        return a == b
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def differences(config, expected, found):
    """How a row differs from the labeller's, by name."""
    bad = {}
    for name, value in expected["labels"].items():
        if not same(found[f"label/{name}"], value):
            bad[name] = (found[f"label/{name}"], value)
    for name, value in expected["features"].items():
        made = found[name]
        made = [str(x) for x in made] if isinstance(made, list) else made
        if not same(made, value):
            bad[name] = (made, value)
    if expected["split"] is not None and found["split"] != expected["split"]:
        bad["split"] = (found["split"], expected["split"])
    return bad


def key_of(config, event):
    """What tells an impression from all others: its row's marker, where the log has one."""
    if "row" in config.contract.features:
        return str(event["row"]["row"])
    return event["user"], event["item"], event["time"]


def key_found(config, row):
    """As `key_of`, of an example."""
    if "row" in config.contract.features:
        return str(row["row"])
    return (
        str(row[config.contract.user]),
        str(row[config.contract.item]),
        micros(row["meta/time"]),
    )


def compare(config, folder, out, manifest, read_examples, **given):
    """Compare all that a run wrote with the labeller.

    Where the page leaves a choice to a hash (which of two equal rows is kept, which of two
    impressions at the same instant has the feedback), a group of equals has to agree under one
    choice: all orders of up to three are tried. Which row the job kept shows by its marker.
    """
    rows = read_examples(out).to_dicts()
    given["priors"] = priors_of(config, out)
    logged = [row for row in rows if not row["meta/sampled"]]
    found = {key_found(config, row): row for row in logged}
    assert len(found) == len(logged)
    open_groups, last = None, {}
    first = None
    for turn in itertools.permutations(range(3)):
        places = Counter()
        ranks = {}

        def order(event, turn=turn, places=places, ranks=ranks):
            index = event["index"]
            if index not in ranks:
                group = event["user"], event["item"], event["time"], event["kind"]
                ranks[index] = (
                    key_of(config, event) not in found,
                    turn[places[group] % 3],
                    index,
                )
                places[group] += 1
            return ranks[index]

        labelled = Labelled(config, folder, order=order, **given)
        first = first or labelled
        groups = {}
        for row in labelled.rows:
            event = row["event"]
            groups.setdefault((event["user"], event["item"], event["time"]), []).append(row)
        expected = {key_of(config, row["event"]) for row in labelled.rows}
        assert set(found) == expected, "other examples"
        left = {}
        for group, members in groups.items():
            if open_groups is not None and group not in open_groups:
                continue
            bad = {}
            for row in members:
                key = key_of(config, row["event"])
                wrong = differences(config, row, found[key])
                if wrong:
                    bad[key] = wrong
            if bad:
                left[group] = bad
        open_groups = set(left)
        last = left
        if not left:
            break
    assert not last, f"{len(last)} groups differ (job, labeller): {dict(list(last.items())[:5])}"
    check_counts(config, manifest, first)
    check_priors(config, first, given["priors"])
    check_negatives(config, rows, found, first)


def priors_of(config, out):
    """By task, the priors that a run recorded."""
    recorded = json.loads((out / "statistics.json").read_text()).get("priors", {})
    features = config.contract.features
    return {features[name].counter.task: prior for name, prior in recorded.items()}


def check_priors(config, labelled, priors):
    """A prior is the mean of the training split's labels."""
    if labelled.starts is not None:  # which rows are in the training split
        means = labelled.means()
        for task, prior in priors.items():
            assert math.isclose(prior, means[task], rel_tol=1e-6, abs_tol=1e-9), task


def check_counts(config, manifest, labelled):
    """Compare the manifest's counts."""
    counts = manifest["rows"]
    names = set(labelled.counts) | {"impressions", "duplicates", "collapsed", "held_back"}
    names -= {"embargoed"}
    if labelled.span is not None:
        names = {"impressions"}
    for name in sorted(names):
        assert counts.get(name, 0) == labelled.counts[name], name
    if labelled.span is None:
        parts = set(counts) - {"rows_in"}
        assert counts["rows_in"] == sum(counts[name] for name in parts)
    tasks = config.contract.tasks
    assert manifest["examples"].get("embargoed", 0) == labelled.counts["embargoed"]
    opened = manifest["labels"]["open"]
    assert {n: opened.get(n, 0) for n in tasks} == {n: labelled.open[n] for n in tasks}
    embargoed = manifest["labels"]["embargoed"]
    for split in ("train", "validation"):
        made = {n: embargoed.get(split, {}).get(n, 0) for n in tasks}
        assert made == {n: labelled.embargoed[split][n] for n in tasks}, split


def check_negatives(config, rows, found, labelled):
    """Compare the sampled rows: they differ from their positive in the item alone."""
    if config.pipeline.negatives is None:
        assert not any(row["meta/sampled"] for row in rows)
        return
    user, item = config.contract.user, config.contract.item
    context = [n for n, f in config.contract.features.items() if f.side != "item"]
    # Of a positive and its negatives: the marker, or a request of their own where the log has none.
    mark = "row" if "row" in config.contract.features else "meta/request"
    positives = {row[mark]: row for row in found.values()}
    per, labels = Counter(), {}
    for row in rows:
        if not row["meta/sampled"]:
            continue
        positive = positives[row[mark]]
        per[row[mark]] += 1
        assert row["split"] == positive["split"]
        assert row["meta/time"] == positive["meta/time"]
        assert row[item] != positive[item]
        assert {n: row[n] for n in context} == {n: positive[n] for n in context}
        shelf = row.get("topic")
        event = {"user": str(row[user]), "time": micros(row["meta/time"]), "row": {"shelf": shelf}}
        for name, value in labelled.features(event, str(row[item]), "item").items():
            assert same(row[name], value), (name, row)
        if event["time"] not in labels:
            labels[event["time"]] = labelled.negative(event["time"])
        for name, value in labels[event["time"]].items():
            assert same(row[f"label/{name}"], value), (name, row)
    assert set(per.values()) <= set(range(1, config.pipeline.negatives.per_positive + 1))


# Deskdrop ----------------------------------------------------------------------------------------


def starts_of(examples):
    """When validation and test begin, as a split by shares made them."""
    logged = examples.filter(~pl.col("meta/sampled"))
    times = [logged.filter(split=name)["meta/time"].min() for name in ("validation", "test")]
    return tuple(map(micros, times))


@pytest.mark.parametrize(
    "part", [pytest.param(4, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
)
def test_deskdrop(part, real_data, read_examples, tmp_path):
    """Every fourth user, or all of them."""
    folder = real_data("deskdrop/users_interactions.csv.zip").parent
    with zipfile.ZipFile(folder / "users_interactions.csv.zip") as archive:
        log = pl.read_csv(archive.read("users_interactions.csv"), infer_schema=False)
    users = log["personId"].unique().sort().gather_every(part)
    folder = tmp_path / "log"
    folder.mkdir()
    with zipfile.ZipFile(folder / "users_interactions.csv.zip", "w") as archive:
        some = log.filter(pl.col("personId").is_in(users.to_list()))
        archive.writestr("users_interactions.csv", some.write_csv())
    config = load("deskdrop")
    # Plain loops over all past labels: two of the rates take long enough, and the others are alike.
    rates = set(config.contract.label_counters()) - {"user_like_rate", "item_like_rate"}
    features = {n: f for n, f in config.contract.features.items() if n not in rates}
    contract = config.contract.model_copy(update={"features": features})
    config = config.model_copy(update={"contract": contract})
    manifest = run(config, folder, tmp_path / "out")
    examples = read_examples(tmp_path / "out")
    starts = starts_of(examples)
    compare(config, folder, tmp_path / "out", manifest, read_examples, starts=starts)


# Event logs --------------------------------------------------------------------------------------

EVENT_TASKS = {
    "view": {"type": "binary", "label": {"rule": "impression"}},
    "like": {"type": "binary", "label": {"rule": "event", "events": ["LIKE"], "within": "60s"}},
    "hide": {"type": "binary", "label": {"rule": "event", "events": ["HIDE"], "within": "2m"}},
    "likes": {
        "type": "regression",
        "label": {
            "rule": "event",
            "events": ["LIKE", "HIDE"],
            "within": "5m",
            "aggregate": "count",
        },
    },
    "watched": {
        "type": "regression",
        "label": {"rule": "event", "events": ["PLAY"], "within": "5m", "aggregate": "sum"},
        "clip": [1.0, 20.0],
    },
    "part": {
        "type": "regression",
        "label": {"rule": "event", "events": ["PLAY"], "aggregate": "max", "over": "length"},
        "when": "like",
    },
    "whole": {
        "type": "binary",
        "label": {
            "rule": "event",
            "events": ["PLAY"],
            "within": "20m",
            "aggregate": "sum",
            "over": "length",
        },
        "at_least": 0.5,
        "without": "hide",
    },
    "good": {
        "type": "binary",
        "label": {"rule": "event", "events": ["LIKE", "PLAY"], "within": "90s"},
        "without": "hide",
        "when": "whole",
    },
    "dwell": {"type": "regression", "label": {"rule": "dwell", "cap": "40s", "within": "3m"}},
    "any": {
        "type": "regression",
        "label": {"rule": "dwell", "cap": "1m", "within": "1m", "ends": "any"},
    },
    "until": {
        "type": "binary",
        "label": {"rule": "dwell", "cap": "5m", "within": "5m", "ends": ["VIEW", "HIDE"]},
        "at_least": 20.0,
        "when": "view",
    },
    "stay": {
        "type": "regression",
        "label": {"rule": "dwell", "cap": "2m"},
        "clip": [5.0, 100.0],
    },
}

EVENT_FEATURES = {
    "user_id": {"kind": "id", "side": "user", "column": "user"},
    "item_id": {"kind": "id", "side": "item", "column": "item"},
    "row": {"kind": "id", "side": "context"},
    "topic": {"kind": "id", "side": "item", "column": "shelf", "missing": "indicator"},
    "viewed": {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "history": {"events": VIEWS, "last": 5},
    },
    "acted": {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "history": {"events": ["LIKE", "PLAY"], "last": 4, "within": "100s"},
        "max_length": 3,
    },
    "user_views": {
        "kind": "number",
        "side": "user",
        "count": {"of": "user", "events": VIEWS, "within": "50s"},
    },
    "item_likes": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["LIKE", "HIDE"]},
    },
    "age": {
        "kind": "number",
        "side": "item",
        "since": {"of": "item", "events": VIEWS, "which": "first"},
        "missing": "indicator",
    },
    "recency": {
        "kind": "number",
        "side": "user",
        "since": {"of": "user", "events": ["LIKE"], "within": "5m"},
        "missing": "indicator",
    },
    "rate": {
        "kind": "number",
        "side": "item",
        "rate": {"of": "item", "events": ["PLAY"], "per": VIEWS, "within": "3m"},
        "missing": "indicator",
    },
}

COLUMNS = {
    "time": "time",
    "user": "user",
    "item": "item",
    "event": "event",
    "value": "value",
    "session": "session",
    "request": "request",
    "event_id": "event_id",
}


def grouped(tasks):
    """Tasks with the group that a configuration needs."""
    return {name: {"group": "engagement", **task} for name, task in tasks.items()}


def instant(at):
    """A time in milliseconds since T as a configuration writes it."""
    return datetime.fromtimestamp((T + at) / 1000, UTC).isoformat()


RATES = {"of": ["user", "item", ["user", "topic"]], "tasks": "all", "last": 2}
CLOSING = [name for name in EVENT_TASKS if name != "part"]  # `part` has no limit of its own

BASE = {
    "contract.tasks": grouped(EVENT_TASKS),
    "contract.features": EVENT_FEATURES,
    "contract.rates": RATES,
    "pipeline.negatives": None,
    "pipeline.attribution": "10m",
    "pipeline.hold_back": None,
    "pipeline.log.columns": COLUMNS,
    "pipeline.log.time_unit": "ms",
    "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    "pipeline.cut_off": instant(DAY + 1_000_000),
}

VARIANTS = {
    "plain": {},
    "collapse": {"pipeline.collapse": "20s"},
    "unlimited": {
        "pipeline.attribution": None,
        "contract.rates": {**RATES, "tasks": CLOSING, "within": "2m", "strength": 3.0},
    },
    "request": {"pipeline.attribute_by": "request", "pipeline.clock_skew": "5s"},
    "skew": {"pipeline.clock_skew": "10s", "pipeline.attribution": "30s"},
    "embargo": {
        "pipeline.split": {
            "by": "time",
            "validation": instant(DAY + 400_000),
            "test": instant(DAY + 700_000),
        },
    },
    "no_hold": {
        "pipeline.hold_back": False,
        "pipeline.cut_off": None,
        "pipeline.split": {
            "by": "time",
            "validation": instant(300_000),
            "test": instant(DAY + 400_000),
            "embargo": False,
        },
    },
    "log_end": {"pipeline.cut_off": None},
    "negatives": {
        "pipeline.negatives": {"per_positive": 2, "sampling": "uniform"},
        "pipeline.collapse": "10s",
        "pipeline.split": {
            "by": "time",
            "validation": instant(DAY + 400_000),
            "test": instant(DAY + 700_000),
        },
    },
    "skew_collapse": {
        "pipeline.collapse": "20s",
        "pipeline.clock_skew": "10s",
        "pipeline.attribution": "30s",
    },
    "all": {
        "pipeline.collapse": "20s",
        "pipeline.attribute_by": "request",
        "pipeline.clock_skew": "5s",
        "pipeline.split": {
            "by": "time",
            "validation": instant(DAY + 400_000),
            "test": instant(DAY + 700_000),
        },
    },
}


def shelf(number):
    """A category, sometimes none."""
    return ["", "p", "q", "q", "r", "s"][number * number * 7 % 13 % 6]


def event_lines(seed, rows=400):
    """A log with ties, duplicates, reloads, sessions, values and requests, in two bursts."""
    rng = random.Random(seed)
    step = rng.choice([2500, 5000, 5000, 9000])
    lines = []
    for _ in range(rows):
        kind = rng.choice(["VIEW"] * 5 + ["LIKE", "LIKE", "HIDE", "PLAY", "PLAY", "CLOSE"])
        at = step * rng.randint(0, 1_000_000 // step)
        lines.append(
            {
                "time": T + rng.choice([0, DAY]) + at,
                "event": kind,
                "item": rng.choice("wxyz"),
                "user": rng.choice("abcde"),
                "value": rng.choice(["", 0, 1.5, 8, 32, -4]) if kind == "PLAY" else "",
                "session": rng.choice(["", "s", "s", "t"]),
                "request": rng.choice(["", "r1", "r2"]),
                "event_id": "",
                "length": rng.choice(["", 0, 16, 64, -1]),
                "shelf": shelf(len(lines)),
                "row": len(lines),
            }
        )
    for line in rng.sample(lines, 40):  # reloads, and feedback soon after or before
        kind = rng.choice(["VIEW", "VIEW", "LIKE", "PLAY"])
        at = line["time"] + rng.choice([-5000, -2500, 0, 2500, 19_999, 20_000, 20_001, 60_000])
        lines.append(line | {"event": kind, "time": max(T, at), "row": len(lines)})
    for n, line in enumerate(rng.sample(lines, 20)):  # ids, some of them of two events
        line["event_id"] = f"e{n}"
        if n % 2:
            later = line["time"] + rng.choice([1, 5000, DAY])
            kind = rng.choice([line["event"], "VIEW"])
            lines.append(line | {"time": later, "event": kind, "row": len(lines)})
    lines += [dict(line) for line in rng.choices(lines, k=12)]
    rng.shuffle(lines)
    return lines


def write_csv(path, lines):
    """Write lines as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [",".join(lines[0]), *(",".join(map(str, line.values())) for line in lines)]
    path.write_text("\n".join(rows) + "\n")


SEEDS = [
    0,
    *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3)),
]


def story_lines(seed, users=150):
    """Many users with a few events each, at distances at which the rules turn over."""
    rng = random.Random(seed)
    edges = [0, 5000, 10_000, 20_000, 30_000, 40_000, 60_000, 90_000, 120_000, 180_000, 300_000]
    edges += [600_000, 1_200_000]
    lines = []
    for user in range(users):
        at = rng.choice([0, DAY, DAY + 395_000, DAY + 400_000, DAY + 640_000, DAY + 880_000])
        for _ in range(rng.randint(2, 8)):
            at += rng.choice([0, *edges[: rng.randint(1, len(edges))]]) + rng.choice([0, 0, -1, 1])
            kind = rng.choice(["VIEW", "VIEW", "VIEW", "LIKE", "HIDE", "PLAY", "CLOSE"])
            lines.append(
                {
                    "time": T + max(0, at),
                    "event": kind,
                    "item": rng.choice("xxy"),
                    "user": f"u{user}",
                    "value": rng.choice(["", 8, 32]),
                    "session": rng.choice(["", "s", "s", "s"]),
                    "request": rng.choice(["", "r1", "r1", "r2"]),
                    "event_id": "",
                    "length": rng.choice(["", 0, 16, 64]),
                    "shelf": shelf(len(lines)),
                    "row": len(lines),
                }
            )
    return lines


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_stories(variant, seed, event_config, read_examples, tmp_path):
    write_csv(tmp_path / "log" / "log.csv", story_lines(seed * 100 + len(variant)))
    config = event_config(**BASE | VARIANTS[variant])
    manifest = run(config, tmp_path / "log", tmp_path / "out")
    compare(config, tmp_path / "log", tmp_path / "out", manifest, read_examples)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_feedback_in_files_of_its_own(seed, event_config, read_examples, tmp_path):
    lines = event_lines(seed)
    views = [line for line in lines if line["event"] == "VIEW"]
    others = [line for line in lines if line["event"] != "VIEW"]
    for line, view in zip(others[:8], views[:8], strict=True):  # the same ids in both files
        view["event_id"] = line["event_id"] = f"{view['row']}-{line['row']}"
    write_csv(tmp_path / "log" / "views.csv", views)
    rows = [{k: v for k, v in line.items() if v != ""} for line in others]
    times = [datetime.fromtimestamp(row["time"] / 1000, UTC).isoformat() for row in rows]
    rows = [row | {"time": time} for row, time in zip(rows, times, strict=True)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "log" / "others.jsonl").write_text(text)
    changes = {
        "pipeline.log.files": ["views.csv"],
        "pipeline.log.columns": {k: v for k, v in COLUMNS.items() if k not in ("event", "value")},
        "pipeline.log.feedback": {
            "files": ["others.jsonl"],
            "format": {"type": "jsonl"},
            "time_unit": "iso",
            "columns": COLUMNS,
        },
    }
    config = event_config(**BASE | VARIANTS["all"] | changes)
    manifest = run(config, tmp_path / "log", tmp_path / "out")
    compare(config, tmp_path / "log", tmp_path / "out", manifest, read_examples)


@pytest.mark.slow
@pytest.mark.parametrize("hold_back", [None, False])
def test_runs_of_some_days(hold_back, event_config, read_examples, tmp_path):
    stories = [line | {"row": line["row"] + 10_000} for line in story_lines(6, 50)]
    write_csv(tmp_path / "log" / "log.csv", event_lines(5) + stories)
    limits = EVENT_FEATURES | {
        "viewed": EVENT_FEATURES["viewed"]
        | {"history": {"events": VIEWS, "last": 5, "within": "1h"}},
        "item_likes": EVENT_FEATURES["item_likes"]
        | {"count": {"of": "item", "events": ["LIKE", "HIDE"], "within": "1d"}},
        "age": EVENT_FEATURES["age"]
        | {"since": {"of": "item", "events": VIEWS, "which": "first", "within": "2h"}},
    }
    changes = {"pipeline.cut_off": None, "pipeline.hold_back": hold_back}
    changes |= {"contract.features": limits, "pipeline.collapse": "20s"}
    changes |= {"contract.rates": {**RATES, "within": "1d"}}
    config = event_config(**BASE | changes)
    midnights = [datetime.fromtimestamp((T + n * DAY) / 1000, UTC) for n in range(4)]
    if hold_back is False:
        midnights.pop()  # nothing was shown on the third day
    for begin, end in itertools.pairwise(midnights):
        out = tmp_path / f"{begin:%d}"
        manifest = run(config, tmp_path / "log", out, span=(begin, end))
        span = micros(begin), micros(end)
        compare(config, tmp_path / "log", out, manifest, read_examples, span=span)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "variant",
    # Stories take every variant.
    [v if at % 2 else pytest.param(v, marks=pytest.mark.long) for at, v in enumerate(VARIANTS)],
)
def test_event_logs(variant, seed, event_config, read_examples, tmp_path):
    write_csv(tmp_path / "log" / "log.csv", event_lines(seed * 100 + len(variant)))
    config = event_config(**BASE | VARIANTS[variant])
    manifest = run(config, tmp_path / "log", tmp_path / "out")
    compare(config, tmp_path / "log", tmp_path / "out", manifest, read_examples)


# Impression logs ---------------------------------------------------------------------------------

IMPRESSION_TASKS = {
    "click": {"type": "binary", "label": {"rule": "column", "column": "click"}},
    "like": {"type": "binary", "label": {"rule": "column", "column": "like"}, "when": "click"},
    "stars": {
        "type": "regression",
        "label": {"rule": "column", "column": "stars"},
        "clip": [1.0, 5.0],
    },
    "high": {
        "type": "binary",
        "label": {"rule": "column", "column": "stars"},
        "at_least": 4.0,
        "without": "like",
    },
    "part": {
        "type": "regression",
        "label": {"rule": "ratio", "column": "watched", "over": "length"},
    },
    "long": {
        "type": "binary",
        "label": {"rule": "ratio", "column": "watched", "over": "length"},
        "at_least": 0.5,
        "clip": [0.25, 1.0],
        "when": "click",
    },
}


def past_of(events, **more):
    """A history over columns."""
    return {
        "kind": "id_list",
        "side": "user",
        "dtype": "int",
        "share": "item_id",
        "history": {"events": events, "last": 4, **more},
    }


IMPRESSION_FEATURES = {
    "user_id": {"kind": "id", "side": "user", "dtype": "int"},
    "item_id": {"kind": "id", "side": "item", "dtype": "int"},
    "row": {"kind": "id", "side": "context"},
    "topic": {"kind": "id", "side": "context", "column": "shelf", "missing": "indicator"},
    "clicked": past_of(["click"]),
    "either": past_of(["click", "like"], within="2m"),
    "shown": past_of(["impression"]),
    "item_shown": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["impression"], "within": "1m"},
    },
    "ctr": {
        "kind": "number",
        "side": "item",
        "rate": {"of": "item", "events": ["click"], "per": ["impression"], "within": "3m"},
        "missing": "indicator",
    },
    "since_like": {
        "kind": "number",
        "side": "user",
        "since": {"of": "user", "events": ["like", "stars"], "which": "last"},
        "missing": "indicator",
    },
}


def impression_lines(seed, rows=400):
    """An impression log with ties, duplicates, missing values and feedback known later."""
    rng = random.Random(seed)
    lines = []
    for n in range(rows):
        time = T // 1000 + 5 * rng.randint(0, 200)
        late = rng.choice(["", "", -5, 0, 10, 60, 61, 300])
        lines.append(
            {
                "time": time,
                "user_id": rng.randint(1, 6),
                "item_id": rng.choice([2, 9, 10, 11, 100]),
                "request": rng.choice(["", "q1", "q2"]),
                "click": rng.choice(["", 0, 0, 1]),
                "like": rng.choice(["", 0, 1]),
                "stars": rng.choice(["", 0, 2.5, 4, 9]),
                "watched": rng.choice(["", 0, 10, 30, 80]),
                "length": rng.choice(["", 0, 40, 64, -2]),
                "click_time": "" if late == "" else time + late,
                "event_id": "",
                "shelf": shelf(n),
                "row": n,
            }
        )
    for n, line in enumerate(rng.sample(lines, 20)):  # ids, some of them of two rows
        line["event_id"] = f"e{n}"
        if n % 2:
            later = line["time"] + rng.choice([1, 5, 60])
            lines.append(line | {"time": later, "click": rng.choice([0, 1]), "row": len(lines)})
    return lines + [dict(line) for line in rng.choices(lines, k=10)]


IMPRESSION_BASE = {
    "contract.tasks": grouped(IMPRESSION_TASKS),
    "contract.features": IMPRESSION_FEATURES,
    "contract.rates": RATES,
    "pipeline.hold_back": None,
    "pipeline.split": {
        "by": "time",
        "validation": instant(500_000),
        "test": instant(800_000),
    },
    "pipeline.log.columns.event_id": "event_id",
}

IMPRESSION_VARIANTS = {
    "known_after": {
        "pipeline.log.known_after": "60s",
        "contract.rates": {**RATES, "within": "2m", "strength": 2.0},
    },
    "known_at": {
        "pipeline.log.known_after": "10s",
        "pipeline.log.known_at": {"click": "click_time"},
        "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    },
    "known_at_alone": {
        "contract.rates": None,
        "pipeline.log.known_after": None,
        "pipeline.log.known_at": dict.fromkeys(["click", "like", "stars"], "click_time"),
        "pipeline.cut_off": instant(900_000),
        "pipeline.split.embargo": False,
    },
    "known_at_by_time": {
        "pipeline.log.known_after": "20s",
        "pipeline.log.known_at": {"click": "click_time", "stars": "click_time"},
    },
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", IMPRESSION_VARIANTS)
def test_impression_logs(variant, seed, impression_config, read_examples, tmp_path):
    lines = impression_lines(seed)
    config = impression_config(**IMPRESSION_BASE | IMPRESSION_VARIANTS[variant])
    write_csv(tmp_path / "log" / "log.csv", lines)
    manifest = run(config, tmp_path / "log", tmp_path / "out")
    compare(config, tmp_path / "log", tmp_path / "out", manifest, read_examples)
