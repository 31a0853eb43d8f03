"""Logs as text, or as JSON lines with the request's id; imports no TensorFlow.

A line that is written while a call is worked on carries the call's `request_id`, and what else the
call has said of itself (`say`).
"""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")

_LOGGER = "multigate"
_TEXT = "%(asctime)s %(levelname)s %(message)s"
_CONTROLS = {one: repr(chr(one))[1:-1] for one in (*range(32), *range(127, 160), 0x2028, 0x2029)}


_FIELDS: ContextVar[dict[str, Any] | None] = ContextVar("fields", default=None)
"""What is known of the call that is worked on."""


def begin() -> None:
    """Start a call."""
    _FIELDS.set({})


def say(**fields: Any) -> None:
    """Add to what the lines of this call carry."""
    known = _FIELDS.get()
    if known is not None:
        known.update(fields)


def end() -> dict[str, Any]:
    """End the call; what it said."""
    fields = _FIELDS.get() or {}
    _FIELDS.set(None)
    return fields


class TextLines(logging.Formatter):
    """One line a record; what a caller sent cannot make it several."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's line, with control characters written out."""
        return super().formatMessage(record).translate(_CONTROLS)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, message, the call's fields, and those of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
            **(_FIELDS.get() or {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(how: str) -> None:
    """Write the server's log to the standard error stream, from INFO on.

    Args:
        how: `text` or `json`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if how == "json" else TextLines(_TEXT))
    logger = logging.getLogger(_LOGGER)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
