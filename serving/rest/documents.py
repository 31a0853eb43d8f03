"""JSON texts: read with limits that the standard library leaves to its caller, written in parts."""

import json
from collections.abc import Iterator
from typing import Any

from multigate.serving.core.status import InvalidRequestError

_MOST = {"texts": 1 << 18, "objects": 1 << 15}
"""In a body.  Each becomes a part of the message, whose reading holds up the event loop: a million
empty texts, which 4 MiB hold, or 200,000 entries of a map take 90 ms."""
_PART = 500
"""Values that are written at once: json.dumps keeps the interpreter until it is done."""


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds; NaN, Infinity and -Infinity count as numbers.

    Raises:
        InvalidRequestError: not UTF-8, not JSON, not an object, nested too deeply, a key twice, or
            too many texts and objects.
    """
    quotes = body.count(b'"') - body.count(b'\\"')
    for what, count in (("texts", quotes // 2), ("objects", body.count(b"{"))):
        if count > _MOST[what]:
            raise InvalidRequestError(
                f"body: expected at most {_MOST[what]} {what}, received {count}; split the call, "
                "or send it over gRPC"
            )
    try:
        found = json.loads(body.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"body: expected UTF-8: {error.reason} at byte {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"body: expected JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise InvalidRequestError("body: expected JSON that is nested less deeply") from None
    except ValueError as error:  # such as a number of thousands of digits
        raise InvalidRequestError(f"body: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequestError(f"body: expected a JSON object, received {kind_of(found)}")
    return found


def write(value: Any) -> bytes:
    """A JSON text; the loop and other threads may go on between its parts."""
    return "".join(_parts(value)).encode(errors="replace")


def kind_of(value: Any) -> str:
    """JSON's word for a value's type."""
    if value is None:
        return "null"
    words = {bool: "true or false", int: "a number", float: "a number", str: "a string"}
    return words.get(type(value), "an object" if isinstance(value, dict) else "a list")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidRequestError(f"body: key {twice[:100]!r}: expected once, received twice")
    return found


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        before = "{"
        for key, one in value.items():
            yield f"{before}{json.dumps(key)}: "
            yield from _parts(one)
            before = ", "
        yield "}"
    elif isinstance(value, list) and len(value) > _PART:
        for start in range(0, len(value), _PART):
            yield "[" if start == 0 else ", "
            yield json.dumps(value[start : start + _PART], ensure_ascii=False)[1:-1]
        yield "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
