"""The JSON Schema of a configuration file, for editors; pydantic makes it of the sections."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter

from multigate.configs.config import Config

SPAN = "time-span"
"""`format` of a duration such as 7d; JSON Schema has none for it."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def json_schema() -> dict[str, Any]:
    """The schema, in draft 2020-12."""
    schema = Config.model_json_schema()
    for node in mappings(schema):
        if is_span(node) and node.get("default") is not None:  # pydantic writes PT12H
            node["default"] = span_text(TypeAdapter(timedelta).validate_python(node["default"]))
        if isinstance(node.get("patternProperties"), dict):
            node["additionalProperties"] = False
    return {"$schema": _DIALECT, **schema, "title": "Configuration of multigate"}


def is_span(node: dict[str, Any]) -> bool:
    """Whether a schema is that of a duration, or of a duration or null."""
    return any(part.get("format") == SPAN for part in (node, *node.get("anyOf", ())))


def span_text(span: timedelta) -> str:
    """A duration in its largest whole unit: 12h."""
    seconds = span.total_seconds()
    for unit, size in _UNITS:
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings of a schema."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from mappings(part)
    elif isinstance(value, list):
        for part in value:
            yield from mappings(part)
