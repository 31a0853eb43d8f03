"""Typing of columns: values that pass, values that become null, values that are rejected."""

from datetime import UTC, datetime
from decimal import Decimal

import polars as pl
import pytest
from pydantic import TypeAdapter

from multigate.configs.contract import Feature, IdListFeature, NumberFeature, PositionFeature
from multigate.pipeline.read.parse import (
    parse_feature,
    parse_id,
    parse_number,
    parse_time,
    parse_value,
)

OUTSIDE = "outside the years 1970 to 2100"


def text(*values):
    return pl.Series("raw", values, dtype=pl.String)


def check(parsed, values, reasons=None):
    assert parsed.values.to_list() == values
    assert parsed.reasons.to_list() == (reasons or [None] * len(values))


def at(*arguments):
    return datetime(*arguments, tzinfo=UTC)


def test_times_in_seconds():
    raw = text("0", "1465413032", " 1.5 ", "", None, "soon", "-1", "4102444800", "1e400", "9" * 30)
    wrong = "expected a number of s since 1970"
    check(
        parse_time(raw, "s", None),
        [at(1970, 1, 1), at(2016, 6, 8, 19, 10, 32), at(1970, 1, 1, 0, 0, 1, 500_000)] + [None] * 7,
        [None, None, None, None, None, wrong, OUTSIDE, OUTSIDE, wrong, OUTSIDE],
    )


def test_milliseconds_microseconds_and_numbers_that_are_no_text():
    check(parse_time(text("1500"), "ms", None), [at(1970, 1, 1, 0, 0, 1, 500_000)])
    check(parse_time(pl.Series([7]), "us", None), [at(1970, 1, 1, 0, 0, 0, 7)])
    check(parse_time(pl.Series([0.25, None]), "s", None), [at(1970, 1, 1, 0, 0, 0, 250_000), None])
    # Milliseconds where seconds were configured.
    check(parse_time(pl.Series([1465413032000]), "s", None), [None], [OUTSIDE])


def test_an_unknown_time_is_null_and_no_reject():
    check(parse_time(text("0", "5"), "s", 0), [None, at(1970, 1, 1, 0, 0, 5)])
    # As pandas writes whole numbers beside missing ones; half a second is a time.
    check(parse_time(text("0.0", "5.0"), "s", 0), [None, at(1970, 1, 1, 0, 0, 5)])
    check(parse_time(text("-1.0", "5.0"), "s", -1), [None, at(1970, 1, 1, 0, 0, 5)])
    half = at(1970, 1, 1, 0, 0, 0, 500_000)
    check(parse_time(pl.Series([0.0, 0.5]), "s", 0), [None, half])


def test_iso_times():
    raw = text(
        "2016-12-01T00:00:00Z",
        "2016-12-01 02:00:00+02:00",
        "2016-12-01T00:00:00.25",
        "2016-12-01",
        "2016-12-01T00:00:00+0000",
        "2016-12-01 02:00+02:00",
        "2016-12-01T00:00",
        "2016-13-01",
        "0001-01-01T00:00:00Z",
        "9999-12-31",
    )
    wrong = "expected ISO 8601 text"
    day = at(2016, 12, 1)
    check(
        parse_time(raw, "iso", None),
        [day, day, at(2016, 12, 1, 0, 0, 0, 250_000), day, day, day, day, None, None, None],
        [None] * 7 + [wrong, OUTSIDE, OUTSIDE],
    )


def test_times_as_databases_print_them():
    raw = text(
        "2016-12-01 02:00:00+02",  # PostgreSQL
        "2016-12-01 00:00:00.25-00",
        "2016-12-01 00:00:00 UTC",  # BigQuery
        "2016-12-01 00:00:00.25 UTC",
        "2016-11-30 20:30-03:30",
        "2016-12-01 00:00 CET",
    )
    day, quarter = at(2016, 12, 1), at(2016, 12, 1, 0, 0, 0, 250_000)
    wrong = [None] * 5 + ["expected ISO 8601 text"]
    check(parse_time(raw, "iso", None), [day, quarter, day, quarter, day, None], wrong)


def test_clocks_that_are_put_forward_and_back():
    # Berlin, 2026: from 2 to 3 on 29 March, from 3 back to 2 on 25 October.
    berlin = text("2026-03-29 01:59", "2026-03-29 02:30", "2026-10-25 02:30", "2026-10-25 03:00")
    check(
        parse_time(berlin, "iso", None, "Europe/Berlin"),
        [at(2026, 3, 29, 0, 59), None, at(2026, 10, 25, 0, 30), at(2026, 10, 25, 2)],
        [None, "expected ISO 8601 text", None, None],
    )
    # Sao Paulo, 15 October 2017: the day begins at 1, two hours behind UTC.
    days = text("2017-10-14", "2017-10-15", "2017-10-15 00:30")
    check(
        parse_time(days, "iso", None, "America/Sao_Paulo"),
        [at(2017, 10, 14, 3), at(2017, 10, 15, 3), None],
        [None, None, "expected ISO 8601 text"],
    )


