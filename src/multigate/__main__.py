"""`python -m multigate`: the command."""

import sys

from multigate.verbs.command import main

if __name__ == "__main__":
    sys.exit(main())
