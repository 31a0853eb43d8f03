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
from multigate.pipeline.read.derive import filled

TEXTS_PER_CALL = 1024
_NUMBERS = "fiub"  # NumPy's kinds of float, integer, unsigned and bool
_NONE = pl.DataFrame(schema={"text": pl.String, "vector": pl.List(pl.Float32)})


class Encoders:
    """The encoders of one side table; each encodes a text once, in whichever rows it stands.

    Args:
        rules: by the new column's name.
        where: the rules' key, for messages.
    """

    def __init__(self, rules: Mapping[str, Encoded], where: str) -> None:
        self._rules, self._where = rules, where
        self._known = {rule.by: _NONE for rule in rules.values()}

    def add(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the columns of vectors to raw rows with the columns of texts.

        Returns:
            The rows, with lists of float32; null where a text is empty.

        Raises:
            DataError: there is no such function, it fails, or does not return a vector for each
                text.
        """
        return frame.with_columns(
            self._vectors(filled(frame[rule.text]), rule.by, f"{self._where}.{name}.by: {rule.by}")
            .alias(name)
            for name, rule in self._rules.items()
        )  # fmt: skip

    def _vectors(self, texts: pl.Series, by: str, where: str) -> pl.Series:
        known, rows = self._known[by], texts.to_frame("text")
        new = rows.drop_nulls().unique(maintain_order=True)
        new = new.join(known, on="text", how="anti", maintain_order="left")
        if len(new):
            function, made = _function(by, where), [known]
            for part in new.iter_slices(TEXTS_PER_CALL):
                vectors = pl.Series(_call(function, part["text"].to_list(), where))
                made.append(part.with_columns(vector=vectors.cast(pl.List(pl.Float32))))
            known = self._known[by] = pl.concat(made)
        return rows.join(known, on="text", how="left", maintain_order="left")["vector"]


def _call(
    function: Callable[[list[str]], Any], texts: list[str], where: str
) -> NDArray[np.float32]:
    """Call the user's function; (texts, size)."""
    count = len(texts)
    try:
        returned = function(texts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise anything: Rust's panics are no
        # Exception
        raise DataError(f"{where} failed on {count} texts: {_told(error)}") from error
    expected = f"expected an array of {count} vectors of numbers, one for each text"
    try:
        vectors = np.asarray(returned)
    except Exception as error:
        kind = type(returned).__name__
        raise DataError(f"{where}: {expected}, received {kind}: {_told(error)}") from error
    if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1]:
        received = f"{type(returned).__name__} of the shape {vectors.shape}"
        raise DataError(f"{where}: {expected}, received {received}")
    if vectors.dtype.kind not in _NUMBERS:
        raise DataError(f"{where}: {expected}, received an array of {vectors.dtype}")
    with np.errstate(over="ignore"):  # reading the feature refuses what is not finite
        return vectors.astype(np.float32)


def _function(by: str, where: str) -> Callable[[list[str]], Any]:
    module, _, name = by.partition(":")
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module runs when it is imported
        raise DataError(
            f"{where}: cannot import {module!r} ({_told(error)}); install it, or name its folder "
            "in PYTHONPATH"
        ) from error
    function = getattr(found, name, None)
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
