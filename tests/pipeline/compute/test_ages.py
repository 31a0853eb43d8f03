"""Ages: seconds from a column's time to the impression, in examples, snapshots and the audit."""

import random
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from multigate.configs import ConfigError, DataError
from multigate.configs.files import ExamplesFolder
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run

START = datetime(2026, 3, 1, tzinfo=UTC)
LISTED = {
    f"i{at}": START + timedelta(days=at - 6) for at in range(9)
}  # some only in the log's days
JOINED = {f"u{at}": START - timedelta(hours=7 * at, milliseconds=250) for at in range(5)}
FEATURES = {
    "contract.features.listed": {
        "kind": "number",
        "side": "item",
        "source": "items",
        "column": "online_since",
        "age": "iso",
        "missing": "indicator",
    },
    "contract.features.member_for": {
        "kind": "number",
        "side": "user",
        "column": "joined",
        "age": "ms",
        "missing": "indicator",
    },
    "contract.features.made": {
        "kind": "number",
        "side": "item",
        "column": "made",
        "age": "iso",
        "missing": "default",
        "default": 7.0,
    },
    "pipeline.items": {"files": ["items.csv"], "key": "id"},
    "pipeline.log.time_zone": "Europe/Berlin",
    "pipeline.negatives": {"per_positive": 2},
    "contract.tasks": {
        "view": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
    },
    "contract.features.liked": None,
}


def write(folder, rows=120):
    draw = random.Random(5)
    lines = ["time,event,item,user,session,value,device,joined,made"]
    for _ in range(rows):
        time = int((START + timedelta(seconds=draw.randrange(5 * 86_400))).timestamp())
        item, user = draw.choice(list(LISTED)), draw.choice(list(JOINED))
        joined = round(JOINED[user].timestamp() * 1000)
        made = LISTED[item].isoformat() if item < "i7" else ""
        lines.append(f"{time},VIEW,{item},{user},s,,web,{joined},{made}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    # Days without a zone, as catalogues have them: midnight in Berlin is an hour earlier.
    days = [f"{item},{at:%Y-%m-%d}" for item, at in LISTED.items() if item != "i8"]
    (folder / "items.csv").write_text("\n".join(["id,online_since", *days]) + "\n")


def age(since: datetime, time: datetime) -> float:
    return pytest.approx(max((time - since).total_seconds(), 0.0), rel=1e-6)


@pytest.fixture(scope="module")
def made(event_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ages")
    write(folder)
    config = event_config(**FEATURES)
    run(config, folder, folder / "out")
    return config, folder


def test_an_example_has_the_age_at_its_impression(made, read_examples):
    rows = read_examples(made[1] / "out").to_dicts()
    assert {row["meta/sampled"] for row in rows} == {True, False}
    later = 0
    for row in rows:
        time, item, user = row["meta/time"], row["item_id"], row["user_id"]
        midnight = LISTED[item] - timedelta(hours=1)
        later += item != "i8" and midnight > time
        assert row["listed"] == (None if item == "i8" else age(midnight, time))
        assert row["made"] == (None if item >= "i7" else age(LISTED[item], time))
        assert row["member_for"] == age(JOINED[user], time)
    assert later  # shown before the day of its listing: 0


def test_the_snapshot_has_the_age_at_the_cut_off(made):
    _, folder = made
    files = ExamplesFolder(folder / "out")
    cut_off = pl.read_csv(folder / "log.csv")["time"].max()
    end = datetime.fromtimestamp(cut_off, UTC)
    users, items = (
        pl.concat(map(pl.read_parquet, sorted(files.snapshot(side).glob("*.parquet"))))
        for side in ("users", "items")
    )
    assert dict(users.select("user_id", "member_for").iter_rows()) == {
        user: age(since, end) for user, since in JOINED.items()
    }
    assert dict(items.select("item_id", "listed").iter_rows()) == {
        item: None if item == "i8" else age(since - timedelta(hours=1), end)
        for item, since in LISTED.items()
    }


def test_the_audit_measures_again(made, event_config):
    config, folder = made
    assert audit(config, folder, folder / "out")["values"]
    table = (folder / "items.csv").read_text()
    try:
        (folder / "items.csv").write_text(table.replace("2026-02-25", "2026-02-24"))
        with pytest.raises(
            DataError, match=r"feature 'listed': expected \d+.* from the items table"
        ):
            audit(config, folder, folder / "out")
    finally:
        (folder / "items.csv").write_text(table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"missing": "error"}, "missing where a time is unknown; expected missing: indicator"),
        (
            {"count": {"of": "item", "events": ["VIEW"]}, "source": "log", "column": None},
            "received a count beside it",
        ),
    ],
)
def test_what_contradicts_an_age_is_said(changes, message, event_config):
    feature = {**FEATURES["contract.features.listed"], **changes}
    with pytest.raises(ConfigError, match=message):
        event_config(**FEATURES | {"contract.features.listed": feature})


def test_what_is_no_time_is_said(event_config, tmp_path):
    write(tmp_path)
    (tmp_path / "items.csv").write_text("id,online_since\ni0,soon\n")
    with pytest.raises(DataError, match=r"items.csv: line 2: listed: expected ISO 8601 text"):
        run(event_config(**FEATURES), tmp_path, tmp_path / "out")
