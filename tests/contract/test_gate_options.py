"""The typed options of configs.gates and the gates' constructors cannot part."""

import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from multigate.configs.sections import gates as options
from multigate.model import gates

CONFIGS = {
    kind.model_fields["name"].default: kind for kind in get_args(get_args(options.GateConfig)[0])
}
LEVELS = {"num_groups": 2, "primary": {"name": "topk"}, "secondary": {"name": "softmax"}}
COMMON = {"num_experts", "num_selected", "static", "seed", "kwargs"}


def parse(name: str, **values: Any) -> Any:
    values = (LEVELS if name == "hierarchical" else {}) | values
    return TypeAdapter(options.GateConfig).validate_python({"name": name} | values)


def test_every_gate_has_options_and_the_other_way_round() -> None:
    assert list(CONFIGS) == gates.names()


@pytest.mark.parametrize("name", gates.names())
def test_fields_are_the_constructors_arguments(name: str) -> None:
    gate = type(gates.make(num_experts=8, **parse(name).options()))
    arguments = {n: p for n, p in inspect.signature(gate).parameters.items() if n not in COMMON}
    fields = CONFIGS[name].model_fields
    assert set(fields) - {"name", "num_selected", "static"} == set(arguments)
    for field, argument in arguments.items():
        if not fields[field].is_required():
            assert fields[field].default == argument.default, field
    # Hierarchies take static from their levels.
    both = gate.has_static and gate.has_per_example and name != "hierarchical"
    assert ("static" in fields) == both


@pytest.mark.parametrize("name", gates.names())
def test_options_reach_the_gate(name: str) -> None:
    config = parse(name)
    built = gates.make(num_experts=8, seed=3, **config.options()).get_config()
    for key, value in config.options().items():
        if key != "name":
            assert built[key] == value, key


@pytest.mark.parametrize("name", gates.names())
def test_every_option_is_described(name: str) -> None:
    assert all(field.description for field in CONFIGS[name].model_fields.values())


def test_non_default_values_reach_the_gate() -> None:
    config = parse("switch", num_selected=3, noise="logits", jitter=0.1, balance_weight=0.5)
    built = gates.make(num_experts=4, **config.options()).get_config()
    expected = {"num_selected": 3, "noise": "logits", "jitter": 0.1, "balance_weight": 0.5}
    assert {key: built[key] for key in expected} == expected


def test_a_hierarchys_k_is_the_product_of_its_levels() -> None:
    inner = {"name": "hierarchical"} | LEVELS
    config = parse(
        "hierarchical", num_groups=4, primary={"name": "topk", "num_selected": 3}, secondary=inner
    )
    # 3 groups, in each 2 of the inner groups, in each a softmax (k = 1): 3 * 2 * 1.
    assert config.options()["num_selected"] == 6
    assert gates.make(num_experts=16, **config.options()).num_selected == 6


def test_a_hierarchy_is_static_where_both_levels_are() -> None:
    static = {"name": "softmax", "static": True}
    assert parse("hierarchical", primary=static, secondary=static).options()["static"]
    assert not parse("hierarchical", primary=static).options()["static"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "nonsense"}, "'softmax', 'topk', 'noisy_topk'"),
        ({"name": "topk", "lambda": 1}, "unknown key lambda"),
        ({"name": "topk", "num_selected": 0}, "greater than or equal to 1"),
        ({"name": "moesart", "num_selected": 1}, "greater than or equal to 2"),
        ({"name": "switch", "jitter": 1.0}, "less than 1"),
        ({"name": "hierarchical", **LEVELS, "primary": {"name": "sampled"}}, "does not match any"),
    ],
)
def test_bad_options_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(options.GateConfig).validate_python(values)


@pytest.mark.parametrize("name", gates.names())
def test_documentation_has_every_gate_and_option(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "gates.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
    for field, info in CONFIGS[name].model_fields.items():
        if field not in ("name", "num_selected", "static"):
            row = re.search(rf"^\| `{field}` \| (.+?) \|", section, re.MULTILINE)
            assert row, field
            default = info.default
            if isinstance(default, bool):
                assert row[1] == str(default).lower()
            elif isinstance(default, int | float):
                assert float(row[1]) == default
            elif not info.is_required():
                assert row[1].strip("`") == str(default or "none").lower()
