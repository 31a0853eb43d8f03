"""Says in which features, labels and tasks two contracts differ, for messages."""

from collections.abc import Iterator
from typing import Any

from multigate.configs.contract import Contract

_SHOWN = 3
_LONGEST = 80  # characters of a value


def difference(expected: Contract, received: Contract) -> str:
    """How the schemas of two contracts differ, in words.

    Returns:
        The first few differences, such as `feature 'age': missing: expected 'error', received
        'default'`; empty where the schemas are equal.
    """
    parts = list(_differences(expected.schema_values(), received.schema_values()))
    more = f"; and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return "; ".join(parts[:_SHOWN]) + more


def _differences(expected: dict[str, Any], received: dict[str, Any]) -> Iterator[str]:
    for role in ("user", "item"):
        yield from _of_key(role, expected, received, role)
    for group, name_of in (("features", "feature"), ("tasks", "task")):
        one, other = expected[group], received[group]
        for name in dict.fromkeys([*one, *other]):
            where = f"{name_of} {name!r}"
            if name not in other:
                yield f"{where} is absent"
            elif name not in one:
                yield f"{where} is not expected"
            else:
                for key in dict.fromkeys([*one[name], *other[name]]):
                    yield from _of_key(f"{where}: {key}", one[name], other[name], key)


def _of_key(where: str, one: dict[str, Any], other: dict[str, Any], key: str) -> Iterator[str]:
    if one.get(key) != other.get(key):
        # Keys with their default are left out of schemas.
        texts = [repr(of[key]) if key in of else "the default" for of in (one, other)]
        pairs = enumerate(zip(*texts, strict=False))
        alike = next((at for at, (a, b) in pairs if a != b), min(map(len, texts)))
        expected, received = (_cut(text, alike) for text in texts)
        yield f"{where}: expected {expected}, received {received}"


def _cut(text: str, alike: int) -> str:
    """A value as a message shows it: of a long one the part behind so many characters alike."""
    shown = len(text) <= _LONGEST or alike < _LONGEST // 2
    begin = 0 if shown else alike - _LONGEST // 4
    return f"{'...' if begin else ''}{text[begin : begin + _LONGEST]}"
