"""`print-config` prints what a configuration comes to, as a file that means the same."""

from importlib.resources import files

import pytest
import yaml

from multigate.configs import PRESETS, load
from multigate.configs.written import as_yaml
from multigate.verbs.command import main


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_printed_is_the_same_configuration(name, tmp_path, capsys):
    assert main(["print-config", name]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    before, after = load(name), load(tmp_path / "printed.yaml")
    assert after == before
    assert after.stages == before.stages


def test_every_default_is_filled_in(tmp_path, capsys):
    text = files("multigate.configs.presets").joinpath("demo.yaml").read_text()
    (tmp_path / "my.yaml").write_text(text)
    assert main(["print-config", str(tmp_path / "my.yaml")]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert "tune" not in yaml.safe_load(text)
    assert found["tune"]["trials"] == load("demo").tune.trials
    assert found["export"]["parity_tolerance"] == load("demo").export.parity_tolerance


def test_a_section_whose_presence_has_a_meaning_is_not_filled_in(tmp_path, capsys):
    assert main(["print-config", "demo"]) == 0
    assert "# No section candidates: " in capsys.readouterr().out
    values = yaml.safe_load(as_yaml(load("demo"))) | {"candidates": {"epochs": 3}}
    (tmp_path / "both.yaml").write_text(yaml.safe_dump(values))
    assert main(["print-config", str(tmp_path / "both.yaml")]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["candidates"]["epochs"] == 3


def test_a_preset_as_it_is_written_and_the_list_of_presets(capsys):
    assert main(["print-config", "deskdrop", "--as_written"]) == 0
    text = files("multigate.configs.presets").joinpath("deskdrop.yaml").read_text()
    assert capsys.readouterr().out == text
    assert main(["print-config"]) == 0
    assert capsys.readouterr().out.split() == list(PRESETS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.yaml"], "no.yaml: no such configuration file; presets are "),
        (["--as_written"], "--as_written: expected a preset or a YAML file"),
    ],
)
def test_what_cannot_be_shown_is_one_line(arguments, message, capsys):
    assert main(["print-config", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
