"""Owners of one width share a variable, and a batch gathers from it once."""

from typing import Any

import numpy as np
import tensorflow as tf

from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data import examples
from multigate.model.data.encoding import Encoder
from multigate.model.ranker import tables
from multigate.model.ranker.tables import Table, table_bytes


def test_each_feature_gets_its_owners_rows() -> None:
    table = Table({"user": 4, "item": 6}, 3, {"user": 1, "item": 2})
    user, item = (np.array(table.parts[owner].embeddings) for owner in ("user", "item"))
    assert user.shape == (4, 3)
    assert not np.allclose(user, item[:4])
    one, many = np.array([3, 0], np.int32), np.array([[5, 0], [1, 1]], np.int32)
    found = table.look_up([("item", many), ("user", one), ("item", one)])
    for received, expected in zip(found, (item[many], user[one], item[one]), strict=True):
        np.testing.assert_array_equal(received, expected)
    np.testing.assert_array_equal(table.look_up([("user", one)])[0], user[one])
    np.testing.assert_array_equal(table.parts["item"](many), item[many])
    np.testing.assert_array_equal(Table({"a": 2}, 2).parts["a"].embeddings, np.zeros((2, 2)))


def test_initial_rows_do_not_depend_on_other_owners(monkeypatch: Any) -> None:
    alone = np.array(Table({"item": 6}, 3, {"item": 2}).variable)
    both = Table({"user": 4, "item": 6}, 3, {"user": 1, "item": 2})
    np.testing.assert_array_equal(both.parts["item"].embeddings, alone)
    monkeypatch.setattr(tables, "_CHUNK", 4)  # a large table is drawn in chunks
    chunks = np.array(Table({"item": 10}, 3, {"item": 2}).variable)
    assert len(np.unique(chunks)) == chunks.size
    assert np.abs(chunks).max() < 0.05


def test_a_step_gathers_once_from_each_table_and_reads_none_whole(tiny: Any) -> None:
    widths = {"embedding_dim": 4, "embedding_dims": {"user_id": 8}}
    config = tiny.make_config(model=tiny.config.model.model_dump() | widths)
    encoder = Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    rows = examples.read_split(tiny.examples, "train", encoder).take(slice(8)).features
    step = tf.function(lambda encoded: ranker(encoded, training=True))
    graph = step.get_concrete_function(tf.nest.map_structure(tf.constant, rows)).graph
    sizes = {tuple(variable.shape) for variable in ranker.row_variables()}
    assert {shape[1] for shape in sizes} == {4, 8, len(config.contract.tasks)}
    gathered, read = [], []
    for operation in graph.get_operations():
        if operation.type == "ResourceGather":
            gathered.append(operation.outputs[0].shape[-1])
        if operation.type == "ReadVariableOp":
            read.append(tuple(operation.outputs[0].shape))
    assert not sizes & set(read)
    of_counts = 1  # `counts` of the wide term
    assert len(gathered) == 3 + of_counts


def test_a_checkpoint_holds_one_array_for_each_owner(tiny: Any) -> None:
    encoder = Encoder.read(tiny.examples)
    config = tiny.config
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    named = weights.copy(ranker)
    for owner, rows in checkpoint.table_rows(config.contract, encoder).items():
        assert named[f"embeddings/{owner}"].shape == (rows, 4)
    assert named["wide/user_id"].shape == (encoder.rows("user_id"), 3)


def test_bytes_of_a_table_in_training(tiny: Any) -> None:
    def size(**options: Any) -> int:
        return table_bytes(1000, 32, tiny.make_config(train=options).train)

    # Weights, two moments, an average, and two counts for each row; a snapshot has as much.
    assert size(ema=0.9) == 2 * 1000 * (32 * 4 * 4 + 8)
    assert size(ema=None) == 2 * 1000 * (32 * 4 * 3 + 4)
    assert size(ema=None, moments="bfloat16") == 2 * 1000 * (32 * 4 * 2 + 4)
    assert size(ema=None, embeddings="dense") == 1000 * 32 * 4 * (2 * 3 + 1)  # and the gradient
