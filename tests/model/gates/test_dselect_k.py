"""DSelect-k: formula, exact zeros, regularisers, hardening."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.gates.dselect_k import DSelectK

F = np.float32


def static_gate(bits: Any, mix: Any, E: int, **options: Any) -> DSelectK:
    """A static gate with given bits (k, m), before the smooth-step, and weight logits (k,)."""
    bits = np.array(bits, F)
    gate = gates.make("dselect_k", E, len(bits), static=True, seed=0, **options)
    assert isinstance(gate, DSelectK)
    gate.build((None, 3))
    gate.bit_bias.assign(bits.reshape(-1))
    gate.mix_bias.assign(np.array(mix, F))
    return gate


def bits_as_input(E: int, k: int, **options: Any) -> DSelectK:
    """A per-example gate whose input (B, k*m) is its bits."""
    m = (E - 1).bit_length()
    gate = gates.make("dselect_k", E, k, seed=0, **options)
    assert isinstance(gate, DSelectK)
    gate.build((None, k * m))
    gate.bit_kernel.assign(np.eye(k * m))
    gate.bit_bias.assign(np.zeros(k * m))
    gate.mix_kernel.assign(np.zeros((k * m, k)))
    return gate


def step_inverse(s: float) -> float:
    """t with smooth_step(t) = s at gamma = 1."""
    roots = np.roots([-2, 0, 1.5, 0.5 - s]).real
    return float(roots[(roots >= -0.5) & (roots <= 0.5)][0])


def test_weights_by_hand() -> None:
    # E = 4, k = 2.  Selector 0 has bits S = (1, 0): code 1, one-hot.  Selector 1 has bit 0 at
    # t = 0.25: u = 3/4, S = 27/32, and bit 1 off: p = (5/32, 27/32, 0, 0).  a = (log 3, 0):
    # alpha = (3/4, 1/4).  w = (1/4 * 5/32, 3/4 + 1/4 * 27/32, 0, 0) = (5/128, 123/128, 0, 0).
    gate = static_gate([[0.5, -0.5], [0.25, -0.5]], [np.log(3), 0], 4)
    weights = gate(np.zeros((1, 3), F)).weights
    np.testing.assert_allclose(weights, [5 / 128, 123 / 128, 0, 0], rtol=1e-6)
    assert np.count_nonzero(weights) == 2


@pytest.mark.parametrize(("E", "k"), [(1, 1), (2, 1), (5, 2), (7, 7), (16, 3)])
def test_per_example_formula(E: int, k: int) -> None:
    gate = gates.make("dselect_k", E, k, gamma=2.0, seed=3)
    assert isinstance(gate, DSelectK)
    gate.build((None, 4))
    rng = np.random.default_rng(E)
    for variable in gate.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.3)
    x = rng.normal(size=(6, 4))
    m = (E - 1).bit_length()
    alpha = np.exp(x @ gate.mix_kernel.numpy() + gate.mix_bias.numpy())
    alpha /= alpha.sum(-1, keepdims=True)
    expected = np.zeros((6, E))
    for b in range(6):
        for r in range(k):
            for e in range(E):
                p = 1.0
                for j in range(m):
                    column = r * m + j
                    t = x[b] @ gate.bit_kernel.numpy()[:, column] + gate.bit_bias.numpy()[column]
                    t = float(np.clip(t, -1, 1))
                    s = -2 * t**3 / 8 + 3 * t / 4 + 0.5
                    p *= s if (e >> j) & 1 else 1 - s
                expected[b, e] += alpha[b, r] * p
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(gate(x.astype(F)).weights, expected, atol=2e-6)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("E", [2, 4, 5, 6, 7, 16, 128])
def test_no_zero_weight_has_a_gradient(E: int) -> None:
    # Bits at, next to and near both ends; products of them underflow in float32.
    ends = np.concatenate([[0.5 - n * np.spacing(F(0.4)), 0.5 - 10.0**-n] for n in range(1, 9)])
    values = np.concatenate([ends, -ends, [-0.5, 0.5, 0.0, -0.6, 0.6]])
    gate = bits_as_input(E, 2)
    rng = np.random.default_rng(E)
    x = tf.constant(rng.choice(values, size=(400, gate.bit_kernel.shape[0])), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        weights = gate(x).weights
    jacobian = tape.batch_jacobian(weights, x).numpy()  # (B, E, k*m)
    assert np.isfinite(jacobian).all()
    zero = weights.numpy() == 0
    assert zero.any()
    assert (jacobian[~zero] != 0).any()
    np.testing.assert_array_equal(jacobian[zero], 0)


@pytest.mark.parametrize("E", [5, 6, 7])
def test_all_selectors_on_an_unreachable_code(E: int) -> None:
    # All three bits set: code 7, which E <= 7 does not have.
    gate = bits_as_input(E, 2, entropy_weight=0.1, reachability_weight=1.0)
    x = tf.constant(np.full((2, 6), 0.5, F))
    with tf.GradientTape() as tape:
        tape.watch(x)
        routing = gate(x, training=True)
        total = tf.reduce_sum(routing.weights) + sum(routing.losses.values())
    np.testing.assert_array_equal(routing.weights, np.zeros((2, E)))
    assert np.isfinite(float(total))
    np.testing.assert_array_equal(tape.gradient(total, x), np.zeros((2, 6)))
    # 1 / 1e-6 per selector, less 1 / M, which is the middle of 1/2 and E / 8.
    enough = (1 / 2 + E / 8) / 2
    np.testing.assert_allclose(routing.losses["reachability"], 2 * (1e6 - 1 / enough), rtol=1e-7)
    gate.harden()
    np.testing.assert_allclose(np.sum(gate(x).weights, -1), 1)


def test_entropy_and_reachability_by_hand() -> None:
    # E = 3, k = 1, both bits at 1/2: p = (1/4, 1/4, 1/4, 1/4), H = log 4; the reachable mass is
    # 3/4, so the paper's penalty is 4/3 - 1 = 1/3; w = 1/3 each.
    gate = static_gate(
        [[0, 0]], [0], 3, entropy_weight=0.5, reachability_weight=3.0, reachability_mass=1.0
    )
    routing = gate(np.zeros((8, 3), F), training=True)
    np.testing.assert_allclose(routing.weights, [1 / 3] * 3, rtol=1e-6)
    np.testing.assert_allclose(routing.losses["entropy"], 0.5 * np.log(4), rtol=1e-6)
    np.testing.assert_allclose(routing.losses["reachability"], 1.0, rtol=1e-5)
    assert gate(np.zeros((8, 3), F)).losses == {}


def test_a_selector_pays_for_codes_without_an_expert_where_they_have_most_of_its_mass() -> None:
    # E = 3: code 3 is both bits.  S(1/4) = 1/2 + 3/8 - 1/32 = 27/32, so that a selector with both
    # bits there has a reachable mass of 1 - (27/32)^2 = 295/1024 and pays 1024/295 - 2.  The other
    # one, with 3/4, pays nothing, and does not pay for the first.
    gate = static_gate(
        [[0.25, 0.25], [0, 0]], [0, 0], 3, reachability_weight=3.0, reachability_mass=0.5
    )
    routing = gate(np.zeros((8, 3), F), training=True)
    np.testing.assert_allclose(routing.losses["reachability"], 3 * (1024 / 295 - 2), rtol=1e-6)
    with tf.GradientTape() as tape:
        loss = gate(np.zeros((8, 3), F), training=True).losses["reachability"]
    pull = tape.gradient(loss, gate.bit_bias).numpy()
    assert (pull[:2] > 0).all()  # descent leads away from code 3
    np.testing.assert_array_equal(pull[2:], 0)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("E", [3, 5, 7, 9, 17])
def test_at_the_start_selectors_hardly_pay(E: int, static: bool) -> None:
    # Otherwise all selectors would move to the same codes before the experts differ.  Per example,
    # a few rows start with too little mass where E is hardly above a power of two.
    x = np.random.default_rng(0).normal(size=(64, 6)).astype(F)
    ours, papers = (
        float(
            gates.make("dselect_k", E, 2, static=static, seed=0, reachability_mass=mass)(
                x, training=True
            ).losses["reachability"]
        )
        for mass in (None, 1.0)
    )
    assert papers > 0.2
    hardly = 50 if (E, static) == (17, False) else 100
    assert ours < papers / hardly


@pytest.mark.parametrize("E", [5, 9])
def test_nothing_holds_a_selector_between_two_codes(E: int) -> None:
    # With its other bits settled, it is between a code with an expert and one without.  At half of
    # the mass the entropy has no slope, below it pulls to the latter: there it must already pay.
    def codes_after(steps: int, **options: Any) -> np.ndarray | None:
        gate = gates.make("dselect_k", E, 4, static=True, seed=2, entropy_weight=0.1, **options)
        gate.build((None, 3))
        optimizer = keras.optimizers.Adam(1e-3)
        x = tf.zeros((1, 3))

        @tf.function
        def train(steps: int) -> None:
            for _ in tf.range(steps):
                with tf.GradientTape() as tape:
                    loss = sum(gate(x, training=True).losses.values())
                optimizer.apply_gradients([(tape.gradient(loss, gate.bit_bias), gate.bit_bias)])

        train(tf.constant(steps))
        bits = gate.bit_bias.numpy().reshape(4, -1)
        settled = float(gate(x).diagnostics["convergence"]) == 1
        return (bits > 0) @ 2 ** np.arange(bits.shape[1]) if settled else None

    codes = codes_after(3000)
    assert codes is not None
    assert (codes < E).all()
    assert len(set(codes)) > 1
    assert codes_after(3000, reachability_mass=0.5) is None


@pytest.mark.parametrize("entropy_weight", [0.1, 20.0, 1280.0])
def test_the_penalty_outweighs_the_entropy(entropy_weight: float) -> None:
    # E = 5, between code 1 (S = 0 of the top bit) and code 5, which has no expert.
    def pulls(**options: Any) -> list[float]:
        found = []
        for top in np.linspace(0.02, 0.45, 20):  # of the mass, less than half has an expert
            gate = static_gate([[0.5, -0.5, top]], [0], 5, entropy_weight=entropy_weight, **options)
            with tf.GradientTape() as tape:
                loss = sum(gate(np.zeros((1, 3), F), training=True).losses.values())
            found.append(float(tape.gradient(loss, gate.bit_bias)[2]))
        return found

    assert min(pulls()) > 0  # descent leads to code 1 from everywhere
    assert min(pulls(reachability_weight=0.05 * entropy_weight)) < 0


def test_a_converged_gate_adds_no_loss() -> None:
    gate = static_gate([[0.5, -0.5, -0.7], [-0.5, 0.6, -0.5]], [0, 0], 5, entropy_weight=1.0)
    routing = gate(np.zeros((1, 3), F), training=True)
    assert float(routing.losses["entropy"]) == 0
    assert float(routing.losses["reachability"]) == 0
    assert float(routing.diagnostics["convergence"]) == 1
    np.testing.assert_allclose(routing.weights, [0, 0.5, 0.5, 0, 0])


def test_regularisers_do_not_depend_on_the_batch_size() -> None:
    gate = bits_as_input(5, 2, entropy_weight=1.0)
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(F) * 0.2
    one, four = gate(x, training=True), gate(np.tile(x, (4, 1)), training=True)
    for name in ("entropy", "reachability"):
        np.testing.assert_allclose(one.losses[name], four.losses[name], rtol=1e-5)


def test_entropy_schedule_counts_training_steps() -> None:
    gate = static_gate([[0, 0]], [0], 4, entropy_weight=1.0, entropy_schedule=[[0, 0.0], [2, 1.0]])
    x = np.zeros((1, 3), F)
    seen = []
    for _ in range(4):
        seen.append(float(gate(x, training=True).losses["entropy"]) / np.log(4))
        gate(x)  # inference does not count
    np.testing.assert_allclose(seen, [0, 0.5, 1, 1], rtol=1e-6)


def test_the_penalty_is_a_tenth_of_the_entropys_strength_at_the_step() -> None:
    gate = static_gate(
        [[0.25, 0.25]],
        [0],
        3,
        entropy_weight=10.0,
        entropy_schedule=[[0, 0.5], [2, 4.0]],
        reachability_mass=0.5,
    )
    paid = [
        float(gate(np.zeros((1, 3), F), training=True).losses["reachability"]) for _ in range(3)
    ]
    # The entropy's strength is 5, 22.5 and 40; the reachable mass is 295/1024, see above.
    np.testing.assert_allclose(paid, np.array([1, 2.25, 4]) * (1024 / 295 - 2), rtol=1e-6)


def test_gamma_annealing_saturates_every_example() -> None:
    gate = bits_as_input(8, 2, gamma=1.0, gamma_end=1e-6, gamma_steps=3)
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(F) * 0.1
    convergence = [float(gate(x, training=True).diagnostics["convergence"]) for _ in range(4)]
    assert convergence[0] < 0.1
    assert convergence == sorted(convergence)
    assert convergence[3] == 1
    # Inference keeps the width that training ended with: at most k experts per example.
    assert np.count_nonzero(gate(x).weights, axis=-1).max() <= 2


def test_convergence_is_the_share_of_saturated_bits() -> None:
    gate = static_gate([[0.5, 0.2], [-0.8, 0.49]], [0, 0], 4)
    assert float(gate(np.zeros((1, 3), F)).diagnostics["convergence"]) == 0.5


def test_hardening_stays_on_reachable_codes() -> None:
    # E = 5, S = (.6, .2, .9), bit 0 first.  Rounding bit by bit gives (1, 0, 1): code 5, which
    # does not exist.  p[0] = .4*.8*.1 = .032, p[1] = .6*.8*.1 = .048, p[2] = .4*.2*.1 = .008,
    # p[3] = .6*.2*.1 = .012, p[4] = .4*.8*.9 = .288: expert 4.
    bits = [step_inverse(s) for s in (0.6, 0.2, 0.9)]
    gate = static_gate([bits], [0], 5)
    x = np.zeros((1, 3), F)
    reachable = np.array([0.032, 0.048, 0.008, 0.012, 0.288])
    np.testing.assert_allclose(gate(x).weights, reachable / reachable.sum(), rtol=1e-4)
    assert not gate.properties.sparse_at_inference
    gate.harden()
    assert gate.properties.sparse_at_inference
    np.testing.assert_array_equal(gate(x).weights, [0, 0, 0, 0, 1])
    # Training is not affected.
    np.testing.assert_allclose(
        gate(x, training=True).weights, reachable / reachable.sum(), rtol=1e-4
    )


@pytest.mark.parametrize(("E", "k"), [(5, 2), (6, 3), (7, 7), (16, 4)])
def test_hardened_gate_has_at_most_k_experts(E: int, k: int) -> None:
    gate = bits_as_input(E, k)
    gate.harden()
    x = np.random.default_rng(k).normal(size=(200, gate.bit_kernel.shape[0])).astype(F) * 0.3
    weights = np.array(gate(x).weights)
    assert np.count_nonzero(weights, axis=-1).max() <= k
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("E", [2, 3, 4, 5, 8, 13, 16])
def test_a_hardened_selector_takes_its_most_probable_reachable_code(E: int) -> None:
    k, m = 2, (E - 1).bit_length()
    gate = bits_as_input(E, k)
    rng = np.random.default_rng(E)
    gate.mix_kernel.assign(rng.normal(size=(k * m, k)))
    gate.harden()
    x = rng.uniform(-0.7, 0.7, size=(300, k * m)).astype(F)  # some bits saturate, most do not
    u = np.clip(x.astype(float).reshape(-1, k, m) + 0.5, 0, 1)
    set_ = u * u * (3 - 2 * u)
    p = np.ones((len(x), k, E))
    for code in range(E):
        for bit in range(m):
            p[:, :, code] *= set_[..., bit] if code >> bit & 1 else 1 - set_[..., bit]
    mix = np.exp(x.astype(float) @ np.array(gate.mix_kernel))
    expected = np.zeros((len(x), E))
    for row, chosen in enumerate(p.argmax(axis=2)):
        np.add.at(expected[row], chosen, mix[row] / mix[row].sum())
    np.testing.assert_allclose(gate(x).weights, expected, rtol=1e-5)


@pytest.mark.parametrize(("E", "k"), [(2, 1), (3, 2), (4, 4), (5, 2), (8, 3), (13, 2), (16, 1)])
def test_hardening_a_static_gate_is_the_nearest_choice_of_k_experts(E: int, k: int) -> None:
    rng = np.random.default_rng(E)
    gate = static_gate(np.zeros((k, (E - 1).bit_length())), np.zeros(k), E)
    x = np.zeros((1, 3), F)
    few = 0
    for _ in range(60):
        gate.bit_bias.assign(rng.uniform(-1.5, 1.5, gate.bit_bias.shape))  # two of three settle
        gate.mix_bias.assign(rng.normal(size=k))
        gate.hardened = False
        soft = np.array(gate(x).weights, float)
        gate.harden()
        hard = np.array(gate(x).weights, float)
        # By search: no k experts keep more of the weight.
        best = max(itertools.combinations(range(E), k), key=lambda chosen: soft[list(chosen)].sum())
        expected = np.zeros(E)
        expected[list(best)] = soft[list(best)]
        expected *= soft.sum() / (expected.sum() or 1)  # 0 where no code has an expert
        np.testing.assert_allclose(hard, expected, rtol=1e-5, atol=1e-7)
        if np.count_nonzero(soft) <= k:
            few += 1
            np.testing.assert_allclose(hard, soft, rtol=1e-6)
    assert few > 0


def test_hardening_keeps_two_experts_of_two_undecided_selectors() -> None:
    # Both selectors are undecided between experts 0 and 1, which have all the weight and meet k.
    # Each selector's likeliest expert is 0: it would get the weight of both.
    gate = static_gate([[-0.1, -0.9], [-0.1, -0.9]], [0, 0], 4)
    x = np.zeros((1, 3), F)
    soft = np.array(gate(x).weights)
    assert np.count_nonzero(soft) == 2
    assert soft[1] > 0.3
    gate.harden()
    np.testing.assert_allclose(gate(x).weights, soft, rtol=1e-6)


def test_little_reachable_mass_is_as_little_once_it_is_hardened() -> None:
    # The first selector, with nearly all of the mixture's weight, is on code 3, which E = 3 lacks.
    gate = static_gate([[0.9, 0.9], [-0.9, -0.9]], [18, 0], 3)
    x = np.zeros((1, 3), F)
    soft = np.array(gate(x).weights)
    assert 0 < soft.sum() < 0.1
    gate.harden()
    np.testing.assert_allclose(gate(x).weights, soft, rtol=1e-6)


def test_bits_start_near_a_half() -> None:
    gate = gates.make("dselect_k", 16, 4, static=True, gamma=10.0, seed=1)
    assert isinstance(gate, DSelectK)
    gate.build((None, 3))
    bits = gate.bit_bias.numpy()
    assert 0.02 < np.abs(bits).max() <= 0.1  # U(-gamma/100, gamma/100)
    assert len(set(bits)) == 16


def test_empty_batch_and_single_expert() -> None:
    gate = bits_as_input(5, 2, entropy_weight=1.0)
    routing = gate(np.zeros((0, 6), F), training=True)
    assert routing.weights.shape == (0, 5)
    assert all(float(loss) == 0 for loss in routing.losses.values())
    alone = gates.make("dselect_k", 1, static=True, entropy_weight=1.0)
    routing = alone(np.zeros((2, 3), F), training=True)
    np.testing.assert_array_equal(routing.weights, [1])
    assert float(routing.losses["entropy"]) == 0
    assert float(routing.diagnostics["convergence"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "gamma: DSelectK expected more than 0, received 0.0"),
        ({"gamma_end": -1.0}, "gamma_end: DSelectK expected None or more than 0, received -1.0"),
        ({"gamma_end": 0.1, "gamma_steps": 0}, "gamma_steps: DSelectK expected at least 1"),
        ({"entropy_weight": -1}, "entropy_weight: DSelectK expected at least 0, received -1"),
        ({"reachability_weight": -1}, "reachability_weight: DSelectK expected a finite number"),
        ({"reachability_weight": np.inf}, "reachability_weight: DSelectK expected a finite number"),
        ({"reachability_mass": 0}, "reachability_mass: DSelectK expected at least 0.5, at most 1"),
        ({"reachability_mass": 0.4}, "reachability_mass: DSelectK expected at least 0.5, at most"),
        ({"reachability_mass": 1.5}, "reachability_mass: DSelectK expected at least 0.5, at most"),
        ({"entropy_schedule": [[1]]}, "entropy_schedule: expected .step, value. pairs"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("dselect_k", 4, 2, **options)


def test_nan_logits() -> None:
    gate = bits_as_input(4, 1)
    x = keras.ops.convert_to_tensor(np.array([[np.nan, 0]], F))
    with pytest.raises(ValueError, match=r"logits of gate .*: expected finite values"):
        gate(x)
