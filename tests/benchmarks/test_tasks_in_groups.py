"""Tasks in groups (DSelect-k, C.1): its index, its static gates as one layer, and its tuning."""

import importlib
import itertools
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from multigate.model import gates

GATES = [
    "Top-k",
    "DSelect-k",
    "DSelect-k, late penalty",
    "DSelect-k, annealed",
    "softmax, annealed",
    "softmax, entropy",
]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks/papers"))
    return importlib.import_module("tasks_in_groups")


def test_jaccard_by_hand(groups: Any) -> None:
    weights = np.zeros((32, 5))
    weights[:, 0] = 0.5  # all tasks choose expert 0; the first group also 1, the second also 2
    weights[:16, 1] = weights[16:, 2] = 0.5
    related, unrelated = groups.jaccard(weights)
    assert related == 1
    assert unrelated == pytest.approx(1 / 3)
    assert np.isnan(groups.jaccard(weights[:16])[1])


def test_random_jaccard_equals_enumeration(groups: Any) -> None:
    sets = [set(c) for c in itertools.combinations(range(6), 4)]
    expected = np.mean([len(a & b) / len(a | b) for a in sets for b in sets])
    assert groups.random_jaccard(6) == pytest.approx(expected)
    assert groups.random_jaccard(4) == 1


@pytest.mark.parametrize("label", GATES)
def test_one_layer_of_static_gates_equals_the_gates(groups: Any, label: str) -> None:
    options = groups.options_of(groups.draws(label)[0])
    del options["learning_rate"]
    name = groups.SPACES[label][0]
    seeds = (7, 1, 4)
    layer, kernels = groups.static_gates(name, seeds, 8, **options)
    routing = layer(np.eye(3, dtype="float32"), training=True)
    expected, penalty = [], []
    for seed in seeds:
        gate = gates.make(name, 8, 4, static=True, seed=seed, **options)
        alone = gate(np.zeros((1, 3), "float32"), training=True)
        expected.append(keras.ops.convert_to_numpy(alone.weights))
        penalty.append(sum(float(v) for v in alone.losses.values()))
    weights = keras.ops.convert_to_numpy(routing.weights)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert sum(float(v) for v in routing.losses.values()) == pytest.approx(np.mean(penalty))
    assert len({row.tobytes() for row in weights}) == 3
    assert len(kernels) == (1 if name == "topk" else 2)


@pytest.mark.parametrize("label", GATES)
def test_what_is_measured_is_what_hardened_static_gates_serve(
    groups: Any, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "STEPS", 3)
    made = []

    def remember(*arguments: Any, **options: Any) -> Any:
        made.append(original(*arguments, **options))
        return made[-1]

    original = groups.static_gates
    monkeypatch.setattr(groups, "static_gates", remember)
    options = groups.options_of(groups.draws(label)[0])
    rate = options.pop("learning_rate")
    found = groups.train(groups.SPACES[label][0], 32, [0], rate, (1,), **options)[1]
    layer = made[0][0]
    trained = {variable.name: np.array(variable) for variable in layer.trainable_variables}
    for task in (0, 17, 31):
        alone = gates.make(groups.SPACES[label][0], 8, 4, static=True, **options)
        alone.build((None, 32))
        for variable in alone.weights:
            kernel = trained.get(variable.name.replace("bias", "kernel"))
            if kernel is None and variable.name in trained:  # Top-k's only bias is `bias`
                kernel = trained["kernel"]
            if kernel is not None:
                variable.assign(kernel[task])
            elif variable.name == "step":
                variable.assign(layer.step)
        x = np.zeros((1, 32), "float32")
        np.testing.assert_allclose(found.soft_weights[0, task], alone(x).weights, rtol=1e-5)
        alone.harden()
        np.testing.assert_allclose(found.weights[0, task], alone(x).weights, rtol=1e-5)


def test_problems_are_the_same_beside_others(groups: Any) -> None:
    # The problems share nothing: what one is made of does not hang on the others.
    both, alone = groups.problem([3, 8], 32), groups.problem([8], 32)
    for together, one in zip(both, alone, strict=True):
        np.testing.assert_array_equal(together[1:], one)
    fewer = groups.problem([8], 16)  # and the first groups are the same whatever T is
    np.testing.assert_array_equal(alone[0][:, :4], fewer[0])
    np.testing.assert_array_equal(alone[2][:, :16, :4], fewer[2])
    assert alone[2][0, :16, 4:].sum() == 0
    np.testing.assert_allclose(alone[2].sum(-1), 1, rtol=1e-6)


def test_trials_are_of_the_grid_and_differ(groups: Any) -> None:
    for label in GATES:
        drawn = groups.draws(label)
        space = groups.SPACES[label][1]
        points = math.prod(len(choices) for choices in space.values())
        assert len(drawn) == points
        assert len({repr(settings) for settings in drawn}) == len(drawn)
        for settings in drawn:
            assert all(settings[key] in space[key] for key in space)
    assert len(groups.draws("Top-k")) == 3  # its whole grid


def test_the_best_trial_is_the_one_of_validation_and_old_problems_are_left_out(
    groups: Any,
) -> None:
    def row(kind: str, trial: int, seed: int | None, validation: float = 0.0) -> dict[str, Any]:
        return {
            "tasks": 16,
            "gate": "Top-k",
            "kind": kind,
            "trial": trial,
            "seed": seed,
            "validation": validation,
        }

    rows = [row("trial", 0, None, 0.2), row("trial", 1, None, 0.1), row("trial", 2, None, 0.3)]
    rows += [row("final", 0, 0), row("final", 1, 0), row("final", 1, 1)]
    assert groups.best_trial(rows, 16, "Top-k")["trial"] == 1
    assert groups.finals(rows, 16) == [rows[4:]]
    assert groups.finals(rows, 32) == []


def test_top_k_learns_a_group_and_selects_four(
    groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "STEPS", 40)
    found = groups.train("topk", 16, [0], 0.01, (1, 3))
    assert found[3].validation[0] < found[1].validation[0] < 10
    assert found[3].test[0] == pytest.approx(found[3].validation[0], rel=0.1)
    assert ((found[3].weights > 0).sum(-1) == 4).all()


@pytest.mark.slow
def test_dselect_k_groups_tasks_better_than_its_annealed_ablation(
    groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "STEPS", 100)
    monkeypatch.setattr(groups, "EPOCHS", (20,))
    error, related, unrelated = {}, {}, {}
    for label, settings in {
        "DSelect-k, late penalty": {"gamma": 1.0, "entropy_weight": 0.1},
        "softmax, annealed": {"temperature": 1.0, "temperature_end": 1e-16},
    }.items():
        name, space = groups.SPACES[label]
        if "entropy_schedule" in space:
            settings["entropy_schedule"] = space["entropy_schedule"][0]
        found = groups.train(name, 32, [0], 0.03, (20,), **groups.options_of(settings))[20]
        assert (found.weights > 0).sum(-1).max() <= 4
        error[label] = found.test.mean()
        related[label], unrelated[label] = groups.jaccard(found.weights[0])
    chance = groups.random_jaccard(8)
    ours, ablation = error
    assert unrelated[ours] < 0.2 * chance
    assert related[ours] > 1.5 * chance
    assert related[ablation] < related[ours]
    assert error[ours] < error[ablation]
