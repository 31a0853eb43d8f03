"""Rows of a split: a part of them that is evenly spread."""

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from multigate.model.data.rows import Rows


@pytest.mark.parametrize("most", [2, 3, 7, 99, 100, 101, 500])
def test_a_part_is_spread_from_the_first_to_the_last(most: int) -> None:
    rows = Rows(Path("examples"), pa.table({"place": list(range(100))}))
    places = rows.spread(most).table["place"].to_pylist()
    assert len(places) == min(most, 100)
    assert (places[0], places[-1]) == (0, 99)
    gaps = {after - before for before, after in itertools.pairwise(places)}
    assert max(gaps) - min(gaps) <= 1
