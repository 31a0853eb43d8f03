"""What must not change: relations between the examples of two logs, whatever the rules compute.

Each test makes a log, changes it in a way that means nothing (or a little) and compares all
examples. Cut-off and splits are fixed instants, so that a change of the log moves neither.
"""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import wraps

import polars as pl
import pytest

from multigate.configs.files import SPLITS
from multigate.pipeline.job import run
from multigate.pipeline.label.labels import waits
from multigate.pipeline.stages import finishing, labelling, reading, sampling

T, DAY = 1_700_000_000, 86_400
FEEDBACK = ("LIKE", "BUY", "DISLIKE", "RATE")
TABLES = (*SPLITS, "vocabularies", "snapshot/users", "snapshot/items")


def instant(seconds):
    return datetime.fromtimestamp(T + seconds, UTC)


def changes(later=0):
    """Of conftest's event log, with times `later` seconds later."""
    number = {"kind": "number", "missing": "indicator"}
    likes = {"events": ["LIKE"], "per": ["VIEW"], "within": "1d"}
    return {
        "contract.features.place": {"kind": "position"},
        "contract.features.kind": {"kind": "id", "side": "item", "missing": "indicator"},
        "contract.features.item_views": {
            "kind": "number",
            "side": "item",
            "count": {"of": "item", "events": ["VIEW"], "within": "1d"},
        },
        "contract.features.item_likes": number | {"side": "item", "rate": {"of": "item", **likes}},
        "contract.features.user_likes": number | {"side": "user", "rate": {"of": "user", **likes}},
        "contract.tasks.dislike.label.within": "6h",
        "contract.tasks.good.label.within": "6h",
        "contract.tasks.bought.label.within": "6h",
        "contract.tasks.rated.label.within": "6h",
        "contract.tasks.dwell.label.within": "1h",
        "contract.tasks.long.label.within": "1h",
        "pipeline.collapse": "30s",
        "pipeline.clock_skew": "5s",
        "pipeline.hold_back": True,
        "pipeline.negatives": {"per_positive": 2, "recent": "1d"},
        "pipeline.cut_off": instant(4 * DAY + later).isoformat(),
        "pipeline.split": {
            "by": "time",
            "validation": instant(2 * DAY + later).isoformat(),
            "test": instant(3 * DAY + later).isoformat(),
        },
    }


def make_log(seed=0, views=350):
    """Events as dictionaries, in the order of time, no two at the same time."""
    rng, events = random.Random(seed), []
    for _ in range(views):
        at, user, item = rng.randrange(4 * DAY), f"u{rng.randrange(9)}", f"i{rng.randrange(15)}"
        shared = {"item": item, "user": user, "session": f"s{at // 7200}"}
        shown = {"device": rng.choice(["phone", ""]), "kind": item, "place": rng.randrange(9)}
        events.append({"time": at, "event": "VIEW", **shared, **shown})
        if rng.random() < 0.2:
            events.append({"time": at + 20, "event": "VIEW", **shared, **shown})
        for event in FEEDBACK:
            if rng.random() < 0.25:
                late = rng.choice([-3, 4, 90, 5000, 40_000])
                value = rng.randrange(7) if event in ("BUY", "RATE") else ""
                events.append({"time": at + late, "event": event, "value": value, **shared})
    events = {event["time"]: event for event in events if 0 <= event["time"] < 4 * DAY}
    return [event | {"id": f"e{at}"} for at, event in sorted(events.items())]


COLUMNS = ("time", "event", "item", "user", "session", "value", "device", "kind", "place", "id")


