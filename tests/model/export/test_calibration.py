"""Calibration of probabilities: what the curves compute, what they are fitted to, and export."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.raw import raw_values
from multigate.model.evaluation.measures import tasks
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.export import calibration
from multigate.model.export.calibration import Curve
from multigate.model.export.export import export


def test_a_curve_goes_through_its_knots_and_on_with_its_slope() -> None:
    curve = Curve(np.float32([-1, 0, 2]), np.float32([-3, -2, 2]), 1.0)
    z = np.float32([-2, -1, -0.5, 0, 1, 2, 4])
    np.testing.assert_allclose(curve(tf.constant(z)), [-4, -3, -2.5, -2, 0, 2, 4], atol=1e-6)
    line = Curve(np.float32([0]), np.float32([0.5]), 2.0)
    np.testing.assert_allclose(line(tf.constant(z)), 2 * z + 0.5)


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
    curves, left = calibration.fit(contract, method, logits, labels)
    assert curves.keys() == {"click"}  # dwell is a regression task
    assert left == {"like": "its 0 validation labels are all alike"}
    inside = np.abs(true + 1) < 2
    restored = np.asarray(curves["click"](shown))[inside]
    assert np.abs(restored - true[inside]).max() < (0.1 if method == "platt" else 0.5)
    found = calibration.measure(contract, curves, logits, labels)["click"]
    assert found["rows"] == (~np.isnan(labels[:, 0])).sum()
    assert found["before"]["ece"] > 0.05
    assert found["after"]["ece"] < 0.01
    assert found["after"]["log_loss"] < found["before"]["log_loss"]


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_scores_that_fall_with_the_label_are_left_as_they_are(case, method) -> None:
    z = np.linspace(-2, 2, 1000)
    labels = np.full((1000, 3), np.nan, np.float32)
    labels[:, 0] = z < 0
    curves, left = calibration.fit(case.config().contract, method, {"click": z, "like": z}, labels)
    assert curves == {}
    assert left["click"] == "its scores do not rise with the label on the validation split"


def test_a_calibrated_constant_has_no_calibration_error(case) -> None:
    """The report's and the export's calibration error are one: rows of one score stay together."""
    contract = case.config().contract
    labels = np.full((1000, 3), np.nan, np.float32)
    labels[:, 0] = np.arange(1000) < 200  # sorted, as a log by user may be
    logits = {"click": np.full(1000, np.log(0.2 / 0.8))}
    same = {"click": Curve(np.float32([0]), np.float32([0]), 1.0)}
    found = calibration.measure(contract, same, logits, labels)["click"]
    assert found["before"]["ece"] == pytest.approx(0, abs=1e-6)
    report = tasks.calibration_error(
        Resamples(np.arange(1000), 10), labels[:, 0], np.full(1000, 0.2)
    )
    assert found["before"]["ece"] == pytest.approx(report["value"], abs=1e-6)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_an_export_is_calibrated_and_says_so(case, tmp_path, method) -> None:
    checkpoint = case.checkpoint(seed=4, export={"calibration": method})
    version = export(checkpoint, case.examples, tmp_path / method)
    found = json.loads((version / "assets.extra" / "metrics.json").read_text())["calibration"]
    assert found["method"] == method
    assert found["tasks"].keys() == {"click", "like"}
    assert found["left_as_they_are"] == {}
    card = (version / "assets.extra" / "README.md").read_text()
    loaded = checkpoints.load(checkpoint)
    table = pq.read_table(case.examples / "test")
    names = [name for name, _ in loaded.encoder.contract.of_side("user", "item", "context")]
    raw = raw_values(loaded.encoder.contract, table, names)
    scores = tf.saved_model.load(str(version)).signatures["serving_default"](**raw)
    for name, (before, after) in {
        n: (t["before"]["log_loss"], t["after"]["log_loss"]) for n, t in found["tasks"].items()
    }.items():
        assert after < before  # random weights are far from calibrated
        assert f"{name} is calibrated ({method}" in card
        labels = np.array(table[f"label/{name}"].to_pylist(), np.float64)
        known = ~np.isnan(labels)
        y, p = labels[known], np.asarray(scores[name], np.float64)[known]
        loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
        assert loss == pytest.approx(after, rel=1e-4)
