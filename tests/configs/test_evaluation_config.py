"""The section `evaluation`: slices and rules that cannot be are refused, with their key."""

from typing import Any

import pytest

from multigate.configs import ConfigError, load
from multigate.configs.config import Config
from multigate.configs.sections.base import parse


def with_evaluation(**evaluation: Any) -> Config:
    values = load("demo").model_dump(mode="json") | {"evaluation": evaluation}
    return parse(Config, values, "x.yaml")


def test_defaults_and_a_whole_section() -> None:
    assert load("demo").evaluation.rules.judge == "shown"
    config = with_evaluation(
        slices={
            "new users": {"by": "seen", "feature": "user_id", "edges": [1, 10]},
            "country": {"by": "value", "feature": "country"},
            "hour": {"by": "hour"},
        },
        rules={"judge": "interval", "tasks": {"click": {"must_win": True}}, "calibration": None},
    )
    assert config.evaluation.rules.tasks["click"].must_win
    assert list(config.evaluation.slices or {}) == ["new users", "country", "hour"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"slices": {"x": {"by": "value", "feature": "none"}}},
            "evaluation.slices: feature: expected",
        ),
        ({"rules": {"tasks": {"none": {}}}}, "evaluation.rules.tasks: expected one of click, "),
        (
            {"slices": {"x": {"by": "seen", "feature": "user_id", "edges": [9, 1]}}},
            "expected ascending",
        ),
        ({"slices": {"x": {"by": "hour", "block": 5}}}, "evaluation.slices.x.block"),
        ({"rules": {"calibration": [2.0, 0.5]}}, "expected limits that ascend"),
        ({"rules": {"largest_loss": -1.0}}, "evaluation.rules.largest_loss"),
        ({"largest_feature_auc": 0.5}, "evaluation.largest_feature_auc"),
    ],
)
def test_what_cannot_be_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_evaluation(**section)
    (line,) = str(caught.value).splitlines()
    assert message in line
