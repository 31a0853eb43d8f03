"""What all gates share: arguments, input checks, diagnostics, exact zeros, seeds."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.gates.parts import base
from multigate.model.gates.parts.noise import gumbel

F = np.float32
X = np.ones((2, 3), F)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "top", "num_experts": 4}, "gate: expected one of softmax, topk.*received 'top'"),
        ({"name": "topk", "num_experts": 0}, "num_experts: expected at least 1, received 0"),
        (
            {"name": "topk", "num_experts": 4, "num_selected": 5},
            "num_selected: expected 1 <= k <= num_experts=4, received 5",
        ),
        (
            {"name": "topk", "num_experts": 4, "num_selected": 0},
            "num_selected: expected 1 <= k <= num_experts=4, received 0",
        ),
        (
            {"name": "topk", "num_experts": 4, "num_selected": 1.5},
            "num_selected: expected an integer, received 1.5",
        ),
        ({"name": "topk", "num_experts": "4"}, "num_experts: expected an integer, received '4'"),
        (
            {"name": "topk", "num_experts": 4, "jitter": 1},
            "gate 'topk': unknown option 'jitter'; expected any of dtype, seed, trainable",
        ),
        (
            {"name": "switch", "num_experts": 4, "jiter": 1},
            "unknown option 'jiter'; expected any of balance_weight, dtype, jitter, noise",
        ),
        (
            {"name": "vmoe", "num_experts": 4, "static": True},
            "static: VMoE exists per example only, expected False, received True",
        ),
        (
            {"name": "gumbel_softmax", "num_experts": 4},
            "static: GumbelSoftmax exists as a static gate only, expected True, received False",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make(**arguments)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 1)])
def test_input_of_another_rank(shape: tuple[int, ...]) -> None:
    gate = gates.make("softmax", 4)
    gate.build((None, 3))
    with pytest.raises(ValueError, match=r"x: expected shape \(B, D\), received"):
        gate(np.zeros(shape, F))


def test_diagnostics_by_hand() -> None:
    # Rows (1, 0, 0, 0) and (1/2, 1/2, 0, 0): entropies 0 and log 2, 1 and 2 experts.
    weights = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0]], F)
    found = base._diagnose(weights)
    assert float(found["entropy"]) == pytest.approx(np.log(2) / 2)
    assert float(found["experts_per_example"]) == 1.5
    np.testing.assert_array_equal(found["load"], [1.0, 0.5, 0.0, 0.0])


def test_exact_zeros_stop_the_gradient_of_an_underflowed_product() -> None:
    # 1e-30 * 1e-30 is 0 in float32, but its derivative 1e-30 is not.
    a, b = tf.constant([1e-30, 0.5]), tf.constant([1e-30, 0.5])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(a)
        raw = a * b
        cut = base.exact_zeros(raw)
    assert float(raw[0]) == 0.0
    assert float(tape.gradient(raw, a)[0]) > 0.0
    np.testing.assert_array_equal(tape.gradient(cut, a), np.array([0.0, 0.5], F))


def test_seeds_of_different_uses_differ_and_repeat() -> None:
    seeds = [base.derive_seed(7, "a"), base.derive_seed(7, "b"), base.derive_seed(8, "a")]
    assert len(set(seeds)) == 3
    assert seeds[0] == base.derive_seed(7, "a")
    assert base.derive_seed(None, "a") is None


def test_gates_compute_in_float32_under_a_half_precision_policy() -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        gate = gates.make("topk", 4, 2, seed=0)
    finally:
        keras.config.set_dtype_policy(before)
    weights = gate(tf.cast(X, "bfloat16")).weights
    assert weights.dtype == tf.float32
    assert gates.make("topk", 4, 2, dtype="float64").compute_dtype == "float64"


@pytest.mark.parametrize("name", gates.names())
@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
def test_every_gate_computes_in_another_dtype(name: str, dtype: str) -> None:
    options: dict[str, Any] = {"num_selected": 1 if name in ("hash", "sampled") else 2}
    if name == "hierarchical":
        secondary = {"name": "topk", "num_selected": 2}
        options |= {"num_groups": 2, "primary": {"name": "softmax"}, "secondary": secondary}
    static = name == "gumbel_softmax"
    gate = gates.make(name, 4, static=static, dtype=dtype, seed=0, **options)
    weights = gate(np.ones((5, 3)), training=True, ids=np.arange(5)).weights
    assert weights.dtype == gate.compute_dtype
    assert np.isfinite(np.asarray(weights, F)).all()


def test_gumbel_noise_is_fine_grained_in_half_precision() -> None:
    noise = np.asarray(gumbel((100_000,), 0, "bfloat16"), np.float64)
    # Mean 0.5772, deviation 1.2825; P(noise > 8) = 1 - exp(-exp(-8)) = 3.4e-4.
    assert abs(noise.mean() - 0.5772) < 4.5 * 1.2825 / np.sqrt(1e5)
    assert 34 - 4.5 * np.sqrt(34) < (noise > 8).sum() < 34 + 4.5 * np.sqrt(34)


def test_symbolic_output() -> None:
    x = keras.KerasTensor((None, 3))
    assert gates.make("topk", 4, 2).compute_output_spec(x).weights.shape == (None, 4)
    assert gates.make("topk", 4, 2, static=True).compute_output_spec(x).weights.shape == (4,)
