"""Stacks of dense experts on JAX against the dense computation, for any pattern of zeros."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from multigate.model import backend
from multigate.model.moe import stack_jax
from multigate.model.moe.blocks_jax import mix_blocks
from multigate.model.moe.dense_jax import mix_dense
from multigate.model.moe.pairs_jax import Layer, Plan, pair_keys
from multigate.model.moe.tiles_jax import mix_tiles

# T, B, E, widths, the most experts of a row: one row, one expert, E no power of two, 1 to 3 layers.
SHAPES = [
    (2, 9, 6, [7, 4], 4),
    (1, 1, 3, [2], 2),
    (3, 40, 1, [4], 1),
    (2, 30, 5, [3, 5, 2], 5),
]
D = 5
WAYS: dict[str, tuple[Callable[..., Any], bool]] = {
    "tiles": (mix_tiles, True),
    "tiles, results computed again": (mix_tiles, False),
    "dense": (mix_dense, True),
    "blocks": (mix_blocks, True),
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
    rng: np.random.Generator, T: int, B: int, E: int, share: float, most: int
) -> np.ndarray:
    """Weights (T, B, E): a share of the experts in random places, at most `most` for a row."""
    used = np.argsort(rng.random((B, E)), axis=1) < most
    weights = rng.uniform(0.1, 1, (T, B, E)) * (rng.random((T, B, E)) < share) * used
    return weights.astype(np.float32)


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


def gradients(mixed: Callable[..., Any]) -> Callable[..., Any]:
    """Of a loss that no two results enter alike: (x, weights, layers) -> the gradients of x and of
    weights, and those of kernels and biases."""

    def loss(x: Any, weights: Any, values: Any, layers: list[Layer]) -> Any:
        pairs = zip(layers, values, strict=True)
        y = mixed(x, weights, [layer._replace(kernel=k, bias=b) for layer, (k, b) in pairs])
        return jnp.sum(jnp.sin(y + jnp.arange(y.size).reshape(y.shape)))

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))

    def run(x: Any, weights: Any, layers: list[Layer]) -> Any:
        return compiled(x, weights, [(layer.kernel, layer.bias) for layer in layers], layers)

    return run


def runs(way: str, most: int, **options: Any) -> Callable[..., Any]:
    run, keep = WAYS[way]

    def mixed(x: Any, weights: Any, layers: list[Layer]) -> Any:
        keys = pair_keys(jnp.any(weights != 0, axis=0), most)
        return run(plan(keep, **options), x, weights, layers, keys)

    return mixed


@pytest.mark.sweep(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_the_dense_computation(
    way: str, shape: tuple[int, int, int, list[int], int]
) -> None:
    T, B, E, units, most = shape
    rng = np.random.default_rng(B)
    layers = make_layers(rng, E, units)
    mixed = runs(way, most)
    value, slope, dense_slope = jax.jit(mixed), gradients(mixed), gradients(dense)
    idle_experts = idle_rows = 0
    for share in (0.0, 0.1, 0.5, 1.0):
        weights = make_weights(rng, T, B, E, share, most)
        x = jnp.asarray(rng.normal(size=(B, D)).astype(np.float32))
        used = (weights != 0).any(axis=0)
        idle_experts += (~used.any(axis=0)).sum()
        idle_rows += (~used.any(axis=1)).sum()
        np.testing.assert_allclose(value(x, weights, layers), dense(x, weights, layers), atol=1e-5)
        received, expected = (each(x, weights, layers) for each in (slope, dense_slope))
        # A task's zero gets a gradient where another task chose the pair: `stack_jax` masks it.
        by_weights = (np.where(weights != 0, g[1], 0) for g in (received, expected))
        np.testing.assert_allclose(*by_weights, atol=1e-5)
        rest = (jax.tree.leaves((g[0], g[2])) for g in (received, expected))
        for a, b in zip(*rest, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)
    assert idle_experts
    assert idle_rows


@pytest.mark.parametrize("most", [2, 4])
def test_the_keys_sort_pairs_by_expert_by_hand(most: int) -> None:
    used = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], bool)  # B = 3, E = 4
    keys = np.sort(np.asarray(pair_keys(used, most)).ravel())
    # Expert 0 on row 2, expert 1 on row 0, expert 3 on row 0; 12 and more are no pairs.
    assert keys[:3].tolist() == [0 * 3 + 2, 1 * 3 + 0, 3 * 3 + 0]
    assert (keys[3:] >= 12).all()
    assert keys.size == 3 * most


@pytest.mark.slow
def test_dropout_draws_the_same_mask_for_the_gradient() -> None:
    T, B, E = 2, 30, 3
    rng = np.random.default_rng(0)
    layers = make_layers(rng, E, [6, 4], dropout=True)
    weights = make_weights(rng, T, B, E, 0.5, E)
    x = jnp.asarray(rng.normal(size=(B, D)).astype(np.float32))
    kept, again = (
        gradients(runs(way, E, dropout=0.5))(x, weights, layers) for way in list(WAYS)[:2]
    )
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)

    @jax.jit
    def loss(x: Any) -> Any:
        y = runs("tiles", E, dropout=0.5)(x, weights, layers)
        return jnp.sum(jnp.sin(y + jnp.arange(y.size).reshape(y.shape)))

    # The difference of the loss along the gradient's own direction.
    size = float(jnp.linalg.norm(kept[0]))
    step = 1e-2 * kept[0] / size
    assert float(loss(x + step) - loss(x - step)) / 2e-2 == pytest.approx(size, rel=1e-2)


@pytest.mark.parametrize("run", [mix_tiles, mix_dense, mix_blocks])
def test_dropout_keeps_the_mean(run: Callable[..., Any]) -> None:
    """Of ones, 60 % are kept and divided by 0.6."""
    B, E = 400, 3
    kernel = jnp.zeros((E, D, 8))
    seed = np.arange(2 * E, dtype=np.uint32).reshape(E, 2)
    layers = [Layer(kernel, jnp.ones((E, 8)), seed)]
    weights = jnp.ones((1, B, E)) / E
    keys = pair_keys(jnp.ones((B, E), bool), E)
    options = Plan(lambda x: x, 0.4, "float32", 4, True)
    y = np.asarray(jax.jit(partial(run, options))(jnp.ones((B, D)), weights, layers, keys))
    assert y.mean() == pytest.approx(1, abs=0.02)
    # Masks of different rows, experts and units differ: the sums of 3 take all of 4 values.
    assert np.round(np.unique(np.round(y, 4)) * 3 * 0.6).tolist() == [0, 1, 2, 3]
    assert len(np.unique(y[:, 0], axis=0)) > 100


@pytest.mark.sweep(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_gradients_in_full(way: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    layers = make_layers(rng, 6, [7, 4])
    weights = make_weights(rng, 2, 9, 6, 0.4, 4)
    x = jnp.asarray(rng.normal(size=(9, D)).astype(np.float32))
    mixed = runs(way, 4, dtype=dtype)
    y = jax.jit(mixed)(x, weights, layers)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, dense(x, weights, layers), atol=0.05)
    assert not np.allclose(y, dense(x, weights, layers), atol=1e-5)  # it did compute in half
    found, expected = (gradients(each)(x, weights, layers)[2] for each in (mixed, dense))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, atol=0.2)


def test_nothing_is_compiled_per_expert() -> None:
    def program(E: int) -> str:
        rng = np.random.default_rng(0)
        weights = make_weights(rng, 2, 9, E, 1.0, 4)
        layers = make_layers(rng, E, [7, 4])

        def loss(layers: Any) -> Any:
            keys = pair_keys(jnp.any(weights != 0, axis=0), 4)
            return jnp.sum(mix_tiles(plan(), jnp.ones((9, D)), weights, layers, keys))

        return jax.jit(jax.grad(loss)).lower(layers).as_text()

    few, many = program(8), program(64)
    assert few.count("stablehlo.while") == many.count("stablehlo.while") > 0
    assert len(many.splitlines()) == len(few.splitlines())
    assert "stablehlo.case" not in many


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("run", [mix_dense, mix_blocks])
def test_an_overflow_of_an_unused_expert_spoils_no_gradient(
    run: Callable[..., Any], dtype: str
) -> None:
    """Expert 2 overflows on rows that have no use for it: 0 times infinity is NaN."""
    rng = np.random.default_rng(0)
    layers = make_layers(rng, 3, [4, 4])
    huge = np.float32(3e38 if dtype == "float32" else 6e4)
    layers = [layer._replace(kernel=layer.kernel.at[2].set(huge)) for layer in layers]
    weights = jnp.asarray(np.tile([0.5, 0.5, 0.0], (2, 9, 1)), jnp.float32)
    options = Plan(jax.nn.silu, 0.0, dtype, 4, True)

    def loss(x: Any, weights: Any, layers: list[Layer]) -> Any:
        return jnp.sum(run(options, x, weights, layers, pair_keys(weights[0] != 0, 2)) ** 2)

    x = jnp.asarray(rng.normal(size=(9, D)).astype(np.float32))
    for gradient in jax.tree.leaves(jax.grad(loss, argnums=(0, 1, 2))(x, weights, layers)):
        assert np.isfinite(np.asarray(gradient)).all()


def test_a_gpu_takes_blocks_where_most_products_would_be_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As measured on an H100 with k = 2 and two tasks, see docs/results/train_step.md."""
    assert stack_jax._way(8192, 64, 4) is mix_tiles
    monkeypatch.setattr(backend, "has_accelerator", lambda: True)
    chosen = {
        (rows, E): stack_jax._way(rows, E, 4) for rows in (512, 8192) for E in (8, 16, 32, 64)
    }
    blocks = {(8192, 16), (8192, 32), (8192, 64)}
    assert chosen == {key: mix_blocks if key in blocks else mix_dense for key in chosen}
    assert stack_jax._way(8192, 64, 64) is mix_dense  # a dense gate
