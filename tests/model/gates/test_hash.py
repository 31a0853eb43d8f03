"""Hash: a fixed expert for each id."""

from typing import Any

import numpy as np
import pytest

from multigate.model import gates

F = np.float32


def mix(h: int) -> int:
    """The integer mix in Python's unbounded integers."""
    h = (h ^ (h >> 16)) * 0x7FEB352D % 2**32
    h = (h ^ (h >> 15)) * 0x846CA68B % 2**32
    return h ^ (h >> 16)


def expert_of(i: int, E: int, salt: int) -> int:
    bits = i % 2**64  # two's complement
    return (mix(bits % 2**32 ^ mix(bits >> 32 ^ salt)) >> 1) % E


def route(ids: Any, E: int = 8, **options: Any) -> np.ndarray:
    ids = np.asarray(ids)
    gate = gates.make("hash", E, **options)
    return np.asarray(gate(np.zeros((len(ids), 2), F), ids=ids).weights)


@pytest.mark.parametrize("salt", [0, 1, 2**32 - 1])
def test_formula(salt: int) -> None:
    ids = np.array([0, 1, 2, 12345, -1, -7, 2**31, 2**40 + 3, -(2**62)], "int64")
    expected = [expert_of(int(i), 5, salt) for i in ids]
    weights = route(ids, 5, salt=salt)
    np.testing.assert_array_equal(weights, np.eye(5, dtype=F)[expected])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint32", "uint64"])
def test_same_expert_whatever_integer_type(dtype: str) -> None:
    ids = np.array([0, 1, 5, 100], dtype)
    np.testing.assert_array_equal(route(ids), route(ids.astype("int64")))
    if not dtype.startswith("u"):
        negative = np.array([-1, -100], dtype)
        np.testing.assert_array_equal(route(negative), route(negative.astype("int64")))


def test_ids_spread_evenly_and_salts_disagree() -> None:
    ids = np.arange(8000)
    one, other = route(ids), route(ids, salt=1)
    # 1000 ids an expert, with standard deviation sqrt(8000 * 7/64) = 30.
    np.testing.assert_allclose(one.sum(0), np.full(8, 1000), atol=150)
    # Independent assignments agree on 1/8 of the ids: 1000, as above.
    assert abs((one * other).sum() - 1000) < 150


def test_training_and_features_change_nothing() -> None:
    gate = gates.make("hash", 4)
    ids = np.arange(6)
    a = gate(np.zeros((6, 2), F), ids=ids).weights
    b = gate(np.ones((6, 2), F), ids=ids, training=True).weights
    np.testing.assert_array_equal(a, b)
    assert gate.variables == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, r"ids: the hash gate routes by id, expected \(B,\) integers, received None"),
        (np.zeros(2, F), r"ids: expected \(B,\) integers, received shape \(2,\) of float32"),
        (np.zeros((2, 1), "int32"), r"received shape \(2, 1\) of int32"),
    ],
)
def test_bad_ids(ids: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("hash", 4)(np.zeros((2, 2), F), ids=ids)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="num_selected: Hash expected 1, one expert per id, rec"):
        gates.make("hash", 4, 2)
    with pytest.raises(ValueError, match=r"salt: Hash expected 0 <= salt < 2\^32, received -1"):
        gates.make("hash", 4, salt=-1)
