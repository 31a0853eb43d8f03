"""The selecting and sampling gates on JAX, under jit and grad: same weights, same gradients."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates

pytestmark = pytest.mark.slow

F = np.float32
ROOT = Path(__file__).parents[3]
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dselect_k": ("dselect_k", 2, {"entropy_weight": 0.1, "gamma_end": 0.5}),
    "dselect_k static": ("dselect_k", 2, {"static": True, "entropy_weight": 0.1}),
    "softmax_selector": ("softmax_selector", 2, {"entropy_weight": 0.1, "temperature": 0.7}),
}

# Runs in a process of its own: a process has one Keras backend.
CHILD = """
import json, sys
import jax, keras, numpy as np
from multigate.model import gates

cases, x = json.loads(sys.argv[1]), np.array(json.loads(sys.argv[2]), "float32")

def run(gate, variables=None):
    gate.build((None, x.shape[1]))
    if variables is not None:
        for variable, value in zip(gate.trainable_variables, variables):
            variable.assign(np.array(value))
    state = [v.value for v in gate.non_trainable_variables]
    def loss(trainable, x):
        routing, _ = gate.stateless_call(trainable, state, x, training=True)
        columns = keras.ops.arange(1, routing.weights.shape[-1] + 1, dtype="float32")
        total = keras.ops.sum(routing.weights * columns) + sum(routing.losses.values())
        if routing.log_prob is not None:
            total = total + keras.ops.sum(routing.log_prob * routing.importance * routing.kept)
        return total, routing.weights
    trainable = [v.value for v in gate.trainable_variables]
    (_, weights), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(trainable, x)
    return weights.tolist(), [g.tolist() for g in gradients]

answers = {}
for case, (name, k, options, variables) in cases.items():
    answers[case] = run(gates.make(name, 5, k, seed=0, **options), variables)
drawn = {}
for strategy in ("skip_iw", "gumbel_matching_iw", "gumbel_matching_sinkhorn"):
    drawn[strategy] = run(gates.make("sampled", 5, seed=0, strategy=strategy))
for replacement in (False, True):
    drawn[f"moesart {replacement}"] = run(
        gates.make("moesart", 5, 2, seed=0, replacement=replacement)
    )
drawn["gumbel"] = run(gates.make("gumbel_softmax", 5, static=True, seed=0))
print(json.dumps([answers, drawn]))
"""


def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(7, 4)).astype(F)


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    cases = {}
    for case, (name, k, options) in CASES.items():
        gate = gates.make(name, 5, k, **options)
        gate.build((None, 4))
        rng = np.random.default_rng(1)
        values = [rng.normal(size=v.shape) * 0.2 for v in gate.trainable_variables]
        cases[case] = (name, k, options, [v.tolist() for v in values])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(cases), json.dumps(features().tolist())],
        cwd=ROOT,
        env=os.environ
        | {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    numbers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return numbers


@pytest.mark.parametrize("case", CASES)
def test_weights_and_gradients_are_tensorflows(case: str, answers: list[dict[str, Any]]) -> None:
    name, k, options = CASES[case]
    gate = gates.make(name, 5, k, seed=0, **options)
    gate.build((None, 4))
    rng = np.random.default_rng(1)
    for variable in gate.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.2)
    with tf.GradientTape() as tape:
        routing = gate(features(), training=True)
        columns = np.arange(1, 6, dtype=F)
        total = tf.reduce_sum(routing.weights * columns) + sum(routing.losses.values())
    mine = tape.gradient(total, [v.value for v in gate.trainable_variables])
    weights, gradients = answers[0][case]
    np.testing.assert_allclose(weights, routing.weights, atol=1e-6)
    for one, other in zip(gradients, mine, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_sampling_gates_draw_and_learn(answers: list[dict[str, Any]]) -> None:
    for case, (weights, gradients) in answers[1].items():
        rows = np.array(weights)
        assert all(np.isfinite(g).all() for g in gradients), case
        assert any(np.abs(g).max() > 0 for g in gradients), case
        if case.startswith("gumbel_matching"):
            assert rows.sum(0).max() <= 2  # c = ceil(7 / 5)
            np.testing.assert_array_equal(rows.sum(-1), 1)
        elif case.startswith("skip"):
            assert rows.sum(0).max() <= 2
        elif case.startswith("moesart"):
            assert np.count_nonzero(rows, axis=-1).max() <= 2
            np.testing.assert_allclose(rows.sum(-1), 1, rtol=1e-6)