def make(config, folder, *files, columns=COLUMNS):
    """Write the files, run the job; returns the folder of examples."""
    folder.mkdir()
    for at, events in enumerate(files):
        rows = [
            ",".join(str(event.get(name, "")) for name in columns)
            for event in ({**event, "time": T + event["time"]} for event in events)
        ]
        (folder / f"log-{at}.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    run(config, folder, folder / "out")
    return folder / "out"


def examples(out):
    frames = [
        pl.read_parquet(out / name / "*.parquet").with_columns(split=pl.lit(name))
        for name in SPLITS
    ]
    return pl.concat(frames).sort("meta/impression")


def tables(out):
    """What the parts of each table hold together."""
    found = {}
    for name in TABLES:
        for path in sorted((out / name).glob("*.parquet")):
            key = path.stem if name == "vocabularies" else name
            found.setdefault(key, []).append(pl.read_parquet(path))
    return {
        name: pl.concat(parts).sort(parts[0].columns[0], maintain_order=True)
        for name, parts in found.items()
    } | {name: (out / name).read_text() for name in ("statistics.json", "contract.json")}


def assert_same(left, right):
    one, other = tables(left), tables(right)
    assert one.keys() == other.keys()
    for name, table in one.items():
        same = (
            table.equals(other[name]) if isinstance(table, pl.DataFrame) else table == other[name]
        )
        assert same, name


@pytest.fixture(scope="module")
def config(event_config):
    return event_config(**changes())


@pytest.fixture(scope="module")
def base(config, tmp_path_factory):
    out = make(config, tmp_path_factory.mktemp("base") / "log", make_log())
    found = examples(out)
    told = found.filter(~pl.col("meta/sampled"))
    # There is something of everything to compare.
    assert found["meta/sampled"].sum() > 200
    for name in config.contract.tasks:
        assert told[f"label/{name}"].null_count() < len(told)
        assert told[f"label/{name}"].null_count() > 0 or name == "like"
    return out


def by_impression(out):
    """Logged impressions by user, item and time."""
    rows = examples(out).filter(~pl.col("meta/sampled"))
    return {(r["user_id"], r["item_id"], r["meta/time"]): r for r in rows.to_dicts()}


@pytest.mark.parametrize("seed", range(2))
def test_adding_a_like_never_shortens_a_dwell(seed, base, config, tmp_path):
    log, rng = make_log(), random.Random(seed)
    busy, more = {event["time"] for event in log}, []
    for event in log:
        at = event["time"] + rng.choice([1, 2, 5])
        # On the very item, before anything else happens.
        alone = all(at_ not in busy for at_ in range(event["time"] + 1, at + 1))
        if event["event"] == "VIEW" and alone and rng.random() < 0.5:
            more.append(event | {"time": at, "event": "LIKE", "id": f"new{at}"})
    assert len(more) > 50
    out = make(config, tmp_path / "log", sorted(log + more, key=lambda event: event["time"]))
    before, after = by_impression(base), by_impression(out)
    assert before.keys() == after.keys()
    for key, row in before.items():
        assert after[key]["label/dwell"] == row["label/dwell"], key
    likes = [sum(row["label/like"] or 0 for row in rows.values()) for rows in (before, after)]
    assert likes[1] > likes[0] + 20


@pytest.mark.slow
def test_an_unused_column_changes_nothing(config, event_config, tmp_path):
    for split in ("time", "random"):
        less = (
            {}
            if split == "time"
            else {"pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2}}
        )
        # Without event ids, rows are told apart by their columns.
        chosen = event_config(**changes() | less)
        log = make_log()
        noisy = [event | {"noise": random.random()} for event in log]
        one = make(chosen, tmp_path / split, log)
        other = make(chosen, tmp_path / f"{split}-noise", noisy, columns=("noise", *COLUMNS))
        assert_same(one, other)


@pytest.mark.parametrize("seed", range(2))
def test_later_events_change_no_earlier_features_and_no_closed_label(seed, base, config, tmp_path):
    since = 2 * DAY + 9 * 3600
    later = [
        event | {"id": f"later{event['id']}"}
        for event in make_log(seed + 5)
        if event["time"] > since
    ]
    # New users and items, and those that there are.
    for event in later[::3]:
        event["user"], event["item"] = f"new{event['user']}", f"new{event['item']}"
    busy = {event["time"] for event in make_log()}
    later = [event for event in later if event["time"] not in busy]
    assert len(later) > 150
    log = sorted(make_log() + later, key=lambda event: event["time"])
    before, after = examples(base), examples(make(config, tmp_path / "log", log))
    early = pl.col("meta/time") < instant(since)
    before, after = before.filter(early), after.filter(early)
    names = [name for name in before.columns if not name.startswith("label/")]
    assert before.select(names).equals(after.select(names))
    for name, wait in waits(config).items():
        closed = pl.col("meta/time") + wait < instant(since)
        label = f"label/{name}"
        one, other = before.filter(closed)[label], after.filter(closed)[label]
        assert len(one) > 100
        assert one.equals(other), name
    assert len(before) > 400


def test_splitting_a_file_changes_nothing(base, config, tmp_path):
    log = make_log()
    mixed = random.Random(3).sample(log, len(log))
    assert_same(base, make(config, tmp_path / "log", mixed[:200], mixed[200:201], mixed[201:]))


STAGES = [
    (reading, "read_shard"),
    (reading, "judge"),
    (reading, "write_rejects"),
    (labelling, "label_bucket"),
    (labelling, "merge_shown"),
    (labelling, "concatenate_catalogue"),
    (sampling, "sample_bucket"),
    (finishing, "count_items"),
    (finishing, "finish_bucket"),
    (finishing, "write_vocabulary"),
    (finishing, "write_statistics"),
]


@pytest.mark.slow
def test_retrying_stages_changes_nothing(base, config, monkeypatch, tmp_path):
    """A worker may die after it wrote its files and before the runner hears of it."""
    calls = tmp_path / "calls"

    def twice(stage, name):
        @wraps(stage)  # stages are recorded by their names
        def run(element, *rest):
            first = stage(element, *rest)
            if isinstance(first, Iterator):
                list(first)
            with calls.open("a") as file:
                file.write(f"{name}\n")
            return stage(element, *rest)

        return run

    for module, name in STAGES:
        monkeypatch.setattr(module, name, twice(getattr(module, name), name))
    bad = {"time": 5, "event": "VIEW", "item": "", "user": "u1", "id": "bad"}
    out = make(config, tmp_path / "log", [*make_log(), bad])
    called = Counter(calls.read_text().split())
    assert set(called) == {name for _, name in STAGES}
    assert min(count for name, count in called.items() if name.endswith("bucket")) >= 3
    assert_same(base, out)
    rejects = pl.concat(pl.read_parquet(path) for path in (out / "rejects").iterdir())
    assert rejects.select("line", "reason").rows() == [(len(make_log()) + 2, "item: missing")]


@pytest.mark.slow
def test_a_log_shifted_by_weeks_gives_the_same_examples_weeks_later(base, event_config, tmp_path):
    weeks = 21 * DAY
    # With event ids, draws are functions of them: they stay as well.
    log = [event | {"time": event["time"] + weeks} for event in make_log()]
    ids = {"pipeline.log.columns.event_id": "id"}
    now = make(event_config(**changes() | ids), tmp_path / "now", make_log())
    later = make(event_config(**changes(weeks) | ids), tmp_path / "later", log)
    back = examples(later).with_columns(pl.col("meta/time") - timedelta(seconds=weeks))
    assert back.equals(examples(now))
    assert (
        back.drop("meta/impression", "meta/request")
        .filter(~pl.col("meta/sampled"))
        .sort("meta/time")
        .equals(
            examples(base)
            .drop("meta/impression", "meta/request")
            .filter(~pl.col("meta/sampled"))
            .sort("meta/time")
        )
    )


def test_other_names_of_users_and_items_change_only_names(base, config, tmp_path):
    rng = random.Random(1)
    new = {}
    for kind, count in (("user", 9), ("item", 15)):
        names = rng.sample([f"{kind}-{at}" for at in range(99)], count)
        new[kind] = {f"{kind[0]}{at}": name for at, name in enumerate(names)}
    log = [
        event | {"user": new["user"][event["user"]], "item": new["item"][event["item"]]}
        for event in make_log()
    ]
    out = make(config, tmp_path / "log", log)

    def renamed(rows):
        items, users = (
            pl.col("item_id").replace(new["item"]),
            pl.col("user_id").replace(new["user"]),
        )
        lists = [
            pl.col(n).list.eval(pl.element().replace(new["item"])) for n in ("recent", "liked")
        ]
        return rows.with_columns(items, users, *lists)

    def logged(rows):
        # The numbers of impressions are hashes of names, and draws follow them.
        rows = rows.filter(~pl.col("meta/sampled")).drop("meta/impression", "meta/request")
        return rows.sort("meta/time")

    assert logged(renamed(examples(base))).equals(logged(examples(out)))
    counts = [
        examples(one).group_by("meta/time").agg(pl.col("meta/sampled").sum()).sort("meta/time")
        for one in (base, out)
    ]
    assert counts[0].equals(counts[1])


def test_another_user_changes_nobody_elses_labels(base, config, tmp_path):
    busy = {event["time"] for event in make_log()}
    more = [
        event | {"user": "another", "id": f"another{event['id']}"}
        for event in make_log(9)
        if event["time"] not in busy and event["user"] in ("u1", "u2")
    ]
    assert len(more) > 80
    log = sorted(make_log() + more, key=lambda event: event["time"])
    before, after = by_impression(base), by_impression(make(config, tmp_path / "log", log))
    assert before.keys() == {key for key in after if key[0] != "another"}
    of_user = ["recent", "liked", "user_likes", "device", "place", "split"]
    for key, row in before.items():
        for name in config.contract.tasks:
            if name != "view":  # which tells whether others could draw the item: `unmatched`
                assert after[key][f"label/{name}"] == row[f"label/{name}"], (key, name)
        assert [after[key][name] for name in of_user] == [row[name] for name in of_user]
        assert row["label/view"] in (None, after[key]["label/view"])
