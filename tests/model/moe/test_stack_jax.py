"""Stacks of dense experts on JAX against the dense computation, for any pattern of zeros."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from multigate.model.moe.pairs_jax import Layer, Plan, pair_keys
from multigate.model.moe.ragged_jax import mix_ragged
from multigate.model.moe.tiles_jax import mix_tiles

# T, B, E, widths: one row, one expert, numbers that are no powers of two, two and three layers.
SHAPES = [(2, 9, 6, [7, 4]), (1, 1, 3, [2]), (3, 40, 1, [4]), (2, 30, 5, [3, 5, 2])]
D = 5
WAYS: dict[str, tuple[Callable[..., Any], bool]] = {
    "tiles": (mix_tiles, True),
    "tiles, results computed again": (mix_tiles, False),
    "ragged": (mix_ragged, True),
}


def plan(keep: bool = True, dropout: float = 0.0, dtype: str = "float32") -> Plan:
    return Plan(jnp.tanh, dropout, dtype, 4, keep)  # tiles of 4: experts have several, and a rest


def make_layers(rng: np.random.Generator, E: int, units: list[int], dropout: bool = False) -> list:
    layers = []
    for below, width in zip([D, *units], units, strict=False):
        kernel = rng.normal(size=(E, below, width)).astype(np.float32)
        bias = rng.normal(size=(E, width)).astype(np.float32)
        seed = rng.integers(0, 2**31, (E, 2)).astype(np.uint32) if dropout else None
        layers.append(Layer(jnp.asarray(kernel), jnp.asarray(bias), seed))
    return layers


def make_weights(
    rng: np.random.Generator, T: int, B: int, E: int, share: float
) -> tuple[np.ndarray, int]:
    """Weights (T, B, E), and the most experts that a row uses."""
    weights = rng.uniform(0.1, 1, (T, B, E)) * (rng.random((T, B, E)) < share)
    most = int((weights != 0).any(axis=0).sum(axis=1).max())
    return weights.astype(np.float32), max(most, 1)


def dense(x: Any, weights: Any, layers: list[Layer]) -> Any:
    """Every expert on every row, (B, T, U), as the definition says."""
    h = x[:, None, :]  # (B, 1, D), then (B, E, U)
    for layer in layers:
        h = jnp.tanh(
            jnp.einsum(
                "bed,edu->beu",
                jnp.broadcast_to(h, (len(x), len(layer.kernel), h.shape[-1])),
                layer.kernel,
            )
            + layer.bias
        )
    return jnp.einsum("tbe,beu->btu", weights, h)


def gradients(mixed: Callable[..., Any], x: Any, weights: Any, layers: list[Layer]) -> Any:
    """Of a loss that no two results enter alike, by inputs, weights, kernels and biases."""

    def loss(x: Any, weights: Any, values: Any) -> Any:
        ls = [
            layer._replace(kernel=k, bias=b) for layer, (k, b) in zip(layers, values, strict=True)
        ]
        y = mixed(x, weights, ls)
        return jnp.sum(jnp.sin(y + jnp.arange(y.size).reshape(y.shape)))

    values = [(layer.kernel, layer.bias) for layer in layers]
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(x, weights, values)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_the_dense_computation(
    way: str, shape: tuple[int, int, int, list[int]]
) -> None:
    T, B, E, units = shape
    run, keep = WAYS[way]
    rng = np.random.default_rng(B)
    layers = make_layers(rng, E, units)
    seen = set()
    for share in (0.0, 0.1, 0.4, 1.0):
        weights, most = make_weights(rng, T, B, E, share)
        x = jnp.asarray(rng.normal(size=(B, D)).astype(np.float32))
        used = (weights != 0).any(axis=0)
        seen |= {"idle expert"} if not used.any(axis=0).all() else set()
        seen |= {"idle row"} if not used.any(axis=1).all() else set()

        def mixed(x: Any, weights: Any, layers: Any, most: int = most) -> Any:
            keys = pair_keys(jnp.any(weights != 0, axis=0), most)
            return run(plan(keep), x, weights, layers, keys)

        found = jax.jit(mixed)(x, weights, layers)
        np.testing.assert_allclose(found, dense(x, weights, layers), atol=1e-5)
        received = gradients(mixed, x, weights, layers)
        expected = gradients(dense, x, weights, layers)
        # A task's zero gets a gradient where another task chose the pair: `stack_jax` masks it.
        by_weights = np.where(weights != 0, received[1], 0), np.where(weights != 0, expected[1], 0)
        np.testing.assert_allclose(*by_weights, atol=1e-5)
        rest = (
            jax.tree.leaves((received[0], received[2])),
            jax.tree.leaves((expected[0], expected[2])),
        )
        for a, b in zip(*rest, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)
    assert seen == {"idle expert", "idle row"}


@pytest.mark.parametrize("most", [2, 4])
def test_the_keys_sort_pairs_by_expert_by_hand(most: int) -> None:
    used = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], bool)  # B = 3, E = 4
    keys = np.sort(np.asarray(pair_keys(used, most)).ravel())
    # Expert 0 on row 2, expert 1 on row 0, expert 3 on row 0; 12 and more are no pairs.
    assert keys[:3].tolist() == [0 * 3 + 2, 1 * 3 + 0, 3 * 3 + 0]
    assert (keys[3:] >= 12).all()
    assert keys.size == 3 * most


def test_dropout_draws_the_same_mask_for_the_gradient() -> None:
    T, B, E, units = 2, 30, 3, [6, 4]
    rng = np.random.default_rng(0)
    layers = make_layers(rng, E, units, dropout=True)
    weights, most = make_weights(rng, T, B, E, 0.5)
    x = jnp.asarray(rng.normal(size=(B, D)).astype(np.float32))
    keys = pair_keys((weights != 0).any(axis=0), most)

    def mixed(keep: bool, rate: float) -> Callable[..., Any]:
        return lambda x, w, layers: mix_tiles(plan(keep, rate), x, w, layers, keys)

    kept, again = (gradients(mixed(keep, 0.5), x, weights, layers) for keep in (True, False))
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)

    # Against differences of the loss along the gradient's own direction.
    def loss(x: Any) -> Any:
        y = mixed(True, 0.5)(x, weights, layers)
        return jnp.sum(jnp.sin(y + jnp.arange(y.size).reshape(y.shape)))

    direction = kept[0] / jnp.linalg.norm(kept[0])
    slope = (loss(x + 1e-2 * direction) - loss(x - 1e-2 * direction)) / 2e-2
    assert float(slope) == pytest.approx(float(jnp.linalg.norm(kept[0])), rel=1e-2)
    assert not np.allclose(kept[0], gradients(mixed(True, 0.0), x, weights, layers)[0])


@pytest.mark.parametrize("run", [mix_tiles, mix_ragged])
def test_dropout_keeps_the_mean(run: Callable[..., Any]) -> None:
    """Of ones, 60 % are kept and divided by 0.6."""
    B, E = 400, 3
    kernel = jnp.zeros((E, D, 8))
    seed = np.arange(2 * E, dtype=np.uint32).reshape(E, 2)
    layers = [Layer(kernel, jnp.ones((E, 8)), seed)]
    weights = jnp.ones((1, B, E)) / E
    keys = pair_keys(jnp.ones((B, E), bool), E)
    options = Plan(lambda x: x, 0.4, "float32", 4, True)
    y = np.asarray(run(options, jnp.ones((B, D)), weights, layers, keys))
    assert y.mean() == pytest.approx(1, abs=0.02)
    # Masks of different rows, experts and units differ: the sums of 3 take all of 4 values.
    assert np.round(np.unique(np.round(y, 4)) * 3 * 0.6).tolist() == [0, 1, 2, 3]
    assert len(np.unique(y[:, 0], axis=0)) > 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_gradients_in_full(way: str, dtype: str) -> None:
    run, keep = WAYS[way]
    rng = np.random.default_rng(0)
    layers = make_layers(rng, 6, [7, 4])
    weights, most = make_weights(rng, 2, 9, 6, 0.4)
    x = jnp.asarray(rng.normal(size=(9, D)).astype(np.float32))

    def mixed(x: Any, weights: Any, layers: Any) -> Any:
        keys = pair_keys(jnp.any(weights != 0, axis=0), most)
        return run(plan(keep, dtype=dtype), x, weights, layers, keys)

    y = mixed(x, weights, layers)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, dense(x, weights, layers), atol=0.05)
    assert not np.allclose(y, dense(x, weights, layers), atol=1e-5)  # it did compute in half
    found = gradients(mixed, x, weights, layers)
    expected = gradients(dense, x, weights, layers)
    for a, b in zip(jax.tree.leaves(found[2]), jax.tree.leaves(expected[2]), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, atol=0.2)


def test_nothing_is_compiled_per_expert() -> None:
    def program(E: int) -> str:
        rng = np.random.default_rng(0)
        weights, _ = make_weights(rng, 2, 9, E, 1.0)
        layers = make_layers(rng, E, [7, 4])

        def loss(layers: Any) -> Any:
            keys = pair_keys(jnp.any(weights != 0, axis=0), 4)
            return jnp.sum(mix_tiles(plan(), jnp.ones((9, D)), weights, layers, keys))

        return jax.jit(jax.grad(loss)).lower(layers).as_text()

    few, many = program(8), program(64)
    assert few.count("stablehlo.while") == many.count("stablehlo.while") > 0
    assert len(many.splitlines()) == len(few.splitlines())
    assert "stablehlo.case" not in many
