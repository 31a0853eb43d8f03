"""Calibration of probabilities: what the curves compute, what they are fitted to, and export."""

import json
import re
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.configs.sections.labels import DwellLabel
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.raw import raw_values
from multigate.model.evaluation import calibration
from multigate.model.evaluation.calibration import Curve, Fitted
from multigate.model.evaluation.measures import tasks
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.export.export import export
from multigate.model.ranker import scores

STATISTICS = Statistics(
    features={},
    tasks={
        "click": TaskStatistics(count=400, masked=0, mean=0.4, std=0.49),
        "dwell": TaskStatistics(count=400, masked=0, mean=2.9, std=1.1),
        "like": TaskStatistics(count=400, masked=0, mean=0.3, std=0.46),
    },
    rows={"train": 400, "validation": 400, "test": 400},
)


def test_a_curve_goes_through_its_knots_and_on_with_its_slope() -> None:
    curve = Curve(np.float32([-1, 0, 2]), np.float32([-3, -2, 2]), 1.0)
    z = np.float32([-2, -1, -0.5, 0, 1, 2, 4])
    np.testing.assert_allclose(curve(tf.constant(z)), [-4, -3, -2.5, -2, 0, 2, 4], atol=1e-6)
    line = Curve(np.float32([0]), np.float32([0.5]), 2.0)
    np.testing.assert_allclose(line(tf.constant(z)), 2 * z + 0.5)


@pytest.mark.parametrize("method", ["platt", "isotonic", "auto"])
def test_amounts_are_calibrated_by_a_factor_and_stay_above_nothing(case, method) -> None:
    """Too high threefold, and for some far more: a line of free height would go below 0."""
    values = case.config().model_dump(mode="json")
    dwell = values["contract"]["tasks"]["dwell"]
    dwell |= {"transform": "identity", "loss": {"kind": "zero_inflated"}}
    contract = parse(Config, values, "case").contract
    task, of_task = contract.tasks["dwell"], STATISTICS.tasks["dwell"]
    rng = np.random.default_rng(0)
    expected = np.exp(rng.normal(-2, 1, 20_000))
    labels = np.full((20_000, 3), np.nan, np.float32)
    labels[:, 1] = expected * rng.exponential(1, 20_000)
    amounts = 3 * expected + np.where(rng.random(20_000) < 0.01, 5.0, 0.0)
    z = (amounts - of_task.mean) / of_task.std
    logits = dict.fromkeys(contract.tasks, z)
    fitted = calibration.fit(contract, STATISTICS, method, logits, labels)
    assert fitted.methods == {"dwell": "platt"}

    def score(z: np.ndarray) -> np.ndarray:
        found = scores.score(task, of_task, fitted.curves["dwell"](z.astype(np.float32)))
        return np.asarray(found, np.float64)

    assert score(z).mean() == pytest.approx(np.nanmean(labels[:, 1]), rel=0.01)
    np.testing.assert_allclose(
        score(2 * (z + of_task.mean / of_task.std) - of_task.mean / of_task.std),
        2 * score(z),
        rtol=1e-3,
    )
    low = (np.array([0.0, 1e-9, 1e-3]) - of_task.mean) / of_task.std
    assert (score(low) >= 0).all()


def test_no_score_is_above_the_cap_of_a_censored_label(case) -> None:
    values = case.config().model_dump(mode="json")
    values["contract"]["tasks"]["dwell"] |= {
        "loss": {"kind": "censored"},
        "transform": "identity",
        "clip": [0, 60],
    }
    task = parse(Config, values, "case").contract.tasks["dwell"]
    assert task.limits == (0.0, 60.0)
    capped = task.model_copy(
        update={"clip": None, "label": DwellLabel(rule="dwell", cap=timedelta(seconds=60))}
    )
    assert capped.limits == (-np.inf, 60.0)
    logits = np.float32([0.0, 1e3])
    assert np.asarray(scores.score(capped, STATISTICS.tasks["dwell"], logits))[1] == 60.0
    assert capped.model_copy(update={"loss": None}).limits is None


