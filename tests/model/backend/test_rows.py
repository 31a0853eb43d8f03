"""Some rows of a variable are read, written and summed as NumPy does it with all of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model.backend import rows
from multigate.model.backend.rows import VariablePart


@pytest.fixture
def variable() -> keras.Variable:
    return keras.Variable(np.arange(24, dtype=np.float32).reshape(8, 3))


def test_a_part_is_read_and_written_like_a_variable(
    variable: keras.Variable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_CHUNK", 2)  # several chunks, the last one smaller
    part = VariablePart(variable, 2, 5)
    whole = np.array(variable)
    assert part.shape == (5, 3)
    np.testing.assert_array_equal(part, whole[2:7])
    np.testing.assert_array_equal(part.value, whole[2:7])
    part.assign(-whole[2:7])
    whole[2:7] *= -1
    np.testing.assert_array_equal(variable, whole)
    with pytest.raises(ValueError, match=r"expected shape \(5, 3\), received \(4, 3\)"):
        part.assign(whole[:4])


def test_gradients_of_a_row_are_summed() -> None:
    values = tf.constant([[1.0], [2.0], [4.0], [8.0]])
    found = rows.merge(tf.constant([5, 0, 5, 2]), values, 6)
    sums = dict(zip(found.rows.numpy().tolist(), found.values.numpy()[:, 0].tolist(), strict=True))
    assert sums == {5: 5.0, 0: 2.0, 2: 8.0}


def test_a_gather_reads_no_other_row(variable: keras.Variable) -> None:
    """`keras.ops.take` reads the whole variable, which TensorFlow copies after a scatter."""

    def operations(read) -> set[str]:
        graph = tf.function(lambda: read(variable, tf.constant([1, 2]))).get_concrete_function()
        return {operation.type for operation in graph.graph.get_operations()}

    assert "ReadVariableOp" in operations(lambda v, r: keras.ops.take(v, r, axis=0))
    assert "ReadVariableOp" not in operations(rows.gather)
    assert "ResourceGather" in operations(rows.gather)
