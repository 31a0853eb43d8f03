"""What holds for every gate, over random numbers of experts, selections, rows and variables."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from multigate.model import gates

D = 3
ONE_SELECTED = ("hash", "sampled")
EITHER_FORM = ("softmax", "topk", "dselect_k", "softmax_selector", "moesart")

quick = settings(max_examples=6)
every_gate = pytest.mark.parametrize("name", gates.names())


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """E, k, B, the form, and the spread of the variables (large ones saturate)."""
    E = draw(st.integers(1, 7))
    return {
        "E": E,
        "k": draw(st.integers(1, min(E, 3))),
        "B": draw(st.sampled_from([0, 1, 2, 5])),
        "static": draw(st.booleans()),
        "spread": draw(st.sampled_from([0.3, 3.0, 100.0])),
        "seed": draw(st.integers(0, 2**16)),
    }


def make(name: str, case: dict[str, Any]) -> gates.Gate:
    """A gate for the case, or for the nearest one that it can serve, with random variables."""
    E, k = case["E"], case["k"]
    static = name == "gumbel_softmax" or (name in EITHER_FORM and case["static"])
    options: dict[str, Any] = {}
    if name in ONE_SELECTED:
        k = 1
    elif name == "moesart":
        E, k = max(E, 2), max(k, 2)
    elif name == "hierarchical":
        E = 2 * E
        options = {
            "num_groups": 2,
            "primary": {"name": "topk"},
            "secondary": {"name": "dselect_k", "num_selected": k},
        }
    gate = gates.make(name, E, k, static, seed=case["seed"], **options)
    gate.build((None, D))
    rng = np.random.default_rng(case["seed"])
    for variable in gate.trainable_variables:
        # tau = exp(100) is no temperature.
        spread = 1.0 if variable.name == "log_temperature" else case["spread"]
        variable.assign(rng.normal(size=variable.shape) * spread)
    return gate


def batch(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """x (B, D) and ids (B,)."""
    rng = np.random.default_rng(case["seed"] + 1)
    x = rng.normal(size=(case["B"], D)).astype("float32")
    return x, rng.integers(-(10**9), 10**9, size=case["B"])


def weights_of(gate: gates.Gate, x: Any, ids: Any, training: bool = False) -> np.ndarray:
    return np.asarray(gate(x, training=training, ids=ids).weights)


@every_gate
@pytest.mark.parametrize("static", [False, True])
def test_the_kernels_of_the_input_are_named(name: str, static: bool) -> None:
    """Their first axis is the input's features; nothing else of the gate has such an axis."""
    gate = make(name, {"E": 6, "k": 2, "B": 1, "static": static, "spread": 1.0, "seed": 0})
    wide = type(gate).from_config(gate.get_config())
    wide.build((None, 37))
    maps = wide.linear_maps()
    named = {id(kernel) for kernel, _ in maps}
    assert named == {id(v) for v in wide.weights if tuple(v.shape)[:1] == (37,)}
    for kernel, bias in maps:
        assert bias is None or tuple(bias.shape) == tuple(kernel.shape)[1:]


@every_gate
@quick
@given(case=cases())
def test_weights_are_what_the_properties_promise(name: str, case: dict[str, Any]) -> None:
    gate, (x, ids) = make(name, case), batch(case)
    found = gate.properties
    for training in (False, True):
        routing = gate(x, training=training, ids=ids)
        w = np.asarray(routing.weights)
        draws_rows = found.static and training and w.ndim == 2  # MOESART's static form
        static_shape = found.static and not draws_rows
        assert w.shape == ((gate.num_experts,) if static_shape else (len(x), gate.num_experts))
        assert w.dtype == np.float32
        assert np.isfinite(w).all()
        assert (w >= 0).all()
        assert (w.sum(-1) <= 1 + 1e-5).all()
        sparse = found.sparse_in_training if training else found.sparse_at_inference
        if sparse:
            assert (np.count_nonzero(w, axis=-1) <= gate.num_selected).all()
        for value in [*routing.losses.values(), *routing.diagnostics.values()]:
            assert np.isfinite(np.asarray(value)).all()
        assert training or not routing.losses


@every_gate
@quick
@given(case=cases())
def test_weights_of_a_fresh_gate_sum_to_one(name: str, case: dict[str, Any]) -> None:
    # Fresh, because a saturated DSelect-k selector may sit on a code without an expert.
    gate, (x, ids) = make(name, case | {"spread": 0.01}), batch(case)
    if gate.properties.normalised:
        for training in (False, True):
            w = weights_of(gate, x, ids, training)
            np.testing.assert_allclose(w.sum(-1), np.ones(w.shape[:-1]), rtol=1e-5)


