"""Logs as text, or as JSON lines with the request's id; imports no TensorFlow.

A line that is written during a call carries the call's `request_id` and the other fields that the
call has added (`say`).

structlog and python-json-logger were considered: the standard library's formatter needs 20 lines.
"""

import json
import logging
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")

_LOGGER = "multigate"
_TEXT = "%(asctime)s %(levelname)s %(message)s"
_CONTROLS = {one: repr(chr(one))[1:-1] for one in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)
"""`json.dumps` would make one for each line."""
_FIELDS: ContextVar[dict[str, Any] | None] = ContextVar("fields", default=None)
"""Fields of the current call; None outside a call."""


def begin() -> None:
    """Begin a call, without fields."""
    _FIELDS.set({})


def say(**fields: Any) -> None:
    """Add fields to the log lines of this call."""
    known = _FIELDS.get()
    if known is not None:
        known.update(fields)


def say_run(seconds: float) -> None:
    """Add the time of a run of the model to `run_seconds` in the log lines of this call."""
    known = _FIELDS.get()
    if known is not None:
        known["run_seconds"] = round(known.get("run_seconds", 0.0) + seconds, 6)


def end() -> dict[str, Any]:
    """End the call; returns its fields."""
    fields = _FIELDS.get() or {}
    _FIELDS.set(None)
    return fields


class TextLines(logging.Formatter):
    """One line per record, even where a caller sent line breaks."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's line, with control characters escaped."""
        return super().formatMessage(record).translate(_CONTROLS)


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, message, the call's fields, the record's fields."""

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
        return _JSON.encode(line)


def configure(how: str) -> None:
    """Write the log of this process to the standard error stream, from INFO on.

    Errors that end a thread, and those of tasks that nobody awaits, get their line as well.

    Args:
        how: `text` or `json`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if how == "json" else TextLines(_TEXT))
    for name in (_LOGGER, "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
    threading.excepthook = _log_dead_thread


def _log_dead_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "(unknown)"
    logging.getLogger(_LOGGER).critical(
        "thread %s ended by an error", name, exc_info=args.exc_value
    )
