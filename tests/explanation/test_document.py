"""Which features go together, the terms of the combined score, and what is printed."""

from pathlib import Path

import numpy as np
import pytest

from multigate.configs import load
from multigate.configs.contract import Combine, Contract
from multigate.configs.sections.base import parse
from multigate.explanation.arrays import differing, mixed, stacked, values_of
from multigate.explanation.document import (
    Background,
    Explanation,
    FeatureGroup,
    SelectedExpert,
    Term,
    explain,
)
from multigate.explanation.groups import CATEGORY, COLUMN, ENTRIES, LABELS, groups
from multigate.explanation.show import notes, show, text_of
from multigate.explanation.terms import combined, terms


def binary(name, weight):
    return {
        "group": "engagement",
        "type": "binary",
        "label": {"rule": "column", "column": name},
        "score_weight": weight,
    }


CONTRACT = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "title": {"kind": "text", "side": "item"},
        "year": {"kind": "number", "side": "item", "column": "title", "pattern": "(\\d{4})"},
        "title_of_user": {"kind": "id", "side": "user", "column": "title", "source": "users"},
        "topic": {"kind": "id", "side": "item"},
        "recent": {
            "kind": "id_list",
            "side": "user",
            "share": "item_id",
            "history": {"events": ["click"], "last": 4, "with": ["age", "topic"]},
        },
        "clicks": {
            "kind": "number",
            "side": "user",
            "count": {"of": "user", "events": ["click"]},
        },
    },
    "rates": {"of": ["item", ["user", "topic"]], "tasks": "all"},
    "tasks": {"click": binary("click", 1), "like": binary("like", 2)},
}


def contract(**changes):
    return parse(Contract, CONTRACT | changes, "test")


def test_what_is_computed_from_a_feature_moves_with_it():
    found = {group.features: group.because for group in groups(contract())}
    assert found == {
        ("user_id",): "",
        ("item_id",): "",
        ("title", "year"): COLUMN,
        ("title_of_user",): "",  # another table's column
        (
            "topic",
            "user_topic_click_rate",
            "user_topic_click_count",
            "user_topic_like_rate",
            "user_topic_like_count",
        ): CATEGORY,
        ("recent", "recent__age", "recent__topic"): ENTRIES,
        ("clicks",): "",
        ("item_click_rate", "item_click_count"): LABELS,
        ("item_like_rate", "item_like_count"): LABELS,
    }


def test_rates_move_with_the_count_that_they_share():
    made = {group.features for group in groups(load("deskdrop").contract)}
    after_7d = ("like_rate", "like_count", "bookmark_rate", "follow_rate", "comment_rate")
    for key in ("user", "item"):
        assert tuple(f"{key}_{name}" for name in after_7d) in made
        assert (f"{key}_dwell_mean", f"{key}_dwell_count") in made


@pytest.mark.parametrize("preset", ["demo", "deskdrop", "movielens_time"])
def test_every_feature_is_in_one_group(preset):
    made = load(preset).contract
    names = [name for group in groups(made) for name in group.features]
    assert sorted(names) == sorted(name for name, _ in made.of_side("user", "item", "context"))


def test_terms_by_hand():
    scores, weights = np.array([[0.5, 0.001], [0.2, 0.3]]), np.array([2.0, -1.0])
    np.testing.assert_allclose(terms(Combine(), scores, weights), [[1, -0.001], [0.4, -0.3]])
    np.testing.assert_allclose(combined(Combine(), terms(Combine(), scores, weights)), [0.999, 0.1])
    product = Combine(kind="product", epsilon=0.01)
    factors = terms(product, scores, weights)
    np.testing.assert_allclose(factors, [[0.25, 100], [0.04, 1 / 0.3]])
    np.testing.assert_allclose(combined(product, factors), [25, 0.04 / 0.3])


SMALL = {
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "price": {"kind": "number", "side": "item", "missing": "indicator"},
        "tags": {"kind": "id_list", "side": "item", "max_length": 3},
    },
    "rates": None,
}


def small_rows():
    """Two background rows and the explained one."""
    background = {
        "user_id": np.array([b"u", b"v"], object),
        "item_id": np.array(["a", "b"], object),  # as examples have them
        "price": np.float32([1, 0]),
        "price__present": np.array([True, False]),
        "tags": np.array([[b"x"], [b""]], object),
        "tags__length": np.array([1, 0]),
    }
    row = {
        "user_id": np.array([b"u"], object),
        "item_id": np.array([b"c"], object),
        "price": np.float32([0.1]),
        "price__present": np.array([True]),
        "tags": np.array([[b"y", b"z", b""]], object),
        "tags__length": np.array([2]),
    }
    return stacked(background, row)


