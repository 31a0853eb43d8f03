"""The reference of every configuration key, read from the JSON Schema of the sections.

`multigate options` prints it, and docs/configuration.md is made of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from multigate.configs.config import PRESETS
from multigate.configs.errors import ConfigError
from multigate.configs.schema import SPAN, json_schema, mappings
from multigate.configs.sections.nearest import did_you_mean, listed

NAME = "NAME"
"""Stands in a key for a name that the user chooses, such as a feature's."""

_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} of them",
    "minLength": "at least {} characters",
    "minProperties": "at least {} of them",
    "pattern": "text like {}",
}
_LONGEST = 70  # characters of an example
_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true, false"}
_SAMPLES: dict[str, Any] = {SPAN: "7d", "date-time": "2026-11-20T00:00:00Z"}
_PAGE = """\
# Configuration

With a log of your own, begin with a draft, check it, and look up what you want to change:

```
multigate init --data FOLDER --out my.yaml
multigate check --config my.yaml --data FOLDER
multigate options pipeline.negatives
```

`init` guesses from the values, not from the columns' names, and writes the reason of each guess in
a comment; read them. `check` reads a sample with the pipeline's own code and names what would fail
a run: columns, values, labels, leaks. Its exit status is 1 if a run would fail, else 0. Its
estimates of time and memory may be wrong by a factor of three.

Every key of a configuration file. `multigate options` prints this page's entries, and
`multigate options KEY` those of one key, such as `pipeline.negatives` or
`contract.features.user_id.min_count`. `NAME` stands for a name that you choose.

`multigate options --json-schema > multigate.schema.json` writes a JSON Schema. Editors with
the YAML language server complete and check keys when a file's first line is
`# yaml-language-server: $schema=multigate.schema.json`.

Durations are a number and a unit: `30s`, `10m`, `12h`, `7d`. Instants have a zone:
`2026-11-20T00:00:00Z`.

This page is generated: change the sections' docstrings, then run
`multigate options --markdown > docs/configuration.md`.
"""


@dataclass(frozen=True)
class Option:
    """One key of a configuration file."""

    key: str
    """Its dotted name."""
    applies: str
    """In which kind of its section the key exists, such as `kind: id or number`; "" for all."""
    type: str
    default: str
    """As YAML; "required" where the key must be given."""
    accepted: str
    """The accepted values, or their limits; "" where the type says it all."""
    example: str
    """As YAML, with the key."""
    text: str
    """What it means."""
    section: bool = False
    """Whether it has keys below it."""
    same_as: str = ""
    """The key where the keys below this one are listed, if it is another one."""


@dataclass(frozen=True)
class _Node:
    """A part of the schema, and the kind of section that it stands in: `kind`, `id`."""

    schema: dict[str, Any]
    tag: str = ""
    kind: str = ""


@dataclass(frozen=True)
class _Entry:
    """A key of one kind of section."""

    node: _Node
    required: bool
    section: dict[str, Any]


@cache
def _schema() -> dict[str, Any]:
    return json_schema()


@cache
def _presets() -> tuple[Any, ...]:
    folder = files("multigate.configs.presets")
    return tuple(yaml.safe_load(folder.joinpath(f"{n}.yaml").read_text()) for n in PRESETS)


def options(key: str = "") -> list[Option]:
    """The reference of a key and of all keys below it, in the order of the file.

    Args:
        key: dotted; a part may be any name of the user's own, or `NAME`. "" for all keys.

    Raises:
        ConfigError: there is no such key; the message has the nearest one.
    """
    nodes, path = [_Node(_schema())], ""
    found: list[Option] = []
    for part in key.split(".") if key else ():
        below = _below(nodes)
        place = part if part in below else NAME
        if place not in below:
            raise ConfigError(_unknown(key, part, path, list(below)))
        path = f"{path}.{place}".removeprefix(".")
        found = _merged(path, below[place])
        nodes = [entry.node for entry in below[place]]
    return [*found, *_walk(path, nodes, {})]


