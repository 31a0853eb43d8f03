"""Guards: each fires at its limit and not below it, and names what it saw."""

import copy
import json
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from multigate.configs.errors import ConfigError
from multigate.configs.sections.base import parse
from multigate.configs.sections.run import GUARDS, Guards
from multigate.jobs.night.data_guards import measure, passed, violations


def facts() -> dict:
    """A night like any other: 10,000 impressions, 1,000 of them on the newest day."""

    def period(n: int) -> dict:
        return {
            "impressions": n,
            "users": n,
            "labels": {
                "click": {"rows": n, "users": n, "mean": 0.2, "std": 0.4},
                "rating": {"rows": n // 10, "users": n // 10, "mean": 3.0, "std": 1.0},
            },
            "coverage": {"user_id": 1.0, "country": 0.9},
        }

    return {
        "splits": {"train": 8000, "validation": 1000, "test": 1000},
        "lost": 0.01,
        "delay": 3600.0,
        "all": period(10_000),
        "newest_day": period(1_000),
    }


def changed(path: str, value: object) -> dict:
    found = copy.deepcopy(facts())
    *keys, last = path.split(".")
    inner = found
    for key in keys:
        inner = inner[key]
    inner[last] = value
    return found


def test_a_night_like_the_last_passes():
    assert violations(facts(), facts(), Guards()) == []
    assert violations(facts(), None, Guards()) == []


@pytest.mark.parametrize(
    ("path", "fires", "passes", "words"),
    [
        (
            "splits.train",
            999,
            1000,
            "min_rows: expected at least 1000 examples to train, found 999",
        ),
        ("splits.test", 99, 100, "min_test_rows: expected at least 100 examples to test, found 99"),
        ("newest_day.impressions", 599, 600, "max_row_drop: the newest day's examples: 599"),
        ("all.impressions", 5999, 6000, "max_row_drop: all examples: 5999 impressions"),
        ("all.labels.click.mean", 0.119, 0.121, "max_label_change: all examples: label 'click'"),
        ("all.labels.click.mean", 0.281, 0.279, "has mean 0.281 over 10000 rows"),
        ("all.labels.rating.mean", 1.7, 1.9, "label 'rating' has mean 1.7 over 1000 rows"),
        ("all.coverage.country", 0.69, 0.71, "max_coverage_drop: all examples: feature 'country'"),
        ("newest_day.coverage.country", 0.69, 0.71, "max_coverage_drop: the newest day's"),
        ("lost", 0.12, 0.10, "max_lost_rise: 12.0% of the log's rows were lost"),
        ("delay", 3600.0 * 14, 3600.0 * 12, "max_delay: the newest impression is 13:00:00 older"),
    ],
)
def test_each_guard_fires_beyond_its_limit(path, fires, passes, words):
    (violation,) = violations(changed(path, fires), facts(), Guards())
    assert words in violation.line
    guard = violation.guard
    assert violation.line.endswith(
        f" (run.guards.{guard}; --accept {guard} lifts it for this night)"
    )
    assert violations(changed(path, passes), facts(), Guards()) == []
    off = parse(Guards, {guard: None}, "guards")
    assert violations(changed(path, fires), facts(), off) == []


def test_every_guard_can_be_switched_off_and_names_its_key():
    """A night in which everything is wrong: each guard fires, and not where it is null."""
    strict = Guards(min_coverage=0.5)
    broken = facts() | {
        "splits": {"train": 1, "validation": 0, "test": 1},
        "lost": 0.9,
        "delay": 1e6,
    }
    broken["all"] |= {"impressions": 10, "coverage": {"user_id": 0.1, "country": 0.1}}
    broken["all"]["labels"]["click"]["mean"] = 0.9
    fired = {one.guard for one in violations(broken, facts(), strict)}
    assert fired == set(GUARDS)
    for guard in GUARDS:
        off = parse(Guards, {"min_coverage": 0.5, guard: None}, "guards")
        assert {one.guard for one in violations(broken, facts(), off)} == fired - {guard}
    for one in violations(broken, facts(), strict):
        assert one.line.startswith(f"guard {one.guard}: ")
        assert f"run.guards.{one.guard};" in one.line
    assert violations(broken, facts(), Guards(**dict.fromkeys(GUARDS))) == []
    with pytest.raises(ConfigError, match=r"unknown key.*did you mean 'max_row_drop'"):
        parse(Guards, {"max_row_dorp": None}, "guards")


def test_a_night_whose_change_was_accepted_is_no_measure_for_the_next():
    result = {"facts": facts(), "compared_with": None}
    assert passed(result)  # recorded before there was --accept
    assert passed(result | {"accepted": {"max_row_drop": []}})  # it held all the same
    assert not passed(result | {"accepted": {"max_row_drop": ["all examples: 3 impressions"]}})
    assert passed(result | {"accepted": {"min_rows": ["found 3"]}})  # compares with nothing


def test_limits_come_from_the_configuration():
    strict = Guards(max_row_drop=0.05, max_coverage_drop=0.05, min_coverage=0.95)
    lines = violations(changed("all.coverage.country", 0.8), facts(), strict)
    assert [line.guard for line in lines] == ["min_coverage", "max_coverage_drop"]
    assert violations(changed("all.coverage.country", 0.96), facts(), strict) == []
    assert (
        len(violations(changed("all.impressions", 9400), facts(), strict)) == 2
    )  # coverage of 0.9 too


def test_chance_explains_the_rates_of_a_few_users():
    """500 rows of 50 users: se = 0.4 / sqrt(50) = 0.0566; 0.09 is 1.6 of them, 0.2 is 3.5."""
    few = facts()
    few["newest_day"]["labels"]["click"] = {"rows": 500, "users": 50, "mean": 0.29, "std": 0.4}
    assert violations(few, facts(), Guards()) == []
    few["newest_day"]["labels"]["click"] = {"rows": 500, "users": 50, "mean": 0.4, "std": 0.4}
    assert len(violations(few, facts(), Guards())) == 1


def test_chance_explains_a_few_rows_less():
    """9 after 20: 11 less, and three of sqrt(29) are 16; 90 after 200: 110, and 51."""
    last = facts()
    few = changed("newest_day.impressions", 9)
    last["newest_day"]["impressions"] = 20
    assert violations(few, last, Guards()) == []
    few["newest_day"]["impressions"], last["newest_day"]["impressions"] = 90, 200
    assert len(violations(few, last, Guards())) == 1


def test_chance_explains_the_coverage_of_a_few_users():
    """Deskdrop's: 44 rows of 13 users, 93 %; 34 of 20, 56 %: 0.37, and three of 0.131 are 0.39."""
    few, last = facts(), facts()
    few["newest_day"] |= {"impressions": 34, "users": 20, "coverage": {"likes": 0.559}}
    last["newest_day"] |= {"impressions": 44, "users": 13, "coverage": {"likes": 0.932}}
    assert violations(few, last, Guards()) == []
    few["newest_day"]["users"] = last["newest_day"]["users"] = 100
    assert len(violations(few, last, Guards())) == 1


def test_a_label_that_is_gone_stops_the_run():
    gone = facts()
    gone["newest_day"]["labels"]["rating"] = {"rows": 0, "users": 0, "mean": None, "std": None}
    (violation,) = violations(gone, facts(), Guards())
    assert violation.line == (
        "guard max_label_change: the newest day's examples: label 'rating' is masked in every row, "
        "at the last run 100 rows had it (run.guards.max_label_change; --accept max_label_change "
        "lifts it for this night)"
    )


def test_new_tasks_and_features_are_not_compared():
    last = facts()
    del last["all"]["labels"]["rating"], last["newest_day"]["coverage"]["country"]
    assert violations(facts(), last, Guards()) == []


def test_what_is_measured(nights, tmp_path):
    """Two parts of four rows, by hand; the sampled negative counts nowhere."""
    noon = datetime(2026, 1, 30, 12, tzinfo=UTC)
    times = [noon - timedelta(hours=h) for h in (0, 1, 23, 25)]
    part = pl.DataFrame(
        {
            "user_id": ["a", "b", "c", "d"],
            "item_id": ["i", "i", "j", "j"],
            "country": ["DE", None, None, "DE"],
            "length": [1.0, 2.0, 3.0, 4.0],
            "label/click": [1.0, 0.0, 0.0, 0.0],
            "label/rating": [4.0, None, 2.0, None],
            "meta/time": times,
            "meta/sampled": [False, False, False, False],
        }
    )
    for split, sampled in (("train", False), ("test", True)):
        (tmp_path / split).mkdir()
        rows = part.with_columns(pl.lit(sampled).alias("meta/sampled"))
        rows.write_parquet(tmp_path / split / "part-0.parquet")
    rows = dict.fromkeys(("orphans", "late", "duplicates", "dropped"), 1)
    manifest = {
        "rows": rows | {"rows_in": 80, "rejects": 4},
        "examples": {"splits": {"train": 4, "test": 4}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = measure(nights.config(), tmp_path, date(2026, 1, 30))
    assert found["splits"] == {"train": 4, "validation": 0, "test": 4}
    assert found["lost"] == 0.1  # (4 + 4) / 80
    assert found["delay"] == 12 * 3600
    assert found["all"]["impressions"] == 4
    assert found["all"]["labels"]["click"] == {
        "rows": 4,
        "users": 4,
        "mean": 0.25,
        "std": pytest.approx((0.25 * 0.75) ** 0.5),
    }
    assert found["all"]["labels"]["rating"] == {
        "rows": 2,
        "users": 2,
        "mean": 3.0,
        "std": 1.0,
    }
    assert found["all"]["coverage"]["country"] == 0.5
    assert found["newest_day"]["impressions"] == 3  # not the row of 25 hours before
    assert found["newest_day"]["coverage"]["country"] == pytest.approx(1 / 3)
