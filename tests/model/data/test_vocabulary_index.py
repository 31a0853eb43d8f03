"""The index finds what pyarrow's `index_in` finds."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from multigate.model.data import vocabulary_index
from multigate.model.data.vocabulary_index import VocabularyIndex


@pytest.mark.parametrize("kind", ["text", "integers"])
@pytest.mark.parametrize("size", [0, 1, 7, 5000])
def test_finds_what_index_in_finds(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    numbers = rng.permutation(2 * size + 1)[:size]
    asked = [*rng.integers(-1, 2 * size + 2, 3 * size + 3).tolist(), None]
    if kind == "text":
        values = pa.array([f"id-{n}" for n in numbers], pa.string())
        ids = pa.array([None if n is None else f"id-{n}" for n in asked], pa.string())
    else:
        values, ids = pa.array(numbers, pa.int64()), pa.array(asked, pa.int64())
    index = VocabularyIndex(values)
    for column in (ids, ids[3:], ids[:0]):
        expected = pc.index_in(column, value_set=values).fill_null(-1)
        np.testing.assert_array_equal(index.find(column), np.asarray(expected))


def test_different_ids_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        vocabulary_index, "_hashes", lambda column: np.full(len(column), 5, np.uint64)
    )
    index = VocabularyIndex(pa.array(["a", "b", "c"]))
    assert index.find(pa.array(["c", "x", "a", "b", None])).tolist() == [2, -1, 0, 1, -1]
