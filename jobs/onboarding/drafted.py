"""A drafted configuration: its values, why they were guessed, and both as commented YAML."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from multigate.configs.config import Config
from multigate.configs.sections.base import Dumper, parse
from multigate.configs.storage import Place


@dataclass
class Draft:
    """A configuration and what was guessed."""

    values: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)
    """Dotted key -> why it was guessed; `left out` for columns that nothing reads."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Column -> why no feature reads it."""
    unread: dict[str, str] = field(default_factory=dict)
    """Files of a table that nothing reads -> why, separated by commas."""

    def config(self) -> Config:
        """The typed configuration."""
        return parse(Config, self.values, "the draft")


def drop_feature(made: Draft, name: str) -> None:
    """Take a feature out of a draft, with the rule that its column is derived by."""
    del made.values["contract"]["features"][name]
    made.notes.pop(f"contract.features.{name}", None)
    pipeline = made.values["pipeline"]
    for section in (*pipeline.values(), pipeline["log"].get("feedback")):
        if isinstance(section, dict) and "derive" in section:
            section["derive"].pop(name, None)
            if not section["derive"]:
                del section["derive"]


def as_yaml(made: Draft, data: Place) -> str:
    """The draft as commented YAML."""
    lines = [
        f"# Drafted by `multigate init` from {Path(str(data)).name}. Every value is a guess from a "
        "sample of the",
        "# log; the comments say why. Check it:",
        "#",
        "#   multigate check --config THIS --data FOLDER",
        "#   multigate options KEY            says what a key means",
        "",
    ]
    for section, value in made.values.items():
        lines += _yaml(section, value, "", made.notes, 0)
        if section in ("name", "contract", "pipeline"):
            lines.append("")
    if made.left_out:
        lines += ["", "# Columns that nothing reads:"]
        lines += [f"#   {name or '(no name)'}: {why}" for name, why in made.left_out.items()]
    if made.unread:
        lines += ["", "# Tables that nothing reads:"]
        lines += [f"#   {name}: {why}" for name, why in made.unread.items()]
    return "\n".join(lines) + "\n"


def _yaml(name: str, value: Any, above: str, notes: dict[str, str], depth: int) -> list[str]:
    key, pad = f"{above}.{name}".removeprefix("."), "  " * depth
    note = notes.get(key)
    lines = _comment(note, pad) if note else []
    flow = f"{_dump(name)}: {_dump(value)}"
    noted = any(one.startswith(f"{key}.") for one in notes)
    deep = isinstance(value, dict) and (depth == 0 or noted)
    if not deep and len(pad + flow) <= 100:
        return [*lines, pad + flow]
    if not isinstance(value, dict):
        return [*lines, pad + flow]
    lines.append(f"{pad}{_dump(name)}:")
    for part, inner in value.items():
        lines += _yaml(part, inner, key, notes, depth + 1)
    return lines


def _comment(text: str, pad: str) -> list[str]:
    lines, line = [], f"{pad}#"
    for word in text.split():
        if len(line) + len(word) > 98:
            lines.append(line)
            line = f"{pad}#"
        line += f" {word}"
    return [*lines, line]


def _dump(value: Any) -> str:
    text: str = yaml.dump(
        value,
        Dumper=Dumper,
        default_flow_style=True,
        sort_keys=False,
        width=10_000,
        allow_unicode=True,
    )
    return text.removesuffix("\n").removesuffix("\n...")
