"""The search: settings by name, trials that go on, and what is refused."""

import json
import sqlite3
from datetime import date

import pytest
import yaml

from multigate.configs.config import Config, load
from multigate.configs.errors import ConfigError, DataError
from multigate.configs.sections.base import parse
from multigate.configs.sections.tune import TuneConfig
from multigate.jobs import tune as search
from multigate.jobs.night.folder import RunFolder

pytestmark = pytest.mark.slow

SPACE = {
    "train.learning_rate": {"low": 0.0005, "high": 0.01, "log": True},
    "model.experts.units": {"choices": [[8], [16]]},
    "model.embedding_dim": {"low": 4, "high": 8, "whole": True},
}


def with_search(config, **options):
    values = config.model_dump(mode="json")
    values["tune"] = {"space": SPACE, "trials": 2, **options}
    return parse(Config, values, "test")


@pytest.fixture(scope="module")
def found(nights, finished, tmp_path_factory):
    out = tmp_path_factory.mktemp("tune") / "search"
    config = with_search(nights.config())
    examples = RunFolder(finished.runs, date(2026, 1, 30)).examples
    result = search.tune(config, examples, out, lambda checkpoint: {"name": checkpoint.name})
    return config, examples, out, result


def test_the_best_trial_is_kept(found):
    _, _, out, result = found
    trials = json.loads((out / "trials.json").read_text())
    assert [trial["state"] for trial in trials] == ["complete", "complete"]
    best = max(trials, key=lambda trial: trial["monitored"])
    assert result["best"]["number"] == best["number"]
    assert result["best"]["monitor"] == best["monitor"] == "quality"
    assert result["best"]["monitored"] == best["monitored"]
    assert result["best"]["val_loss"] == best["val_loss"]
    trained = json.loads((out / "best/config.json").read_text())
    settings = result["best"]["settings"]
    assert trained["train"]["learning_rate"] == settings["train.learning_rate"]
    assert trained["model"]["experts"]["units"] == settings["model.experts.units"]
    assert trained["model"]["embedding_dim"] == settings["model.embedding_dim"]
    history = json.loads((out / "best/history.json").read_text())["epochs"]
    kept = max(history, key=lambda epoch: epoch["val_quality"])
    assert (kept["val_quality"], kept["val_loss"]) == (best["monitored"], best["val_loss"])
    assert [trial["measured"]["name"] for trial in trials] == ["trial-0", "trial-1"]
    assert not list(out.glob("trial-*"))


def test_the_best_configuration_runs_as_it_is(found):
    """The search's own configuration, with numbers as numbers, and the same stages of a night."""
    config, _, out, result = found
    assert result["best"]["config"] == str(out / "best.yaml")
    best, settings = load(out / "best.yaml"), result["best"]["settings"]
    assert best == search.with_settings(config, settings)
    assert best.stages == config.stages
    assert best.train.learning_rate == settings["train.learning_rate"] != config.train.learning_rate
    read = yaml.safe_load((out / "best.yaml").read_text())
    assert isinstance(read["train"]["learning_rate"], float)
    assert isinstance(read["model"]["embedding_dim"], int)
    for trial in json.loads((out / "trials.json").read_text()):
        assert isinstance(trial["settings"]["model.experts.units"], list)


def test_a_search_goes_on_where_it_was_cut_off(found, tmp_path):
    import shutil

    config, examples, out, _ = found
    again = tmp_path / "search"
    shutil.copytree(out, again)
    # As a killed process leaves it: the second trial begun and never told.
    with sqlite3.connect(again / "study.db") as database:
        database.execute("UPDATE trials SET state = 'RUNNING' WHERE number = 1")
    before = json.loads((out / "trials.json").read_text())
    assert search.tune(config, examples, again)["failed"] == 0
    after = json.loads((again / "trials.json").read_text())
    assert [trial["state"] for trial in after] == ["complete", "fail", "complete"]
    assert after[2]["settings"] == before[1]["settings"]
    assert after[2]["monitored"] == before[1]["monitored"]


def test_the_best_checkpoint_is_the_best_trials_wherever_it_was_cut_off(
    found, tmp_path, monkeypatch
):
    config, examples, _, _ = found
    out, replace = tmp_path / "search", search._replace_best

    def cut_off(*_):
        monkeypatch.setattr(search, "_replace_best", replace)
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "_replace_best", cut_off)
    one = with_search(config, trials=1)
    with pytest.raises(KeyboardInterrupt):
        search.tune(one, examples, out)
    best = search.tune(one, examples, out)["best"]
    kept = json.loads((out / "best/config.json").read_text())
    assert kept["train"]["learning_rate"] == best["settings"]["train.learning_rate"]
    assert load(out / "best.yaml") == search.with_settings(one, best["settings"])
    assert not list(out.glob("trial-*"))


