"""Small versions of the papers' studies; the whole ones are in `benchmarks/`."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def test_dselect_ks_penalty_leaves_the_choice_of_experts_to_the_loss() -> None:
    # Codes 9 to 15 have no expert.  The paper's penalty pulls bits down before the experts differ;
    # where it is as strong as the loss, it puts rows together that need different experts.
    errors = study("dselect_penalty")["errors"]
    settings = {"gamma": 10.0, "entropy_weight": 0.001}
    without, _ = errors(9, 0, 150, reachability_weight=0.0, **settings)
    by_default, _ = errors(9, 0, 150, **settings)
    papers, _ = errors(9, 0, 150, reachability_weight=1.0, reachability_mass=1.0, **settings)
    assert by_default < 1.5 * without
    assert papers > 2 * without


@pytest.mark.long
def test_toy_is_solved_by_unbiased_skipping_and_not_by_cold_matching() -> None:
    toy = study("balanced_toy")
    error, _ = toy["train"]("skip_iw", False, False, (0.1, 2.0), 10, 10_000)
    solved = (error < toy["SOLVED"]).sum(axis=1)
    assert solved[0] <= 3
    assert solved[1] == 10
    matched, _ = toy["train"]("gumbel_matching_iw", False, False, (0.5, 1.0), 10, 10_000)
    assert (matched < toy["SOLVED"]).sum(axis=1).max() <= 7