def _unknown(key: str, part: str, path: str, known: list[str]) -> str:
    everywhere = [one.key for one in options()]
    same = [one for one in everywhere if one.rpartition(".")[2] == key.rpartition(".")[2]]
    hint = did_you_mean(part, known)
    if same:
        hint = f"did you mean {' or '.join(same[:3])}? "
    elif not hint:
        hint = did_you_mean(key, everywhere)
    where = f"keys of {path}" if path else "sections"
    return f"{key}: no such key; {hint}{where}: {listed(known) or 'none'}"


def _walk(path: str, nodes: Sequence[_Node], placed: dict[str, str]) -> Iterator[Option]:
    """The options below some nodes; those of classes that stand elsewhere are not repeated."""
    sections = []
    for name, entries in _below(nodes).items():
        key = f"{path}.{name}".removeprefix(".")
        merged = _merged(key, entries)
        refs = {ref for entry in entries for ref in _refs(entry.node.schema)}
        if refs and refs <= placed.keys():
            yield from (replace(one, same_as=placed[min(refs)]) for one in merged)
            continue
        placed.update(dict.fromkeys(refs - placed.keys(), key))
        yield from merged
        sections.append((key, [entry.node for entry in entries]))
    for key, children in sections:
        yield from _walk(key, children, placed)


def _below(nodes: Sequence[_Node]) -> dict[str, list[_Entry]]:
    """Name of each key below some nodes -> the key in each kind of section."""
    found: dict[str, list[_Entry]] = {}
    for kind in _distinct([kind for node in nodes for kind in _kinds(node)]):
        section = kind.schema
        required = section.get("required", ())
        below = dict(section.get("properties", {}))
        names = [*section.get("patternProperties", {}).values()]
        if isinstance(section.get("additionalProperties"), dict):
            names.append(section["additionalProperties"])
        for name, schema in (*below.items(), *((NAME, one) for one in names)):
            node = _Node(schema, kind.tag, kind.kind)
            found.setdefault(name, []).append(_Entry(node, name in required, section))
    return found


def _distinct(kinds: Sequence[_Node]) -> list[_Node]:
    """Each class once, though several nodes can be it."""
    return list({id(kind.schema): kind for kind in kinds}.values())


