"""Columns that the configuration derives, in logs of each format and in side tables."""

import math
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow.parquet as pq
import pytest
from tests.pipeline.read.log_file import write

from multigate.configs import ConfigError, DataError
from multigate.pipeline.job import run
from multigate.pipeline.read.derive import number, ones_of, spelled_time

ROWS = [
    # time, device, region, topic, url, click: 2023-11-14 22:13:20 UTC and hours later
    (1_700_000_000, "ios", "DE", " Sport", "/item/7?x", 1),
    (1_700_003_600, "ios", "", "sport", "/item/8", 0),
    (1_700_100_000, "web", "FR", "NEWS", "/item/7", 0),
    (1_700_200_000, "web", "DE", "", "/item/9", 1),
]
NAMES = ["time", "device", "region", "topic", "url", "click"]
DERIVED = {
    "contract.features": {
        "user": {"kind": "id", "side": "user"},
        "item": {"kind": "id", "side": "item", "dtype": "int"},
        "topic": {"kind": "id", "side": "item", "missing": "indicator"},
        "hour": {"kind": "id", "side": "context", "dtype": "int"},
        "weekday": {"kind": "id", "side": "context", "dtype": "int"},
    },
    "contract.user": "user",
    "contract.item": "item",
    "contract.tasks.stars": None,
    "pipeline.log.columns": {"time": "time", "user": "user", "item": "item"},
    "pipeline.log.time_zone": "Europe/Berlin",
    "pipeline.log.derive": {
        "user": {"join": ["device", "region"]},
        "item": {"extract": "url", "pattern": r"/item/(\d+)"},
        "topic": {"lower": "topic"},
        "hour": {"hour_of": "time"},
        "weekday": {"weekday_of": "time"},
    },
    "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_derived_columns_stand_where_a_files_own_may(
    kind, impression_config, read_examples, tmp_path
):
    changes = DERIVED | write(tmp_path, kind, NAMES, ROWS)
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    names = ["user", "item", "topic", "hour", "weekday"]
    rows = read_examples(tmp_path / "out").sort("meta/time").select(names).rows()
    assert rows == [
        ("ios|DE", 7, "sport", 23, 2),  # in Berlin an hour later than in UTC, a Tuesday
        ("ios|", 8, "sport", 0, 3),
        ("web|FR", 7, "news", 3, 4),
        ("web|DE", 9, None, 6, 5),
    ]


def test_a_side_tables_key_and_features_may_be_derived(impression_config, read_examples, tmp_path):
    changes = DERIVED | write(tmp_path, "csv", NAMES, ROWS)
    (tmp_path / "items.csv").write_text("page,Maker\n/item/7,Acme\n/item/8, acme \n/item/9,Zeta\n")
    maker = {"kind": "id", "side": "item", "source": "items"}
    changes |= {
        "contract.features.maker": maker,
        "pipeline.items": {
            "files": ["items.csv"],
            "key": "id",
            "derive": {
                "id": {"extract": "page", "pattern": r"/item/(\d+)"},
                "maker": {"lower": "Maker"},
            },
        },
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time").select("item", "maker").rows()
    assert rows == [(7, "acme"), (8, "acme"), (7, "acme"), (9, "zeta")]


def test_a_missing_source_is_named_as_the_files_column(impression_config, tmp_path):
    changes = DERIVED | write(tmp_path, "csv", NAMES, ROWS)
    changes["pipeline.log.derive"] = changes["pipeline.log.derive"] | {
        "user": {"join": ["device", "regoin"]}
    }
    with pytest.raises(DataError, match=r"log\.csv: no column 'regoin'; .*'region'"):
        run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_user_without_any_part_is_missing(impression_config, read_examples, tmp_path):
    changes = DERIVED | write(tmp_path, "csv", NAMES, ROWS)
    with (tmp_path / "log.csv").open("a") as file:
        file.write("1700200001,,,x,/item/1,0\n")
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert len(read_examples(tmp_path / "out")) == len(ROWS)
    rejects = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    assert [row["reason"] for row in rejects] == ["user: missing"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "exactly one of join, coalesce, lower, extract, first, .*, ones_of; received none"),
        ({"lower": "a", "hour_of": "b"}, "received lower and hour_of"),
        ({"extract": "a"}, "extract and pattern go together"),
        ({"first": "a", "separator": ""}, "only join takes an empty one"),
        ({"flag": "a"}, "flag and ones go together"),
        ({"time_of": "a"}, "time_of and form go together"),
        ({"time_of": "a", "form": "DD/MM"}, "letters of strptime with a year"),
        ({"member": "a"}, "member and of go together"),
        ({"join": ["a"]}, "at least 2"),
        ({"coalesce": ["a"]}, "at least two columns, or texts that are none"),
        ({"lower": "a", "empty": ["guest"]}, "only coalesce and number take it"),
        ({"lower": "a", "decimal": ","}, "only number takes it"),
        ({"time_of": "a", "form": "%Y-%m-%d %H:%M:%S,%f"}, "behind a point"),
        ({"time_of": "a", "form": "%Y-%m-%d %H"}, r"expected minutes \(%M\) beside the hour"),
        ({"lowr": "a"}, "did you mean 'lower'"),
    ],
)
def test_a_wrong_rule_is_refused(rule, message, impression_config):
    with pytest.raises(ConfigError, match=message):
        impression_config(**{"pipeline.log.derive": {"user": rule}})


