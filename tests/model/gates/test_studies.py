"""Small versions of the papers' studies; the whole ones are in `benchmarks/`."""

import itertools
import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from multigate.model import gates

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def study(name: str) -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / f"{name}.py"))


@pytest.mark.slow
def test_dselect_k_recovers_the_true_experts_where_top_k_does_not() -> None:
    recovery = study("dselect_recovery")
    data = recovery["problem"](0)
    found = {}
    for name in ("topk", "dselect_k"):
        weights, _ = recovery["train"](name, data, 0, 2000, 0.1, **recovery["settings"](name, 2000))
        assert np.count_nonzero(weights[-1]) == 4
        found[name] = recovery["found"](weights[-1])
    assert found["dselect_k"] == 4
    assert found["topk"] < 4


@pytest.mark.long
def test_toy_is_solved_by_unbiased_skipping_and_not_by_cold_matching() -> None:
    toy = study("balanced_toy")
    error, _ = toy["train"]("skip_iw", False, False, (0.1, 2.0), 10, 10_000)
    solved = (error < toy["SOLVED"]).sum(axis=1)
    assert solved[0] <= 3
    assert solved[1] == 10
    matched, _ = toy["train"]("gumbel_matching_iw", False, False, (0.5, 1.0), 10, 10_000)
    assert (matched < toy["SOLVED"]).sum(axis=1).max() <= 7


SYNTHETIC = study("dselect_synthetic")


def test_jaccard_by_hand() -> None:
    weights = np.zeros((32, 5))
    weights[:, 0] = 0.5  # all tasks choose expert 0; the first group also 1, the second also 2
    weights[:16, 1] = weights[16:, 2] = 0.5
    related, unrelated = SYNTHETIC["jaccard"](weights)
    assert related == 1
    assert unrelated == pytest.approx(1 / 3)
    assert np.isnan(SYNTHETIC["jaccard"](weights[:16])[1])


def test_random_jaccard_equals_enumeration() -> None:
    sets = [set(c) for c in itertools.combinations(range(6), 4)]
    expected = np.mean([len(a & b) / len(a | b) for a in sets for b in sets])
    assert SYNTHETIC["random_jaccard"](6) == pytest.approx(expected)
    assert SYNTHETIC["random_jaccard"](4) == 1


@pytest.mark.parametrize("label", ["Top-k", "DSelect-k", "softmax, annealed", "softmax, entropy"])
def test_one_layer_of_static_gates_equals_the_gates(label: str) -> None:
    name, options = SYNTHETIC["settings"](100)[label]
    layer, kernels = SYNTHETIC["static_gates"](name, 3, 8, **options)
    routing = layer(np.eye(3, dtype="float32"), training=True)
    expected, penalty = [], []
    for i in range(3):
        gate = gates.make(name, 8, 4, static=True, seed=i, **options)
        alone = gate(np.zeros((1, 3), "float32"), training=True)
        expected.append(keras.ops.convert_to_numpy(alone.weights))
        penalty.append(sum(float(v) for v in alone.losses.values()))
    weights = keras.ops.convert_to_numpy(routing.weights)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert sum(float(v) for v in routing.losses.values()) == pytest.approx(np.mean(penalty))
    assert len({row.tobytes() for row in weights}) == 3
    assert len(kernels) == (1 if name == "topk" else 2)


@pytest.mark.slow
def test_dselect_k_groups_tasks_better_than_its_annealed_ablation() -> None:
    error, related, unrelated = {}, {}, {}
    for label in ("DSelect-k", "softmax, annealed"):
        name, options = SYNTHETIC["settings"](2000)[label]
        result = SYNTHETIC["train"](name, 32, 1, 2000, 0.03, **options)
        assert (result.weights > 0).sum(-1).max() <= 4
        error[label] = result.test.mean()
        related[label], unrelated[label] = SYNTHETIC["jaccard"](result.weights[0])
    chance = SYNTHETIC["random_jaccard"](8)
    assert unrelated["DSelect-k"] < 0.2 * chance
    assert related["DSelect-k"] > 1.5 * chance
    assert related["softmax, annealed"] < related["DSelect-k"]
    assert error["DSelect-k"] < error["softmax, annealed"]
