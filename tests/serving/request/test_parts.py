"""What a message may hold before it is parsed."""

import pytest
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2

from multigate.serving.core.status import InvalidRequestError
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.parts import (
    MOST_OBJECTS,
    MOST_VALUES,
    refuse_too_many_parts,
)

RANK, PREDICT = ranking_pb2.RankRequest, predict_pb2.PredictRequest
FIELDS = {one.name: one.number for one in tensor_pb2.TensorProto.DESCRIPTOR.fields}


def varint(number):
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def ids(data):
    """Of the candidates, as texts."""
    return field(4, field(1, field(1, data)))


def tensor(data):
    return field(2, field(1, b"x") + field(2, data))


# A message of so many parts, and what it has too many of if there is one more.
KINDS = {
    "empty texts": (RANK, lambda n: ids(b"\x0a\x00" * n), MOST_VALUES),
    "texts": (RANK, lambda n: ids(b"\x0a\x02ab" * n), MOST_VALUES),
    "entries": (RANK, lambda n: field(2, b"") * n, MOST_OBJECTS),
    "different entries": (
        RANK,
        lambda n: b"".join(field(2, field(1, b"%x" % k)) for k in range(n)),
        MOST_OBJECTS,
    ),
    "columns": (RANK, lambda n: field(4, field(2, b"") * n), MOST_OBJECTS - 1),
    "what nobody knows": (RANK, lambda n: b"\xf8\x07\x01" * n, MOST_VALUES),
    "in groups": (RANK, lambda n: b"\xfb\x07\xfc\x07" * (n // 2), MOST_VALUES),
    "strings of a tensor": (
        PREDICT,
        lambda n: tensor((varint(FIELDS["string_val"] << 3 | 2) + b"\x00") * n),
        MOST_VALUES - 1,
    ),
    "numbers that are not packed": (
        PREDICT,
        lambda n: tensor((varint(FIELDS["int_val"] << 3) + b"\x01") * n),
        MOST_VALUES - 1,
    ),
    "dimensions": (
        PREDICT,
        lambda n: tensor(field(FIELDS["tensor_shape"], b"\x12\x00" * n)),
        MOST_OBJECTS - 3,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_has_a_limit_of_parts_of_every_kind(kind):
    message, make, most = KINDS[kind]
    most -= 3 if kind.endswith("texts") else 0  # what they lie in
    data = make(most)
    refuse_too_many_parts(data, message)
    message.FromString(data)
    too_many = make(most + 4)
    message.FromString(too_many)
    with pytest.raises(InvalidRequestError, match=r"expected at most \d+ (values|objects)"):
        refuse_too_many_parts(too_many, message)


def test_parts_of_what_is_cut_off_count_too():
    data = field(2, b"\x0a\x00") * (MOST_OBJECTS + 1)
    for cut in (data[:-1], data + b"\xff", field(4, data)[:-1] + b"\x0a"):
        with pytest.raises(InvalidRequestError):
            refuse_too_many_parts(cut, RANK)


@pytest.mark.parametrize(
    "data", [b"\xff" * 50, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80"]
)
def test_what_is_no_message_is_left_to_the_parser(data):
    refuse_too_many_parts(data, RANK)


def test_packed_numbers_are_no_parts():
    request = RANK()
    for name in "abcd":
        request.candidates.columns[name].numbers.values.extend([0.5] * 200_000)
    refuse_too_many_parts(request.SerializeToString(), RANK)


def test_messages_that_hold_themselves_are_walked():
    inner = tensor_pb2.TensorProto()
    for _ in range(50):
        outer = tensor_pb2.TensorProto()
        outer.variant_val.add().tensors.append(inner)
        inner = outer
    request = PREDICT()
    request.inputs["x"].CopyFrom(inner)
    refuse_too_many_parts(request.SerializeToString(), PREDICT)
