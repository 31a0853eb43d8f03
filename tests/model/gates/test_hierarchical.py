"""Hierarchies: exactly the product of two levels of gates."""

from typing import Any

import numpy as np
import pytest

from multigate.configs.sections.base import parse
from multigate.configs.sections.gates import Hierarchical as Options
from multigate.model import gates
from multigate.model.gates.hierarchical import Hierarchical

F = np.float32
X = np.random.default_rng(0).normal(size=(6, 3)).astype(F)
SOFTMAX = {"name": "softmax"}
TOP1 = {"name": "topk", "num_selected": 1}
TOP2 = {"name": "topk", "num_selected": 2}


def make(E: int, k: int, **options: Any) -> Hierarchical:
    gate = gates.make("hierarchical", E, k, seed=7, **options)
    assert isinstance(gate, Hierarchical)
    return gate


def test_by_hand() -> None:
    # Groups (1/4, 3/4); members (1/2, 1/2) in group 0 and (1/5, 4/5) in group 1:
    # (1/8, 1/8, 3/20, 12/20).
    gate = make(4, 1, num_groups=2, primary=SOFTMAX, secondary=SOFTMAX, static=True)
    gate.build((None, 3))
    gate.primary.bias.assign([0.0, np.log(3)])
    gate.secondaries[1].bias.assign([0.0, np.log(4)])
    np.testing.assert_allclose(gate(X).weights, [1 / 8, 1 / 8, 3 / 20, 12 / 20], rtol=1e-6)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("primary", ["topk", "vmoe", "noisy_topk", "dselect_k", "moesart"])
@pytest.mark.parametrize("secondary", ["topk", "comet"])
def test_product(primary: str, secondary: str, training: bool) -> None:
    options = {
        "num_groups": 3,
        "primary": {"name": primary, "num_selected": 2},
        "secondary": {"name": secondary, "num_selected": 2},
    }
    gate, twin = make(12, 4, **options), make(12, 4, **options)
    twin.build((None, 3))
    routing = gate(X, training=training)
    # The twin's levels, called one by one, have the same variables and draw the same noise.
    groups = np.asarray(twin.primary(X, training=training).weights)
    members = [np.asarray(s(X, training=training).weights) for s in twin.secondaries]
    for g in range(3):
        for m in range(4):
            expected = groups[:, g] * members[g][:, m]
            np.testing.assert_allclose(routing.weights[:, 4 * g + m], expected, rtol=1e-6)
    assert not np.allclose(members[0], members[1])  # each group has a gate of its own


def test_zeros_of_the_primary_skip_whole_groups() -> None:
    gate = make(6, 1, num_groups=3, primary=TOP1, secondary=SOFTMAX)
    used = np.asarray(gate(X).weights).reshape(6, 3, 2) > 0
    assert (used.any(-1).sum(-1) == 1).all()
    assert (used.sum((1, 2)) == 2).all()


def test_losses_and_diagnostics_of_both_levels() -> None:
    noisy = {"name": "noisy_topk", "num_selected": 1}
    options: dict[str, Any] = {"num_groups": 2, "primary": noisy, "secondary": noisy}
    gate, twin = make(6, 1, **options), make(6, 1, **options)
    twin.build((None, 3))
    routing = gate(X, training=True)
    primary = twin.primary(X, training=True)
    parts = [s(X, training=True) for s in twin.secondaries]
    for name in ("importance", "load"):
        expected = sum(float(part.losses[name]) for part in parts)
        assert expected > 0
        assert float(routing.losses[f"secondary/{name}"]) == pytest.approx(expected, rel=1e-5)
        found = float(routing.losses[f"primary/{name}"])
        assert found == pytest.approx(float(primary.losses[name]), rel=1e-5)
    assert routing.diagnostics["primary/load"].shape == (2,)
    assert routing.diagnostics["secondary/load"].shape == (3,)
    assert routing.diagnostics["load"].shape == (6,)


