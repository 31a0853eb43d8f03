"""How two contracts differ, in words."""

import copy
import re

import pytest
import yaml

from multigate.configs.config import load
from multigate.configs.contract import Contract
from multigate.configs.difference import difference
from multigate.configs.sections.base import parse

BASE = load("demo").contract.model_dump(mode="json")


def changed(**changes) -> Contract:
    values = copy.deepcopy(BASE)
    for key, value in changes.items():
        *above, last = key.split(".")
        place = values
        for part in above:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return parse(Contract, yaml.safe_load(yaml.safe_dump(values)), "test")


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"tasks.like.weight": 3.0}, ""),  # examples and requests are the same
        (
            {"features.country.missing": "error"},
            "feature 'country': missing: expected 'indicator', received the default",
        ),
        ({"features.length": None}, "feature 'length' is absent"),
        (
            {"features.shoe": {"kind": "id", "side": "user"}},
            "feature 'shoe' is not expected",
        ),
        ({"features.hour.dtype": "string"}, "feature 'hour': dtype: expected 'int', received "),
    ],
)
def test_each_difference_is_named(changes, says):
    found = difference(changed(), changed(**changes))
    assert found.startswith(says)
    assert bool(found) == bool(says)
    same = changed().schema_fingerprint() == changed(**changes).schema_fingerprint()
    assert same == (not found)


def test_a_task_and_a_long_list_are_cut():
    others = {f"features.n{n}": {"kind": "number", "side": "item"} for n in range(5)}
    found = difference(changed(), changed(**others, **{"features.hour.dtype": "string"}))
    assert found.endswith("; and 3 more")
    task = difference(changed(), changed(**{"tasks.share.label.column": "shared"}))
    assert task.startswith("task 'share': label: expected {")


def test_of_long_values_the_part_is_shown_that_differs():
    events = ["click", "like", "share", "follow", "dislike", "save", "open", "subscribe"]
    names = [f"{event} of an item" for event in events]
    one, other = (
        changed(**{"features.recent_clicks.history": {"events": names, "last": last}})
        for last in (20, 21)
    )
    found = difference(one, other)
    assert re.fullmatch(
        r"feature 'recent_clicks': history: expected \.\.\..*'last': 20\}, received "
        r"\.\.\..*'last': 21\}",
        found,
    )
    assert len(found) < 260
