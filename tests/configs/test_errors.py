"""Messages of the exceptions."""

import pytest

from multigate.configs.errors import DataError, one_line


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (ValueError("\x1b[31mred\0"), "[31mred"),
        (ValueError("Straße 🎉"), "Straße 🎉"),
        (ValueError(), "ValueError"),
        (UnspeakableError(), "UnspeakableError"),
        (ValueError("x" * 300), "x" * 300),
        (ValueError("x" * 301), "x" * 299 + "…"),
        (DataError("ours " * 100 + "end"), "ours " * 100 + "end"),
    ],
)
def test_a_library_s_message_becomes_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line
