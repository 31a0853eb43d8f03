"""Counts the parts of a message before it is parsed.

protobuf's parser keeps the interpreter until it is done, in whichever thread: it takes some 50 ns
for a text, up to 1 us for an entry of a map, next to nothing for a packed number.  4 MiB of the
smallest parts took more than 0.1 s, in which no other call was answered.  This walk over the bytes
is slower, but Python: other threads go on meanwhile.  It ends where there are too many.
"""

from typing import Any

from multigate.serving.core.status import InvalidRequestError

LARGE = 1 << 18
"""Bytes of a message from which on its parts are counted; fewer are parsed in less than 30 ms."""
MOST_VALUES = 1 << 18
"""Texts, and numbers that are not packed."""
MOST_OBJECTS = 1 << 15
"""Messages in the message, such as the entries of a map."""

Shape = dict[int, "Shape"]
"""The fields of a message that are messages, by number."""

_shapes: dict[str, Shape] = {}


def refuse_too_many_parts(data: bytes, kind: Any) -> None:
    """Refuse bytes that would take long to parse; those that are no message are left to the parser.

    Args:
        data: a message.
        kind: its class.

    Raises:
        InvalidRequestError: there are too many parts.
    """
    counts = {"values": 0, "objects": 0}
    waiting = [(0, len(data), _shape(kind.DESCRIPTOR))]
    while waiting:
        at, end, shape = waiting.pop()
        values, inner = _parts(data, at, end, shape)
        counts["values"] += values
        counts["objects"] += len(inner)
        for what, most in (("values", MOST_VALUES), ("objects", MOST_OBJECTS)):
            if counts[what] > most:
                raise InvalidRequestError(
                    f"message of {len(data)} bytes: expected at most {most} {what}, received more; "
                    "split the call, or pack numbers"
                )
        waiting += inner


def _parts(
    data: bytes, at: int, end: int, shape: Shape
) -> tuple[int, list[tuple[int, int, Shape]]]:
    """The number of a message's own values, and its messages; no more than are too many."""
    values = 0
    inner: list[tuple[int, int, Shape]] = []
    try:
        while at < end and values <= MOST_VALUES and len(inner) <= MOST_OBJECTS:
            key, at = _varint(data, at)
            wire = key & 7
            if wire == 2:  # with a length
                size, at = _varint(data, at)
                field = shape.get(key >> 3)
                if field is None:
                    values += 1
                else:
                    inner.append((at, min(at + size, end), field))
                at += size
                continue
            values += 1
            if wire == 0:
                _, at = _varint(data, at)
            elif wire == 1:
                at += 8
            elif wire == 5:
                at += 4
    except IndexError:
        pass  # what is cut off; the parser says so
    return values, inner


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte, lowest first, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    number, shift = byte & 127, 7
    while shift < 64:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return number, at


def _shape(descriptor: Any) -> Shape:
    """Made once for each kind of message; some hold themselves."""
    found = _shapes.get(descriptor.full_name)
    if found is None:
        found = _shapes[descriptor.full_name] = {}
        for field in descriptor.fields:
            if field.message_type is not None:
                found[field.number] = _shape(field.message_type)
    return found
