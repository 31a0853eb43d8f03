"""What the configuration of a log refuses, in one line each."""

from importlib.resources import files
from typing import Any

import pytest
import yaml

from multigate.configs import Config, ConfigError
from multigate.configs.sections.base import parse


def preset() -> dict[str, Any]:
    return yaml.safe_load(
        files("multigate.configs.presets").joinpath("deskdrop.yaml").read_text(encoding="utf-8")
    )


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    values = preset()
    for path, value in changes.items():
        at = values["pipeline"]
        *parents, last = path.split("/")
        for part in parents:
            at = at.setdefault(part, {})
        if value is None:
            del at[last]
        else:
            at[last] = value
    return values


FEEDBACK = {"files": ["f.csv"], "columns": {"time": "t", "user": "u", "item": "i", "event": "e"}}
TABLE = {"files": ["users.csv"], "key": "id", "time": "since"}
REFUSED = [
    ({"log/time_zone": "Mars/Olympus"}, "pipeline.log.time_zone: expected a time zone such as UTC"),
    ({"log/partition": "dt=day"}, "pipeline.log.partition: string should match pattern"),
    (
        {"log/columns/event": None},
        "columns.event: required where feedback has no files of its own",
    ),
    (
        {"log/feedback": FEEDBACK | {"columns": {"time": "t", "user": "u", "item": "i"}}},
        "feedback.columns.event: required: it tells feedback apart",
    ),
    (
        {"attribute_by": "request"},
        "attribute_by: 'request' needs a log of shape events whose columns name request",
    ),
    (
        {"attribute_by": "request", "log/columns/request": "call", "log/feedback": FEEDBACK},
        "attribute_by: 'request' needs log.feedback.columns.request",
    ),
    ({"users": TABLE, "log/unknown_time": 0}, "have no row in a dated table; received users.time"),
    (
        {
            "negatives/exclude_within": "1d",
            "negatives/exclude": "ever",
            "split": {"by": "random", "validation": 0.1, "test": 0.1},
        },
        "negatives.exclude_within: 'ever' has no limit; remove one",
    ),
    (
        {"negatives/exclude_within": "1d", "log/unknown_time": 0},
        "negatives.exclude_within: needs the time of every event",
    ),
    ({"forget": "/etc/gone.txt"}, "pipeline.forget: expected a path or glob relative to the data"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_contradictions_are_named(changes, message):
    with pytest.raises(ConfigError) as error:
        parse(Config, changed(changes), "x.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_feedback_of_its_own_needs_no_event_in_the_log():
    changes = {"log/columns/event": None, "log/feedback": FEEDBACK}
    changes["log/feedback"] = FEEDBACK | {"columns": FEEDBACK["columns"] | {"session": "s"}}
    config = parse(Config, changed(changes), "x.yaml")
    assert config.pipeline.log.columns.event is None


def demo(log: dict[str, Any], **pipeline: Any) -> Config:
    text = files("multigate.configs.presets").joinpath("demo.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    del values["pipeline"]["log"]["known_after"]
    del values["contract"]["rates"]  # they need known_after, whatever else is given
    values["pipeline"]["log"] |= log
    return parse(Config, values | {"pipeline": values["pipeline"] | pipeline}, "demo")


def test_feedback_that_features_read_must_say_when_it_is_known():
    message = (
        r"contract\.features\.recent_clicks\.history\.events: column 'click' is feedback, .*; set "
        r"pipeline\.log\.known_after, such as 10m, or pipeline\.log\.known_at: \{click: the column"
    )
    with pytest.raises(ConfigError, match=message):
        demo({})
    assert demo({"known_after": "10m"}).name == "demo"
    at = {"known_at": {"click": "click_time"}}
    assert demo(at, split={"by": "user", "validation": 0.1, "test": 0.1}).name == "demo"


def test_a_label_with_a_time_of_its_own_must_close_before_the_next_split():
    at = {"known_at": {"click": "click_time"}}
    message = (
        r"contract\.tasks\.click\.label: pipeline\.log\.known_at says when column 'click' "
        r"is known, and nothing says after how long .*; set pipeline\.log\.known_after"
    )
    with pytest.raises(ConfigError, match=message):
        demo(at)
    assert demo(at | {"known_after": "1d"}).name == "demo"
    split = {"by": "time", "validation": 0.1, "test": 0.1, "embargo": False}
    assert demo(at, split=split).name == "demo"


@pytest.mark.parametrize("key", ["collapse", "clock_skew"])
def test_rules_of_event_logs_are_refused_elsewhere(key):
    with pytest.raises(ConfigError, match=f"{key}: needs a log of shape events, received impr"):
        demo({"known_after": "10m"}, **{key: "30s"})


def test_a_label_without_a_limit_needs_no_embargo():
    values = preset()
    del values["contract"]["rates"]  # they need labels that close
    del values["contract"]["tasks"]["like"]["label"]["within"]
    message = r"contract\.tasks\.like\.label: expected within, or pipeline\.attribution"
    with pytest.raises(ConfigError, match=message):
        parse(Config, values, "test")
    for pipeline in (
        {"attribution": "7d"},
        {"split": values["pipeline"]["split"] | {"embargo": False}},
        {"split": {"by": "random", "validation": 0.1, "test": 0.1}},
    ):
        parse(Config, values | {"pipeline": values["pipeline"] | pipeline}, "test")
