"""Nights whose version goes on trial beside the one in production, and what the next night does."""

import json
import shutil
from datetime import date, timedelta

import pytest

from multigate.configs.contract import Contract
from multigate.configs.errors import ConfigError, RunError
from multigate.configs.sections.base import parse
from multigate.configs.version_folders import Trial, read_trial
from multigate.jobs.night.folder import RunFolder
from multigate.jobs.night.nightly import run
from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.serving.versions.folders import missing_files
from multigate.verbs.command import main

DAY = date(2026, 1, 30)
SHARES = {"canary": 5, "shadow": 10}


def base_of(runs):
    return Base(runs / "models/night")


def places(base):
    return list(base.versions()), list(base.tried()), list(base.withdrawn())


@pytest.fixture
def undecided(finished, tmp_path):
    """The night before its decision, with a version of the night before in production."""
    runs = finished.unfinished(tmp_path / "runs", "decision")
    folder = RunFolder(runs, DAY)
    lineage = {"run": "2026-01-29", "candidate": "good", "full_since": "2026-01-29"}
    base_of(runs).publish(folder.export, folder.checkpoint, lineage, None)
    return runs


def next_night(runs, day):
    """The same night under the next date, up to its decision: training it again would take long."""
    following = day + timedelta(days=1)
    shutil.copytree(RunFolder(runs, day).root, RunFolder(runs, following).root)
    RunFolder(runs, following).invalidate("decision")
    return following


def test_nights_try_one_version_at_a_time(undecided, finished, nights, tmp_path, capsys):
    told = tmp_path / "told.jsonl"
    config = nights.config(trial=SHARES, notify=f"sh -c 'cat >> {told}; echo >> {told}'")
    base, logs = base_of(undecided), finished.logs

    def last_told():
        return json.loads(told.read_text().strip().splitlines()[-1])

    result = run(config, DAY, logs, undecided)
    assert (result["state"], result["version"], result["production"]) == ("tried", 2, 1)
    assert places(base) == ([1], [2], [])
    assert read_trial(base.root) == trials.trial_of(base) == Trial(2, 5.0, 10.0)
    assert missing_files(base.tried()[2]) == []
    assert base.checkpoint(2) is not None
    assert (last_told()["event"], last_told()["version"]) == ("tried", 2)
    assert last_told()["message"] == "version 2 is on trial: canary 5 %, shadow 10 %"
    assert main(["runs", "--out", str(undecided)]) == 0
    assert "tried" in capsys.readouterr().out
    # A start after a kill before the last record: the version is there already.
    RunFolder(undecided, DAY).invalidate("publication")
    assert run(config, DAY, logs, undecided)["version"] == 2
    assert places(base) == ([1], [2], [])

    # The next night finds the trial under way, and says what ends it.
    following = next_night(undecided, DAY)
    refused = run(config, following, logs, undecided)
    assert (refused["state"], refused["version"]) == ("refused", None)
    (reason,) = refused["reasons"]
    publish = f"multigate publish --base {base.root}"
    again = f"multigate run --date {following} --force decision"
    assert reason == (
        f"version 2 is on trial already; {publish} --promote or --stop ends that, and {again} then "
        "decides on this night's version"
    )
    assert last_told()["message"] == reason
    assert places(base) == ([1], [2], [])
    assert main([*publish.split()[1:], "--stop"]) == 0
    assert run(config, following, logs, undecided, force="decision")["version"] == 3
    assert places(base) == ([1], [3], [2])
    trials.promote(base, {"verdict"})
    assert base.production() == 3
    actions = [(entry["action"], entry["version"]) for entry in base.history()]
    assert actions == [
        *(("published", 1), ("tried", 2), ("withdrawn", 2), ("tried", 3), ("published", 3)),
    ]


def test_a_trial_that_began_after_the_decision_is_not_disturbed(undecided, finished, nights):
    config, base = nights.config(trial=SHARES), base_of(undecided)
    run(config, DAY, finished.logs, undecided)
    folder = RunFolder(undecided, DAY)
    lineage = {"run": "2026-01-31", "candidate": "another", "full_since": "2026-01-31"}
    with (
        base.copies(folder.export, folder.checkpoint) as copies,
        pytest.raises(RunError, match=r"version 2 is on trial already; .* --stop ends that"),
    ):
        base.publish_copies(copies, lineage, 1, trial=(1.0, 1.0))
    assert places(base) == ([1], [2], [])
    assert trials.trial_of(base) == Trial(2, 5.0, 10.0)


def test_the_first_version_has_nothing_to_be_tried_beside(finished, nights, tmp_path):
    runs = finished.unfinished(tmp_path / "runs", "decision")
    result = run(nights.config(trial=SHARES), DAY, finished.logs, runs)
    assert (result["state"], result["version"], result["production"]) == ("published", 1, 1)
    assert places(base_of(runs)) == ([1], [], [])


def test_no_version_of_another_schema_is_tried(undecided, finished, nights):
    """Servers would not load it beside the one in production."""
    base = base_of(undecided)
    path = base.versions()[1] / "assets.extra/contract.json"
    values = json.loads(path.read_text())
    del values["contract"]["features"]["country"]
    contract = parse(Contract, values["contract"], "contract")
    path.write_text(json.dumps(values | {"schema_fingerprint": contract.schema_fingerprint()}))
    result = run(nights.config(trial=SHARES), DAY, finished.logs, undecided)
    assert result["state"] == "refused"
    assert "version 1 in production has another schema" in result["reasons"][0]
    assert places(base) == ([1], [], [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trial": {}}, "trial: expected canary or shadow above 0, received 0 for both"),
        ({"trial": {"canary": 101}}, "trial.canary: "),
        (
            {"trial": SHARES, "candidates": {}},
            "run.trial: cannot go together with the section candidates",
        ),
    ],
)
def test_what_cannot_be_tried_is_one_line(nights, values, message):
    with pytest.raises(ConfigError, match=message):
        nights.config(**values)