@pytest.mark.parametrize("method", ["platt", "isotonic"])
@pytest.mark.parametrize("task", ["click", "dwell"])
def test_a_weighted_tenth_of_the_rows_has_the_curve_of_all(case, method, task) -> None:
    """A tenth of the low labels with the weight 10 stands for them all; unweighted it does not."""
    contract = case.config().contract
    t = list(contract.tasks).index(task)
    rng = np.random.default_rng(0)
    z = rng.normal(-2, 1, 200_000)
    logits = dict.fromkeys(contract.tasks, z)
    labels = np.full((len(z), 3), np.nan, np.float32)
    if task == "click":
        labels[:, t] = rng.random(len(z)) < calibration.sigmoid(0.5 * z - 0.5)
        low = labels[:, t] == 0
    else:
        labels[:, t] = np.expm1(np.clip(2.9 + 1.1 * (0.5 * z + rng.normal(0, 1, len(z))), 0, 9))
        low = labels[:, t] < np.median(labels[:, t])
    kept = ~low | (rng.random(len(z)) < 0.1)
    weights = np.where(low, 10.0, 1.0).astype(np.float32)[kept]
    of_kept = {name: values[kept] for name, values in logits.items()}

    def curve(logits: Any, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        fitted = calibration.fit(contract, STATISTICS, method, logits, labels, None, weights)
        return np.asarray(fitted.curves[task](np.linspace(-3.5, -0.5, 7)))

    of_all = curve(logits, labels)
    assert np.abs(curve(of_kept, labels[kept], weights) - of_all).max() < 0.15
    assert np.abs(curve(of_kept, labels[kept]) - of_all).min() > 0.3
    # Nor do rows of weight 0 count, nor the unit of the weights.
    nothing = np.where(kept, np.where(low, 1000.0, 100.0), 0.0).astype(np.float32)
    np.testing.assert_allclose(
        curve(logits, labels, nothing), curve(of_kept, labels[kept], weights), atol=0.01
    )
    whole = calibration.fit(contract, STATISTICS, method, logits, labels)
    all_rows, weighted = (
        calibration.measure(contract, STATISTICS, whole, *given)[task]
        for given in ((logits, labels), (of_kept, labels[kept], weights))
    )
    for when in ("before", "after"):
        for name, value in all_rows[when].items():
            assert weighted[when][name] == pytest.approx(value, rel=0.05, abs=0.005), (when, name)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_known_distortion_is_undone(case, method) -> None:
    contract = case.config().contract
    rng = np.random.default_rng(0)
    true = rng.normal(-1, 1, 60_000)
    labels = np.full((60_000, 3), np.nan, np.float32)
    labels[:, 0] = rng.random(60_000) < calibration.sigmoid(true)
    labels[rng.random(60_000) < 0.1, 0] = np.nan
    shown = 2.5 * true + 1
    logits = {"click": shown, "dwell": shown, "like": shown}
    fitted = calibration.fit(contract, STATISTICS, method, logits, labels)
    assert fitted.methods == {"click": method}
    assert fitted.left.keys() == {"dwell", "like"}
    assert fitted.left["like"] == "its 0 validation labels are all alike"
    inside = np.abs(true + 1) < 2
    restored = np.asarray(fitted.curves["click"](shown))[inside]
    assert np.abs(restored - true[inside]).max() < (0.1 if method == "platt" else 0.5)
    found = calibration.measure(contract, STATISTICS, fitted, logits, labels)["click"]
    assert found["rows"] == (~np.isnan(labels[:, 0])).sum()
    assert found["before"]["ece"] > 0.05
    assert found["after"]["ece"] < 0.01
    assert found["after"]["log_loss"] < found["before"]["log_loss"]


@pytest.mark.parametrize("rate", [0.1, 1e-3])
def test_platts_line_has_the_largest_likelihood_however_rare_the_label_is(case, rate) -> None:
    """There the residuals add up to 0, and so do those times the logit."""
    contract = case.config().contract
    rng = np.random.default_rng(0)
    z = rng.normal(np.log(rate), 1, 200_000).astype(np.float32)
    labels = np.full((len(z), len(contract.tasks)), np.nan)
    labels[:, 0] = rng.random(len(z)) < calibration.sigmoid(0.7 * z + 0.3 * np.log(rate) + 0.5)
    logits = dict.fromkeys(contract.tasks, z)
    curve = calibration.fit(contract, STATISTICS, "platt", logits, labels).curves["click"]
    residuals = labels[:, 0] - calibration.sigmoid(curve.slope * z + curve.y[0])
    assert abs(residuals.sum()) < 1e-3 * labels[:, 0].sum()
    assert abs((residuals * (z - z.mean())).sum()) < 1e-3 * labels[:, 0].sum()


def test_no_line_is_so_steep_that_rounding_shows(case) -> None:
    """Of logits that hardly differ, and of classes that a small gap parts."""
    contract = case.config().contract
    rng = np.random.default_rng(4)
    labels = np.full((600, len(contract.tasks)), np.nan)
    labels[:, 0] = rng.random(600) < 0.45
    noise = 1e-3 * (rng.normal(size=600) + labels[:, 0]) - 1
    gap = np.where(labels[:, 0] == 1, 1e-3, -1e-3) + 1e-2 * (labels[:, 0] - rng.random(600))
    for z in (noise, gap):
        logits = dict.fromkeys(contract.tasks, z.astype(np.float32))
        curve = calibration.fit(contract, STATISTICS, "platt", logits, labels).curves["click"]
        assert 0 < curve.slope < 150
        mean = calibration.sigmoid(curve.slope * z + curve.y[0]).mean()
        assert mean == pytest.approx(labels[:, 0].mean(), abs=1e-3)


@pytest.mark.parametrize("rows", [2_000, 20_000])
def test_the_mean_of_a_rare_label_is_right_behind_a_rising_curve(case, rows) -> None:
    contract = case.config().contract
    rng = np.random.default_rng(0)
    z = rng.normal(-4, 1, rows).astype(np.float32)
    labels = np.full((rows, len(contract.tasks)), np.nan)
    labels[:, 0] = rng.random(rows) < calibration.sigmoid(z + np.where(z > -4, 0.6, -0.5) * (z + 4))
    logits = dict.fromkeys(contract.tasks, z)
    curve = calibration.fit(contract, STATISTICS, "isotonic", logits, labels).curves["click"]
    p = calibration.sigmoid(np.asarray(curve(z), np.float64))
    assert p.mean() == pytest.approx(labels[:, 0].mean(), rel=0.03)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_scores_that_fall_with_the_label_are_left_as_they_are(case, method) -> None:
    z = np.linspace(-2, 2, 1000)
    labels = np.full((1000, 3), np.nan, np.float32)
    labels[:, 0] = z < 0
    labels[:, 1] = np.expm1(np.linspace(4, 1, 1000))
    logits = dict.fromkeys(("click", "dwell", "like"), z)
    fitted = calibration.fit(case.config().contract, STATISTICS, method, logits, labels)
    assert fitted.curves == fitted.methods == {}
    for task in ("click", "dwell"):
        assert fitted.left[task] == "its scores do not rise with the label on the validation split"


def regression(rng: np.random.Generator, rows: int, distort: Any) -> tuple[Any, Any, np.ndarray]:
    """Logits that estimate dwell through a distortion, its labels, and the undistorted logits."""
    true = rng.normal(0, 0.8, rows)
    of_task = STATISTICS.tasks["dwell"]
    on_scale = (true + rng.normal(0, 0.5, rows)) * of_task.std + of_task.mean
    labels = np.full((rows, 3), np.nan, np.float32)
    labels[:, 1] = np.maximum(np.expm1(on_scale), 0)
    return dict.fromkeys(("click", "dwell", "like"), distort(true)), labels, true


@pytest.mark.parametrize(
    ("method", "distort", "used", "tolerance"),
    [
        ("platt", lambda z: 2 * z + 1, "platt", 0.05),
        ("auto", lambda z: 2 * z + 1, "platt", 0.05),
        ("isotonic", np.sinh, "isotonic", 0.3),
        ("auto", lambda z: np.where(z > 0, 3 * z, z / 3), "isotonic", 0.3),
    ],
)
def test_regression_is_calibrated_on_the_scale_of_training(
    case: Any, method: Any, distort: Any, used: str, tolerance: float
) -> None:
    contract = case.config().contract
    logits, labels, true = regression(np.random.default_rng(1), 20_000, distort)
    fitted = calibration.fit(contract, STATISTICS, method, logits, labels)
    assert fitted.methods == {"dwell": used}
    inside = np.abs(true) < 1.2
    restored = np.asarray(fitted.curves["dwell"](logits["dwell"]))
    assert np.abs(restored - true)[inside].max() < tolerance
    found = calibration.measure(contract, STATISTICS, fitted, logits, labels)["dwell"]
    # The noise's share of the deviation: sqrt(0.25 / (0.64 + 0.25)).
    assert found["after"]["relative_rmse"] == pytest.approx(0.53, abs=0.02)
    assert found["after"]["relative_rmse"] < found["before"]["relative_rmse"]
    assert found["rows"] == 20_000
    # Outside tensors the same curve: what was checked is what is served.
    np.testing.assert_allclose(
        calibration._evaluate(fitted.curves["dwell"], logits["dwell"]), restored, atol=1e-4
    )


@pytest.mark.parametrize("rows", [12, 60])
def test_a_curve_that_does_not_help_on_other_rows_is_left_out(case: Any, rows: int) -> None:
    """Fifty bins learn sixty labels by heart; twelve are too few to tell."""
    logits, labels, _ = regression(np.random.default_rng(5), rows, lambda z: z)
    fitted = calibration.fit(case.config().contract, STATISTICS, "isotonic", logits, labels)
    assert fitted.curves == {}
    message = {
        12: "its 12 validation labels are too few to fit a curve and to check it",
        60: r"its squared error on held-out halves of the validation split would go from 0\.\d{4} "
        r"to 0\.\d{4}",
    }[rows]
    assert re.fullmatch(message, fitted.left["dwell"])


def test_a_curve_that_fits_a_passing_rate_is_left_out(case: Any) -> None:
    """The rate doubles from the first half to the second: either half's offset is wrong later."""
    rng = np.random.default_rng(6)
    z = rng.normal(-2, 1, 20_000)
    times = np.arange(20_000)
    drift = np.where(times < 10_000, -0.6, 0.6)
    labels = np.full((20_000, 3), np.nan, np.float32)
    labels[:, 0] = rng.random(20_000) < calibration.sigmoid(z + drift + 0.1)
    logits = dict.fromkeys(("click", "dwell", "like"), z)
    contract = case.config().contract
    shuffled = rng.permutation(20_000)
    by_row = {task: values[shuffled] for task, values in logits.items()}
    given = (contract, STATISTICS, "platt", by_row, labels[shuffled])
    assert "click" in calibration.fit(*given).curves
    assert "on held-out halves" in calibration.fit(*given, times[shuffled]).left["click"]
    # Times that do not part the rows say nothing.
    assert "click" in calibration.fit(*given, np.zeros(20_000)).curves


def test_labels_are_clipped_when_a_curve_is_judged(case: Any) -> None:
    """Logits beyond the clip serve its limit, so that moving them there gains nothing."""
    task = (
        case.config()
        .contract.tasks["dwell"]
        .model_copy(update={"clip": (0.0, 10.0), "transform": "identity"})
    )
    statistics = STATISTICS.tasks["dwell"].model_copy(update={"mean": 0.0, "std": 1.0})
    y = np.repeat([0.0, 10.0], 50)
    z = np.where(y > 5, 30.0, -30.0)
    losses = calibration._row_losses(task, statistics, y)(z)
    np.testing.assert_allclose(losses, 0)


def test_a_calibrated_constant_has_no_calibration_error(case) -> None:
    """The report's and the export's calibration error are one: rows of one score stay together."""
    contract = case.config().contract
    labels = np.full((1000, 3), np.nan, np.float32)
    labels[:, 0] = np.arange(1000) < 200  # sorted, as a log by user may be
    logits = {"click": np.full(1000, np.log(0.2 / 0.8))}
    same = Fitted({"click": Curve(np.float32([0]), np.float32([0]), 1.0)}, {"click": "platt"}, {})
    found = calibration.measure(contract, STATISTICS, same, logits, labels)["click"]
    assert found["before"]["ece"] == pytest.approx(0, abs=1e-6)
    report = tasks.calibration_error(
        Resamples(np.arange(1000), 10), labels[:, 0], np.full(1000, 0.2)
    )
    assert found["before"]["ece"] == pytest.approx(report["value"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_an_export_is_calibrated_and_says_so(case, tmp_path, method) -> None:
    checkpoint = case.checkpoint(seed=9, export={"calibration": method})
    version = export(checkpoint, case.examples, tmp_path / method)
    found = json.loads((version / "assets.extra" / "metrics.json").read_text())["calibration"]
    assert found["method"] == method
    assert {"click", "dwell"} <= found["tasks"].keys()
    left = found["left_as_they_are"].keys()  # random weights may rank a task backwards
    assert found["tasks"].keys() | left == {"click", "dwell", "like"}
    card = (version / "assets.extra" / "README.md").read_text()
    loaded = checkpoints.load(checkpoint)
    table = pq.read_table(case.examples / "test")
    names = [name for name, _ in loaded.encoder.contract.of_side("user", "item", "context")]
    raw = raw_values(loaded.encoder.contract, table, names)
    scores = tf.saved_model.load(str(version)).signatures["serving_default"](**raw)
    for name, task in found["tasks"].items():
        measure = "rmse" if name == "dwell" else "log_loss"
        before, after = task["before"][measure], task["after"][measure]
        assert after < before  # random weights are far from calibrated
        assert f"{name} is calibrated ({method}" in card
        labels = np.array(table[f"label/{name}"].to_pylist(), np.float64)
        known = ~np.isnan(labels)
        y, p = labels[known], np.asarray(scores[name], np.float64)[known]
        if name == "dwell":
            loss = np.sqrt(np.mean((y - p) ** 2))
        else:
            loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
        assert loss == pytest.approx(after, rel=1e-4)