def _kinds(node: _Node) -> list[_Node]:
    """The kinds of section that a node can be."""
    schema = node.schema
    if "$ref" in schema:
        return [_Node(_class(schema["$ref"]), node.tag, node.kind)]
    if "discriminator" in schema:
        tag = schema["discriminator"]["propertyName"]
        mapping = schema["discriminator"]["mapping"]
        named: dict[str, list[str]] = {}  # one class may have several kinds: random, user
        for kind, ref in mapping.items():
            named.setdefault(ref, []).append(kind)
        return [_Node(_class(ref), tag, ", ".join(kinds)) for ref, kinds in named.items()]
    if schema.get("type") == "object":
        return [node]
    parts = (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
    return [kind for part in parts for kind in _kinds(_Node(part, node.tag, node.kind))]


def _class(ref: str) -> dict[str, Any]:
    found: dict[str, Any] = _schema()["$defs"][ref.rpartition("/")[2]]
    return found


def _refs(schema: dict[str, Any]) -> set[str]:
    """Names of the classes that a key's value can be."""
    found = {schema["$ref"]} if "$ref" in schema else set()
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _refs(part)
    return found


def _merged(key: str, entries: Sequence[_Entry]) -> list[Option]:
    """One option per meaning: kinds in which the key means the same share one."""
    tag, last = entries[0].node.tag, key.rpartition(".")[2]
    if tag == last:
        return [_tag(key, entries)]
    found: dict[Option, list[str]] = {}
    for entry in entries:
        option = _option(key, entry.node.schema, entry.required)
        found.setdefault(option, []).append(entry.node.kind)
    everywhere = len(found) == 1 and len(entries) >= _kinds_of(entries[0])
    return [
        replace(one, applies="" if everywhere or not tag else f"{tag}: {', '.join(kinds)}")
        for one, kinds in found.items()
    ]


def _tag(key: str, entries: Sequence[_Entry]) -> Option:
    """The key that says which kind a section is."""
    kinds = {entry.node.kind: _first_line(entry.section) for entry in entries}
    given = [None if e.required else e.node.schema.get("default") for e in entries]
    example = _given(key, {"enum": [one for kind in kinds for one in kind.split(", ")]})
    return Option(
        key=key,
        applies="",
        type="text",
        default=str(given[0]) if given[0] is not None and len(entries) == 1 else "required",
        accepted=", ".join(kinds),
        example=_line(key, example or next(iter(kinds)).split(", ")[0]),
        text=" ".join(f"`{kind}`: {line}" for kind, line in kinds.items()),
    )


@cache
def _kind_counts() -> dict[str, int]:
    """`$ref` of a class -> how many kinds the section has of which it is one."""
    found: dict[str, int] = {}
    for schema in mappings(_schema()):
        if isinstance(schema.get("discriminator"), dict):
            mapping = schema["discriminator"]["mapping"]
            for ref in mapping.values():
                found[ref] = max(len(set(mapping.values())), found.get(ref, 0))
    return found


def _kinds_of(entry: _Entry) -> int:
    classes = [ref for ref in _kind_counts() if _class(ref) is entry.section]
    return _kind_counts()[classes[0]] if classes else 1


def _option(key: str, schema: dict[str, Any], required: bool) -> Option:
    kinds = _kinds(_Node(schema))
    text = schema.get("description", "")
    if not text and len(kinds) == 1:
        text = _first_line(kinds[0].schema)
    elif not text and kinds:
        text = f"One of the kinds that its key `{kinds[0].tag}` names."
    default = "required" if required else _default(schema)
    given = _given(key, schema)
    return Option(
        key=key,
        applies="",
        type=_type(schema),
        default="none" if key.endswith(NAME) else default,
        accepted=", ".join(_accepted(schema)),
        example=_line(key, given if given is not None else _sample(schema)),
        text=" ".join(text.split()),
        section=bool(kinds),
    )


def _first_line(schema: dict[str, Any]) -> str:
    return " ".join(schema.get("description", "").split("\n\n")[0].split())


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default", {} if schema.get("type") == "object" else None)
    if isinstance(value, dict) and value:
        tags = [value[k] for k in ("kind", "type", "name") if k in value]
        return str(tags[0]) if tags else "its keys' defaults"
    return _yaml(value)


def _type(schema: dict[str, Any]) -> str:
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if "enum" in schema or "const" in schema:
        return "text" if schema.get("type") != "integer" else "whole number"
    if parts:
        return " or ".join(dict.fromkeys(_type(part) for part in parts))
    kind = schema.get("type")
    if schema.get("format") == SPAN:
        return "duration"
    if schema.get("format") == "date-time":
        return "instant"
    if kind == "array":
        if "prefixItems" in schema:
            return f"list of {' and '.join(_type(one) for one in schema['prefixItems'])}"
        inner = schema.get("items", {})
        return f"list of {_type(inner)}"
    if kind == "null":
        return "null"
    if kind == "object" or "$ref" in schema:
        names = schema.get("patternProperties") or isinstance(
            schema.get("additionalProperties"), dict
        )
        return "names and their values" if names else "section"
    return _TYPES.get(str(kind), "any value")


def _accepted(schema: dict[str, Any]) -> list[str]:
    if "enum" in schema:
        return [str(one) for one in schema["enum"]]
    if "const" in schema:
        return [str(schema["const"])]
    found = [
        "not empty"
        if (limit, schema[limit]) == ("minLength", 1)
        else text.format(_number(schema[limit]))
        for limit, text in _LIMITS.items()
        if limit in schema and schema.get("format") != SPAN and "prefixItems" not in schema
    ]
    if isinstance(schema.get("items"), dict) and "prefixItems" not in schema["items"]:
        found += _accepted(schema["items"])
    for part in schema.get("anyOf", ()):
        found += _accepted(part)
    return list(dict.fromkeys(found))


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _given(key: str, schema: dict[str, Any]) -> Any:
    """What a preset gives to a key of this schema; None where no preset does."""
    parts = key.split(".")

    def look(value: Any, left: list[str]) -> Iterator[Any]:
        if not left:
            yield value
        elif isinstance(value, dict):
            names = value if left[0] == NAME else [left[0]]
            for name in names:
                if name in value:
                    yield from look(value[name], left[1:])

    for preset in _presets():
        for value in look(preset, parts):
            if value is not None and len(_yaml(value)) <= _LONGEST and _fits(value, schema):
                return value
    return None


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a preset's value is one of the schema's: another kind may have the same key."""
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if schema.get("anyOf"):
        return any(_fits(value, part) for part in schema["anyOf"])
    return schema.get("type") != "null"


def _sample(schema: dict[str, Any]) -> Any:
    """A value that the schema accepts, and if possible another one than the default."""
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema:
        return _sample(_schema()["$defs"][schema["$ref"].rpartition("/")[2]])
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if part.get("type") != "null":
            return _sample({"default": schema.get("default"), **part})
    default = schema.get("default")
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return next((one for one in schema["enum"] if one != default), schema["enum"][0])
    if schema.get("format") in _SAMPLES:
        return default or _SAMPLES[schema["format"]]
    kind = schema.get("type")
    if kind == "boolean":
        return not default
    if kind == "array":
        if default:
            return default
        inner = schema.get("prefixItems") or [schema.get("items", {})]
        values = [_sample(one) for one in inner]
        return sorted(values) if all(isinstance(one, int | float) for one in values) else values
    if kind == "object":
        needed = schema.get("required", ())
        return {name: _sample(schema["properties"][name]) for name in needed}
    if default is not None:
        return default
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 2))
        return max(low, 1) if kind == "integer" else (low + high) / 2
    return None


def _line(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    if name == NAME:  # only columns' names have no example of their own
        name, column = "my_name", "another_column"
        value = column if value is None else [column] if value == [None] else value
    return "" if value is None else f"{name}: {_yaml(value)}"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def as_text(found: Sequence[Option]) -> str:
    """The reference for a terminal."""
    blocks = []
    for one in found:
        lines = [one.key + (f"  ({one.applies})" if one.applies else "")]
        lines += [f"    {one.text}"] if one.text else []
        lines += [f"    {what:<9} {value}" for what, value in _facts(one) if value]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _facts(one: Option) -> list[tuple[str, str]]:
    return [
        ("type", one.type),
        ("default", one.default),
        ("accepted", one.accepted),
        ("example", "" if one.section else one.example),
        ("keys", f"see {one.same_as}" if one.same_as else ""),
    ]


def as_markdown() -> str:
    """The page docs/configuration.md."""
    lines, section = [_PAGE], None
    for one in options():
        above = one.key.rpartition(".")[0]
        if above != section:
            level = "##" if "." not in above else "###"
            lines.append(f"\n{level} {above or 'Sections'}\n")
            section = above
        lines.append(_bullet(one))
    return "\n".join(lines) + "\n"


def _bullet(one: Option) -> str:
    name = one.key.rpartition(".")[2]
    facts = [one.type, "required" if one.default == "required" else f"default `{one.default}`"]
    if one.accepted:
        facts.append(f"accepted: `{one.accepted}`")
    if one.applies:
        facts.append(f"of `{one.applies}`")
    line = f"- `{name}` ({'; '.join(facts)})"
    if one.text:
        line += f": {one.text}"
    if one.same_as:
        line += f" Keys: see `{one.same_as}`."
    elif one.example and not one.section:
        line += f" Example: `{one.example}`."
    return line
