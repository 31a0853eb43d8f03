"""Numbers that are read together are the same as one by one, and so are the errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.serving.core.status import InvalidRequestError
from multigate.serving.protos import ranking_pb2
from multigate.serving.request import rank_request
from multigate.serving.request.rank_request import RequestReader

OF_USER, OF_ITEM = ("age", "visits", "idle"), ("length", "price", "views")
RULES = ({"missing": "error"}, {"missing": "default", "default": 1.5}, {"missing": "indicator"})
CONTRACT = parse(
    Contract,
    {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item"},
            **{
                name: {"kind": "number", "side": side, **rule}
                for side, names in (("user", OF_USER), ("item", OF_ITEM))
                for name, rule in zip(names, RULES, strict=True)
            },
        },
        "tasks": {
            "click": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
        },
    },
    "test",
)
ROWS = 3
NUMBERS = st.floats(width=32)
WHOLE = st.integers(-(2**63), 2**63 - 1)


@st.composite
def requests(draw):
    """Requests whose numbers may be absent, whole, too many, missing, or not finite."""
    request = ranking_pb2.RankRequest()
    request.user["user_id"].text = "u"
    for name in OF_USER:
        kind = draw(st.sampled_from(("number", "number", "integer", "text", "none", "absent")))
        if kind != "absent":
            value = request.user[name]
            if kind == "number":
                value.number = draw(NUMBERS)
            elif kind == "integer":
                value.integer = draw(WHOLE)
            elif kind == "text":
                value.text = "1"
    request.candidates.item_id.texts.values.extend("abc")
    for name in OF_ITEM:
        kind = draw(st.sampled_from(("numbers", "numbers", "numbers", "integers", "absent")))
        if kind != "absent":
            count = draw(st.sampled_from((ROWS, ROWS, ROWS, ROWS, ROWS, ROWS - 1)))
            column = request.candidates.columns[name]
            values = st.lists(
                NUMBERS if kind == "numbers" else WHOLE, min_size=count, max_size=count
            )
            getattr(column, kind).values.extend(draw(values))
            present = st.lists(st.booleans(), min_size=ROWS, max_size=ROWS)
            column.present.extend(draw(st.sampled_from(((), (), ())) | present))
    return request


def read(request):
    """The inputs and the missing values, or the error."""
    try:
        parsed = RequestReader(CONTRACT, 10).read(request)
    except InvalidRequestError as error:
        return str(error)
    return {
        name: (values.dtype, values.shape, values.tobytes())
        for name, values in parsed.inputs.items()
        if values.dtype != object
    }, parsed.missing


@settings(max_examples=300)
@given(requests())
def test_numbers_read_together_are_those_read_one_by_one(request_):
    together = read(request_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_request, "plain_columns", lambda readers, given, rows: {})
        patch.setattr(rank_request, "plain_values", lambda readers, given: {})
        assert read(request_) == together


def test_plain_numbers_are_read_together(monkeypatch):
    request = ranking_pb2.RankRequest()
    request.user["user_id"].text = "u"
    request.candidates.item_id.texts.values.extend("abc")
    for place, name in enumerate(OF_USER):
        request.user[name].number = place
    for place, name in enumerate(OF_ITEM):
        request.candidates.columns[name].numbers.values.extend([place, 0.5, -1])
    reader = RequestReader(CONTRACT, 10)
    for name in (*OF_USER, *OF_ITEM):
        of_one = reader._sides["user" if name in OF_USER else "item"][name]
        monkeypatch.setattr(of_one, "of_column", None)
        monkeypatch.setattr(of_one, "of_value", None)
    inputs = reader.read(request).inputs
    np.testing.assert_array_equal(inputs["price"], np.array([1, 0.5, -1], np.float32))
    assert inputs["idle"].tolist() == [2.0]
    assert inputs["idle__present"].tolist() == [True]