@every_gate
@quick
@given(case=cases())
def test_inference_is_deterministic_and_row_by_row(name: str, case: dict[str, Any]) -> None:
    gate, (x, ids) = make(name, case), batch(case)
    w = weights_of(gate, x, ids)
    weights_of(gate, x, ids, training=True)  # draws noise, which inference must not notice
    np.testing.assert_array_equal(weights_of(gate, x, ids), w)
    for row in range(len(x)):
        alone = weights_of(gate, x[row : row + 1], ids[row : row + 1])
        expected = w if gate.properties.static else w[row : row + 1]
        np.testing.assert_allclose(alone, expected, rtol=1e-4, atol=1e-6)


@every_gate
@quick
@given(case=cases())
def test_zero_weights_have_zero_gradients(name: str, case: dict[str, Any]) -> None:
    gate, (x, ids) = make(name, case), batch(case)
    if gate.properties.straight_through:
        return
    variables = [tf.constant(x), *(v.value for v in gate.trainable_variables)]
    for training in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(variables[0])
            w = gate(variables[0], training=training, ids=ids).weights
            factor = np.random.default_rng(0).normal(size=w.shape).astype("float32") * 1e6
            of_zeros = tf.reduce_sum(tf.where(tf.equal(w, 0), w, tf.stop_gradient(w)) * factor)
        for gradient in tape.gradient(of_zeros, variables):
            assert gradient is None or not np.any(gradient)


@every_gate
@quick
@given(case=cases())
def test_all_gradients_are_finite(name: str, case: dict[str, Any]) -> None:
    gate, (x, ids) = make(name, case), batch(case)
    variables = [tf.constant(x), *(v.value for v in gate.trainable_variables)]
    with tf.GradientTape() as tape:
        tape.watch(variables[0])
        routing = gate(variables[0], training=True, ids=ids)
        total = sum(routing.losses.values()) + tf.reduce_sum(tf.square(routing.weights))
        if routing.log_prob is not None:
            total += tf.reduce_sum(routing.log_prob)
    for gradient in tape.gradient(total, variables):
        assert gradient is None or np.isfinite(np.asarray(gradient)).all()


@pytest.mark.sweep(1)
@every_gate
@quick
@given(case=cases())
def test_config_and_seed_reproduce_a_gate(name: str, case: dict[str, Any]) -> None:
    gate, (x, ids) = make(name, case), batch(case)
    serialised = keras.saving.serialize_keras_object(gate)
    assert serialised["registered_name"] == f"multigate>{type(gate).__name__}"
    twin = keras.saving.deserialize_keras_object(serialised)
    assert type(twin) is type(gate)
    assert twin.get_config() == gate.get_config()
    assert twin.built
    again = type(gate).from_config(gate.get_config())
    again.build((None, D))
    for a, b in zip(twin.weights, again.weights, strict=True):
        np.testing.assert_array_equal(a, b)  # the same seed gives the same variables
    twin.set_weights(gate.get_weights())
    for training in (False, True, True):  # and the same noise, step after step
        first, second = (g(x, training=training, ids=ids) for g in (gate, twin))
        np.testing.assert_array_equal(first.weights, second.weights)
        assert first.losses.keys() == second.losses.keys()
        for key, loss in first.losses.items():
            np.testing.assert_array_equal(loss, second.losses[key])


@every_gate
def test_noise_differs_from_step_to_step_and_seed_to_seed(name: str) -> None:
    case = {"E": 6, "k": 2, "B": 50, "static": False, "spread": 0.3, "seed": 1}
    gate, (x, ids) = make(name, case), batch(case)
    steps = [weights_of(gate, x, ids, training=True) for _ in range(2)]
    noisy = name in ("noisy_topk", "vmoe", "switch", "gumbel_softmax", "moesart", "sampled")
    assert np.array_equal(*steps) != noisy
    fresh = []
    for seed in (1, 2):
        other = type(gate).from_config(gate.get_config() | {"seed": seed})
        fresh.append(weights_of(other, x, ids, training=True))
    assert np.array_equal(*fresh) == (name == "hash")  # which has neither variables nor noise


@every_gate
def test_a_graph_of_unknown_batch_size_agrees(name: str) -> None:
    case = {"E": 5, "k": 2, "B": 4, "static": False, "spread": 1.0, "seed": 3}
    gate, (x, ids) = make(name, case), batch(case)
    twin = make(name, case)
    signature = [tf.TensorSpec((None, D)), tf.TensorSpec((None,), "int64")]

    @tf.function(input_signature=signature, reduce_retracing=True)
    def both(x: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        trained = gate(x, training=True, ids=ids).weights
        return trained, gate(x, ids=ids).weights

    trained, inferred = both(x, ids)
    np.testing.assert_allclose(trained, weights_of(twin, x, ids, training=True), rtol=1e-4)
    np.testing.assert_allclose(inferred, weights_of(twin, x, ids), rtol=1e-4)
    for rows in (0, 1):
        assert np.isfinite(np.asarray(both(x[:rows], ids[:rows])[1])).all()
