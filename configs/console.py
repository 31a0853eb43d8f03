"""The console of results: tables and lines on standard output."""

import sys
from typing import NoReturn

from rich.console import Console

_WIDTH = 140


class Results(Console):
    """Prints to standard output, texts as they are; wide where that is no terminal.

    Ids, paths and reasons hold what rich would take for styles (`[new]`) and emoji (`:100:`).
    By default rich would fold tables at 80 columns there, and end the process with status 1, which
    is a verdict's, where nobody reads standard output any more.
    """

    def __init__(self, highlight: bool = True) -> None:
        width = None if sys.stdout.isatty() else _WIDTH
        super().__init__(width=width, highlight=highlight, markup=False, emoji=False)

    def on_broken_pipe(self) -> NoReturn:
        """Leave the error to the command (rich calls this while it handles the error)."""
        raise  # noqa: PLE0704
