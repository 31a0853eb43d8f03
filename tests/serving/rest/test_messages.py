"""Messages from JSON are those of protobuf's own reader, whose errors keep nothing alive."""

import json

import pytest
from google.protobuf import json_format

from multigate.serving.core.status import InvalidRequestError
from multigate.serving.protos import ranking_pb2
from multigate.serving.rest.lists import take_lists
from multigate.serving.rest.messages import read_message

LONG = 20
VALUES = {
    "texts": ["a", "", "\x00", "é", "😀"],
    "integers": [0, -(2**63), 2**63 - 1],
    "quoted integers": ["0", "12", "007"],
    "numbers": [0, 1.5, -3.4028234e38, 1e-50, 2**70],
}
OTHERS = {
    "texts": [1, None, True, "\ud800", []],
    "integers": [2**63, -(2**63) - 1, 1.0, 1.5, True, "1", " 1", "x", None, "٣", "9" * 5000],
    "numbers": [3.5e38, float("nan"), float("inf"), "NaN", "1.5", True, 2**2000, None, "x", {}],
}


def by_protobuf(document):
    """The message as json_format alone reads it, or None."""
    try:
        return json_format.ParseDict(document, ranking_pb2.RankRequest(), max_recursion_depth=20)
    except Exception:
        return None


def by_us(document):
    try:
        return read_message(json.dumps(document).encode(), "RankRequest")
    except InvalidRequestError:
        return None


def documents(kind, values):
    """A list at each place where a request may have one, and at places where it may not."""
    one = {kind: {"values": values}}
    yield {"user": {"a": one, kind: one}, "context": {"b": one}}
    yield {"candidates": {"columns": {"c": one | {"lengths": [1] * LONG}}}}
    yield {"candidates": {"itemId": one}}
    yield {"candidates": {"item_id": one}}
    yield {"user": one}
    yield {"task_weights": one}
    yield one


@pytest.mark.parametrize("kind", VALUES)
def test_long_lists_are_read_as_protobuf_reads_them(kind):
    values = VALUES[kind] * LONG
    read = 0
    for document in documents(kind.split()[-1], values):
        expected = by_protobuf(document)
        assert by_us(document) == expected
        read += expected is not None
    assert read >= 2


@pytest.mark.parametrize(
    ("kind", "other"), [(kind, other) for kind, others in OTHERS.items() for other in others]
)
def test_lists_of_other_values_are_read_or_refused_as_by_protobuf(kind, other):
    fitting = VALUES[kind][:1] * LONG
    for document in documents(kind, [*fitting, other]):
        assert by_us(document) == by_protobuf(document)


@pytest.mark.parametrize(("first", "second"), [(LONG, LONG), (LONG, 3), (LONG, 0), (3, LONG)])
def test_of_a_field_under_both_of_its_names_the_second_counts(first, second):
    ids = {
        "item_id": {"texts": {"values": ["a"] * first}},
        "itemId": {"texts": {"values": ["b"] * second}},
    }
    message = by_us({"candidates": ids})
    assert message == by_protobuf({"candidates": ids})
    assert message.candidates.item_id.texts.values == ["b"] * second


def test_the_lists_of_a_request_are_left_to_nobody_else():
    document = {
        "user": {"a": {"texts": {"values": ["x"] * LONG}}, "b": {"texts": {"values": ["x"]}}},
        "candidates": {"columns": {"c": {"numbers": {"values": [1.5] * LONG}}}},
    }
    taken = take_lists(document)
    assert taken == [
        (("user", "a", "texts"), ["x"] * LONG),
        (("candidates", "columns", "c", "numbers"), [1.5] * LONG),
    ]
    assert document == {
        "user": {"a": {"texts": {"values": []}}, "b": {"texts": {"values": ["x"]}}},
        "candidates": {"columns": {"c": {"numbers": {"values": []}}}},
    }


def test_a_refusal_does_not_keep_what_the_body_said():
    """The first error's frames hold all of it."""
    with pytest.raises(InvalidRequestError) as refused:
        read_message(b'{"inputs": [[], []]}', "RankRequest")
    assert refused.value.__context__ is None
    assert refused.value.__cause__ is None
