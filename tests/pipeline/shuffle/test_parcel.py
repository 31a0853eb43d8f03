"""Parcels: what a carrier takes in comes out, with every type, and nothing else travels along."""

import pickle
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multigate.pipeline.core import counts
from multigate.pipeline.core.counts import add_counts
from multigate.pipeline.shuffle import combines
from multigate.pipeline.shuffle.combines import AddCounts, ParcelCoder, beam
from multigate.pipeline.shuffle.parcel import InBeam, LocalFiles, Parcel, in_order

TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
COLUMNS = {
    pl.String: st.text(max_size=20),
    pl.Int64: st.integers(-(2**63), 2**63 - 1),
    pl.UInt64: st.integers(0, 2**64 - 1),
    pl.Float32: st.floats(width=32),
    pl.Boolean: st.booleans(),
    pl.Datetime("us", "UTC"): TIMES,
    pl.List(pl.String): st.lists(st.text(max_size=5), max_size=4),
    pl.List(pl.Float32): st.lists(st.floats(width=32), max_size=4),
}


@st.composite
def tables(draw):
    """Tables of some columns of all types that events and examples have; also without a row."""
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=5))
    rows = draw(st.integers(0, 12))
    return pl.DataFrame(
        {
            f"{at}": pl.Series(
                draw(st.lists(st.none() | COLUMNS[kind], min_size=rows, max_size=rows)), dtype=kind
            )
            for at, kind in enumerate(kinds)
        }
    )


@pytest.mark.slow
@given(tables(), st.text(max_size=9), st.integers(0, 2**40), st.booleans())
def test_the_coder_gives_back_what_it_took(rows, kind, origin, pickled):
    parcel = InBeam().whole(rows, kind, origin)
    coder = ParcelCoder()
    found = pickle.loads(pickle.dumps(parcel)) if pickled else coder.decode(coder.encode(parcel))
    assert found.read().equals(rows)
    assert found.read().schema == rows.schema
    assert (found.place, found.rows) == ((kind, origin, 0), len(rows))
    assert coder.encode(found) == coder.encode(parcel)


CARRIERS = {
    "beam": lambda folder: InBeam(),
    "compressed files": LocalFiles,
    "plain files": lambda folder: LocalFiles(folder, compressed=False),
}


@pytest.mark.parametrize("made", CARRIERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_shares_hold_every_row_once_in_order(made, rows, data, tmp_path):
    count = data.draw(st.integers(1, 5))
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=len(rows), max_size=len(rows)))
    carrier = CARRIERS[made](tmp_path)
    assert carrier.whole(rows, "whole", 1).read().equals(rows)
    found = dict(carrier.shares(rows, np.array(places, np.int64), count, "x", 1))
    assert sorted(found) == sorted(set(places))
    for at, parcel in found.items():
        expected = rows.filter(pl.Series(places, dtype=pl.Int64) == at)
        coded = Parcel.decode(parcel.encode())
        assert coded.read().equals(expected)
        assert coded.read([rows.columns[-1]]).equals(expected.select(rows.columns[-1]))
        assert coded.rows == len(expected)


def test_compressed_files_are_small_and_plain_ones_are_what_they_hold(tmp_path):
    rows = pl.DataFrame({"text": [f"{at % 7} of them" for at in range(10_000)]})
    sizes = {}
    for compressed in (True, False):
        folder = tmp_path / str(compressed)
        folder.mkdir()
        carrier = LocalFiles(folder, compressed=compressed)
        carrier.whole(rows, "x", 0)
        carrier.shares(rows, np.arange(10_000) % 3, 3, "y", 0)
        sizes[compressed] = [path.stat().st_size for path in sorted(folder.iterdir())]
    assert len(sizes[True]) == len(sizes[False]) == 2
    assert all(3 * small < plain for small, plain in zip(*sizes.values(), strict=True))


