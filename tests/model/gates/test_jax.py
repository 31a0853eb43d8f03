"""The gates on JAX: the same values as on TensorFlow, in one process of that backend."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

E, D, B = 6, 3, 5
ROOT = Path(__file__).parents[3]
OPTIONS: dict[str, dict[str, Any]] = {
    "gumbel_softmax": {"static": True},
    "hierarchical": {
        "num_groups": 2,
        "primary": {"name": "topk"},
        "secondary": {"name": "dselect_k", "num_selected": 2},
    },
    "comet": {"permutation": True},
}
X = np.random.default_rng(0).normal(size=(B, D)).astype("float32")
IDS = np.arange(B, dtype="int32")


def make(name: str) -> Any:
    from multigate.model import gates

    k = 1 if name in ("hash", "sampled") else 2
    gate = gates.make(name, E, k, seed=3, **OPTIONS.get(name, {}))
    gate.build((None, D))
    return gate


def run_on_jax(inputs: Path, outputs: Path) -> None:
    """For every gate: set the variables, route inside jax.jit, and take a training gradient."""
    import jax
    import jax.numpy as jnp

    from multigate.model import gates

    variables = np.load(inputs)
    found = {}
    for name in gates.names():
        gate = make(name)
        for i, weight in enumerate(gate.weights):
            weight.assign(variables[f"{name}/{i}"])
        trainable = [v.value for v in gate.trainable_variables]
        other = [v.value for v in gate.non_trainable_variables]

        def infer(trainable: Any, gate: Any = gate, other: Any = other) -> Any:
            """Weights as trained, of no rows, and hardened."""
            call = functools.partial(gate.stateless_call, trainable, other)
            soft, none = call(X, ids=IDS)[0], call(X[:0], ids=IDS[:0])[0]
            gate.harden()
            return soft.weights, none.weights, call(X, ids=IDS)[0].weights

        infer = jax.jit(infer)
        soft, none, hard = infer(trainable)
        found |= {f"{name}/soft": soft, f"{name}/none": none, f"{name}/hard": hard}

        def loss(trainable: Any, gate: Any = gate, other: Any = other) -> Any:
            routing, state = gate.stateless_call(trainable, other, X, training=True, ids=IDS)
            total = sum(routing.losses.values()) + jnp.sum(routing.weights**2)
            return total, (routing.weights, state)

        train = jax.jit(jax.grad(loss, has_aux=True))
        gradients, (weights, state) = train(trainable)
        assert all(np.isfinite(g).all() for g in gradients), name
        assert np.isfinite(weights).all(), name
        assert len(state) == len(other), name

        # A variable that became NaN reaches the weights, and so the loss and its guard: nothing
        # on the way (a comparison, an argmax, a selection) makes a finite number of it.
        for index, variable in enumerate(gate.trainable_variables):
            spoilt = list(trainable)
            spoilt[index] = jnp.full_like(trainable[index], jnp.nan)
            soft, _, hard = infer(spoilt)
            inferred = () if variable.name == "noise_kernel" else (soft, hard)  # training reads it
            for weights in (train(spoilt)[1][0], *inferred):
                assert np.isnan(weights).any(), (name, variable.name)
    np.savez(outputs, **{key: np.asarray(value) for key, value in found.items()})


@pytest.mark.slow
def test_jax_agrees_with_tensorflow(tmp_path: Path) -> None:
    from multigate.model import gates

    rng = np.random.default_rng(1)
    variables, expected = {}, {}
    for name in gates.names():
        gate = make(name)
        for i, weight in enumerate(gate.weights):
            if "float" in weight.dtype:
                weight.assign(rng.normal(size=weight.shape))
            variables[f"{name}/{i}"] = np.asarray(weight)
        expected[f"{name}/soft"] = gate(X, ids=IDS).weights
        expected[f"{name}/none"] = gate(X[:0], ids=IDS[:0]).weights
        gate.harden()
        expected[f"{name}/hard"] = gate(X, ids=IDS).weights
    inputs, outputs = tmp_path / "variables.npz", tmp_path / "weights.npz"
    np.savez(inputs, **variables)
    subprocess.run(
        [sys.executable, __file__, str(inputs), str(outputs)],
        env=os.environ
        | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "src")},
        check=True,
        timeout=800,
    )
    found = np.load(outputs)
    assert set(found) == set(expected)
    for key, weights in expected.items():
        np.testing.assert_allclose(found[key], weights, rtol=1e-4, atol=1e-6, err_msg=key)


if __name__ == "__main__":
    run_on_jax(Path(sys.argv[1]), Path(sys.argv[2]))
