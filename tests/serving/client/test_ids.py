"""Ids that people write by hand get the type that the model's ids have."""

from types import SimpleNamespace

import pytest

from multigate.serving.client.ids import fit_ids

CONTRACT = SimpleNamespace(
    features=[
        SimpleNamespace(name="user", dtype="int"),
        SimpleNamespace(name="recent", dtype="int"),
        SimpleNamespace(name="city", dtype="string"),
        SimpleNamespace(name="age", dtype="float"),
    ]
)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"user": "79674"}, {"user": 79674}),
        ({"user": "-1032019229384696495"}, {"user": -1032019229384696495}),
        ({"user": "9" * 20}, {"user": "9" * 20}),
        ({"user": "ann"}, {"user": "ann"}),  # the server names it
        ({"recent": ["1", 2]}, {"recent": [1, 2]}),
        ({"city": 1010}, {"city": "1010"}),
        ({"city": True, "age": "7"}, {"city": True, "age": "7"}),
        ({"unknown": "7"}, {"unknown": "7"}),
    ],
)
def test_ids_are_fitted(given, sent):
    assert fit_ids(CONTRACT, given) == sent
