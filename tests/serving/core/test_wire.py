"""Packed numbers: the same as through the message's own field, whatever the sender wrote."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multigate.serving.core.wire import numbers_of, packed
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
