"""Cross layers: DCN-v2's formula, and a product that linear layers cannot learn."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score
from tests.model.ranker.conftest import planted_ranker, planted_rows

from multigate.configs.errors import ConfigError
from multigate.configs.statistics import Statistics, TaskStatistics, VectorStatistics
from multigate.model.ranker.cross import Cross
from multigate.model.training import warm_start

D, r = 5, 2


def test_each_layer_multiplies_the_first_input() -> None:
    cross = Cross(D, layers=3, rank=r, seed=0)
    rng = np.random.default_rng(0)
    for variable in cross.weights:
        variable.assign(rng.normal(size=variable.shape))
    x0 = rng.normal(size=(7, D)).astype(np.float32)
    expected = np.empty_like(x0)
    for row in range(7):
        x = x0[row].astype(np.float64)
        for down, up, bias in cross.kernels:
            w = down.numpy().astype(np.float64) @ up.numpy()  # (D, D)
            sums = [sum(x[i] * w[i, j] for i in range(D)) + bias.numpy()[j] for j in range(D)]
            x = np.array([x0[row, j] * sums[j] + x[j] for j in range(D)])
        expected[row] = x
    np.testing.assert_allclose(cross(x0).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_every_weight_gets_a_gradient() -> None:
    cross = Cross(D, layers=2, rank=r, seed=0)
    x = tf.random.normal((9, D), seed=1)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.square(cross(x)))
    for gradient in tape.gradient(total, [w.value for w in cross.trainable_weights]):
        assert float(tf.reduce_max(tf.abs(gradient))) > 1e-4


@pytest.mark.sweep(1)
@pytest.mark.parametrize("layers", [0, 1])
def test_a_product_of_two_features_is_learnt_with_a_layer_only(layers: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, D)).astype(np.float32)
    y = (x[:, 1] * x[:, 3] > 0).astype(np.float32)
    parts: list[Any] = [Cross(D, layers, r, seed=0)] if layers else []
    model = keras.Sequential([*parts, keras.layers.Dense(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.03), loss)
    model.fit(x[:1000], y[:1000], epochs=30, batch_size=100, verbose=0)
    auc = roc_auc_score(y[1000:], model(x[1000:]).numpy()[:, 0])
    assert (auc > 0.97) if layers else (auc < 0.6)


@pytest.mark.parametrize("cross", [None, {"layers": 2, "rank": 3}])
@pytest.mark.parametrize("project", [None, 2])
@pytest.mark.parametrize("missing", ["error", "indicator"])
def test_a_vector_of_other_statistics_counts_as_before(
    cross: Any, project: int | None, missing: str
) -> None:
    face = {"kind": "vector", "side": "item", "size": 3, "project": project, "missing": missing}
    ranker = planted_ranker(features={"face": face}, cross=cross)
    rng = np.random.default_rng(0)
    for variable in ranker.trainable_variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    rows, present = planted_rows(rng, 20), rng.random(20) < (0.7 if missing == "indicator" else 2)
    raw = rng.normal(2, 3, (20, 3))

    def logits(statistics: VectorStatistics) -> np.ndarray:
        x = (raw - np.array(statistics.mean)) / np.array(statistics.std)
        encoded = rows | {"face": (x * present[:, None]).astype(np.float32)}
        encoded["face__present"] = present.astype(np.float32)
        return np.array(ranker(encoded)["like"].numpy())

    counts = {"count": 9, "missing": 0}
    nights = [
        VectorStatistics(**counts, mean=(2, 1, 0), std=(3, 2, 1)),
        VectorStatistics(**counts, mean=(1, 2, 3), std=(1, 4, 2)),
        VectorStatistics(**counts, mean=(0, -1, 1), std=(2, 2, 5)),
    ]
    expected = logits(nights[0])
    for before, after in itertools.pairwise(nights):  # twice: a change of a change
        label = {"like": TaskStatistics(count=1, masked=0, mean=0.5, std=0.5)}
        old, new = (
            Statistics(features={}, tasks=label, rows={}, vectors={"face": one})
            for one in (before, after)
        )
        warm_start._restandardise(ranker, old, new)
        assert np.abs(logits(before) - expected).max() > 1e-2
        np.testing.assert_allclose(logits(after), expected, rtol=1e-3, atol=1e-4)


def test_precomputed_items_are_refused(tiny: Any) -> None:
    model = {"cross": {"layers": 1, "rank": 4}}
    tiny.make_config(model=model, export={"items": "features"})
    message = "export.items: expected none or features, received precomputed: model.cross joins"
    with pytest.raises(ConfigError, match=message):
        tiny.make_config(model=model, export={"items": "precomputed"})
