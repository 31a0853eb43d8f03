"""Print the reference of the configuration keys."""

import argparse
import json
from typing import Any

EXAMPLE = (
    "multigate options pipeline.negatives.sampling\n"
    "multigate options --json-schema > multigate.schema.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "key",
        nargs="?",
        default="",
        metavar="KEY",
        help="dotted key, such as pipeline.negatives; it and the keys below it are printed "
        "(default: all keys)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema",
        action="store_true",
        help="print a JSON Schema of configuration files, for editors",
    )
    form.add_argument(
        "--markdown", action="store_true", help="print the page docs/configuration.md"
    )


def execute(options: argparse.Namespace) -> dict[str, Any] | None:
    """Run the verb; the result is what --json prints."""
    from dataclasses import asdict

    from multigate.configs import ConfigError, reference
    from multigate.configs.schema import json_schema

    if options.json and (options.json_schema or options.markdown):
        raise ConfigError("--json: expected neither --json-schema nor --markdown with it")
    if options.json_schema:
        print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return None
    if options.markdown:
        print(reference.as_markdown(), end="")
        return None
    found = reference.options(options.key)
    if not options.json:
        print(reference.as_text(found))
    return {"options": [asdict(one) for one in found]}
