"""Packed numbers: the same as through the message's own field, whatever the sender wrote."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multigate.serving.core.wire import VALUE_HEAD, column_head, numbers_of, packed, rows_of
from multigate.serving.protos import ranking_pb2

FLOATS = st.lists(st.floats(width=32), max_size=300)


@given(FLOATS)
def test_numbers_are_those_of_the_message(values):
    message = ranking_pb2.Numbers(values=values)
    found = numbers_of(message)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(values, np.float32))


@given(FLOATS, FLOATS)
def test_packed_numbers_are_appended(before, values):
    message = ranking_pb2.RankResponse(score=before, model_version=3)
    message.MergeFromString(packed(np.array(values, np.float32), 3))
    np.testing.assert_array_equal(message.score, np.array(before + values, np.float32))
    assert message.model_version == 3


PIECES = b"\x0a\x04" + struct.pack("<f", 1.5) + b"\x0a\x08" + struct.pack("<2f", 2.5, 3.5)
SINGLE = b"".join(b"\x0d" + struct.pack("<f", one) for one in (1.5, 2.5, 3.5))
UNKNOWN = b"\x78\x05"  # field 15, a varint


@pytest.mark.parametrize("sent", [PIECES, SINGLE, UNKNOWN + PIECES, SINGLE + UNKNOWN])
def test_other_ways_to_write_them_are_read(sent):
    message = ranking_pb2.Numbers.FromString(sent)
    np.testing.assert_array_equal(numbers_of(message), np.array([1.5, 2.5, 3.5], np.float32))


@given(st.lists(st.lists(st.floats(width=32), max_size=3), max_size=5))
def test_columns_of_as_many_numbers_are_read_together(values):
    columns = [
        (place, ranking_pb2.Column(numbers={"values": one})) for place, one in enumerate(values)
    ]
    keys, found = rows_of(columns, column_head(2), 2)
    assert keys == [place for place, one in enumerate(values) if len(one) == 2]
    expected = [one for one in values if len(one) == 2]
    np.testing.assert_array_equal(found, np.array(expected, np.float32).reshape(-1, 2))


@given(st.lists(st.floats(width=32) | st.integers(-3, 3) | st.text("a", max_size=4), max_size=9))
def test_values_that_are_numbers_are_read_together(values):
    kinds = {float: "number", int: "integer", str: "text"}
    messages = [(one, ranking_pb2.Value(**{kinds[type(one)]: one})) for one in values]
    keys, found = rows_of(messages, VALUE_HEAD, 1)
    expected = [one for one in values if isinstance(one, float)]
    np.testing.assert_array_equal(np.array(keys, np.float32), np.array(expected, np.float32))
    np.testing.assert_array_equal(found[:, 0], np.array(expected, np.float32))


@pytest.mark.parametrize(
    "more", [{"lengths": [1, 1]}, {"present": [True, True]}, {"numbers": {"values": [3.0]}}]
)
def test_columns_with_more_are_not_plain(more):
    column = ranking_pb2.Column(numbers={"values": [1.0, 2.0]})
    assert rows_of([("x", column)], column_head(2), 2)[0] == ["x"]
    column.MergeFrom(ranking_pb2.Column(**more))
    assert rows_of([("x", column)], column_head(2), 2)[0] == []


@pytest.mark.parametrize("sent", [UNKNOWN + PIECES, SINGLE + UNKNOWN])
def test_unknown_fields_are_not_read_as_numbers(sent):
    column = ranking_pb2.Column(numbers=ranking_pb2.Numbers.FromString(sent))
    assert rows_of([("x", column)], column_head(3), 3)[0] == []
