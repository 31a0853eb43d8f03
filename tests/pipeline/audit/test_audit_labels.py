"""The audit's own labels and instants: it passes the job's, and names each planted leak.

A leak is planted by a run with a configuration that leaks, audited with the one that does not.
"""

import random
import shutil
from datetime import UTC, datetime

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run
from multigate.pipeline.label import labels
from multigate.pipeline.read import log_end, normalise
from multigate.pipeline.stages import reading

T = 1_700_000_000
DAY = 86_400


def instant(seconds):
    return datetime.fromtimestamp(T + seconds, UTC).isoformat()


EVENTS = {
    "contract.features.item_views": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"], "within": "6h"},
    },
    "contract.tasks.long.label.within": "30m",
    "contract.tasks.dwell.label.within": "2h",
    "contract.tasks.shared": {
        "group": "engagement",
        "type": "binary",
        "label": {"rule": "event", "events": ["BUY"], "within": "12h"},
    },
    "pipeline.collapse": "30s",
    "pipeline.clock_skew": "5s",
    "pipeline.hold_back": True,
    "pipeline.negatives": {"per_positive": 1},
    "pipeline.split": {"by": "time", "validation": instant(2 * DAY), "test": instant(3 * DAY)},
}


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Four days of views with reloads, and feedback right after them and hours later."""
    rng, lines = random.Random(8), []
    for _ in range(700):
        at, user = rng.randrange(4 * DAY), f"u{rng.randrange(9)}"
        item, session = f"i{rng.randrange(12)}", f"s{at // 3600}"
        lines.append((at, "VIEW", item, user, session, ""))
        if rng.random() < 0.3:
            lines.append((at + rng.choice([0, 5, 25, 50]), "VIEW", item, user, session, ""))
        for kind in ("LIKE", "BUY", "DISLIKE", "RATE"):
            if rng.random() < 0.25:
                late = rng.choice([-3, 0, 4, 50, 3000, 7 * 3600, 30 * 3600])
                value = rng.randint(0, 6) if kind in ("BUY", "RATE") else ""
                if at + late < 4 * DAY:
                    lines.append((at + late, kind, item, user, session, value))
    folder = tmp_path_factory.mktemp("events")
    text = [f"{T + at},{kind},{i},{u},{s},{v}," for at, kind, i, u, s, v in lines]
    (folder / "log.csv").write_text(
        "\n".join(["time,event,item,user,session,value,device", *text]) + "\n"
    )
    return folder


@pytest.fixture(scope="module")
def impressions(tmp_path_factory):
    rng, lines = (
        random.Random(9),
        ["time,user_id,item_id,request,price,tags,place,click,stars,seen"],
    )
    for at in range(0, 30_000, 60):
        click = int(rng.random() < 0.5)
        seen = T + at + rng.randrange(1, 3000) if click else ""
        lines.append(f"{T + at},{rng.randrange(6)},{rng.randrange(9)},r{at},,,1,{click},4,{seen}")
    folder = tmp_path_factory.mktemp("impressions")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return folder


CLICKS = {
    "contract.features.item_clicks": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["click"], "within": "2h"},
    }
}


@pytest.mark.slow
def test_what_the_job_makes_of_events_passes(event_config, events, tmp_path):
    manifest = run(event_config(**EVENTS), events, tmp_path / "out")
    assert manifest["rows"]["collapsed"] > 100
    assert manifest["rows"]["late"] > 10
    assert min(manifest["labels"]["embargoed"]["train"][name] for name in ("shared", "good")) > 5
    found = audit(event_config(**EVENTS), events, tmp_path / "out", sample=10_000)
    assert found["examples"] == manifest["examples"]["total"]


@pytest.mark.parametrize("known", [{"known_after": "10m"}, {"known_at": {"click": "seen"}}])
def test_what_the_job_makes_of_impressions_passes(known, impression_config, impressions, tmp_path):
    log = {f"pipeline.log.{key}": value for key, value in known.items()}
    config = impression_config(**CLICKS, **{"pipeline.split.embargo": False}, **log)
    manifest = run(config, impressions, tmp_path / "out")
    assert manifest["examples"]["total"] > 450
    audit(config, impressions, tmp_path / "out", sample=10_000)


LEAKS = [
    # Issue: VIEW x at 0 s, LIKE x at 5 s, VIEW y at 120 s gave a dwell of 5 s.
    (
        {"contract.tasks.dwell.label.ends": "any", "contract.tasks.long.label.ends": "any"},
        r"label '(dwell|long)': expected .*; it ends at an event that does not end it",
    ),
    ({"pipeline.collapse": None}, r"repeats an impression|counts repeated impressions"),
    ({"pipeline.split.embargo": False}, r"label '\w+': it closes at .* begins at .* \(embargo\)"),
    (
        {"pipeline.hold_back": False},
        r"label '\w+': it closes at .* and the log ends at .*: expected none \(hold-back\)",
    ),
    ({"pipeline.attribution": "1h"}, r"label '\w+': expected .* from what followed"),
    ({"pipeline.clock_skew": None}, r"(label|feature) '\w+': expected"),
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("leak", "message"), LEAKS)
def test_a_leak_of_an_event_log_is_named(leak, message, event_config, events, tmp_path):
    honest = event_config(**EVENTS)
    run(event_config(**EVENTS | leak), events, tmp_path / "out")
    run(honest, events, tmp_path / "honest")
    contract = (tmp_path / "honest/contract.json").read_bytes()
    (tmp_path / "out/contract.json").write_bytes(contract)
    with pytest.raises(DataError, match=message) as error:
        audit(honest, events, tmp_path / "out", sample=10_000)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("known", [{"known_after": "10m"}, {"known_at": {"click": "seen"}}])
def test_feedback_that_counts_before_it_is_known_is_named(
    known, impression_config, impressions, tmp_path
):
    """As if it were known with its impression: 1 s later, and no two impressions are so near."""
    log = {f"pipeline.log.{key}": value for key, value in known.items()}
    leaky = impression_config(**CLICKS, **{"pipeline.log.known_after": "1s"})
    run(leaky, impressions, tmp_path / "out")
    with pytest.raises(DataError, match="it counts feedback before it was known"):
        honest = impression_config(**CLICKS, **{"pipeline.split.embargo": False}, **log)
        audit(honest, impressions, tmp_path / "out", sample=10_000)


def test_a_label_that_came_after_it_had_closed_is_named(impression_config, impressions, tmp_path):
    """Clicks come up to 50 minutes later; the run takes them all, the audit those in 10 minutes."""
    run(impression_config(**{"pipeline.log.known_after": "10m"}), impressions, tmp_path / "out")
    at = {"pipeline.log.known_after": "10m", "pipeline.log.known_at": {"click": "seen"}}
    with pytest.raises(DataError, match=r"label 'click': expected None .* received 1\.0"):
        audit(impression_config(**at), impressions, tmp_path / "out", sample=10_000)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("task", "value", "message"),
    [
        ("like", 0.0, "label 'like': expected 1.0 from what followed"),  # feedback that vanished
        ("bought", 99.0, "label 'bought': expected .* received 99.0"),
        ("shared", None, "label 'shared': it had closed in time: expected .* received None"),
    ],
)
def test_a_wrong_label_is_named(task, value, message, event_config, events, tmp_path):
    config = event_config(**EVENTS)
    run(config, events, tmp_path / "out")
    for path in (tmp_path / "out/train").iterdir():
        rows = pl.read_parquet(path)
        changed = pl.when(pl.col(f"label/{task}").is_not_null()).then(pl.lit(value, pl.Float32))
        rows.with_columns(changed.alias(f"label/{task}")).write_parquet(path)
    with pytest.raises(DataError, match=message):
        audit(config, events, tmp_path / "out", sample=10_000)


@pytest.mark.slow
def test_a_cut_off_that_a_row_of_2099_moved_is_named(event_config, events, monkeypatch, tmp_path):
    """As if the last row of all ended the log: no label is open, and nothing is held back."""
    folder = tmp_path / "log"
    folder.mkdir()
    wrong_clock = "4070908800,VIEW,i1,u1,s,,\n"
    (folder / "log.csv").write_text((events / "log.csv").read_text() + wrong_clock)
    config = event_config(**EVENTS)
    run(config, folder, tmp_path / "honest")
    audit(config, folder, tmp_path / "honest", sample=10_000)
    monkeypatch.setattr(log_end, "end_of", lambda log: None)
    leaky = run(config, folder, tmp_path / "out")
    monkeypatch.undo()
    assert leaky["cut_off"].startswith("2099")
    message = (
        r"manifest\.json: cut_off: expected 2023-11-18 .* received 2099.* the log's end moved it"
    )
    with pytest.raises(DataError, match=message):
        audit(config, folder, tmp_path / "out")


@pytest.mark.slow
def test_a_log_that_grew_since_the_run_is_no_leak(event_config, events, tmp_path):
    run(event_config(**EVENTS), events, tmp_path / "out")
    shutil.copytree(events, tmp_path / "log")
    with (tmp_path / "log/log.csv").open("a") as file:
        file.write(f"{T + 4 * DAY},VIEW,i1,u1,s,,\n")
    audit(event_config(**EVENTS), tmp_path / "log", tmp_path / "out", sample=10_000)


@pytest.mark.slow
def test_a_configured_cut_off_that_the_run_did_not_heed_is_named(
    event_config, events, monkeypatch, tmp_path
):
    config = event_config(**EVENTS, **{"pipeline.cut_off": instant(3.5 * DAY)})
    run(config, events, tmp_path / "honest")
    audit(config, events, tmp_path / "honest", sample=10_000)
    late = datetime.fromtimestamp(T + 4 * DAY, UTC)
    monkeypatch.setattr(reading, "_cut_off", lambda plan, log: late)
    run(config, events, tmp_path / "out")
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"cut_off: expected 2023-11-18 .*, pipeline\.cut_off, rec"):
        audit(config, events, tmp_path / "out")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("features", [True, False])
def test_event_ids_in_one_space_are_named(
    features, event_config, separate_files, monkeypatch, tmp_path
):
    """Both files count their rows from 1, as if an impression and a like were the same event."""
    shown = [
        {"id": str(at), "time": T + 600 * at, "user": f"u{at % 4}", "item": f"i{at % 9}"}
        | {"session": "s", "device": "phone"}
        for at in range(500)
    ]
    kinds = ("LIKE", "DISLIKE", "BUY", "RATE")
    likes = [row | {"time": row["time"] + 1, "event": kinds[at % 4], "value": 1}
             for at, row in enumerate(shown)]  # fmt: skip
    changes = EVENTS | separate_files(tmp_path, shown, likes)
    if not features:
        changes |= {f"contract.features.{name}": None for name in ("liked", "recent")}
    config = event_config(**changes)
    assert run(config, tmp_path, tmp_path / "honest")["rows"]["duplicates"] == 0
    audit(config, tmp_path, tmp_path / "honest", sample=10_000)
    honest = normalise._identify
    monkeypatch.setattr(
        normalise, "_identify", lambda events, _, named: honest(events, False, named)
    )
    assert run(config, tmp_path, tmp_path / "out")["rows"]["duplicates"] == 500
    monkeypatch.undo()
    message = r"(label|feature) '\w+': expected .*; it leaves out an event as a duplicate whose"
    with pytest.raises(DataError, match=message):
        audit(config, tmp_path, tmp_path / "out")


@pytest.mark.slow
def test_a_hold_back_of_whole_rows_is_named(event_config, events, monkeypatch, tmp_path):
    """As if one label that waits for long held the impression back with all its labels."""
    honest = labels.open_at

    def leaky(times, tasks, instant):
        return honest(times, dict.fromkeys(tasks, max(tasks.values())), instant)

    config = event_config(**EVENTS)
    monkeypatch.setattr(labels, "open_at", leaky)
    run(config, events, tmp_path / "out")
    monkeypatch.undo()
    message = r"no example of user 'u\d' and item 'i\d+', though label '\w+' had closed in time"
    with pytest.raises(DataError, match=message):
        audit(config, events, tmp_path / "out")