def test_static_levels() -> None:
    static = {"name": "softmax", "static": True}
    mixed = make(4, 1, num_groups=2, primary=static, secondary=TOP1)
    assert mixed(X).weights.shape == (6, 4)
    both = make(4, 1, num_groups=2, primary=static, secondary=static)
    assert both(X).weights.shape == (6, 4)  # per example all the same, as its property says
    assert not both.properties.static
    gumbel = {"name": "gumbel_softmax", "static": True}
    gate = make(4, 1, num_groups=2, primary=gumbel, secondary=static, static=True)
    assert gate(X).weights.shape == (4,)
    assert gate.properties.static


def test_static_moesart_level_draws_for_each_row() -> None:
    level = {"name": "moesart", "num_selected": 2}
    gate = make(9, 4, num_groups=3, primary=level, secondary=level, static=True)
    assert gate(X).weights.shape == (9,)
    assert gate(X, training=True).weights.shape == (6, 9)


@pytest.mark.parametrize("configured", [False, True])
def test_hash_levels_reach_every_expert(configured: bool) -> None:
    levels: dict[str, Any] = {"primary": {"name": "hash"}, "secondary": {"name": "hash"}}
    gate = make(4, 1, num_groups=2, **levels)
    if configured:  # the options then have the salt's default
        options = parse(Options, {"name": "hierarchical", "num_groups": 2} | levels, "gate")
        gate = gates.make(num_experts=4, **options.options())
    ids = np.arange(400)
    weights = np.asarray(gate(np.zeros((400, 1), F), ids=ids).weights)
    # 100 ids each, standard deviation sqrt(400 * 3/16) = 9.
    np.testing.assert_allclose(weights.sum(0), np.full(4, 100), atol=45)


def test_harden_reaches_both_levels() -> None:
    level = {"name": "dselect_k", "num_selected": 1}
    gate = make(4, 1, num_groups=2, primary=level, secondary=level)
    assert (np.asarray(gate(X).weights) > 0).all()
    gate.harden()
    assert gate.properties.sparse_at_inference
    assert (np.count_nonzero(gate(X).weights, axis=1) == 1).all()


def test_hierarchy_of_hierarchies() -> None:
    inner = {
        "name": "hierarchical",
        "num_selected": 2,
        "num_groups": 2,
        "primary": TOP1,
        "secondary": TOP2,
    }
    gate = make(12, 4, num_groups=2, primary=TOP2, secondary=inner)
    weights = np.asarray(gate(X).weights)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert (np.count_nonzero(weights, axis=1) == 4).all()
    twin = Hierarchical.from_config(gate.get_config())
    twin.build((None, 3))
    np.testing.assert_array_equal(twin(X).weights, weights)


def test_properties_are_those_of_both_levels() -> None:
    found = make(4, 1, num_groups=2, primary=TOP1, secondary=TOP1).properties
    assert found.sparse_in_training
    assert found.normalised
    found = make(4, 1, num_groups=2, primary=TOP1, secondary={"name": "expert_choice"}).properties
    assert found.batch_dependent
    assert not found.normalised
    assert not found.sparse_in_training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "primary: Hierarchical expected settings of a gate, .*received None"),
        ({"primary": "topk"}, "primary: Hierarchical expected settings.*received 'topk'"),
        ({"primary": TOP1}, "secondary: Hierarchical expected settings"),
        ({"primary": TOP1, "secondary": {}}, "secondary: Hierarchical expected settings"),
        (
            {"primary": TOP1, "secondary": TOP1, "num_groups": 3},
            "num_groups: Hierarchical expected a divisor of num_experts=4, received 3",
        ),
        (
            {"primary": TOP1, "secondary": TOP2},
            r"num_selected: Hierarchical expected 1 \* 2 = 2.*received 1",
        ),
        ({"primary": {"name": "no"}, "secondary": TOP1}, "gate: expected one of softmax"),
        (
            {"primary": {"name": "topk", "num_selected": 3}, "secondary": TOP1},
            "num_selected: expected 1 <= k <= num_experts=2, received 3",
        ),
        (
            {"primary": {"name": "sampled"}, "secondary": TOP1},
            "primary: Hierarchical expected a gate that learns through its weights",
        ),
        (
            {"primary": TOP1 | {"static": False}, "secondary": TOP1, "static": True},
            "primary: a static Hierarchical expected static levels",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(4, 1, **{"num_groups": 2} | arguments)
