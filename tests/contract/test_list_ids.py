"""One rule for the ids in a list: the pipeline and the server take the same from the same values.

Texts stay as they are, blanks and all; empty ones are no values; long lists keep their last ones.
"""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.pipeline.read.parse import parse_feature
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.rank_request import RequestReader

CONTRACT = parse(
    Contract,
    {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item"},
            "tags": {"kind": "id_list", "side": "user", "max_length": 3},
        },
        "tasks": {
            "click": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
        },
    },
    "test",
)
LISTS = st.lists(st.text("ab \t\u00a0é", max_size=3), max_size=6)


def served(values):
    """What the model gets of a request's list."""
    request = ranking_pb2.RankRequest()
    request.user["user_id"].text = "u"
    request.user["tags"].texts.values.extend(values)
    request.candidates.item_id.texts.values.append("i")
    inputs = RequestReader(CONTRACT, 10).read(request).inputs
    length = int(inputs["tags__length"][0])
    return [text.decode() for text in inputs["tags"][0, :length]]


def stored(raw):
    """What the examples hold of a log's list."""
    parsed = parse_feature(raw, CONTRACT.features["tags"])
    assert parsed.reasons.null_count() == 1
    return parsed.values.to_list()[0] or []


@settings(max_examples=100)
@given(LISTS)
def test_lists_of_a_log_are_lists_of_a_request(values):
    expected = [value for value in values if value][-3:]
    assert served(values) == expected
    assert stored(pl.Series([values], dtype=pl.List(pl.String))) == expected
    assert stored(pl.Series(["|".join(values)])) == expected


@pytest.mark.parametrize("text", [" a", "a ", " "])
def test_a_single_id_keeps_its_blanks_too(text):
    user = CONTRACT.features["user_id"]
    assert parse_feature(pl.Series([text]), user).values.to_list() == [text]
    request = ranking_pb2.RankRequest()
    request.user["user_id"].text = text
    request.candidates.item_id.texts.values.append("i")
    inputs = RequestReader(CONTRACT, 10).read(request).inputs
    assert inputs["user_id"].tolist() == [text.encode()]
