"""Show a preset, or a configuration with every default filled in."""

import argparse
from typing import Any

EXAMPLE = (
    "multigate print-config deskdrop\n"
    "multigate print-config deskdrop --as_written > my.yaml\n"
    "multigate print-config my.yaml"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="preset or YAML file (default: list the presets)",
    )
    parser.add_argument(
        "--as_written",
        action="store_true",
        help="print the file's own text, with its comments and without the defaults",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs.config import PRESETS, find, load
    from multigate.configs.errors import ConfigError
    from multigate.configs.written import CANDIDATES, as_yaml, complete_values

    if options.config is None:
        if options.as_written:
            raise ConfigError("--as_written: expected a preset or a YAML file with it")
        print("\n".join(PRESETS))
        return {"presets": list(PRESETS)}
    config = load(options.config)
    if options.as_written:
        text = find(options.config).read_text(encoding="utf-8")
        print(text, end="")
        return {"text": text}
    values = complete_values(config)
    if CANDIDATES not in values:
        print(
            f"# No section {CANDIDATES}: with it, every night trains the candidate model as well; "
            f"`multigate options {CANDIDATES}` prints its keys."
        )
    print(as_yaml(config), end="")
    return values
