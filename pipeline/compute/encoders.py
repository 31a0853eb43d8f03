"""Vectors that a function of the user's makes of a side table's texts."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import DataError
from multigate.configs.errors import one_line
from multigate.configs.sections.nearest import did_you_mean
from multigate.configs.sections.pipeline import Encoded

TEXTS_PER_CALL = 1024
_NUMBERS = "fiub"  # NumPy's kinds of float, integer, unsigned and bool


def encode(texts: pl.DataFrame, rules: Mapping[str, Encoded], where: str) -> pl.DataFrame:
    """Make columns of vectors; a function gets each different text once.

    Args:
        texts: each rule's texts (N rows), under the rule's name; null where there is none.
        rules: by the new column's name.
        where: the rules' key, for messages.

    Returns:
        Lists of float32, N rows; null where there is no text.

    Raises:
        DataError: there is no such function, it fails, or does not return a vector for each text.
    """
    made: dict[str, pl.DataFrame] = {}
    vectors = []
    for name, rule in rules.items():
        if rule.by not in made:
            same = [texts[other] for other, one in rules.items() if one.by == rule.by]
            different = pl.concat([one.rename("text") for one in same]).drop_nulls()
            different = different.unique(maintain_order=True)
            made[rule.by] = _encode(different, rule.by, f"{where}.{name}.by: {rule.by}")
        rows = texts.select(text=name)
        found = rows.join(made[rule.by], on="text", how="left", maintain_order="left")
        vectors.append(found["vector"].alias(name))
    return pl.DataFrame(vectors)


def _encode(texts: pl.Series, by: str, where: str) -> pl.DataFrame:
    """Texts, each once, and their vectors."""
    function = _function(by, where)
    parts = [pl.Series([], dtype=pl.List(pl.Float32))]
    for start in range(0, len(texts), TEXTS_PER_CALL):
        part = texts[start : start + TEXTS_PER_CALL].to_list()
        parts.append(pl.Series(_call(function, part, where)).cast(pl.List(pl.Float32)))
    return pl.DataFrame({"text": texts, "vector": pl.concat(parts)})


def _call(
    function: Callable[[list[str]], Any], texts: list[str], where: str
) -> NDArray[np.float32]:
    """Call the user's function; (texts, size)."""
    count = len(texts)
    try:
        returned = function(texts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it raises: a panic of Rust is no Exception
        raise DataError(f"{where} failed on {count} texts: {_told(error)}") from error
    expected = f"expected an array of {count} vectors of numbers, one for each text"
    try:
        vectors = np.asarray(returned)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kind = type(returned).__name__
        raise DataError(f"{where}: {expected}, received {kind}: {_told(error)}") from error
    if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1]:
        received = f"{type(returned).__name__} of the shape {vectors.shape}"
        raise DataError(f"{where}: {expected}, received {received}")
    if vectors.dtype.kind not in _NUMBERS:
        raise DataError(f"{where}: {expected}, received an array of {vectors.dtype}")
    if np.ma.is_masked(returned):
        raise DataError(f"{where}: {expected}, received an array with masked values")
    with np.errstate(over="ignore"):  # reading the feature refuses what is not finite
        return vectors.astype(np.float32)


def _function(by: str, where: str) -> Callable[[list[str]], Any]:
    module, _, name = by.partition(":")
    try:
        found = importlib.import_module(module)
        function = getattr(found, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module runs when it is imported
        raise DataError(
            f"{where}: cannot import {module!r} ({_told(error)}); install it, or name its folder "
            "in PYTHONPATH"
        ) from error
    if function is None:
        public = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
        hint = did_you_mean(name, public)
        raise DataError(f"{where}: {module} has no function {name!r}; {hint}".rstrip("; "))
    if not callable(function):
        kind = type(function).__name__
        raise DataError(f"{where}: expected a function, {name!r} of {module} is of type {kind}")
    called: Callable[[list[str]], Any] = function
    return called


def _told(error: BaseException) -> str:
    """The error's kind and message, in one line."""
    kind, message = type(error).__name__, one_line(error)
    return kind if message == kind else f"{kind}: {message}"
