"""Draft a configuration from a log."""

import argparse
import sys
from pathlib import Path
from typing import Any

from multigate.configs.storage import place

EXAMPLE = "multigate init --data ~/logs --out my.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--data", type=place, required=True, help="folder of the log's files, or its address"
    )
    parser.add_argument("--out", type=Path, required=True, help="new YAML file to write")


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs import ConfigError
    from multigate.configs.files import write_text
    from multigate.verbs.inputs import require_log

    if options.out.exists():
        raise ConfigError(f"{options.out}: already exists; choose another file, or remove it")
    if not options.out.absolute().parent.is_dir():
        raise ConfigError(f"{options.out.parent}: no such folder; make it, or choose another file")
    require_log(options.data)
    from multigate.jobs.onboarding.draft import draft
    from multigate.jobs.onboarding.drafted import as_yaml
    from multigate.jobs.onboarding.feedback.labels import snake

    made = draft(options.data, snake(options.out.stem))
    made.config()
    write_text(options.out, as_yaml(made, options.data))
    for key, why in made.notes.items():
        print(f"{key}: {why}", file=sys.stderr)
    for column, why in made.left_out.items():
        print(f"left out: column {column!r}: {why}", file=sys.stderr)
    for files, why in made.unread.items():
        print(f"left out: table {files}: {why}", file=sys.stderr)
    if not options.json:
        print(
            f"{options.out}: drafted; every value is a guess. Next: multigate check --config "
            f"{options.out} --data {options.data}"
        )
    guessed = {"guesses": made.notes, "left_out": made.left_out, "unread": made.unread}
    return {"config": str(options.out)} | guessed
