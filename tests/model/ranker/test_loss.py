"""The loss, against arithmetic done by hand."""

import math
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from multigate.model.gates.parts.base import Routing
from multigate.model.gates.sampled.estimators import SampledLoss
from multigate.model.ranker import loss
from multigate.model.ranker.heads.location import Logistic, Squared
from multigate.model.ranker.loss import Uncertainty, masked_mean, regularisation, task_loss

NAN = float("nan")


def tensor(*values: float) -> Any:
    return keras.ops.convert_to_tensor(np.array(values, np.float32))


HEADS = {"binary": Logistic(), "regression": Squared()}


def row_losses(kind: str, logits: Any, targets: Any) -> tuple[Any, Any]:
    return loss.row_losses(HEADS[kind], logits[:, None], targets)


def number(value: Any) -> float:
    return float(np.array(value.__array__()))


def test_cross_entropy_of_the_rows_that_have_a_label() -> None:
    # Logit 0 is probability 1/2: ln 2 either way.  Logit ln 3 is 3/4: -ln(3/4), and -ln(1/4).
    logits = tensor(0, math.log(3), math.log(3), 5)
    losses, mask = row_losses("binary", logits, tensor(1, 1, 0, NAN))
    expected = [math.log(2), math.log(4 / 3), math.log(4), 0]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(losses), expected, atol=1e-6)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(mask), [1, 1, 1, 0])
    assert number(masked_mean(losses, mask)) == pytest.approx(sum(expected) / 3)


def test_cross_entropy_of_extreme_logits_is_finite() -> None:
    losses, _ = row_losses("binary", tensor(200, -200, 200), tensor(0, 1, 1))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(losses), [200, 200, 0], atol=1e-4)


def test_squared_error() -> None:
    losses, mask = row_losses("regression", tensor(1, 4, 2), tensor(3, NAN, 2.5))
    assert number(masked_mean(losses, mask)) == pytest.approx((4 + 0.25) / 2)


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_all_masked_is_zero(kind: str) -> None:
    losses, mask = row_losses(kind, tensor(3, -2), tensor(NAN, NAN))
    assert number(masked_mean(losses, mask)) == 0.0


def test_masked_rows_pass_no_gradient() -> None:
    if keras.backend.backend() != "tensorflow":
        pytest.skip("GradientTape is TensorFlow's")
    import tensorflow as tf

    for kind in ("binary", "regression"):
        logits = tf.constant([0.5, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(logits)
            mean = masked_mean(*row_losses(kind, logits, tf.constant([0.0, NAN])))
        gradient = tape.gradient(mean, logits).numpy()
        assert gradient[0] != 0
        assert gradient[1] == 0


def routing(**fields: object) -> Routing:
    return Routing(tensor(1), fields.pop("losses", {}), {}, **fields)


def test_regularisation_adds_every_term_of_every_gate() -> None:
    first = routing(losses={"entropy": tensor(0.5)[0], "balance": tensor(0.25)[0]})
    assert number(regularisation([first, routing(), routing(losses={"x": tensor(2)[0]})])) == 2.75
    assert number(regularisation([])) == 0.0


def test_sampled_gates_weigh_each_row() -> None:
    # Rows: importance 2 and kept; kept, masked; not kept.  Two rows have a label:
    # (2 * 3 + 0) / 2.
    routed = routing(importance=tensor(2, 1, 1), kept=tensor(1, 1, 0), log_prob=tensor(-1, -2, -3))
    losses, mask = tensor(3, 0, 7), tensor(1, 0, 1)
    assert number(task_loss(losses, mask, routed, SampledLoss())) == pytest.approx(3.0)
    assert number(task_loss(losses, mask, routing())) == pytest.approx(5.0)


def test_sampled_gates_baseline_follows_labelled_rows() -> None:
    estimator = SampledLoss(decay=0.5)
    routed = routing(importance=tensor(1, 1), kept=tensor(1, 1), log_prob=tensor(-1, -1))
    task_loss(tensor(4, 0), tensor(1, 0), routed, estimator)
    # A masked row's zero must not pull the baseline down: 0.5 * 0 + 0.5 * 4.
    assert number(estimator.baseline) == pytest.approx(2.0)


def test_weighted_rows() -> None:
    losses, mask = row_losses("regression", tensor(1, 4, 2), tensor(3, NAN, 3))
    weighted = mask * tensor(0.25, 9, 0.5)  # a masked row's weight counts for nothing
    assert number(masked_mean(losses, weighted)) == pytest.approx((0.25 * 4 + 0.5 * 1) / 0.75)
    assert number(masked_mean(losses, mask * tensor(0, 1, 0))) == 0.0


def test_learnt_task_weights() -> None:
    layer = Uncertainty(2)
    # s = 0: the loss itself.
    assert number(layer(tensor(3)[0], task=1)) == pytest.approx(3)
    layer.log_variance.assign([0.0, math.log(4)])
    assert number(layer(tensor(3)[0], task=1)) == pytest.approx(3 / 4 + math.log(4) / 2)
    # Least where exp(-s) L = 1/2: s = ln 2L.
    layer.log_variance.assign([math.log(2 * 3), 0.0])
    least = number(layer(tensor(3)[0], task=0))
    for s in (math.log(2 * 3) - 0.1, math.log(2 * 3) + 0.1):
        layer.log_variance.assign([s, 0.0])
        assert number(layer(tensor(3)[0], task=0)) > least


def test_tasks_of_no_weight_do_not_scale_the_others() -> None:
    tasks = {"click": (1.0, 2000), "like": (0.5, 1000), "seen": (0.0, 1_000_000)}
    contract: Any = SimpleNamespace(
        tasks={name: SimpleNamespace(weight=weight) for name, (weight, _) in tasks.items()}
    )
    statistics: Any = SimpleNamespace(
        tasks={name: SimpleNamespace(count=count) for name, (_, count) in tasks.items()}
    )
    found = loss.task_weights(contract, statistics, "labels")
    assert found == {"click": 1.0, "like": 0.25, "seen": 0.0}
