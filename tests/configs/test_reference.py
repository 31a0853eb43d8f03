"""The reference of keys and the JSON Schema say what the configuration classes accept."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from multigate.configs import PRESETS, ConfigError
from multigate.configs.reference import NAME, as_markdown, as_text, options
from multigate.configs.schema import is_span, json_schema, mappings, span_text
from multigate.configs.sections.base import Duration

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def problems(value: Any, schema: dict, root: dict, where: str = "") -> list[str]:
    """What a JSON Schema of draft 2020-12 has against a value; the keywords that ours uses."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return problems(value, root["$defs"][name], root, where)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            found = [problems(value, part, root, where) for part in schema[key]]
            passed = sum(not one for one in found)
            if passed == 0 or (key == "oneOf" and passed > 1):
                return [f"{where}: {passed} of {key}: {found}"]
    kind = schema.get("type")
    wrong = kind and not isinstance(value, TYPES[kind])
    if wrong or (isinstance(value, bool) and kind in ("integer", "number")):
        return [f"{where}: {value!r} is no {kind}"]
    limits = {
        "const": lambda limit: value == limit,
        "enum": lambda limit: value in limit,
        "minimum": lambda limit: value >= limit,
        "exclusiveMinimum": lambda limit: value > limit,
        "maximum": lambda limit: value <= limit,
        "exclusiveMaximum": lambda limit: value < limit,
        "minItems": lambda limit: len(value) >= limit,
        "maxItems": lambda limit: len(value) <= limit,
        "minLength": lambda limit: len(value) >= limit,
        "minProperties": lambda limit: len(value) >= limit,
        "pattern": lambda limit: re.search(limit, value) is not None,
    }
    found = [
        f"{where}: {value!r} against {key} {schema[key]}"
        for key, holds in limits.items()
        if key in schema and not holds(schema[key])
    ]
    if isinstance(value, list):
        places = schema.get("prefixItems", [schema.get("items", {})] * len(value))
        for at, (one, part) in enumerate(zip(value, places, strict=False)):
            found += problems(one, part, root, f"{where}[{at}]")
    if isinstance(value, dict):
        found += [f"{where}: no {name}" for name in schema.get("required", ()) if name not in value]
        for name, one in value.items():
            part = schema.get("properties", {}).get(name)
            for pattern, other in schema.get("patternProperties", {}).items():
                part = other if part is None and re.search(pattern, name) else part
            part = schema.get("additionalProperties", True) if part is None else part
            if part is False:
                found.append(f"{where}: unknown key {name}")
            elif part is not True:
                found += problems(one, part, root, f"{where}.{name}")
    return found


class Plain(yaml.SafeLoader):
    """Reads an instant as text, as editors do."""


Plain.yaml_implicit_resolvers = {
    first: [one for one in rules if one[0] != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def preset(name: str) -> Any:
    text = (ROOT / f"configs/presets/{name}.yaml").read_text()
    return yaml.load(text, Loader=Plain)


@pytest.mark.parametrize("name", PRESETS)
def test_the_schema_accepts_every_preset(name):
    assert problems(preset(name), SCHEMA, SCHEMA) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pipeline.negatives.sampling", "popular"),
        ("pipeline.negatives.per_positiv", 4),
        ("pipeline.collapse", "30"),
        ("pipeline.split", {"by": "time", "validation": 0.1}),
        ("contract.features", {"Caps": {"kind": "id", "side": "user"}, "b": {"kind": "ids"}}),
        ("model.gate", {"name": "dselect_k", "num_selected": 0}),
        ("train.epochs", "8"),
    ],
)
def test_the_schema_refuses_what_the_classes_refuse(path, value):
    values = preset("deskdrop")
    *above, last = path.split(".")
    place = values
    for part in above:
        place = place[part]
    place[last] = value
    assert problems(values, SCHEMA, SCHEMA)


def test_a_loss_may_be_a_name_or_have_options():
    task = SCHEMA["$defs"]["Task"]["properties"]["loss"]
    for value in ("huber", {"kind": "quantile", "q": 0.9}, None):
        assert problems(value, task, SCHEMA) == []
    assert problems("hubris", task, SCHEMA)


def test_the_schemas_durations_are_those_of_the_classes():
    spans = [n for n in mappings(SCHEMA) if is_span(n) and n.get("default") is not None]
    assert len(spans) >= 2
    for node in spans:
        assert problems(node["default"], node, {}) == []
    assert span_text(Duration.__metadata__[0].func("12h")) == "12h"
    assert span_text(Duration.__metadata__[0].func("90s")) == "90s"


@pytest.mark.parametrize("option", options(), ids=lambda one: f"{one.key}-{one.applies}")
def test_every_key_says_what_it_is_and_has_an_example_that_the_schema_accepts(option):
    assert option.text or option.key.rpartition(".")[2] in (NAME, "features", "tasks"), option
    if option.section:
        return
    value = next(iter(yaml.load(option.example, Loader=Plain).values()))
    names = option.key.split(".")
    kinds = dict([option.applies.split(": ")]) if option.applies else {}
    accepted = [
        schema for schema in schemas_of(names, SCHEMA, kinds) if not problems(value, schema, SCHEMA)
    ]
    assert accepted, option.example


def schemas_of(names: list[str], schema: dict, kinds: dict[str, str]) -> list[dict]:
    """The schemas at a dotted key; of sections that have kinds, the last one's kind counts."""
    if "$ref" in schema:
        return schemas_of(names, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], kinds)
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if parts and names:
        tag = schema.get("discriminator", {}).get("propertyName")
        wanted = kinds[tag].split(", ") if len(names) == 1 and tag in kinds else None
        if wanted is not None:
            mapping = schema["discriminator"]["mapping"]
            parts = [{"$ref": mapping[kind]} for kind in wanted]
        return [one for part in parts for one in schemas_of(names, part, kinds)]
    if not names:
        return [schema]
    below = dict(schema.get("properties", {}))
    if names[0] == NAME:
        below = dict(enumerate(schema.get("patternProperties", {}).values()))
        if isinstance(schema.get("additionalProperties"), dict):
            below["more"] = schema["additionalProperties"]
        return [one for part in below.values() for one in schemas_of(names[1:], part, kinds)]
    return schemas_of(names[1:], below[names[0]], kinds) if names[0] in below else []


def test_a_key_is_found_below_names_of_the_users_own():
    [one] = options("contract.features.my_user.min_count")
    assert (one.key, one.applies) == ("contract.features.NAME.min_count", "kind: id, id_list")
    assert (one.type, one.default, one.accepted) == ("whole number", "1", "at least 1")
    levels = options("model.gates.like.primary.num_selected")
    assert {one.default for one in levels} == {"2"}


def test_a_section_is_printed_with_its_keys():
    text = as_text(options("pipeline.negatives"))
    assert "pipeline.negatives.sampling\n" in text
    assert "accepted  uniform, popularity" in text
    assert [one.accepted for one in options("pipeline.split.by")] == ["random, user, time"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("pipeline.negatives.sampel", r"no such key; did you mean 'sampling'\? keys of pipeline"),
        ("sampling", r"sampling: no such key; did you mean pipeline\.negatives\.sampling\?"),
        ("pipeline.time_unit", r"did you mean pipeline\.log\.time_unit"),
        ("modle", r"did you mean 'model'\?"),
        ("train.epochs.more", "keys of train.epochs: none"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(key, message):
    with pytest.raises(ConfigError, match=message):
        options(key)


def test_the_page_is_up_to_date():
    page = (ROOT / "docs/configuration.md").read_text()
    assert page == as_markdown(), "run: multigate options --markdown > docs/configuration.md"
