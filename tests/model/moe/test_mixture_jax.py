"""The mixture on JAX: values and gradients equal TensorFlow's, from the same weights.

A process has one Keras backend, so this file is also the program that the test runs with JAX.
"""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from multigate.model import gates
from multigate.model.moe import dispatch
from multigate.model.moe.experts import Expert, make_experts
from multigate.model.moe.mixture import Mixture
from multigate.model.moe.stack import StackSlice
from multigate.model.optimizer.optimizers import Adam

D, E, U = 5, 3, 4
# Name: gate, static, rows of the batch.
CASES = {
    "topk": ("topk", False, 70),
    # Every row chooses experts 1 and 2, and none expert 0.
    "skewed": ("topk", False, 70),
    "one_row": ("topk", False, 1),
    "no_rows": ("topk", False, 0),
    "static": ("topk", True, 7),
    "dselect_k": ("dselect_k", False, 9),
    "softmax": ("softmax", False, 9),
    "any_layers": ("topk", False, 70),  # experts that cannot be stacked
    "divided": ("topk", False, 70),  # two devices, whose rows choose different experts
}


def make(case, dropout=0.0):
    gate, static, rows = CASES[case]
    gate_list = [
        gates.make(gate, E, 1 if case == "topk" else 2, static, seed=task) for task in range(2)
    ]
    experts = make_experts(E, [7, U], "tanh", dropout, seed=1)
    if case == "any_layers":
        experts = [
            keras.Sequential(
                [
                    keras.layers.Dense(7, "tanh"),
                    keras.layers.Dropout(dropout),
                    keras.layers.Dense(U),
                ]
            )
            for _ in range(E)
        ]
    mixture = Mixture(experts, gate_list)
    mixture.build((rows, D))
    if case == "skewed":
        for gate in gate_list:
            gate.bias.assign([0.0, 50.0, 51.0])
    x = np.random.default_rng(0).normal(size=(rows, D)).astype(np.float32)
    if case == "divided":  # opposite rows have opposite logits
        x = np.repeat([x[0], -x[0]], rows // 2, axis=0) + 0.01 * x
    return mixture, x


def weights_of(mixture):
    """The experts' weights, then the gates', in one order on both backends."""
    experts = [
        weight
        for expert in mixture.experts
        for weight in (
            expert.named_weights() if isinstance(expert, Expert) else expert.trainable_variables
        )
    ]
    return experts + [v for gate in mixture.gates for v in gate.trainable_variables]


def loss_of(outputs):
    return sum((t + 1) * keras.ops.sum(keras.ops.sin(y)) for t, y in enumerate(outputs))


def run_on_jax(source, target):
    """Read weights by case; write outputs, gradients, and what jit and dropout do."""
    import jax
    import jax.numpy as jnp

    given = np.load(source)
    found = {}
    two = keras.distribution.DataParallel(devices=keras.distribution.list_devices())
    assert two.device_mesh.shape == (2,)
    for case in CASES:
        keras.distribution.set_distribution(two if case == "divided" else None)
        mixture, x = make(case)
        for i, weight in enumerate(weights_of(mixture)):
            weight.assign(given[f"{case}/{i}"])
        trainable = [v.value for v in mixture.trainable_variables]
        state = [v.value for v in mixture.non_trainable_variables]

        def forward(trainable, x, mixture=mixture, state=state):
            mixed, _ = mixture.stateless_call(trainable, state, x)
            return loss_of(mixed.outputs), (mixed.outputs, mixed.experts_per_row)

        step = jax.jit(jax.grad(forward, argnums=(0, 1), has_aux=True))
        if case == "divided":
            x = jax.device_put(x, two.get_data_layout(x.shape).backend_layout)
            step = step.lower(trainable, x).compile()
            program = step.as_text()
            assert "all-reduce" in program  # of gradients
            for width in (D, U):  # rows stay where they are
                assert f"[35,{width}]" in program
                assert f"[70,{width}]" not in program
        gradients, (outputs, experts_per_row) = step(trainable, jnp.asarray(x))
        found[f"{case}/outputs"] = np.stack(outputs)
        found[f"{case}/experts_per_row"] = experts_per_row
        by_variable = dict(zip(map(id, mixture.trainable_variables), gradients[0], strict=True))
        found[f"{case}/gradient/x"] = gradients[1]
        for i, weight in enumerate(weights_of(mixture)):
            own = isinstance(weight, StackSlice)
            assert weight.trainable
            found[f"{case}/gradient/{i}"] = (
                by_variable[id(weight.whole)][weight.index] if own else by_variable[id(weight)]
            )
        if case == "one_row":  # operations compile by themselves outside jit
            found["eager/outputs"] = np.stack(mixture(x).outputs)

    # On both devices, of which only one runs some experts: they agree on the generators' states.
    keras.distribution.set_distribution(two)
    for case in ("divided", "any_layers"):
        mixture, x = make(case, dropout=0.5)

        @jax.jit
        def train(trainable, state, x, mixture=mixture):
            mixed, state = mixture.stateless_call(trainable, state, x, training=True)
            return mixed.outputs[0], state

        trainable = [v.value for v in mixture.trainable_variables]
        state = [v.value for v in mixture.non_trainable_variables]
        first, state = train(trainable, state, x)
        second, _ = train(trainable, state, x)
        found[f"dropout/{case}/first"], found[f"dropout/{case}/second"] = first, second
    keras.distribution.set_distribution(None)
    check_stack()
    weights = jnp.ones((2, 6, E))
    mixture, x = make("topk")
    for most in (E - 1, E):
        outputs, _ = dispatch.mix(mixture.experts, x[:6], weights, max_per_row=most)
        found[f"most/{most}"] = np.stack(outputs)

    model = keras.Sequential([Total(make("topk")[0])])
    model.compile(Adam(0.01), "mse", jit_compile=True)  # Keras's own update, on JAX
    x = x[:64]  # no smaller batch at the end, which would be compiled too
    history = model.fit(x, x.sum(axis=1, keepdims=True), epochs=3, batch_size=8, verbose=0)
    found["fit/losses"] = np.array(history.history["loss"])
    np.savez(target, **found)


def check_stack():
    """An expert's weights are parts of stacked variables, which alone are trained and decayed."""
    mixture, x = make("topk")
    assert [tuple(v.shape) for v in mixture.kernels] == [(E, D, 7), (E, 7, U)]
    names = [v.name for v in mixture.trainable_variables]
    assert sorted(n for n in names if n[-1].isdigit()) == [
        "bias_0",
        "bias_1",
        "kernel_0",
        "kernel_1",
    ]
    kernel = mixture.experts[1].stack[0].kernel
    before = np.array(mixture.kernels[0].value)
    kernel.assign(np.full((D, 7), 2.0))
    after = np.array(mixture.kernels[0].value)
    assert (after[1] == 2).all()
    np.testing.assert_array_equal(np.delete(after, 1, 0), np.delete(before, 1, 0))
    np.testing.assert_array_equal(np.array(kernel.__array__()), after[1])
    with pytest.raises(ValueError, match=r"/1: expected shape \(5, 7\), received \(7,\)"):
        kernel.assign(np.zeros(7))
    # Called by itself, an expert reads its part of the stack.
    own = np.tanh(x @ after[1] + np.array(mixture.experts[1].stack[0].bias.value))
    last = mixture.experts[1].stack[1]
    expected = np.tanh(own @ np.array(last.kernel.value) + np.array(last.bias.value))
    np.testing.assert_allclose(mixture.experts[1](x), expected, atol=1e-5)


class Total(keras.layers.Layer):
    """Sum of the tasks' representations."""

    def __init__(self, mixture, **kwargs):
        super().__init__(**kwargs)
        self.mixture = mixture

    def build(self, input_shape):
        self.mixture.build(input_shape)

    def call(self, x, training=False):
        return sum(self.mixture(x, training=training).outputs)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What TensorFlow computes here, and what JAX computes from the same weights."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("jax")
    weights, expected = {}, {}
    for case in CASES:
        mixture, x = make(case)
        weights |= {f"{case}/{i}": w.numpy() for i, w in enumerate(weights_of(mixture))}
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            mixed = mixture(x)
            loss = loss_of(mixed.outputs)
        variables = [v.value for v in weights_of(mixture)]
        gradients = tape.gradient(
            loss, [x, *variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        expected[f"{case}/outputs"] = np.stack(mixed.outputs)
        expected[f"{case}/experts_per_row"] = mixed.experts_per_row.numpy()
        for i, gradient in zip(["x", *range(len(variables))], gradients, strict=True):
            expected[f"{case}/gradient/{i}"] = gradient.numpy()
    np.savez(folder / "given.npz", **weights)
    program = [sys.executable, __file__, folder / "given.npz", folder / "found.npz"]
    root = str(Path(__file__).parents[3])
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": root,
    }
    result = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return expected, dict(np.load(folder / "found.npz"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_values_and_gradients_under_jit_equal_tensorflow(both, case):
    expected, found = both
    names = [name for name in expected if name.startswith(f"{case}/")]
    assert len(names) > 2
    for name in names:
        # Sums in another order: a gradient near 100 is good to some 1e-5, one near 0 to less.
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_outside_jit(both):
    expected, found = both
    np.testing.assert_allclose(found["eager/outputs"], expected["one_row/outputs"], atol=1e-5)


@pytest.mark.parametrize("case", ["divided", "any_layers"])
@pytest.mark.slow
def test_dropout_masks_move_on_from_step_to_step(both, case):
    _, found = both
    first, second = (found[f"dropout/{case}/{step}"] for step in ("first", "second"))
    assert first.any()
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_more_experts_than_a_gate_promised_make_the_outputs_nan(both):
    """Not a result that silently lacks some of them."""
    _, found = both
    assert np.isnan(found[f"most/{E - 1}"]).all()
    assert np.isfinite(found[f"most/{E}"]).all()


@pytest.mark.slow
def test_keras_fits_it_under_jit(both):
    losses = both[1]["fit/losses"]
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    run_on_jax(sys.argv[1], sys.argv[2])
