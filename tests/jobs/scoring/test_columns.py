"""Columns of rows in the types of a contract, whoever wrote them."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from multigate.configs.config import load
from multigate.configs.errors import DataError
from multigate.jobs.scoring.columns import features_of

CONTRACT = load("demo").contract


def read(name, values):
    ids = {"user_id": ["u"] * len(values), "item_id": ["i"] * len(values)}
    return features_of(CONTRACT, ids | {name: values})[name].to_pylist()


def written(values):
    """The same texts as all that may hold them."""
    column = pa.array(values, pa.string())
    return {
        "Python": values,
        "NumPy objects": np.array(values, object),
        "Arrow": column,
        "Polars": pl.Series(values).to_arrow(),
        "large": column.cast(pa.large_string()),
        "categories": column.dictionary_encode(),
    }


@pytest.mark.parametrize(
    ("feature", "texts", "expected"),
    [
        ("tags", ["a|b", "c", "", None], [["a", "b"], ["c"], None, None]),
        ("length", ["12", "1.5", "", None], [12.0, 1.5, None, None]),
        ("hour", ["7", "23", "", None], [7, 23, None, None]),
        ("topic", ["t1", "t|2", "", None], ["t1", "t|2", "", None]),
    ],
)
def test_texts_are_read_alike_whoever_holds_them(feature, texts, expected):
    for holder, values in written(texts).items():
        assert read(feature, values) == expected, holder


def test_lists_and_numbers_are_taken_as_they_are():
    lists = [["a", "b"], [], None]
    for values in (lists, pa.array(lists), pl.Series(lists).to_arrow()):
        assert read("tags", values) == lists
    for numbers in ([1.5, None, 2], np.array([1.5, np.nan, 2]), pa.array([1.5, None, 2])):
        assert read("length", numbers) == [1.5, None, 2.0]


def test_texts_among_lists_are_refused():
    with pytest.raises(DataError, match="feature 'tags': expected values of list"):
        read("tags", [["a", "b"], "c|d"])


def test_a_column_that_stands_twice_is_refused():
    """As a header of CSV can have it; which of them is meant, nobody knows."""
    ids = [pa.array(["u"]), pa.array(["i"]), pa.array(["j"])]
    with pytest.raises(DataError, match="column 'item_id': stands 2 times; name each once"):
        features_of(CONTRACT, pa.table(ids, names=["user_id", "item_id", "item_id"]))
