"""A whole version in a session: the bits of TensorFlow's Python, and folders that are damaged."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from multigate.runtime.errors import ModelRuntimeError
from multigate.runtime.session import Session, session_config


def outputs_of_python(folder, definition, inputs, config=None):
    """What TensorFlow's Python answers, with the options of a session or with its own."""
    with tf.compat.v1.Session(graph=tf.Graph(), config=config) as python:
        tf.compat.v1.saved_model.load(python, ["serve"], str(folder))
        return python.run(
            [info.name for _, info in sorted(definition.outputs.items())],
            {definition.inputs[key].name: value for key, value in inputs.items()},
        )


@pytest.mark.parametrize("signature", ["rank", "serving_default", "classify", "regress"])
def test_a_run_gives_the_bits_of_tensorflows_python(exported, contract, helpers, signature):
    session = Session(exported)
    definition = session.definitions[signature]
    if list(definition.inputs) == ["examples"]:
        example = tf.train.Example()
        example.features.feature["item_id"].bytes_list.value.append(b"i3")
        inputs = {"examples": np.array([example.SerializeToString()] * 3, object)}
    else:
        inputs = helpers.sample_inputs(contract, 60, users=60, seed=4)
        inputs = {key: inputs[key] for key in definition.inputs}
    found = session.runner(definition)(*[inputs[key] for key in sorted(inputs)])
    session.close()
    same = outputs_of_python(exported, definition, inputs, session_config((1, -1)))
    others = outputs_of_python(exported, definition, inputs)
    for ours, theirs, other in zip(found, same, others, strict=True):
        assert ours.dtype == theirs.dtype == other.dtype
        assert np.array_equal(ours, theirs)
        if ours.dtype.kind == "f":  # its own options join operations, whose sums round otherwise
            np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6)
        else:
            assert np.array_equal(ours, other)


def copied(folder, to, change):
    shutil.copytree(folder, to)
    change(to)
    return to


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "Could not find SavedModel"),
        (lambda folder: (folder / "saved_model.pb").unlink(), "Could not find SavedModel"),
        (
            lambda folder: (folder / "saved_model.pb").write_bytes(
                (folder / "saved_model.pb").read_bytes()[:2000]
            ),
            "Read less bytes than requested",
        ),
        (lambda folder: (folder / "saved_model.pb").write_bytes(b""), "Could not find meta graph"),
        (
            lambda folder: shutil.rmtree(folder / "variables"),
            "expected variables/variables.index for the graph's variables",
        ),
    ],
)
def test_damaged_folders_are_refused(exported, tmp_path, change, message):
    with pytest.raises(ModelRuntimeError, match=message) as failure:
        Session(copied(exported, tmp_path / "1", change))
    assert "/proc/self" not in str(failure.value)
