"""The toy experiment of "balanced assignments" (section 3, appendix E): who solves it, and when.

    python benchmarks/balanced_toy.py     # some 15 minutes on 2 cores; --only for a part of it

y = 0.8x - 0.2 for x < 0.5, else -2x + 2; 100 points x ~ U(-1, 1), noise N(0, 0.1^2); two linear
experts, a sigmoid-linear router, Adam 0.1; every step sees all 100 points.  A run is solved when
its final training MSE, with each point at its likeliest expert, is below 0.02; printed beside it
is the expected MSE, with experts drawn from the router, which is what training minimises.  The
data need an unbalanced split (about three to one), so a capacity of half the batch gets in the
way of estimators that do not correct for it.

The paper states neither its batch size nor what its baseline averages: --batch draws that many of
the 100 points for each step, and --baseline chooses the average (`BASELINES`).

All seeds and temperatures of one estimator train side by side as leading axes of one tf.function,
through `model.gates.sampled.assignment.assign` and `model.gates.sampled.estimators`, which is what
the sampled gate runs.  To reach, by the paper: among the estimators with capacity, only skip_iw
matches `none`, and solves it for all temperatures >= 1.  `docs/results/gates.md` has what came of
it.
"""

import argparse
import json
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multigate.model.gates.sampled.assignment import assign
from multigate.model.gates.sampled.estimators import expected_loss, sampled_loss

TEMPERATURES = (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 10.0)
STRATEGIES = (
    ("none", False),
    ("skip", False),
    ("skip_iw", False),
    ("gumbel_matching", False),
    ("gumbel_matching_iw", False),
    ("gumbel_matching_sinkhorn", False),
    ("none", True),
    ("skip", True),
    ("skip_iw", True),
)
BASELINES = ("weighted", "plain", "none")
"""Moving average of the weighted loss of the rows kept, or of the plain loss of all rows drawn,
kept or not; or no average: the baseline is 0."""
SOLVED = 0.02
DECAY = 0.99


def points(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The one data set that all runs share: x and y (100,)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=100)
    y = np.where(x < 0.5, 0.8 * x - 0.2, -2 * x + 2) + rng.normal(0, 0.1, size=100)
    return x.astype("float32"), y.astype("float32")


