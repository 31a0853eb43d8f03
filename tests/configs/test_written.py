"""A configuration as text is the same one when it is read again."""

import pytest

from multigate.configs.config import Config, load
from multigate.configs.sections.base import parse, read_yaml
from multigate.configs.storage import place
from multigate.configs.written import as_yaml, complete_values
from multigate.jobs.onboarding import drafted

TEXTS = ("1e5", "-1E-6", "5e1", "1.5e3", "0x1f", "1_000", "12:30", "2026-01-01", "yes", "~", "# c")


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_looks_like_something_else_stays_a_text(text, tmp_path):
    values = complete_values(load("deskdrop"))
    values["pipeline"]["log"]["derive"] = {"note": {"constant": text}}
    config, path = parse(Config, values, "test"), tmp_path / "config.yaml"
    path.write_text(as_yaml(config), encoding="utf-8")
    assert load(path) == config
    path.write_text(drafted.as_yaml(drafted.Draft(values), place("log")), encoding="utf-8")
    assert read_yaml(path) == values
