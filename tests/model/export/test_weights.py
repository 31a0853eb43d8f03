"""Weights stored small, and what that and hardening may do to the metrics."""

import json

import numpy as np
import pytest
import tensorflow as tf

from multigate.configs.errors import ExportError
from multigate.model.export import parity
from multigate.model.export.export import export
from multigate.model.export.frozen_weights import Stored, rounded


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_what_is_read_is_the_rounded_matrix(kind, axis) -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(0, 1, (9, 7)).astype(np.float32) * np.float32([1, 10, 0.1, 1, 1, 1, 0])
    near = rounded(value, kind, axis)
    again = rounded(near, kind, axis)
    np.testing.assert_allclose(again, near, rtol=1e-6)  # so that stored weights stay what they are
    stored = Stored(near, kind, axis)
    np.testing.assert_allclose(stored.read(), near, rtol=1e-6)
    if axis == 0:
        np.testing.assert_allclose(stored.slice(2, 5), near[2:5], rtol=1e-6)
    else:
        np.testing.assert_allclose(
            stored.take(tf.constant([[3], [1]])), near[[[3], [1]]], rtol=1e-6
        )
    step = np.abs(value) * 2**-8 if kind == "bfloat16" else np.abs(value).max(axis, keepdims=True)
    limit = {"float32": 0.0, "bfloat16": 1.0, "int8": 0.5 / 127}[kind]
    assert np.all(np.abs(near - value) <= step * limit * (1 + 1e-5))


def test_small_weights_make_small_files_of_the_same_scores(
    case, tmp_path, served_operations
) -> None:
    experts, sizes = {"count": 4, "units": [256, 256]}, {}
    for kind in ("float32", "bfloat16", "int8"):
        # Random weights this wide give dwells of millions, whose logarithm is good to 1e-5 or so.
        options = {"weights": kind, "weights_tolerance": 0.1, "parity_tolerance": 1e-4}
        checkpoint = case.checkpoint(model={"experts": experts}, export=options)
        version = export(checkpoint, case.examples, tmp_path / kind)  # which checks the scores
        assert "VarHandleOp" not in served_operations(version)  # the server makes them constants
        variables = (version / "variables").glob("variables.data*")
        sizes[kind] = sum(path.stat().st_size for path in variables)
        extra = version / "assets.extra"
        found = json.loads((extra / "metrics.json").read_text())["weights"]
        assert found["stored_as"] == kind
        assert json.loads((extra / "sparsity.json").read_text())["parity"]["rows"] == 1200
        if kind == "float32":
            assert found["tasks"] == {}
        else:
            assert found["tasks"].keys() == {"click", "dwell", "like"}
            assert f"stored as {kind}" in (extra / "README.md").read_text()
    # Experts make up all but some kilobytes.
    assert sizes["bfloat16"] < 0.53 * sizes["float32"]
    assert sizes["int8"] < 0.29 * sizes["float32"]


def test_rounding_that_costs_too_much_is_refused(case, tmp_path) -> None:
    options = {"weights": "int8", "weights_tolerance": 0.0, "log_loss_tolerance": 0.0}
    checkpoint = case.checkpoint(export=options)
    message = r"storing the weights as int8 changes .*allows 0\. Store them in a finer type"
    with pytest.raises(ExportError, match=message):
        export(checkpoint, case.examples, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_probabilities_that_shift_are_refused_where_the_order_stays() -> None:
    def metrics(loss: float) -> dict[str, dict[str, object]]:
        return {"click": {"type": "binary", "metric": "auc", "value": 0.8, "log_loss": loss}}

    arguments = ("hardening", ("hardening_tolerance", 0.005), 0.02, "on 9 test rows", "Train on.")
    message = (
        r"task 'click': hardening changes LOG LOSS from 0\.5000 to 0\.5200 on 9 test rows, a loss "
        r"of 0\.0400 \(relative\); export\.log_loss_tolerance allows 0\.02\. Train on\."
    )
    with pytest.raises(ExportError, match=message):
        parity.changes(metrics(0.5), metrics(0.52), *arguments)
    found = parity.changes(metrics(0.5), metrics(0.505), *arguments)
    assert found["click"]["loss"] == 0
    assert found["click"]["log_loss"] == {
        "before": 0.5,
        "after": 0.505,
        "rise": pytest.approx(0.01),
    }
    assert parity.changes(metrics(0.5), metrics(0.5), *arguments) == {}