def test_a_column_without_a_name_has_that_of_its_place(impression_config, read_examples, tmp_path):
    lines = [f"{at},{row[0]},{row[1]},{row[2]},{row[5]}" for at, row in enumerate(ROWS)]
    (tmp_path / "log.csv").write_text("\n".join([",time,user_id,region,click", *lines]) + "\n")
    changes = {
        "contract.features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item", "dtype": "int", "column": "column_1"},
        },
        "contract.tasks.stars": None,
        "pipeline.log.columns": {"time": "time", "user": "user_id", "item": "column_1"},
        "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert sorted(read_examples(tmp_path / "out")["item_id"]) == [0, 1, 2, 3]


SPELLED = [
    # when, user, item, price, clicked, tags
    ("14/11/2023 22:13", "u1", "12.0", "1.234,50", "Sí", "war|love"),
    ("14/11/2023 23:13", "u2", "13.0", "7", "no", ""),
    ("16/11/2023 02:00", "u1", "12.0", "2,5", "no", "|fun"),
    ("17/11/2023 05:46", "u3", "14", "", " SÍ", "love"),
]


def test_other_spellings(impression_config, read_examples, tmp_path):
    """Decimal commas, words for yes and no, dates of another form, the first of a list."""
    names = ["when", "user_id", "item_id", "price", "clicked", "tags"]
    pl.DataFrame(SPELLED, names, orient="row").write_csv(tmp_path / "log.csv")
    changes = {
        "contract.features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item", "dtype": "int"},
            "price": {"kind": "number", "side": "item", "missing": "indicator"},
            "main": {"kind": "id", "side": "item", "missing": "indicator"},
            "hour": {"kind": "id", "side": "context", "dtype": "int"},
        },
        "contract.tasks.stars": None,
        "contract.tasks.click.label": {"rule": "column", "column": "clicked"},
        "pipeline.log.columns": {"time": "when", "user": "user_id", "item": "item_id"},
        "pipeline.log.time_unit": "iso",
        "pipeline.log.time_zone": "Europe/Berlin",
        "pipeline.log.derive": {
            "hour": {"hour_of": "when"},  # of the time that is derived
            "when": {"time_of": "when", "form": "%d/%m/%Y %H:%M"},
            "price": {"number": "price"},
            "clicked": {"flag": "clicked", "ones": ["sí"]},
            "main": {"first": "tags"},
        },
        "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time")
    assert rows.select("item_id", "price", "main", "hour", "label/click").rows() == [
        (12, 1234.5, "war", 22, 1),
        (13, 7.0, None, 23, 0),
        (12, 2.5, "fun", 2, 0),
        (14, None, "love", 5, 1),
    ]
    assert rows["meta/time"][0] == datetime(2023, 11, 14, 21, 13, tzinfo=UTC)


