"""What validation measures: losses and qualities of every task, and their mean."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import d2_pinball_score, explained_variance_score, roc_auc_score

from multigate.configs.statistics import Statistics
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Examples, read_split, targets
from multigate.model.data.feeds import MemoryFeed
from multigate.model.ranker.make_heads import make_heads
from multigate.model.training.validation import (
    auc,
    explained_variance,
    pinball_skill,
    validate,
)


def test_auc_is_exact_with_ties_and_weights() -> None:
    rng = np.random.default_rng(0)
    z = rng.integers(0, 8, 400).astype(float)  # every score is tied
    y = (rng.random(400) < 0.2 + 0.08 * z).astype(float)
    w = rng.integers(0, 3, 400).astype(float)
    assert auc(z, y, w).value == pytest.approx(roc_auc_score(y, z, sample_weight=w))
    assert auc(z, y, np.ones(400)).value == pytest.approx(roc_auc_score(y, z))


def test_a_weight_of_two_is_a_row_twice() -> None:
    rng = np.random.default_rng(1)
    z, y = rng.normal(size=200), (rng.random(200) < 0.4).astype(float)
    y_number = z + rng.normal(size=200)
    w = rng.integers(0, 3, 200)
    twice = np.repeat(np.arange(200), w)
    measures = (
        (auc, y),
        (explained_variance, y_number),
        (lambda *of: pinball_skill(*of, 0.8), y_number),
    )
    for measure, label in measures:
        weighted = measure(z, label, w.astype(float))
        repeated = measure(z[twice], label[twice], np.ones(len(twice)))
        assert weighted.value == pytest.approx(repeated.value)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_pinball_skill_is_scikit_learns(q: float) -> None:
    rng = np.random.default_rng(6)
    z, w = rng.normal(size=301), rng.integers(1, 4, 301).astype(float)
    y = z + rng.normal(0, 0.5, 301)
    found = pinball_skill(z, y, np.ones(301), q)
    assert found.value == pytest.approx(d2_pinball_score(y, z, alpha=q))
    weighted = pinball_skill(z, y, w, q)
    expected = d2_pinball_score(y, z, alpha=q, sample_weight=w)
    assert weighted.value == pytest.approx(expected, abs=1e-3)  # its constant may be the next label


def test_pinball_skill_by_hand() -> None:
    """Labels 1 to 10 and q of 0.8: the constant 8 costs 0.2 * 28 + 0.8 * 3 = 8 in all."""
    y, w = np.arange(1.0, 11.0), np.ones(10)
    assert pinball_skill(y, y, w, 0.8).value == 1
    assert pinball_skill(np.full(10, 8.0), y, w, 0.8).value == 0
    # An offset counts, because nothing calibrates it: 10 rows that are 1 too high cost 0.2 each.
    assert pinball_skill(y + 1, y, w, 0.8).value == pytest.approx(1 - 2 / 8)
    assert pinball_skill(y - 1, y, w, 0.8).value == pytest.approx(0)


def test_of_one_mean_and_several_spreads_the_quantile_has_the_quality() -> None:
    """Explained variance would rather have no quantile at all."""
    rng = np.random.default_rng(7)
    spread = rng.choice([0.2, 1.0, 4.0], 1000)
    y = 10 + spread * rng.normal(size=1000)
    quantile, mean, w = 10 + 1.2816 * spread, np.full(1000, 10.0), np.ones(1000)
    of_quantile, of_mean = (pinball_skill(z, y, w, 0.9) for z in (quantile, mean))
    assert of_quantile.value > 0.2
    assert of_mean.value < 0
    assert explained_variance(quantile, y, w).value < explained_variance(mean, y, w).value


def test_explained_variance_does_not_see_an_offset() -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(size=300)
    y = z + rng.normal(0, 0.5, 300)
    found = explained_variance(z + 7, y, np.ones(300))
    assert found.value == pytest.approx(explained_variance_score(y, z))
    assert found.value == pytest.approx(0.8, abs=0.05)  # 1 - 0.25 / 1.25


def test_standard_errors_are_those_of_repeated_samples() -> None:
    rng = np.random.default_rng(3)
    drawn: dict[str, list[tuple[float, float]]] = {"auc": [], "variance": [], "pinball": []}
    for _ in range(400):
        y = (rng.random(300) < 0.15).astype(float)
        found = auc(rng.normal(size=300) + 0.8 * y, y, np.ones(300))
        assert found.value is not None
        assert found.error is not None
        drawn["auc"].append((found.value, found.error))
        z = rng.normal(size=300)
        found = explained_variance(z, z + rng.normal(0, 1, 300), np.ones(300))
        assert found.value is not None
        assert found.error is not None
        drawn["variance"].append((found.value, found.error))
        found = pinball_skill(z + 1, z + rng.normal(0, 1, 300), np.ones(300), 0.8)
        assert found.value is not None
        assert found.error is not None
        drawn["pinball"].append((found.value, found.error))
    for pairs in drawn.values():
        values, errors = np.array(pairs).T
        assert errors.mean() == pytest.approx(values.std(), rel=0.15)


@pytest.mark.parametrize(("positives", "measured"), [(9, False), (10, True), (191, False)])
def test_auc_needs_ten_of_each_class(positives: int, measured: bool) -> None:
    y = (np.arange(200) < positives).astype(float)
    found = auc(np.linspace(1, 0, 200), y, np.ones(200))
    assert (found.value == 1.0) == measured
    assert (found.error is None) != measured
    # Rows without weight do not count.
    assert auc(np.linspace(1, 0, 200), y, y).value is None


def test_labels_that_are_all_alike_explain_nothing() -> None:
    assert explained_variance(np.arange(50.0), np.full(50, 3.0), np.ones(50)).value is None
    assert explained_variance(np.arange(9.0), np.arange(9.0), np.ones(9)).value is None
    assert pinball_skill(np.arange(50.0), np.full(50, 3.0), np.ones(50), 0.5).value is None
    assert pinball_skill(np.arange(9.0), np.arange(9.0), np.ones(9), 0.5).value is None


def given(tiny: Any, contract: Any, outputs: dict[str, Any], batch: int = 32) -> Any:
    """Validation of outputs (N,) by task that are given, in batches."""
    encoder = Encoder.read(tiny.examples)
    rows = read_split(tiny.examples, "validation", encoder)
    feed = MemoryFeed(rows, contract, encoder.statistics, batch)
    seen = 0

    def forward(encoded: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        nonlocal seen
        count = len(next(iter(encoded.values())))
        part = {name: z[seen : seen + count] for name, z in outputs.items()}
        seen += count
        return part, {}

    heads = make_heads(contract, encoder.statistics)
    return validate(forward, feed, contract, heads), rows, encoder.statistics


def on_scale(rows: Examples, contract: Any, statistics: Statistics) -> np.ndarray:
    return np.asarray(targets(rows, contract, statistics))


def test_quality_is_the_mean_over_the_tasks_that_the_loss_weighs(tiny: Any) -> None:
    contract = tiny.config.contract
    rng = np.random.default_rng(4)
    outputs = {name: rng.normal(size=100).astype(np.float32) for name in contract.tasks}
    found, rows, statistics = given(tiny, contract, outputs)
    y = on_scale(rows, contract, statistics)
    known = ~np.isnan(y)
    expected = {
        "click": roc_auc_score(y[:, 0], outputs["click"]),
        "dwell": explained_variance_score(y[known[:, 1], 1], outputs["dwell"][known[:, 1]]),
        "like": roc_auc_score(y[known[:, 2], 2], outputs["like"][known[:, 2]]),
    }
    for name, value in expected.items():
        assert found.qualities[name].value == pytest.approx(value, rel=1e-5)
    assert found.quality == pytest.approx(
        np.mean([max(value, -1) for value in expected.values()]), rel=1e-5
    )
    click, z = y[:, 0], outputs["click"]
    p = 1 / (1 + np.exp(-z.astype(float)))
    log_loss = -np.mean(click * np.log(p) + (1 - click) * np.log(1 - p))
    assert found.losses["click"] == pytest.approx(log_loss)
    square = np.mean((y[known[:, 1], 1] - outputs["dwell"][known[:, 1]]) ** 2)
    assert found.losses["dwell"] == pytest.approx(square)
    # A task without a loss weight is measured, and takes no part in the mean.
    alone = contract.model_copy(
        update={
            "tasks": {
                name: task.model_copy(update={"weight": float(name == "like")})
                for name, task in contract.tasks.items()
            }
        }
    )
    found, _, _ = given(tiny, alone, outputs, batch=100)
    assert found.quality == pytest.approx(expected["like"])
    assert found.qualities["click"].value == pytest.approx(expected["click"])


def test_one_task_far_off_does_not_decide_alone(tiny: Any) -> None:
    contract = tiny.config.contract
    rng = np.random.default_rng(5)
    outputs = {name: 100 * rng.normal(size=100).astype(np.float32) for name in contract.tasks}
    found, _, _ = given(tiny, contract, outputs)
    dwell = found.qualities["dwell"].value
    assert dwell is not None
    assert dwell < -100
    areas = [found.qualities[name].value for name in ("click", "like")]
    assert found.quality == pytest.approx((sum(areas) - 1) / 3)


def test_the_quality_of_a_quantile_is_its_pinball_skill_on_the_scale_of_training(tiny: Any) -> None:
    contract = tiny.config.contract
    dwell = contract.tasks["dwell"]
    dwell = type(dwell).model_validate(
        dwell.model_dump() | {"loss": {"kind": "quantile", "q": 0.7}}
    )
    changed = contract.model_copy(update={"tasks": contract.tasks | {"dwell": dwell}})
    rng = np.random.default_rng(8)
    outputs = {name: rng.normal(size=100).astype(np.float32) for name in contract.tasks}
    found, rows, statistics = given(tiny, changed, outputs)
    y = on_scale(rows, contract, statistics)[:, 1]
    known = ~np.isnan(y)
    expected = d2_pinball_score(y[known], outputs["dwell"][known], alpha=0.7)
    assert found.qualities["dwell"].value == pytest.approx(expected, abs=0.01)
    far = outputs | {"dwell": 100 * outputs["dwell"]}
    found, _, _ = given(tiny, changed, far)
    areas = [found.qualities[name].value for name in ("click", "like")]
    assert found.quality == pytest.approx((sum(areas) - 1) / 3)
