"""A configuration as the text of a file, with every default filled in."""

from typing import Any

import yaml

from multigate.configs.config import Config
from multigate.configs.sections.base import Dumper

CANDIDATES = "candidates"


def complete_values(config: Config) -> dict[str, Any]:
    """All keys of a configuration with their values, as YAML and JSON have them.

    `parse(Config, complete_values(config), ...)` is the same configuration. The section of the
    candidate model is left out where it was not given: its presence alone has a night train one.
    """
    values: dict[str, Any] = config.model_dump(mode="json")
    if CANDIDATES not in config.model_fields_set:
        del values[CANDIDATES]
    return values


def as_yaml(config: Config) -> str:
    """The text of a YAML file that `load` reads as the same configuration."""
    # No line breaks within values, and no anchors: every key has its value beside it.
    return yaml.dump(
        complete_values(config),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1_000_000,
    )


class _Dumper(Dumper):
    """Writes lists of plain values on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        plain = not any(isinstance(value, dict | list) for value in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain)
