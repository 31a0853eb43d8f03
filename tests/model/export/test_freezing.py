"""Variables become constants, and the signatures stay as they are."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from multigate.model.export.freezing import freeze
from multigate.runtime.session import Session


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SavedModel with weights in float32 and bfloat16, and a table."""
    folder = tmp_path_factory.mktemp("saved") / "1"
    module = tf.Module()
    random = np.random.default_rng(0)
    module.kernel = tf.Variable(random.normal(size=(50, 4)).astype("f"))
    module.half = tf.Variable(tf.cast(random.normal(size=(4, 3)), tf.bfloat16))
    known = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([3, 7], tf.int64))
    module.table = tf.lookup.StaticHashTable(known, 1)

    def rank(texts):
        rows = tf.gather(module.kernel.read_value(), module.table.lookup(texts))
        return {"scores": rows @ tf.cast(module.half, tf.float32)}

    def watch(texts):
        return {"known": module.table.lookup(texts)}

    specs = tf.TensorSpec([None], tf.string, "texts")
    signatures = {
        function.__name__: tf.function(function, autograph=False).get_concrete_function(specs)
        for function in (rank, watch)
    }
    tf.saved_model.save(module, str(folder), signatures)
    return folder


@pytest.fixture
def frozen(saved, tmp_path):
    folder = tmp_path / "1"
    shutil.copytree(saved, folder)
    assert freeze(folder)
    return folder


TEXTS = np.array([b"b", b"?", b"a"], object)


def test_a_frozen_file_has_no_variables_and_the_same_scores(saved, frozen):
    assert not (frozen / "variables").exists()
    found = []
    for folder in (saved, frozen):
        session = Session(folder)
        found.append([session.runner(session.definitions[n])(TEXTS) for n in ("rank", "watch")])
        session.close()
    for before, after in zip(*found, strict=True):
        assert np.array_equal(before[0], after[0])
    assert found[1][1][0].tolist() == [7, 1, 3]


def test_it_loads_in_python_and_its_halves_take_two_bytes(saved, frozen, graph_of):
    expected = tf.saved_model.load(str(saved)).signatures["rank"](texts=tf.constant(TEXTS))
    module = tf.saved_model.load(str(frozen))
    received = module.signatures["rank"](texts=tf.constant(TEXTS))
    assert np.array_equal(received["scores"], expected["scores"])
    assert sorted(module.signatures) == ["rank", "watch"]
    tensors = [n.attr["value"].tensor for n in graph_of(frozen).node if n.op == "Const"]
    (half,) = [tensor for tensor in tensors if tensor.dtype == tf.bfloat16.as_datatype_enum]
    assert len(half.tensor_content) == 4 * 3 * 2
    assert not half.half_val


def test_what_cannot_be_converted_keeps_its_variables(tmp_path):
    module = tf.Module()
    module.kernel = tf.Variable(np.arange(12, dtype="f").reshape(4, 3))
    signature = tf.function(lambda rows: {"found": tf.gather(module.kernel, rows)}, autograph=False)
    concrete = signature.get_concrete_function(tf.TensorSpec([None], tf.int32, "rows"))
    tf.saved_model.save(module, str(tmp_path / "1"), {"find": concrete})
    assert not freeze(tmp_path / "1")
    session = Session(tmp_path / "1")
    (found,) = session.runner(session.definitions["find"])(np.array([2], np.int32))
    session.close()
    assert found.tolist() == [[6, 7, 8]]


def test_large_variables_stay(saved, tmp_path, graph_of):
    shutil.copytree(saved, tmp_path / "1")
    assert not freeze(tmp_path / "1", max_bytes=100)
    assert (tmp_path / "1" / "variables" / "variables.index").is_file()
    assert "VarHandleOp" in {node.op for node in graph_of(tmp_path / "1").node}
    session = Session(tmp_path / "1")
    (scores,) = session.runner(session.definitions["rank"])(TEXTS)
    session.close()
    assert scores.shape == (3, 3)
