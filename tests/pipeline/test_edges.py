"""Logs at the edge: too small, too short, all of one kind. A run ends well or in one clear line."""

from datetime import UTC, datetime

import pytest

from multigate.configs import DataError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run

HEADER = "time,event,item,user,session,value,device"
T = 1_700_000_000
KINDS = ["LIKE", "DISLIKE", "BUY", "RATE"]
FEEDBACK = [f"{T + 1},{kind},x,a,s,1," for kind in KINDS]
VIEW = f"{T},VIEW,x,a,s,,phone"
COUNTERS = {
    f"contract.features.{of}_{name}": {"kind": "number", "side": of, **rule}
    for of in ("user", "item")
    for name, rule in {
        "views": {"count": {"of": of, "events": ["VIEW"], "within": "1d"}},
        "rest": {"since": {"of": of, "events": ["LIKE"]}, "missing": "indicator"},
        "rate": {"rate": {"of": of, "events": ["LIKE"], "per": ["VIEW"]}, "missing": "indicator"},
    }.items()
}
LOGS = {
    "no file content": None,
    "header alone": [],
    "one view": [VIEW, *FEEDBACK],
    "feedback alone": FEEDBACK,
    "one user": [*(f"{T + n},VIEW,i{n},a,s,," for n in range(20)), *FEEDBACK],
    "one item": [*(f"{T + n},VIEW,x,u{n},s,," for n in range(20)), *FEEDBACK],
    "one pair": [*(f"{T + n},VIEW,x,a,s,," for n in range(20)), *FEEDBACK],
    "one instant": [*(f"{T},VIEW,i{n % 5},u{n % 3},s,," for n in range(15)), *FEEDBACK],
    "no session": [*(f"{T + n},VIEW,i{n % 5},u{n % 3},,," for n in range(15)), *FEEDBACK],
    "all duplicates": [VIEW] * 20 + FEEDBACK * 2,
    "all rejected": ["soon,VIEW,x,a,s,,", *(f"{T},VIEW,x,,s,," for n in range(9))],
}
SHARES = {"by": "time", "validation": 0.2, "test": 0.2}
CONFIGS = {
    "by user": {
        "pipeline.split": {"by": "user", "validation": 0.2, "test": 0.2},
        "pipeline.negatives": {"per_positive": 3, "sampling": "popularity", "recent": "1h"},
        "pipeline.downsample": {"keep": 0.1, "tasks": ["like"]},
        "pipeline.collapse": "2s",
        "pipeline.clock_skew": "5s",
    },
    "by time": {"pipeline.split": SHARES, "pipeline.hold_back": True},
    # Every label waits for a day: nothing is closed.
    "all held back": {
        "pipeline.split": SHARES,
        "pipeline.hold_back": True,
        **{f"contract.tasks.{name}": None for name in ("view", "like", "rated")},
    },
}


@pytest.mark.sweep(len(LOGS))
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("changes", CONFIGS)
def test_a_run_ends_well_or_in_one_clear_line(name, changes, event_config, tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    lines = LOGS[name]
    (folder / "log.csv").write_text("" if lines is None else "\n".join([HEADER, *lines]) + "\n")
    config = event_config(**COUNTERS | CONFIGS[changes])
    try:
        run(config, folder, tmp_path / "out")
    except DataError as error:
        message = str(error)
        assert "\n" not in message
        assert "Error" not in message
        assert not (tmp_path / "out").exists()
    else:
        assert audit(config, folder, tmp_path / "out")["examples"] > 0


def test_what_the_embargo_leaves_out_is_said(event_config, tmp_path):
    lines = [*(f"{T + n},VIEW,i{n},a,s,," for n in range(20)), *FEEDBACK]
    (tmp_path / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    config = event_config(**{"pipeline.split": SHARES, "contract.tasks.view": None})
    message = (
        "the training split is empty: 20 impressions were split by time, 0 were held back because "
        r"their labels were open at .*, 16 were left out because .* \(split\.embargo\); "
    )
    with pytest.raises(DataError, match=message):
        run(config, tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "arguments", "left"),
    [
        ({"pipeline.cut_off": "2000-01-01T00:00:00Z"}, {}, "5 after_cut_off, 0 rejected"),
        ({}, {"span": [datetime(2000, 1, day, tzinfo=UTC) for day in (1, 2)]}, "5 outside"),
        ({}, {"forget": "a\n"}, "5 forgotten"),
    ],
)
def test_a_log_of_which_no_row_is_left_ends_in_one_clear_line(
    changes, arguments, left, event_config, tmp_path
):
    """It ended in `KeyError: 'impressions'`."""
    (tmp_path / "log.csv").write_text("\n".join([HEADER, VIEW, *FEEDBACK]) + "\n")
    if "forget" in arguments:
        (tmp_path / "forget").write_text(arguments["forget"])
        arguments = {"forget": tmp_path / "forget"}
    with pytest.raises(DataError, match=f"none of the log's 5 rows is left .{left}") as error:
        run(event_config(**changes), tmp_path, tmp_path / "out", **arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