def test_a_share_does_not_carry_the_rows_of_others():
    rows = pl.DataFrame({"text": ["x" * 1000] * 1000, "list": [["y" * 100]] * 1000})
    shares = InBeam().shares(rows, np.arange(1000), 1000, "x", 0)
    assert max(len(parcel.encode()) for _, parcel in shares) < 4000
    assert sum(parcel.size for _, parcel in shares) < 2 * InBeam().whole(rows, "x", 0).size


def test_beam_encodes_parcels_with_their_coder():
    assert isinstance(beam.coders.registry.get_coder(Parcel), ParcelCoder)


def test_the_order_of_parcels_is_that_of_their_origins():
    rows = pl.DataFrame({"a": [1]})
    parcels = [
        InBeam().whole(rows, kind, origin) for kind, origin in (("b", 2), ("a", 9), ("b", 1))
    ]
    assert [parcel.origin for parcel in in_order(parcels, "b")] == [1, 2]


@pytest.mark.parametrize("many", [1, 10**9])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.sampled_from([st.text("abé", max_size=3), st.integers(-5, 5), st.just("same")]),
    data=st.data(),
)
def test_counts_added_a_range_of_keys_at_a_time_are_the_same(many, keys, data, monkeypatch):
    monkeypatch.setattr(counts, "_MANY", many)
    monkeypatch.setattr(counts, "_RANGES", 3)
    parts = data.draw(st.lists(st.lists(keys, max_size=30), min_size=1, max_size=4))
    dtype = pl.Int64 if any(isinstance(one, int) for part in parts for one in part) else pl.String
    found = add_counts(
        pl.DataFrame({"key": part, "count": [2] * len(part)}, {"key": dtype, "count": pl.Int64})
        for part in parts
    )
    expected = Counter(one for part in parts for one in part for _ in range(2))
    assert found.rows() == sorted(expected.items())


def test_a_null_key_is_counted_once_in_whatever_ranges(monkeypatch):
    keys = [None, 3, None, 1, 2, None, 1]
    table = pl.DataFrame({"key": keys, "count": [1] * len(keys)})
    expected = add_counts([table, table])
    monkeypatch.setattr(counts, "_MANY", 1)
    monkeypatch.setattr(counts, "_RANGES", 2)
    assert (
        add_counts([table, table]).rows() == expected.rows() == [(None, 6), (1, 4), (2, 2), (3, 2)]
    )


@given(st.lists(st.lists(st.text("abc", max_size=1), max_size=5), max_size=40), st.randoms())
def test_counts_add_up_in_any_order_and_grouping(values, random):
    tables_ = [
        pl.Series("value", some, dtype=pl.String)
        .value_counts()
        .with_columns(pl.col("count").cast(pl.Int64))
        for some in values
    ]
    add = AddCounts()
    accumulators = [add.create_accumulator()]
    for table in random.sample(tables_, len(tables_)):
        if random.random() < 0.2:
            accumulators.append(add.create_accumulator())
        at = random.randrange(len(accumulators))
        accumulators[at] = add.add_input(accumulators[at], table)
    found = add.extract_output(add.merge_accumulators(accumulators))
    if not tables_:
        assert found is None
        return
    together = [value for some in values for value in some]
    expected = {value: together.count(value) for value in sorted(set(together))}
    assert found.rows() == list(expected.items())


def test_counts_of_ids_that_each_table_has_alone_are_seldom_added(monkeypatch):
    """Users are in one bucket each: 512 tables of them must not be sorted 34 times."""
    sorted_rows = []

    def watched(tables_):
        sorted_rows.append(sum(map(len, tables_)))
        return add_counts(tables_)

    monkeypatch.setattr(combines, "add_counts", watched)
    tables_ = [
        pl.DataFrame({"value": range(at, 5120, 512), "count": [1] * 10}) for at in range(512)
    ]
    found = AddCounts().apply(tables_)
    assert found["value"].to_list() == list(range(5120))
    assert sum(sorted_rows) < 6 * 5120