def test_a_log_without_times_has_a_constant_one(impression_config, read_examples, tmp_path):
    lines = [f"u{at % 7},{at % 5},{at % 2}" for at in range(60)]
    (tmp_path / "log.csv").write_text("\n".join(["user_id,item_id,click", *lines]) + "\n")
    changes = {
        "contract.features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item", "dtype": "int"},
        },
        "contract.tasks.stars": None,
        "pipeline.log.columns": {"time": "none", "user": "user_id", "item": "item_id"},
        "pipeline.log.derive": {"none": {"constant": "0"}},
        "pipeline.log.unknown_time": 0,
        "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out")
    assert rows["meta/time"].null_count() == len(rows) > 0


def test_names_of_flags():
    flags = [pl.Series("war", ["1", "0", ""]), pl.Series("love", [True, False, None])]
    assert ones_of(flags, "|").to_list() == ["war|love", None, None]


def test_a_text_of_another_form_is_rejected_as_no_time():
    """It is kept as it stands, so that the reject shows it."""
    read = spelled_time(pl.Series(["31/12/2026", "yesterday", None]), "%d/%m/%Y")
    assert read.to_list() == ["2026-12-31T00:00:00", "yesterday", None]
    assert number(pl.Series(["1.234,5", "n/a"])).to_list() == ["1234.5", "n/a"]


def test_a_fraction_of_a_second_is_kept():
    texts = pl.Series(["05.01.2026 10:00:00.750", "05.01.2026 10:00:01"])
    read = spelled_time(texts, "%d.%m.%Y %H:%M:%S.%f").to_list()
    assert read == ["2026-01-05T10:00:00.750", "2026-01-05T10:00:01"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("€ 19.90", "19.90"),
        ("€1,234.50", "1234.50"),
        ("1.234,50 €", "1234.50"),
        ("USD -3", "-3"),
        ("12 kg", "12"),
        ("30%", "30"),
        ("L12", "L12"),
        ("12 apples", "12 apples"),
    ],
)
def test_a_unit_is_no_part_of_a_number(text, read):
    assert number(pl.Series([text])).to_list() == [read]


@pytest.mark.parametrize(
    ("text", "alone", "with_comma", "with_point"),
    [
        ("12.345", "12.345", "12345", "12.345"),  # a number already: no text has to tell
        ("841.723 kg", "841.723", "841723", "841.723"),
        ("1688.999 kg", "1688.999", "1688.999", "1688.999"),
        ("0.250", "0.250", "0.250", "0.250"),  # no thousands begin with 0
        ("$1,234", "1.234", "1.234", "1234"),
        ("$1,234.50", "1234.50", "1,234.50", "1234.50"),
        ("1.234,5", "1234.5", "1234.5", "1.234,5"),
        ("-1.234.567", "-1234567", "-1234567", "-1.234.567"),
        ("1,234,567", "1234567", "1,234,567", "1234567"),
        ("12,5", "12.5", "12.5", "12,5"),
    ],
)
def test_the_decimal_mark_tells_thousands_from_fractions(text, alone, with_comma, with_point):
    read = [number(pl.Series([text]), mark).item() for mark in (None, ",", ".")]
    assert read == [alone, with_comma, with_point]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("PT1M30S", "90"),
        ("pt0,5h", "1800"),
        ("P1DT2H", "93600"),
        ("P2W", "1209600"),
        ("-PT3.25S", "-3.25"),
        ("00:01:30", "90"),
        ("1:30", "90"),
        ("75:00", "4500"),
        ("26:00:01.5", "93601.5"),
        ("0 days 00:01:30", "90"),
        ("1 day, 0:00:05", "86405"),
        ("PT", "PT"),  # no part
        ("P1M", "P1M"),  # a month has no length
        ("1:75", "1:75"),
        ("2:1", "2:1"),  # a result
        ("P90", "P90"),
        ("١:٣٠", "١:٣٠"),  # digits of another script
        ("PT٣S", "PT٣S"),
    ],
)
def test_durations_are_seconds(text, read):
    assert number(pl.Series([text, "7", None])).to_list() == [read, "7", None]


