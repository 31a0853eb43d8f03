"""Weights stored as bfloat16 or int8."""

import json

import numpy as np
import pytest
import tensorflow as tf

from multigate.model.export.export import export
from multigate.model.export.frozen.weights import StoredMatrix, rounded


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_what_is_read_is_the_rounded_matrix(kind, axis) -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(0, 1, (9, 7)).astype(np.float32) * np.float32([1, 10, 0.1, 1, 1, 1, 0])
    near = rounded(value, kind, axis)
    again = rounded(near, kind, axis)
    np.testing.assert_allclose(again, near, rtol=1e-6)  # so that stored weights stay what they are
    stored = StoredMatrix(near, kind, axis)
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


@pytest.mark.slow
def test_small_weights_make_small_files_of_the_same_scores(
    case, tmp_path, served_operations, graph_of
) -> None:
    experts, sizes = {"count": 4, "units": [256, 256]}, {}
    for kind in ("float32", "bfloat16", "int8"):
        # Random weights this wide give dwells of millions, whose logarithm is good to 1e-5 or so.
        options = {"weights": kind, "weights_tolerance": 0.1, "parity_tolerance": 1e-4}
        checkpoint = case.checkpoint(model={"experts": experts}, export=options)
        version = export(checkpoint, case.examples, tmp_path / kind)  # which checks the scores
        assert "VarHandleOp" not in served_operations(version)
        constants = [node for node in graph_of(version).node if node.op == "Const"]
        sizes[kind] = sum(node.attr["value"].tensor.ByteSize() for node in constants)
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


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize("dispatch", ["fused", "selected"])
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_small_weights_in_every_mode_and_with_precomputed_items(
    case, with_items, tmp_path, graph_of, kind, dispatch
) -> None:
    """Export checks the scores of `serving_default`, `rank` and `rank_items`."""
    options = {"weights": kind, "dispatch": dispatch, "items": "precomputed"}
    options |= {"weights_tolerance": 1.0, "parity_rows": 60}
    version = export(case.checkpoint(export=options), with_items, tmp_path / "models")
    report = json.loads((version / "assets.extra" / "sparsity.json").read_text())
    assert report["mode"] == {"fused": "fused", "selected": "dispatch"}[dispatch]
    assert report["parity"]["rows"] == 180
    assert report["parity"]["undecided"] <= 2
    stored = {"bfloat16": tf.bfloat16, "int8": tf.int8}[kind].as_datatype_enum
    graph = graph_of(version)
    nodes = [*graph.node, *(n for function in graph.library.function for n in function.node_def)]
    shapes = {
        tuple(axis.size for axis in node.attr["value"].tensor.tensor_shape.dim)
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type == stored
    }
    # Six experts of ten units on the user's 25 columns and the item's 9; the embeddings of width 6.
    kernels = {(34, 60)} if dispatch == "fused" else {(25, 60), (6, 9, 10)}
    assert shapes == kernels | {(57, 6)}