def test_decimals_keep_their_fractions_or_are_no_integers():
    raw = pl.Series([Decimal("1.5"), Decimal("2"), None], dtype=pl.Decimal(38, 6))
    whole = [None, 2, None], ["expected an integer", None, None]
    check(parse_id(raw, "int"), *whole)
    check(parse_feature(raw, PositionFeature(kind="position")), *whole)
    late = pl.Series([Decimal("1700000000.123456"), Decimal("7"), None], dtype=pl.Decimal(20, 6))
    check(parse_time(late, "s", 7), [at(2023, 11, 14, 22, 13, 20, 123_456), None, None])
    assert parse_number(raw).values.to_list() == [1.5, 2.0, None]


def test_timestamps_of_parquet_are_taken_as_they_are():
    naive = pl.Series([datetime(2016, 12, 1)], dtype=pl.Datetime("ns"))
    check(parse_time(naive, "s", None), [at(2016, 12, 1)])
    zoned = naive.dt.replace_time_zone("America/New_York")
    check(parse_time(zoned, "s", None), [at(2016, 12, 1, 5)])


def test_ids():
    check(
        parse_id(text("a", "", None, " ", "x" * 1025), "string"),
        ["a", None, None, " ", "x" * 1025],
        [None] * 4 + ["longer than 1024 bytes"],
    )
    wrong = "expected an integer"
    check(
        parse_id(text("1", " 2 ", "", "3.5", "x", "9" * 30), "int"),
        [1, 2, None, None, None, None],
        [None] * 3 + [wrong] * 3,
    )
    check(parse_id(pl.Series([1.0, 1.5, None]), "int"), [1, None, None], [None, wrong, None])
    check(parse_id(pl.Series([7, 8]), "string"), ["7", "8"])
    check(parse_id(pl.Series([["a"]]), "string"), ["a"], ["expected one value, received a list"])


def test_numbers():
    wrong, infinite = "expected a number", "expected a finite number"
    parsed = parse_number(text("1.5", "-2e3", "True", "false", "", "nan", "many", "inf"))
    check(
        parsed,
        [1.5, -2000.0, 1.0, 0.0, None, None, None, float("inf")],
        [None] * 6 + [wrong, infinite],
    )
    check(parse_number(pl.Series([True, None])), [1.0, None])
    number = NumberFeature(kind="number", side="item")
    large = parse_feature(text("1e39"), number)
    assert large.reasons.to_list() == ["expected a number within float32"]
    # What labels are made of stays exact, and fits into the examples.
    beyond = "expected a number within float32"
    check(parse_value(text("-1e39", "0.1", "")), [-1e39, 0.1, None], [beyond, None, None])


def test_lists():
    tags = IdListFeature(kind="id_list", side="item", max_length=2)
    check(
        parse_feature(text("a| b ||c", "a", "", "|", None), tags),
        [[" b ", "c"], ["a"], None, None, None],
    )
    check(parse_feature(pl.Series([["a", "", "b", "c"], None, []]), tags), [["b", "c"], None, None])
    whole = IdListFeature(kind="id_list", side="item", dtype="int", separator=",")
    parsed = parse_feature(text("1, 2", "1,x"), whole)
    assert parsed.values.to_list()[0] == [1, 2]
    assert parsed.reasons.to_list() == [None, "expected a list of integers"]
    parsed = parse_feature(text("a|" + "x" * 1025), tags)
    assert parsed.reasons.to_list() == ["a value longer than 1024 bytes"]


def test_positions_start_at_0():
    place = PositionFeature(kind="position")
    wrong = "expected a position from 0"
    assert parse_feature(text("0", "-1", ""), place).reasons.to_list() == [None, wrong, None]


@pytest.mark.parametrize("unit", ["s", "iso"])
def test_no_rows_are_no_problem(unit):
    check(parse_time(text(), unit, None), [])
    check(parse_number(text()), [])
    check(parse_id(text(), "int"), [])


@pytest.mark.parametrize(
    ("raw", "kind", "pattern", "expected"),
    [
        (
            ["Heat (1995)", "M (1931) ", "Untitled", None],
            "number",
            r"\((\d{4})\)\s*$",
            [1995, 1931],
        ),
        ([10115, 80331, 7, None], "id", r"^(\d\d)\d{3}$", ["10", "80"]),  # numbers are texts too
        (["a/b", "/", "c", ""], "id", "^([^/]*)/", ["a", None]),  # an empty part is missing
    ],
)
def test_a_part_of_the_text(raw, kind, pattern, expected):
    feature = TypeAdapter(Feature).validate_python(
        {"kind": kind, "side": "item", "pattern": pattern, "missing": "indicator"}
    )
    parsed = parse_feature(pl.Series(raw, strict=False), feature)
    assert parsed.values.to_list() == [*expected, None, None]
    assert parsed.reasons.null_count() == len(raw)