@pytest.mark.parametrize("mark", [None, ",", "."])
@pytest.mark.parametrize("text", ["00:01:30,123", "1:30.123", "PT90.123S", "PT1M30,123S"])
def test_no_decimal_mark_makes_thousands_of_the_seconds_of_a_duration(text, mark):
    assert number(pl.Series([text, "7"]), mark).to_list() == ["90.123", "7"]


@pytest.mark.parametrize(("digits", "read"), [("9" * 30, 1e30), ("9" * 400, math.inf)])
def test_a_duration_beyond_all_integers_fails_no_other_row(digits, read):
    """One typo in a log; what is not finite becomes a reject later."""
    large, other = number(pl.Series([f"PT{digits}S", "PT2S"])).to_list()
    assert float(large) == pytest.approx(read)
    assert other == "2"


def test_durations_of_a_typed_file_are_seconds():
    column = pl.Series([timedelta(minutes=1, seconds=30), timedelta(milliseconds=250), None])
    assert number(column).to_list() == ["90", "0.25", None]


def test_the_first_column_that_has_a_value_names_the_user(
    impression_config, read_examples, tmp_path
):
    """A guest's session stands for the login, blanks are none; without both, there is no user."""
    changes = DERIVED | write(tmp_path, "csv", NAMES, ROWS)
    changes["pipeline.log.derive"] = changes["pipeline.log.derive"] | {
        "user": {"coalesce": ["device", "region"]}
    }
    with (tmp_path / "log.csv").open("a") as file:
        file.write("1700200001,  ,guest-7,x,/item/7,0\n1700200002,,,x,/item/7,0\n")
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    users = read_examples(tmp_path / "out")["user"].to_list()
    assert users.count("guest-7") == 1
    assert len(users) == len(ROWS) + 1
    rejects = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    assert [row["reason"] for row in rejects] == ["user: missing"]


def test_a_joined_or_first_present_column_reads_derived_ones(
    impression_config, read_examples, tmp_path
):
    """Of logins with and without capitals, and a word for those who have none."""
    changes = DERIVED | write(tmp_path, "csv", ["who", *NAMES], [])
    whos, took = ["Ann", " ann", "GUEST", ""], ["1:30", "-", "n/a", "0:05"]
    rows = [(*one, *row) for *one, row in zip(whos, took, ROWS, strict=True)]
    lines = [",".join(map(str, row)) for row in rows]
    names = ["who", "took", *NAMES]
    (tmp_path / "log.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    changes["pipeline.log.derive"] = changes["pipeline.log.derive"] | {
        "who": {"lower": "who"},
        "took": {"number": "took", "empty": ["-", "N/A"]},
        "user": {"coalesce": ["who", "device"], "empty": ["Guest"]},
        "page": {"join": ["who", "item"], "separator": "/"},
    }
    changes["contract.features"] = changes["contract.features"] | {
        "page": {"kind": "id", "side": "item"},
        "took": {"kind": "number", "side": "context", "missing": "indicator"},
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    found = read_examples(tmp_path / "out").sort("meta/time").select("user", "page", "took")
    assert found.rows() == [
        ("ann", "ann/7", 90.0),
        ("ann", "ann/8", None),
        ("web", "guest/7", None),
        ("web", "/9", 5.0),
    ]


def test_only_a_word_for_nobody_makes_a_user_missing(impression_config, tmp_path):
    changes = DERIVED | write(tmp_path, "csv", NAMES, ROWS)
    changes["pipeline.log.derive"] = changes["pipeline.log.derive"] | {
        "user": {"coalesce": ["region"], "empty": ["fr "]}
    }
    changes["pipeline.max_reject_rate"] = 0.5
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rejects = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    # One row has no region, the other the word for none.
    assert [(row["line"], row["reason"]) for row in rejects] == [
        (3, "user: missing"),
        (4, "user: missing"),
    ]
