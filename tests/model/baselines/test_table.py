"""The table of plain columns, by hand and against a loop over rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multigate.configs.contract import Contract
from multigate.configs.errors import DataError
from multigate.configs.sections.base import parse
from multigate.model.baselines.table import FREQUENT_ENTRIES, Tabulator, matches, unmatched
from multigate.model.data.rows import Rows

FEATURES: dict[str, Any] = {
    "user": {"kind": "id", "side": "user"},
    "item": {"kind": "id", "side": "item", "dtype": "int"},
    "country": {"kind": "id", "side": "user", "missing": "default", "default": "fr"},
    "age": {"kind": "number", "side": "user", "missing": "default", "default": 30},
    "seen": {"kind": "id_list", "side": "user", "dtype": "int", "share": "item", "max_length": 2},
    "tags": {"kind": "id_list", "side": "item", "max_length": 5},
    "place": {"kind": "position", "max_position": 5},
}


def contract(**changed: Any) -> Contract:
    values = {
        "user": "user",
        "item": "item",
        "features": {k: v for k, v in (FEATURES | changed).items() if v is not None},
        "tasks": {
            "click": {
                "group": "engagement",
                "type": "binary",
                "label": {"rule": "column", "column": "click"},
            }
        },
    }
    return parse(Contract, values, "contract")


def rows(**columns: Any) -> Rows:
    """Four rows, of which the arguments replace columns."""
    table = {
        "user": ["a", "b", "a", ""],
        "item": pa.array([7, 8, 7, None], pa.int64()),
        "country": ["de", None, "de", "fr"],
        "age": [1.5, None, float("nan"), float("inf")],
        "seen": pa.array([[7, 7, 8], [], None, [None, 9]], pa.list_(pa.int64())),
        "tags": pa.array([["x"], ["x", "y"], [], None], pa.list_(pa.string())),
        "place": [1, 2, 3, None],
    }
    return Rows(Path("made"), pa.table(table | columns))


def test_every_column_by_hand() -> None:
    tabulator = Tabulator(contract(), rows())
    found = dict(zip(tabulator.columns, tabulator(rows()).T.tolist(), strict=True))
    missing = pytest.approx(np.nan, nan_ok=True)
    assert found == {
        # "a" is in two rows and "b" in one; empty text is missing.
        "user": [1, 2, 1, missing],
        "user__count": [2, 1, 2, missing],
        "item": [1, 2, 1, missing],
        "item__count": [2, 1, 2, missing],
        # The contract's default does not fill a gap: trees see that the value is missing.
        "country": [1, missing, 1, 2],
        "country__count": [2, missing, 2, 1],
        "age": [1.5, missing, missing, missing],
        # The whole list counts, though a ranker reads the last two entries.
        "seen__length": [3, 0, 0, 2],
        "seen__match": [2, 0, 0, 0],
        # Tags are no candidates.
        "tags__length": [1, 2, 0, 0],
        "tags__1": [1, 1, 0, 0],  # "x" is in two lists, "y" in one
        "tags__2": [0, 1, 0, 0],
    }
    assert tabulator.categories == ["user", "item", "country"]
    assert tabulator.left_out == ["place"]


def test_entries_of_lists_that_training_has_not_seen() -> None:
    tabulator = Tabulator(contract(), rows())
    tags = pa.array([["z"], ["y", "z", "y"], ["x"], []], pa.list_(pa.string()))
    found = dict(zip(tabulator.columns, tabulator(rows(tags=tags)).T.tolist(), strict=True))
    assert found["tags__length"] == [1, 3, 1, 0]
    assert found["tags__1"] == [0, 0, 1, 0]
    assert found["tags__2"] == [0, 1, 0, 0]


def test_only_the_most_frequent_entries_have_a_column() -> None:
    tags = pa.array([[str(n) for n in range(30)], ["29"], [], None], pa.list_(pa.string()))
    tabulator = Tabulator(contract(), rows(tags=tags))
    columns = [name for name in tabulator.columns if name.startswith("tags__")]
    assert len(columns) == 1 + FREQUENT_ENTRIES
    assert tabulator(rows(tags=tags))[:, tabulator.columns.index("tags__1")].tolist() == [
        1,
        1,
        0,
        0,
    ]


def test_entries_of_the_users_lists_have_the_candidates_codes() -> None:
    """8 is 1 and 7 is 2 among candidates; 9 is new, and an empty entry is missing."""
    tabulator = Tabulator(contract(), rows(item=pa.array([7, 8, 8, None], pa.int64())))
    nan = np.nan
    np.testing.assert_array_equal(
        tabulator.entries(rows(), "seen"), [[2, 1], [nan, nan], [nan, nan], [nan, 0]]
    )


def test_ids_that_training_has_not_seen() -> None:
    tabulator = Tabulator(contract(), rows())
    found = tabulator(rows(user=["c", "a", None, "b"]))
    columns = tabulator.columns
    missing = pytest.approx(np.nan, nan_ok=True)
    assert found[:, columns.index("user")].tolist() == [0, 1, missing, 2]
    assert found[:, columns.index("user__count")].tolist() == [0, 2, missing, 1]


def test_only_the_most_frequent_ids_are_categories() -> None:
    """2,001 ids of one row each but the last, which has two: ties are in ascending order."""
    ids = [*range(2_001), 2_000]
    table = pa.table({"user": [str(n) for n in ids], "item": ids})
    small = contract(**dict.fromkeys(("country", "age", "seen", "tags", "place")))
    found = Tabulator(small, Rows(Path("made"), table))(Rows(Path("made"), table))
    code, count = found[:, 2], found[:, 3]
    assert code[-1] == code[-2] == 1  # the most frequent
    assert code[0] == 2
    assert code[1_998] == 2_000
    assert code[1_999] == 0  # no category, but its count is known
    assert count[1_999] == 1
    assert count[-1] == 2


def test_columns_as_dictionaries_and_in_chunks() -> None:
    plain = rows()
    table = plain.table
    user = pa.chunked_array([pa.array(["a", "b"]), pa.array(["a", ""])]).dictionary_encode()
    parts = Rows(
        Path("made"),
        pa.concat_tables([table.slice(0, 1), table.slice(1)]).set_column(0, "user", user),
    )
    tabulator = Tabulator(contract(), plain)
    np.testing.assert_array_equal(tabulator(parts), tabulator(plain))
    assert tabulator(plain.take(np.zeros(0, np.int64))).shape == (0, len(tabulator.columns))


@pytest.mark.parametrize(
    ("column", "values"),
    [("item", ["x", "y", "z", "w"]), ("age", ["x"] * 4), ("seen", [1, 2, 3, 4])],
)
def test_a_column_of_a_wrong_type(column: str, values: list[Any]) -> None:
    with pytest.raises(DataError, match=rf"^made: column '{column}': type .* does not fit the"):
        Tabulator(contract(), rows())(rows(**{column: values}))


def test_an_absent_column() -> None:
    less = Rows(Path("made"), rows().table.drop(["age"]))
    with pytest.raises(DataError, match="made: column 'age' is missing"):
        Tabulator(contract(), rows())(less)
    with pytest.raises(DataError, match="made: column 'age' is missing"):
        Tabulator(contract(), less)


def test_rows_with_a_candidate_that_is_new_to_the_user() -> None:
    liked = {"kind": "id_list", "side": "user", "dtype": "int", "share": "item"}
    similar = {"kind": "id_list", "side": "item", "dtype": "int", "share": "item"}
    wide = contract(liked=liked, similar=similar)
    lists = pa.array([[8], [8], [], [1]], pa.list_(pa.int64()))
    more = rows(liked=lists, similar=pa.array([[7], [8], [7], [1]], pa.list_(pa.int64())))
    # The first candidate is in `seen`, the second in `liked`; lists of the item do not count.
    assert unmatched(wide, more).tolist() == [False, False, True, True]
    assert unmatched(contract(), rows()).tolist() == [False, True, True, True]
    assert unmatched(contract(seen=None), rows()) is None


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 3)),
            st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=6)),
        ),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_matches_are_those_of_a_loop(pairs: list[tuple[Any, Any]], text: bool) -> None:
    kind = pa.string() if text else pa.int64()

    def show(value: int | None) -> Any:
        return str(value) if text and value is not None else value

    made = {"dtype": "string" if text else "int"}
    types = contract(item=FEATURES["item"] | made, seen=FEATURES["seen"] | made)
    table = pa.table(
        {
            "item": pa.array([show(item) for item, _ in pairs], kind),
            "seen": pa.array(
                [None if seen is None else [show(one) for one in seen] for _, seen in pairs],
                pa.list_(kind),
            ),
        }
    )
    expected = [sum(one == item for one in seen or [] if item is not None) for item, seen in pairs]
    found = matches(types, Rows(Path("made"), table), "seen")
    assert found.tolist() == expected
    assert unmatched(types, Rows(Path("made"), table)).tolist() == [n == 0 for n in expected]
