"""Layout of a signature: its inputs, as the contract implies them, and the axis of each.

Axes: N rows (candidates, or plain rows), M users, L values of a list, S numbers of a vector, T
tasks.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from multigate.configs.contract import (
    LENGTH,
    PRESENT,
    Contract,
    IdListFeature,
    NumberFeature,
    VectorFeature,
)

DEFAULT, RANK, RETRIEVE = "serving_default", "rank", "retrieve"
USER_INDEX, TASK_WEIGHTS, SCORE = "user_index", "task_weights", "score"
COUNT, ITEMS, SCORES, KNOWN = "k", "items", "scores", "known"

Role = Literal["value", "vector", "list", "length", "present", "index", "weights", "count"]
Axis = Literal["rows", "users", "call"]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Input:
    """One input of a signature."""

    dtype: str
    """string, int64, int32, float32 or bool."""
    axis: Axis
    """What its first dimension counts: rows, users, or nothing (one value per call)."""
    role: Role
    feature: str = ""
    """The feature it belongs to; empty for the index and the weights."""

    @property
    def dimensions(self) -> int:
        """Vectors (N, S), lists (N, L) and weights (M, T) have two, a count none."""
        return {"vector": 2, "list": 2, "weights": 2, "count": 0}.get(self.role, 1)


@dataclass(frozen=True)
class Layout:
    """Inputs and outputs of one signature, by name."""

    inputs: dict[str, Input]
    outputs: frozenset[str] = frozenset()

    @property
    def on_users(self) -> frozenset[str]:
        """Inputs with one row per user."""
        return frozenset(name for name, i in self.inputs.items() if i.axis == "users")


def default_layout(contract: Contract) -> Layout:
    """`serving_default`: N rows of every feature."""
    inputs: dict[str, Input] = {}
    for name, feature in contract.of_side("user", "context", "item"):
        inputs |= _inputs_of(name, feature, "rows")
    return Layout(inputs, frozenset({*contract.tasks, SCORE}))


def rank_layout(contract: Contract) -> Layout:
    """`rank`: M users with their context, N candidates, and the user of each candidate."""
    inputs: dict[str, Input] = {}
    for name, feature in contract.of_side("user", "context", "item"):
        inputs |= _inputs_of(name, feature, "rows" if feature.side == "item" else "users")
    inputs[USER_INDEX] = Input("int32", "rows", "index")
    inputs[TASK_WEIGHTS] = Input("float32", "users", "weights")
    return Layout(inputs, frozenset({*contract.tasks, SCORE}))


def retrieve_layout(contract: Contract) -> Layout:
    """`retrieve` of a candidate model: M users with their context, and the number of items."""
    inputs: dict[str, Input] = {}
    for name, feature in contract.of_side("user", "context"):
        inputs |= _inputs_of(name, feature, "users")
    inputs[COUNT] = Input("int32", "call", "count")
    return Layout(inputs, frozenset({ITEMS, SCORES, KNOWN}))


def ranker_layouts(contract: Contract) -> dict[str, Layout]:
    """Signatures that a ranker must have."""
    return {DEFAULT: default_layout(contract), RANK: rank_layout(contract)}


def value_dtype(feature: Any) -> str:
    """The dtype of a feature's raw values in a signature."""
    if isinstance(feature, NumberFeature | VectorFeature):
        return "float32"
    return "string" if feature.dtype == "string" else "int64"


def may_be_missing(feature: Any) -> bool:
    """Whether a signature takes a presence column for the feature."""
    return feature.missing != "error" and not isinstance(feature, IdListFeature)


def empty_like(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array of zeros, False or empty texts (as bytes)."""
    if dtype == "string":
        return np.full(shape, b"", object)
    return np.zeros(shape, dtype)


def _inputs_of(name: str, feature: Any, axis: Axis) -> dict[str, Input]:
    """The feature's values, and their lengths or presence."""
    dtype = value_dtype(feature)
    if isinstance(feature, IdListFeature):
        return {
            name: Input(dtype, axis, "list", name),
            name + LENGTH: Input("int64", axis, "length", name),
        }
    role: Role = "vector" if isinstance(feature, VectorFeature) else "value"
    found = {name: Input(dtype, axis, role, name)}
    if may_be_missing(feature):
        found[name + PRESENT] = Input("bool", axis, "present", name)
    return found
