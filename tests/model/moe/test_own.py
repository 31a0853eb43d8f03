"""Own experts: a gate chooses among the shared experts and its task's own."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.moe.experts import make_experts
from multigate.model.moe.mixture import Mixture
from multigate.model.moe.own import choices, spread

B, D, T, SHARED, OWN = 40, 5, 3, 4, 2
GATES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "topk": {"num_selected": 2},
    "topk_static": {"name": "topk", "num_selected": 2, "static": True},
    "dselect_k": {"num_selected": 2},
    "moesart": {"num_selected": 2},
    "comet": {"num_selected": 2},
    "hash": {},
}


def make(gate: str) -> Mixture:
    options = {"name": gate} | GATES[gate]
    mixture = Mixture(
        make_experts(SHARED + T * OWN, [3], seed=0),
        [gates.make(num_experts=SHARED + OWN, seed=t, **options) for t in range(T)],
        choices(SHARED, OWN, T),
    )
    mixture.build((None, D))
    rng = np.random.default_rng(0)
    for variable in mixture.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return mixture


def test_the_order_of_the_experts_by_hand() -> None:
    assert choices(2, 1, 3) == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    assert choices(2, 0, 2) == [[0, 1], [0, 1]]
    assert choices(1, 2, 2) == [[0, 1, 2], [0, 3, 4]]
    weights = tf.constant([[0.5, 0.25, 0.25]])
    np.testing.assert_array_equal(spread(weights, [0, 1, 3], 5), [[0.5, 0.25, 0, 0.25, 0]])
    assert spread(weights, [0, 1, 2], 3) is weights


@pytest.mark.parametrize("gate", GATES)
def test_outputs_are_those_of_each_gates_own_choice(gate: str) -> None:
    mixture = make(gate)
    x = np.random.default_rng(1).normal(size=(B, D)).astype(np.float32)
    ids = np.arange(B, dtype=np.int32)
    mixed = mixture(x, ids=ids)
    results = np.stack([expert(x).numpy() for expert in mixture.experts], axis=1)  # (B, G, U)
    union = np.zeros((B, len(mixture.experts)), bool)
    for t, layer in enumerate(mixture.gates):
        mine = [*range(SHARED), SHARED + 2 * t, SHARED + 2 * t + 1]
        weights = np.broadcast_to(layer(x, ids=ids).weights, (B, SHARED + OWN))
        expected = np.einsum("be,beu->bu", weights, results[:, mine])
        np.testing.assert_allclose(mixed.outputs[t], expected, rtol=1e-4, atol=1e-5)
        of_all = np.broadcast_to(mixed.routings[t].weights, union.shape)
        np.testing.assert_array_equal(of_all[:, mine], weights)
        assert np.count_nonzero(of_all) == np.count_nonzero(weights)
        load = mixed.routings[t].diagnostics["load"].numpy()
        np.testing.assert_allclose(load, (of_all > 0).mean(axis=0), rtol=1e-6)
        union[:, mine] |= weights > 0
    assert float(mixed.experts_per_row) == pytest.approx(union.sum() / B)


def test_a_task_does_not_train_the_own_experts_of_another() -> None:
    mixture = make("softmax")
    x = np.random.default_rng(1).normal(size=(B, D)).astype(np.float32)
    kernels = [expert.stack[0].kernel.value for expert in mixture.experts]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(mixture(x, training=True).outputs[1])
    gradients = tape.gradient(total, kernels)
    trained = [g is not None and float(tf.reduce_max(tf.abs(g))) > 0 for g in gradients]
    mine = [*range(SHARED), SHARED + 2, SHARED + 3]
    assert [number for number, yes in enumerate(trained) if yes] == mine


def test_it_survives_its_configuration() -> None:
    mixture = make("topk")
    again = Mixture.from_config(mixture.get_config())
    assert again.choices == choices(SHARED, OWN, T)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0, 1]], "choices: expected one per gate, 2; received 1"),
        ([[0, 1], [0]], "expected num_experts=1.* has 2"),
        ([[0, 1], [0, 3]], "choices: expected different numbers from 0 to 2, received .0, 3."),
        ([[0, 1], [1, 1]], "choices: expected different numbers from 0 to 2, received .1, 1."),
        ([[0, 1], [0, 1]], "choices: no gate can choose expert 2"),
    ],
)
def test_choices_that_do_not_fit_are_refused(given: list[list[int]], message: str) -> None:
    experts = make_experts(3, [2])
    with pytest.raises(ValueError, match=message):
        Mixture(experts, [gates.make("softmax", 2) for _ in range(2)], given)


def test_without_own_experts_nothing_changes() -> None:
    """The same initial weights and the same outputs, to the last bit, as without the option."""
    plain = Mixture(make_experts(3, [2], seed=1), [gates.make("topk", 3, seed=2)])
    none = Mixture(make_experts(3, [2], seed=1), [gates.make("topk", 3, seed=2)], choices(3, 0, 1))
    x = keras.ops.convert_to_tensor(np.random.default_rng(1).normal(size=(B, D)), "float32")
    np.testing.assert_array_equal(plain(x).outputs[0], none(x).outputs[0])
