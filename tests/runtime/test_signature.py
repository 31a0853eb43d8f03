"""Signatures by name, and the end of a session that nobody closes."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from multigate.runtime.errors import ModelRuntimeError, RefusedInputError
from multigate.runtime.session import Session
from multigate.runtime.signature import Signature, load_signatures


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A SavedModel with two signatures."""
    folder = tmp_path_factory.mktemp("signatures") / "1"
    floats, texts = (tf.TensorSpec([None], dtype) for dtype in (tf.float32, tf.string))

    @tf.function(autograph=False)
    def less(b, a):
        return {"more": a - b, "also": 2 * b}

    @tf.function(autograph=False)
    def same(x):
        return {"x": x}

    signatures = {
        "less": less.get_concrete_function(b=floats, a=floats),
        "same": same.get_concrete_function(x=texts),
    }
    tf.saved_model.save(tf.Module(), str(folder), signatures)
    return folder


def test_arrays_go_in_and_out_by_their_names(folder):
    signatures = load_signatures(folder)
    assert sorted(signatures) == ["less", "same"]
    a, b = np.array([5, 7], np.float32), np.array([1, 2], np.float32)
    found = signatures["less"]({"a": a, "unused": a, "b": b})
    assert {name: value.tolist() for name, value in found.items()} == {
        "more": [4, 5],
        "also": [2, 4],
    }
    texts = np.array(["é", b"b", None], object)[:2]
    assert signatures["same"]({"x": texts})["x"].tolist() == ["é".encode(), b"b"]


def test_what_does_not_fit_is_refused(folder):
    less = load_signatures(folder)["less"]
    with pytest.raises(RefusedInputError, match="expected"):
        less({"a": np.zeros(2), "b": np.zeros(2)})
    with pytest.raises(KeyError, match="b"):
        less({"a": np.zeros(2, np.float32)})


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelRuntimeError, match=str(tmp_path)):
        load_signatures(tmp_path)


def test_a_session_lives_as_long_as_its_last_signature(folder, monkeypatch):
    closed, close = [], Session.close

    def count(session):
        close(session)
        closed.append(session.definitions.keys())

    monkeypatch.setattr(Session, "close", count)
    signatures = load_signatures(folder)
    kept = weakref.ref(signatures["same"])
    less = signatures.pop("less")
    assert isinstance(less, Signature)
    del signatures
    gc.collect()
    assert kept() is None
    assert not closed
    one = np.ones(1, np.float32)
    assert less({"a": one, "b": one})["more"].tolist() == [0]
    del less
    gc.collect()
    (names,) = closed
    assert {"less", "same"} <= names