def test_a_finished_search_trains_nothing(found):
    config, examples, out, result = found
    assert search.tune(config, examples, out) == result


def test_another_space_is_refused(found):
    config, examples, out, _ = found
    other = with_search(config, space={"train.learning_rate": {"low": 0.1, "high": 0.2}})
    with pytest.raises(DataError, match="another space; choose another folder"):
        search.tune(other, examples, out)


def test_a_configuration_of_another_name_has_the_folder_s_search(found):
    config, examples, out, result = found
    renamed = config.model_copy(update={"name": "renamed"})
    assert search.tune(renamed, examples, out) == result
    other = with_search(renamed, space={"train.learning_rate": {"low": 0.1, "high": 0.2}})
    with pytest.raises(DataError, match="another space; choose another folder"):
        search.tune(other, examples, out)


def test_hopeless_trials_are_pruned(found, tmp_path):
    config, examples, _, _ = found
    values = config.model_dump(mode="json")
    values["train"] |= {"epochs": 3, "patience": 3}
    values["tune"] = {
        "space": {"train.learning_rate": {"choices": [0.002, 1e-8]}},
        "trials": 6,
        "prune_after": 2,
        "sampler": "random",
        "seed": 2,
    }
    search.tune(parse(Config, values, "test"), examples, tmp_path / "search")
    trials = json.loads((tmp_path / "search/trials.json").read_text())
    states = {(t["settings"]["train.learning_rate"], t["state"]) for t in trials}
    assert (0.002, "complete") in states
    assert (1e-8, "pruned") in states
    # Equal trials part in the last bits, so that half of the good ones may be pruned too; of the
    # hopeless none ends once two trials are there to compare with.
    assert (1e-8, "complete") not in states


def test_settings_that_exclude_one_another_fail_their_trial_alone(found, tmp_path, monkeypatch):
    """Of two experts no gate selects three; a search that stops there never gets beyond it."""
    config, examples, _, _ = found
    values, trained = config.model_dump(mode="json"), []
    values["model"]["gate"] = {"name": "topk", "num_selected": 2}

    def train(chosen, examples, out, **options):
        trained.append((chosen.model.experts.count, chosen.model.gate.num_selected))
        out.mkdir()
        told = {"epochs": 1, "best_epoch": 1, "monitor": "quality", "monitored": 0.5}
        return told | {"val_loss": 1.0}

    monkeypatch.setattr("multigate.model.training.train.train", train)
    space = {
        "model.experts.count": {"choices": [4, 2]},
        "model.gate.num_selected": {"choices": [1, 3]},
    }
    values["tune"] = {"space": space, "trials": 12, "sampler": "random"}
    result = search.tune(parse(Config, values, "test"), examples, tmp_path / "search")
    assert result["trials"] == len(trained) == 12
    assert set(trained) == {(4, 1), (4, 3), (2, 1)}
    assert result["failed"] > 0


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"train.speed": {"low": 1, "high": 2}}, "no setting 'train.speed'.*train.epochs"),
        ({"train.learning_rate": {"low": -1, "high": 2}}, "learning_rate"),
        ({"model.gate.name.k": {"low": 1, "high": 2}}, "no setting 'model.gate.name.k'"),
        ({}, "tune.space: expected at least one setting"),
    ],
)
def test_a_wrong_setting_is_told_before_anything_is_trained(found, tmp_path, space, message):
    config, examples, _, _ = found
    with pytest.raises(ConfigError, match=message):
        search.tune(with_search(config, space=space), examples, tmp_path / "search")
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"contract.tasks.click.weight": {"low": 1, "high": 2}}, "settings of model or train"),
        ({"train.learning_rate": {"low": 2, "high": 1}}, "low below high"),
        ({"train.learning_rate": {"low": 0, "high": 1, "log": True}}, "low above 0"),
        ({"train.epochs": {"low": 1.5, "high": 3, "whole": True}}, "whole limits"),
        ({"train.epochs": {"choices": []}}, "at least 1"),
    ],
)
def test_a_space_that_makes_no_sense(space, message):
    with pytest.raises(ConfigError, match=message):
        parse(TuneConfig, {"space": space}, "file.yaml")
