"""The command's entry: `multigate`, and `python -m multigate`."""

import os
import signal
import sys
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Run the command; a signal while it is imported ends in one line, as later ones do."""
    taken = [one for one in _NUMBERS if signal.getsignal(one) is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _end)
    from multigate.verbs.command import main as run

    try:
        return run()
    finally:
        for number in taken:  # the work is done, or its failure is told
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"error: interrupted; nothing half-written is left\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