def train(
    strategy: str,
    sinkhorn_proposal: bool,
    gating: bool,
    temperatures: tuple[float, ...],
    seeds: int,
    steps: int,
    batch: int | None = None,
    baseline_of: str = "weighted",
) -> np.ndarray:
    """Final MSE (2, temperatures, seeds): at each point's likeliest expert, and expected under p.

    The leading axis N = temperatures * seeds holds independent models.

    Args:
        strategy: see `assign`.
        sinkhorn_proposal: see `assign`.
        gating: train the router through the experts' outputs instead of by REINFORCE.
        temperatures: of the proposal.
        seeds: of each temperature.
        steps: of training.
        batch: points of a step, drawn anew for each model; None: all.
        baseline_of: one of `BASELINES`.
    """
    x, y = (np.tile(v, (len(temperatures) * seeds, 1)) for v in points())  # (N, points)
    tau = np.repeat(temperatures, seeds).astype("float32")[:, None, None]
    N = len(x)
    rng = np.random.default_rng(1)
    start = np.tile(rng.normal(size=(seeds, 6)), (len(temperatures), 1)).astype("float32")
    # Columns: slope and intercept of expert 0, of expert 1, of the router's logit.
    theta = tf.Variable(start)
    baseline = tf.Variable(tf.zeros((N,)))
    generator = keras.random.SeedGenerator(2)
    adam = keras.optimizers.Adam(0.1)
    adam.build([theta])

    def forward(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Predictions of both experts and the router's logits, each (N, B, 2)."""
        slope, intercept = theta[:, None, 0:4:2], theta[:, None, 1:4:2]
        logit = theta[:, 4:5] * x + theta[:, 5:6]  # (N, B)
        return slope * x[..., None] + intercept, tf.stack([logit, tf.zeros_like(logit)], axis=-1)

    def draw_points() -> tuple[tf.Tensor, tf.Tensor]:
        """The x and y (N, B) of one step, without replacement."""
        if batch is None:
            return tf.constant(x), tf.constant(y)
        order = keras.random.uniform(x.shape, seed=generator)
        chosen = tf.math.top_k(order, batch).indices  # (N, B)
        return tuple(tf.gather(v, chosen, batch_dims=1) for v in (x, y))

    def averaged(losses: tf.Tensor, draw: Any) -> tf.Tensor:
        """What the baseline averages, (N,)."""
        if baseline_of == "plain":
            return tf.stop_gradient(tf.reduce_mean(losses, -1))
        if baseline_of == "none":
            return tf.zeros((N,))
        return expected_loss(losses, draw.importance, draw.kept)

    # XLA cannot call the host, which solves matchings, and sorts slowly, which skipping does.
    @tf.function(jit_compile=strategy == "none")
    def run(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            some_x, some_y = draw_points()
            with tf.GradientTape() as tape:
                outputs, logits = forward(some_x)
                draw = assign(logits, tau, strategy, sinkhorn_proposal, generator)
                weights = tf.one_hot(draw.expert, 2)
                p = tf.nn.softmax(logits)
                if gating:
                    weights = weights * p
                losses = tf.square(tf.reduce_sum(weights * outputs, -1) - some_y)  # (N, B)
                log_prob = None if gating else draw.log_prob
                total = sampled_loss(
                    losses, draw.importance, draw.kept, log_prob, baseline[:, None]
                )
                if gating:  # the Switch balance loss, of weight 0.01
                    first = tf.reduce_mean(tf.one_hot(tf.argmax(logits, -1), 2), 1)
                    balance = 2 * tf.reduce_sum(first * tf.reduce_mean(p, 1), -1)
                    total += 0.01 * balance
                objective = tf.reduce_sum(total)
            adam.apply([tape.gradient(objective, theta)], [theta])
            baseline.assign(DECAY * baseline + (1 - DECAY) * averaged(losses, draw))

    run(tf.constant(steps))
    outputs, logits = forward(tf.constant(x))
    p = tf.nn.softmax(logits)
    likeliest = tf.one_hot(tf.argmax(logits, -1), 2)
    scaled = outputs * p if gating else outputs
    squares = tf.square(scaled - y[..., None])
    errors = [tf.reduce_mean(tf.reduce_sum(w * squares, -1), -1) for w in (likeliest, p)]
    return tf.stack(errors).numpy().reshape(2, len(temperatures), seeds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", help="names of the rows to run, as printed")
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument("--batch", type=int, help="points of a step; all 100 by default")
    parser.add_argument("--baseline", default="weighted", choices=BASELINES)
    options = parser.parse_args()
    temperatures = tuple(options.temperatures)
    results: dict[str, dict[str, list[int] | list[float]]] = {}
    print(f"solved runs of {options.seeds} by temperature; mean expected MSE; seconds")
    print(f"{'':36}" + "".join(f"{t:>4g}" for t in temperatures))
    for gating in (False, True):
        for strategy, balanced in STRATEGIES:
            name = ("gating" if gating else "reinforce") + f" {strategy}"
            name += " balanced" if balanced else ""
            if options.only and name not in options.only:
                continue
            began = time.perf_counter()
            error, expected = train(
                strategy,
                balanced,
                gating,
                temperatures,
                options.seeds,
                options.steps,
                options.batch,
                options.baseline,
            )
            solved = [int(n) for n in (error < SOLVED).sum(axis=1)]
            means = [round(float(v), 4) for v in expected.mean(axis=1)]
            seconds = time.perf_counter() - began
            counts = "".join(f"{n:4}" for n in solved)
            print(
                f"{name:36}{counts}   " + "".join(f"{v:8.3f}" for v in means) + f"{seconds:6.0f}",
                flush=True,
            )
            results[name] = {"solved": solved, "expected_mse": means}
    print(json.dumps({"temperatures": temperatures, "seeds": options.seeds, "runs": results}))


if __name__ == "__main__":
    main()
