"""The data report: its numbers by hand, and drift against a run before."""

import json
import math

import pytest

from multigate.configs import DataError
from multigate.jobs.data_page import write_page
from multigate.pipeline.job import run
from multigate.pipeline.write import data_report

HEADER = "time,user_id,item_id,request,price,tags,place,click,stars"
# Item 1 is clicked twice, item 2 once; item 3 never. Two rows have no price, one row is no row.
ROWS = [
    "100,7,1,a,1.0,x|y,1,1,5",
    "200,7,2,a,2.0,,2,0,",
    "300,8,1,b,3.0,x,1,1,3",
    "400,8,3,b,,x,2,0,",
    "500,9,2,c,5.0,x,1,1,4",
    "600,9,3,c,,x,2,0,",
    "soon,9,3,c,,x,2,0,",
]
SPLIT = {
    "by": "time",
    "validation": "1970-01-01T00:08:00Z",
    "test": "1970-01-01T00:09:30Z",
    "embargo": False,
}


def make(folder, config, rows=ROWS, name="out", **options):
    folder.mkdir(exist_ok=True)
    log = folder / f"{name}-log"
    log.mkdir()
    (log / "log.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    run(config, log, folder / name, **options)
    return folder / name


@pytest.fixture(scope="module")
def config(impression_config):
    return impression_config(**{"pipeline.split": SPLIT})


@pytest.fixture(scope="module")
def out(config, tmp_path_factory):
    return make(tmp_path_factory.mktemp("report"), config)


def test_the_report_says_what_the_examples_hold(out):
    report = data_report.read(out)
    first, last = "1970-01-01T00:01:40+00:00", "1970-01-01T00:06:40+00:00"
    assert report["splits"]["train"] == {
        "rows": 4, "impressions": 4, "first": first, "last": last
    }  # fmt: skip
    assert [split["rows"] for split in report["splits"].values()] == [4, 1, 1]
    assert report["labels"]["click"]["train"] == {"count": 4, "masked": 0, "mean": 0.5}
    assert report["labels"]["stars"]["train"] == {"count": 2, "masked": 2, "mean": 4.0}
    assert report["features"]["price"]["coverage"] == pytest.approx(4 / 6)
    assert report["features"]["tags"]["coverage"] == pytest.approx(5 / 6)
    assert report["vocabularies"] == {"item_id": 3, "tags": 2, "user_id": 2}
    assert report["rejected"] == {"time: expected a number of s since 1970": 1}
    assert report["popular"] == [
        {"item": 1, "positives": 2, "impressions": 2},
        {"item": 2, "positives": 1, "impressions": 2},
    ]
    assert report["negatives_kept"] == 1.0
    assert report["drift"] is None
    # User 9 comes after training, which has item 3 once: in the vocabulary from one row on.
    assert report["unknown"] == {
        "user_id": {"train": 0, "validation": 1, "test": 1},
        "item_id": {"train": 0, "validation": 0, "test": 0},
    }
    assert report["advice"] == data_report.unknown_ids(report["unknown"])
    assert report["features"]["user_id"]["shares"] == {}  # a report names no users


@pytest.mark.parametrize(
    ("train", "validation", "warned"),
    [
        (0.04, 0.55, True),
        (0.0, 0.1, True),
        (0.2, 0.55, False),
        (0.0, 0.09, False),
        (0.0, None, False),
    ],
)
def test_a_feature_whose_ids_are_mostly_new_is_named(train, validation, warned):
    shares = {"item_id": {"train": train, "validation": validation, "test": 0.0}}
    found = data_report.unknown_ids(shares)
    assert len(found) == warned
    if warned:
        assert (
            f"lacks {validation:.0%} of validation's ids and {train:.0%} of training's" in found[0]
        )


def test_nothing_has_moved_where_the_log_is_the_same(out, config, tmp_path):
    again = data_report.read(make(tmp_path, config, previous=out))
    assert again["drift"]["features"] == {
        "user_id": None, "item_id": 0, "price": 0, "tags": 0, "place": 0, "clicked": 0
    }  # fmt: skip
    assert again["drift"]["labels"]["click"] == {"before": 0.5, "now": 0.5}
    assert again["drift"]["rows"] == {"before": 7, "now": 7}


def test_what_has_moved_is_measured(out, config, tmp_path):
    # Items were 1, 2 and 3 in equal shares; now half of the rows are of a fourth item, and the
    # three have 1/6 each: 3 * (1/6 - 1/3) ln(1/2) + (1/2 - 0.0001) ln(0.5 / 0.0001).
    rows = [*ROWS[:-1], *(f"{700 + at},9,4,d,9.0,x,1,0," for at in range(6))]
    moved = data_report.read(make(tmp_path, config, rows, previous=out))
    expected = 0.5 * math.log(2) + (0.5 - 1e-4) * math.log(0.5 / 1e-4)
    assert moved["drift"]["features"]["item_id"] == pytest.approx(expected, abs=1e-5)
    assert moved["drift"]["features"]["price"] > 0.25
    assert moved["drift"]["rows"] == {"before": 7, "now": 12}


def test_a_feature_that_is_new_has_no_index(config):
    now = {"features": {"new": {"compared": None}, "old": {"compared": {"a": 1.0}}}, "labels": {}}
    before = {"features": {"old": {"shares": {"a": 1.0}}}, "labels": {}, "cut_off": None}
    rows = {"rows": {"rows_in": 1}}
    found = data_report.drift(now | rows, before | rows)
    assert found["features"] == {"new": None, "old": 0.0}


def test_a_previous_folder_without_report_is_told_before_the_work(config, tmp_path):
    with pytest.raises(DataError, match=r"report\.json: no report here"):
        make(tmp_path, config, previous=tmp_path)
    assert not (tmp_path / "out").exists()


def test_the_page_shows_the_report(out, config, tmp_path):
    report = data_report.read(make(tmp_path, config, previous=out))
    report["features"]["tags"]["coverage"] = 0
    report["drift"]["features"]["price"] = 0.5
    report["rejected"] = {"<b>bold</b>": 3}
    write_page(tmp_path / "page.html", report)
    page = (tmp_path / "page.html").read_text()
    assert "price has drifted since the previous run: stability index 0.50." in page
    assert "tags is always missing" in page
    assert "user_id: the vocabulary lacks 100% of validation&#x27;s ids" in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>bold" not in page
    json.dumps(report, allow_nan=False)
