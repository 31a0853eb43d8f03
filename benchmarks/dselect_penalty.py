"""DSelect-k's penalty on codes without an expert (B.2): what its strength does to the fit.

    python benchmarks/dselect_penalty.py    # some ten minutes on one core

Data: rows of 32 standard normal features in E groups, each with a linear function of its own.
Model: E linear experts and a gate for each row, k = 2, trained on all rows at once with Adam.
E = 5 and 9: 3 of 8 and 7 of 16 codes have no expert.  The error is that of the training rows,
before and after each selector is rounded to its likeliest expert.
"""

import argparse
from itertools import product
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multigate.model import gates
from multigate.model.moe.mixture import Mixture
from multigate.model.ranker.loss import regularisation

ROWS, FEATURES = 512, 32
SETTINGS = ((10.0, 0.001), (1.0, 0.1), (1.0, 1.0))
"""gamma and lambda."""
MASSES = (1.0, None)
"""M, the mass on codes with an expert that is enough: the paper's, and our default."""
PENALTIES = (0.0, 0.01, 0.1, 1.0)
"""xi; the last one is the authors'."""


def errors(E: int, seed: int, steps: int, **options: Any) -> tuple[float, float]:
    """Mean squared error after training, and once the gate is rounded.

    Args:
        E: experts, and groups of rows.
        seed: of the rows, the weights and the gate.
        steps: of Adam.
        options: of the gate.
    """
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, FEATURES))
    group = (x @ rng.normal(size=(FEATURES, E))).argmax(axis=1)
    functions = rng.normal(size=(E, FEATURES))
    target = tf.constant((x * functions[group]).sum(axis=1) / np.sqrt(FEATURES), tf.float32)
    rows = tf.constant(x, tf.float32)
    gate = gates.make("dselect_k", E, 2, seed=seed, **options)
    mixture = Mixture([keras.layers.Dense(1) for _ in range(E)], [gate])
    mixture.build(rows.shape)
    optimizer = keras.optimizers.Adam(0.01)

    def error(outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(outputs[:, 0] - target))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            mixed = mixture(rows, training=True)
            loss = error(mixed.outputs[0]) + regularisation(mixed.routings)
        variables = mixture.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for _ in range(steps):
        step()
    soft = float(error(mixture(rows).outputs[0]))
    mixture.harden()
    return soft, float(error(mixture(rows).outputs[0]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--seeds", type=int, default=3)
    options = arguments.parse_args()
    if options.seeds < 1:
        arguments.error(f"--seeds: expected at least 1, received {options.seeds}")
    heads = " | ".join(f"ξ = {penalty:g}" for penalty in PENALTIES)
    print(f"| experts | γ | λ | M | {heads} |")
    print(f"| --- | --- | --- | --- |{' --- |' * len(PENALTIES)}")
    for E, (gamma, entropy), mass in product((5, 9), SETTINGS, MASSES):
        cells = []
        for penalty in PENALTIES:
            gate = {
                "gamma": gamma,
                "entropy_weight": entropy,
                "reachability_weight": penalty,
                "reachability_mass": mass,
            }
            runs = [errors(E, seed, options.steps, **gate) for seed in range(options.seeds)]
            soft, rounded = np.mean(runs, axis=0)
            cells.append(f"{soft:.3f}, {rounded:.2f}")
        enough = "default" if mass is None else f"{mass:g}"
        print(f"| {E} | {gamma:g} | {entropy:g} | {enough} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
