"""Padded batches compiled by XLA: the same scores, loaded without our code."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from multigate.configs.errors import ConfigError
from multigate.model.data.padding import Padding
from multigate.model.data.raw import feature_of, raw_values
from multigate.model.export.export import export


def test_sizes_that_batches_are_padded_to() -> None:
    buckets = Padding([4, 16])
    sizes = [int(buckets.size(tf.constant(rows))) for rows in (0, 1, 4, 5, 16, 17, 32, 33)]
    assert sizes == [4, 4, 4, 16, 16, 32, 32, 48]
    padded = buckets.pad(tf.ones([5, 2]))
    np.testing.assert_array_equal(padded, [[1, 1]] * 5 + [[0, 0]] * 11)


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize(
    "gate",
    [
        {"name": "topk", "num_selected": 2},
        {"name": "topk", "static": True},
        {"name": "hash"},
    ],
)
def test_a_compiled_version_is_checked_like_any_other(case, tmp_path, gate) -> None:
    options = {"xla": [64], "parity_rows": 60}
    checkpoint = case.checkpoint(model={"gate": gate}, export=options)
    version = export(checkpoint, case.examples, tmp_path / "models")  # whose parity holds
    report = json.loads((version / "assets.extra" / "sparsity.json").read_text())
    assert report["parity"]["rows"] == 120
    assert report["dense"] == (not gate.get("static", False))
    graph = tf.saved_model.load(str(version)).signatures["rank"].graph
    compiled = [
        function.signature.name
        for function in graph.as_graph_def().library.function
        if function.attr["_XlaMustCompile"].b
    ]
    assert compiled
    contract = case.config().contract
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    users = [name for name, _ in contract.of_side("user", "context")]
    rows = raw_values(contract, pq.read_table(case.examples / "test").slice(0, 5), names)
    call = tf.saved_model.load(str(version)).signatures["serving_default"]
    assert call(**rows)["score"].shape == (5,)
    for some in (0, 1, 3):  # padded alike, they must not pass for five
        fewer = {n: v[:some] if feature_of(n) in users else v for n, v in rows.items()}
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected as many users"):
            call(**fewer)


def test_sizes_have_to_ascend(case) -> None:
    with pytest.raises(ConfigError, match=r"xla: expected sizes that ascend, received \[64, 16\]"):
        case.config(export={"xla": [64, 16]})


def test_selected_experts_cannot_be_compiled(case) -> None:
    with pytest.raises(ConfigError, match=r"dispatch: expected auto or fused where xla is set"):
        case.config(export={"xla": [64], "dispatch": "selected"})
