"""Bias of MOESART's four adjustments, ||E[w] - g||_2 (MOESART, supplement S3.1), exactly.

    python benchmarks/moesart_bias.py        # seconds; prints a table, then one JSON line

The expectation is a sum over every possible draw, not an average over sampled ones; the weights
are `model.gates.moesart.adjusted_weights`.  To reach, with replacement: expected_counts is
unbiased, and on non-uniform g randomised (eq. 3) < none (i) <= counts (ii).
"""

import itertools
import json

import keras
import numpy as np

from multigate.model.gates.moesart import ADJUSTMENTS, adjusted_weights


def draws(g: np.ndarray, k: int, replacement: bool) -> tuple[np.ndarray, np.ndarray]:
    """Every outcome of drawing k experts from g: counts (N, E) and their probabilities (N,)."""
    E = len(g)
    total: dict[tuple[int, ...], float] = {}
    orders = itertools.product(range(E), repeat=k)
    for order in orders if replacement else itertools.permutations(range(E), k):
        probability, left = 1.0, 1.0
        for e in order:
            probability *= g[e] / left
            left -= 0.0 if replacement else g[e]
        counts = tuple(np.bincount(order, minlength=E))
        total[counts] = total.get(counts, 0.0) + probability
    return np.array(list(total)), np.array(list(total.values()))


def expected_weights(g: np.ndarray, k: int, replacement: bool, adjustment: str) -> np.ndarray:
    """E[w] (E,) over the draw and over z."""
    counts, probability = draws(g, k, replacement)
    rows, chosen = np.nonzero(counts)  # one row for each draw and each z that it allows
    weights = adjusted_weights(
        keras.ops.convert_to_tensor(np.tile(np.log(g), (len(rows), 1)), "float32"),
        keras.ops.convert_to_tensor(counts[rows], "float32"),
        keras.ops.convert_to_tensor(np.eye(len(g), dtype=bool)[chosen]),
        adjustment,
        k,
    )
    share = probability[rows] / (counts > 0).sum(axis=1)[rows]  # z is uniform over the drawn
    return share @ keras.ops.convert_to_numpy(weights).astype(np.float64)


def bias(g: np.ndarray, k: int, replacement: bool, adjustment: str) -> float:
    """||E[w] - g||_2."""
    return float(np.linalg.norm(expected_weights(g, k, replacement, adjustment) - g))


def shapes(E: int) -> dict[str, np.ndarray]:
    """The three kinds of g that the paper looks at."""
    decaying = np.exp(-np.arange(E, dtype=float))
    random = np.random.default_rng(0).uniform(size=E)
    return {
        "uniform": np.full(E, 1 / E),
        "random": random / random.sum(),
        "decaying": decaying / decaying.sum(),
    }


def main() -> None:
    results: dict[str, dict[str, float]] = {}
    print(f"{'g':10} {'k':>2} {'replacement':12}" + "".join(f"{a:>17}" for a in ADJUSTMENTS))
    for name, g in shapes(8).items():
        for k in (2, 4):
            for replacement in (True, False):
                row = {a: bias(g, k, replacement, a) for a in ADJUSTMENTS}
                drawn = "with" if replacement else "without"
                print(f"{name:10} {k:2} {drawn:12}" + "".join(f"{v:17.5f}" for v in row.values()))
                results[f"{name}_k{k}_{drawn}"] = {a: round(v, 6) for a, v in row.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
