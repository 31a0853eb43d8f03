"""The console of results: tables and lines on standard output."""

import sys
from typing import NoReturn

from rich.console import Console

_WIDTH = 140


class Results(Console):
    """Prints to standard output; wide where that is no terminal.

    By default rich would fold tables at 80 columns there, and end the process with status 1, which
    is a verdict's, where nobody reads standard output any more.
    """

    def __init__(self, highlight: bool = True) -> None:
        super().__init__(width=None if sys.stdout.isatty() else _WIDTH, highlight=highlight)

    def on_broken_pipe(self) -> NoReturn:
        """Leave the error to the command (rich calls this while it handles the error)."""
        raise  # noqa: PLE0704
