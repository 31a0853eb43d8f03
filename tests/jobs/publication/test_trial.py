"""How a trial begins and ends: a version is in production, on trial or withdrawn, at one place."""

import pytest

from multigate.configs.errors import RunError
from multigate.configs.version_folders import Trial, read_trial
from multigate.jobs.publication import trial
from multigate.jobs.publication.base_folder import Base
from multigate.serving.versions.folders import missing_files
from multigate.verbs.command import main
from multigate.verbs.publish import _GUARDS


@pytest.fixture
def base(tmp_path):
    """Versions 1 and 2 in production, 3 withdrawn."""
    base = Base(tmp_path / "models")
    for number in (1, 2, 3):
        folder = base.root / str(number)
        for name in missing_files(folder):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")
    base.choose(2)
    return base


def places(base):
    return list(base.versions()), list(base.tried()), list(base.withdrawn())


def test_a_version_leaves_production_for_its_trial_and_comes_back(base):
    assert trial.begin(base, 2, 10.0, None) == Trial(2, 10.0, 0.0)
    assert (places(base), base.production()) == (([1], [2], [3]), 1)
    assert trial.begin(base, None, None, 50.0) == read_trial(base.root) == Trial(2, 10.0, 50.0)
    assert base.next_number() == 4
    with pytest.raises(RunError, match=r"not shown to be safe: there is no verdict yet"):
        trial.promote(base)
    assert trial.promote(base, {"verdict"}) == 2
    assert (places(base), read_trial(base.root)) == (([2, 1], [], [3]), None)
    actions = [(entry["action"], entry["version"]) for entry in base.history()]
    assert actions[-3:] == [("tried", 2), ("tried", 2), ("published", 2)]


def test_a_withdrawn_version_can_be_tried_and_stopped(base):
    trial.begin(base, 3, None, 100.0)
    assert places(base) == ([2, 1], [3], [])
    with pytest.raises(RunError, match=r"version 3 is on trial; .* --stop withdraws it"):
        base.choose(3)
    assert trial.stop(base, "enough") == 3
    assert (places(base), read_trial(base.root)) == (([2, 1], [], [3]), None)
    assert base.history()[-1]["reason"] == "enough"


@pytest.mark.parametrize(
    ("version", "canary", "message"),
    [
        (7, 1.0, r"no version 7; versions: 2, 1; withdrawn: 3"),
        (None, 1.0, r"no version is on trial; --version says which one"),
        (3, 101.0, r"^--canary: expected a percentage, 0 to 100, received 101"),
        (3, float("nan"), r"^--canary: expected a percentage, 0 to 100, received nan"),
    ],
)
def test_what_cannot_be_tried_is_one_line(base, version, canary, message):
    with pytest.raises(RunError, match=message):
        trial.begin(base, version, canary, None)
    assert places(base) == ([2, 1], [], [3])


def test_there_is_one_trial_and_something_to_compare_with(base):
    trial.begin(base, 2, 1.0, None)
    with pytest.raises(RunError, match=r"version 2 is on trial already; .* --promote or --stop"):
        trial.begin(base, 3, 1.0, None)
    trial.stop(base)
    with pytest.raises(RunError, match=r"expected a version in production beside version 1"):
        trial.begin(base, 1, 1.0, None)
    for end in (trial.stop, trial.promote):
        with pytest.raises(RunError, match="no version is on trial"):
            end(base)


def test_damaged_settings_prevent_no_end(base):
    trial.begin(base, 2, 1.0, None)
    (base.root / ".trial/settings.json").write_text("{")
    with pytest.raises(RunError, match=r"settings.json: .*writes them anew"):
        trial.trial_of(base)
    assert trial.stop(base) == 2
    assert places(base) == ([1], [], [3, 2])


def test_a_trial_that_was_killed_at_its_beginning_is_begun_again(base):
    """The version was moved, and the settings were not written."""
    (base.root / ".trial").mkdir()
    (base.root / "2").rename(base.root / ".trial/2")
    assert trial.trial_of(base) is None
    assert trial.begin(base, 2, 5.0, None) == Trial(2, 5.0)
    assert places(base) == ([1], [2], [3])


def test_the_command_refuses_what_does_not_belong_together(base, capsys):
    folder = ["publish", "--base", str(base.root)]
    for more, says in (
        (["--promote", "--canary", "3"], "--canary, --shadow: expected with --version, or alone"),
        (["--accept", "users"], "--accept: expected with --promote"),
    ):
        assert main([*folder, *more]) == 2
        assert capsys.readouterr().err == f"error: {says}\n"
    assert main([*folder, "--version", "2", "--canary", "5", "--shadow", "7"]) == 0
    assert "on trial: canary 5 %, shadow 7 %" in capsys.readouterr().out
    assert places(base) == ([1], [2], [3])


def test_the_command_knows_every_guard():
    assert set(_GUARDS) == set(trial.GUARDS)