def test_rows_are_mixed_by_group():
    made, rows = contract(**SMALL), small_rows()
    assert differing(made, rows).tolist() == [[False, True, True, True], [True] * 4]
    assert values_of(made, rows, -1) == {
        "user_id": "u", "item_id": "c", "price": 0.1, "tags": ["y", "z"],
    }  # fmt: skip
    found = mixed(made, rows, np.array([[1, 2, 0, 2], [2, 1, 1, 0]]))
    assert values_of(made, found, 0) == {
        "user_id": "v", "item_id": "c", "price": 1.0, "tags": ["y", "z"],
    }  # fmt: skip
    assert values_of(made, found, 1) == {
        "user_id": "u", "item_id": "b", "price": None, "tags": ["x"],
    }  # fmt: skip


@pytest.mark.parametrize("rule", ["sum", "product"])
def test_contributions_to_every_score_add_up(rule):
    made, rows = contract(**SMALL, combine={"kind": rule}), small_rows()

    def score(sources):
        found = mixed(made, rows, sources)
        price = np.where(found["price__present"], found["price"], 3)
        return {
            "click": 1 / (1 + np.exp(price * found["tags__length"])),
            "like": 0.1 + 0.2 * (found["item_id"] == b"c"),
        }

    found = explain(
        made,
        score,
        differing(made, rows),
        values_of(made, rows, -1),
        background="rows",
        experts={"click": np.array([0, 0.3, 0.7]), "like": np.zeros(3)},
        weights={"like": 3.0},
    )
    like, click = found["terms"]["like"], found["terms"]["click"]
    assert (like["weight"], click["weight"]) == (3, 1)
    assert like["term"] == pytest.approx(0.9 if rule == "sum" else 0.3**3)
    whole = click["term"] + like["term"] if rule == "sum" else click["term"] * like["term"]
    assert found["score"] == pytest.approx(whole)
    for task, own in {"score": found["score"], "like": 0.3, "click": click["score"]}.items():
        added = sum(group["contributions"][task] for group in found["features"])
        assert added == pytest.approx(own - found["background"]["scores"][task], abs=1e-12)
    by_name = {group["features"][0]: group["contributions"] for group in found["features"]}
    assert by_name["user_id"] == dict.fromkeys(("click", "like", "score"), 0)  # is not read
    assert by_name["item_id"]["like"] == pytest.approx(0.2)
    assert found["experts"] == {
        "click": [{"expert": 3, "weight": 0.7}, {"expert": 2, "weight": 0.3}],
        "like": [],
    }


def test_the_tables_name_all_and_escape_markup(capsys):
    made, rows = contract(**SMALL), small_rows()
    rows["item_id"][-1] = b"[red]c"
    found = explain(
        made,
        lambda sources: dict.fromkeys(("click", "like"), 0.1 * (sources == 2).sum(axis=1)),
        differing(made, rows),
        values_of(made, rows, -1),
        background="rows",
    )
    found |= {"unseen": ["item_id"], "warnings": ["feature 'price': 1 missing value"]}
    show(found, top=2)
    out = capsys.readouterr().out
    assert "item [red]c for user u: score 1.2; the mean of 2 rows is 0" in out
    assert "2 more groups of features add" in out
    assert "scored as an unseen value: item_id" in out
    assert "feature 'price': 1 missing value" in out
    assert "addend" in out
    assert notes(found, 9)[-2].startswith("Not in the vocabulary")


@pytest.mark.parametrize("shape", [Explanation, FeatureGroup, Term, Background, SelectedExpert])
def test_the_page_names_every_key(shape):
    page = (Path(__file__).parents[2] / "docs/explain.md").read_text()
    described = page[page.index("## As JSON") :]
    assert [key for key in shape.__annotations__ if f"`{key}`" not in described] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "missing"),
        (0.123456, "0.1235"),
        ([], "none"),
        (["a", "b"], "2: a, b"),
        (["a", "b", "c", "d"], "4: ... b, c, d"),
        (7, "7"),
        ("x" * 50, "x" * 40 + "..."),
    ],
)
def test_values_are_short(value, text):
    assert text_of(value) == text
