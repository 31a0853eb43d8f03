"""Vectors that a function of the user's makes of a side table's texts."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl

from multigate.configs import DataError
from multigate.configs.sections.nearest import did_you_mean
from multigate.configs.sections.pipeline import Encoded
from multigate.pipeline.read.json_lines import as_text


def encode(frame: pl.DataFrame, rules: Mapping[str, Encoded], where: str) -> pl.DataFrame:
    """Add columns of vectors; each different text of these rows is encoded once.

    Args:
        frame: raw rows with the columns of texts.
        rules: by the new column's name.
        where: the rules' key, for messages.

    Returns:
        The rows, with lists of float32; null where a text is empty.

    Raises:
        DataError: there is no such function, it fails, or does not return a vector for each text.
    """
    for name, rule in rules.items():
        text = as_text(frame[rule.text]).str.strip_chars().replace("", None)
        different = text.drop_nulls().unique(maintain_order=True)
        vectors = _vectors(rule.by, different.to_list(), f"{where}.{name}.by: {rule.by}")
        kind = pl.List(pl.Float32)
        made = pl.DataFrame({"text": different, "vector": pl.Series(vectors, dtype=kind)})
        found = text.to_frame("text").join(made, on="text", how="left", maintain_order="left")
        frame = frame.with_columns(found["vector"].alias(name))
    return frame


def _vectors(by: str, texts: list[str], where: str) -> list[list[float]]:
    function = _function(by, where)
    count = len(texts)
    if not count:
        return []
    try:
        vectors = np.asarray(function(texts), dtype=np.float32)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise DataError(f"{where} failed on {count} texts: {_told(error)}") from error
    if vectors.ndim != 2 or len(vectors) != count:
        raise DataError(
            f"{where}: expected an array of {count} vectors, one for each text, received one of "
            f"the shape {vectors.shape}"
        )
    found: list[list[float]] = vectors.tolist()
    return found


def _function(by: str, where: str) -> Callable[[list[str]], Any]:
    module, _, name = by.partition(":")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module runs when it is imported
        raise DataError(
            f"{where}: cannot import {module!r} ({_told(error)}); install it, or name its folder "
            "in PYTHONPATH"
        ) from error
    function = getattr(found, name, None)
    if not callable(function):
        hint = did_you_mean(name, vars(found))
        raise DataError(f"{where}: {module} has no function {name!r}; {hint}".rstrip("; "))
    called: Callable[[list[str]], Any] = function
    return called


def _told(error: BaseException) -> str:
    """The error's kind and message, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
