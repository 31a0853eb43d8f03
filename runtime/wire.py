"""Reads some fields of a serialised message without parsing the others."""

from collections.abc import Container

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields_only(message: memoryview, wanted: Container[int]) -> bytes:
    """The wanted fields of a message, still serialised.

    Args:
        message: serialised, without groups.
        wanted: numbers of fields.

    Raises:
        ValueError: the bytes are not a message.
    """
    found = bytearray()
    place = 0
    while place < len(message):
        start = place
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(message, place)
        elif kind == _BYTES:
            length, place = _varint(message, place)
            place += length
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"expected a field at byte {start}, received wire type {kind}")
        if place > len(message):
            raise ValueError(f"expected {place} bytes, received {len(message)}")
        if key >> 3 in wanted:
            found += message[start:place]
    return bytes(found)


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place after it."""
    value = shift = 0
    while place < len(message) and shift < 70:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError(f"expected a number before byte {place}")
