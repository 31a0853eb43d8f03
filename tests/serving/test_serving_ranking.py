"""Rank through the real stubs: answers, order, weights, floors, limit."""

import numpy as np
import pytest

from serving.client import RankClient

ITEMS = [f"i{n}" for n in range(12)]
USER = {"user_id": "u1", "country": "de", "age": 31.0, "segment": 3, "recent": ["i1", "i2"]}
COLUMNS = {
    "topic": ["news", None, *["sport"] * 10],
    "length": [float(n) for n in range(12)],
    "tags": [["a", "b"], None, [], *[["c"]] * 9],
}


@pytest.fixture(scope="module")
def client(running):
    with RankClient(running.target, timeout=30) as client:
        yield client


def rank(client, **changes):
    given = {"user": USER, "context": {"hour": 9}, "item_ids": ITEMS, "columns": COLUMNS}
    return client.rank("small", **(given | changes))


def test_answers_are_those_of_predict_row_by_row(client):
    ranked = rank(client)
    assert sorted(item["index"] for item in ranked) == list(range(12))
