"""For how long parsing one message holds up all other calls, with and without a limit of its parts.

    python benchmarks/parsing.py [--mebibytes 4]

Makes messages of the largest size that a server takes, full of parts of one kind, and of the most
such parts that it takes.  `parsed` is the time of protobuf's parser, which keeps the interpreter;
`counted` that of `serving.request.parts`, during which other threads go on.  Prints the least of
some attempts and, last, one JSON line.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from multigate.configs.errors import MultigateError
from multigate.runtime.tensorflow_messages import predict_pb2, tensor_pb2
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.parts import MOST_OBJECTS, MOST_VALUES, refuse_too_many_parts

ATTEMPTS = 5
RANK, PREDICT = ranking_pb2.RankRequest, predict_pb2.PredictRequest
FIELDS = {one.name: one.number for one in tensor_pb2.TensorProto.DESCRIPTOR.fields}


def varint(number: int) -> bytes:
    """Seven bits per byte, lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number: int, data: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(data: bytes) -> bytes:
    """A PredictRequest with one input."""
    return field(2, field(1, b"x") + field(2, data))


KINDS: dict[str, tuple[Any, Callable[[int], bytes], int, int]] = {
    "empty texts": (RANK, lambda n: field(4, field(1, field(1, b"\n\0" * n))), 2, MOST_VALUES - 9),
    "texts of 13 bytes": (
        RANK,
        lambda n: field(4, field(1, field(1, field(1, b"x" * 13) * n))),
        15,
        MOST_VALUES - 9,
    ),
    "entries of a map": (
        RANK,
        lambda n: b"".join(field(2, field(1, b"%06x" % k)) for k in range(n)),
        10,
        MOST_OBJECTS - 9,
    ),
    "columns with a text": (
        RANK,
        lambda n: b"".join(
            field(4, field(2, field(1, b"%06x" % k) + field(2, field(3, b"\n\0"))))
            for k in range(n)
        ),
        18,
        MOST_OBJECTS // 4 - 9,
    ),
    "integers of a byte, packed": (
        RANK,
        lambda n: field(4, field(1, field(2, field(1, b"\1" * n)))),
        1,
        1 << 40,
    ),
    "strings of a tensor": (
        PREDICT,
        lambda n: tensor((varint(FIELDS["string_val"] << 3 | 2) + b"\0") * n),
        2,
        MOST_VALUES - 9,
    ),
    "dimensions": (
        PREDICT,
        lambda n: tensor(field(FIELDS["tensor_shape"], b"\x12\0" * n)),
        2,
        MOST_OBJECTS - 9,
    ),
    "resources": (
        PREDICT,
        lambda n: tensor((varint(FIELDS["resource_handle_val"] << 3 | 2) + b"\0") * n),
        2,
        MOST_OBJECTS - 9,
    ),
}
"""Message, bytes of so many parts, bytes of one part, and the most parts that pass."""


def milliseconds(work: Callable[..., Any], *arguments: Any) -> float:
    """The least of some attempts, with the end of what was made."""
    took = []
    for _ in range(ATTEMPTS):
        began = time.perf_counter()
        work(*arguments)
        took.append(time.perf_counter() - began)
    return round(1e3 * min(took), 1)


def refused(data: bytes, message: Any) -> bool:
    """Whether a message has too many parts."""
    try:
        refuse_too_many_parts(data, message)
    except MultigateError:
        return True
    return False


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=4, help="size of the largest message")
    options = parser.parse_args()
    size, found = options.mebibytes << 20, {}
    for name, (message, make, each, most) in KINDS.items():
        full, passing = make((size - 50) // each), make(min((size - 50) // each, most))
        assert len(full) <= size
        assert not refused(passing, message), name
        found[name] = {
            "parsed, full": milliseconds(message.FromString, full),
            "parsed, of what passes": milliseconds(message.FromString, passing),
            "counted, full": milliseconds(refused, full, message),
            "counted, of what passes": milliseconds(refused, passing, message),
        }
        print(f"{name}: {found[name]}", flush=True)
    longest = max(one["parsed, of what passes"] for one in found.values())
    print(json.dumps({"mebibytes": options.mebibytes, "longest_ms": longest, "kinds": found}))


if __name__ == "__main__":
    main()
