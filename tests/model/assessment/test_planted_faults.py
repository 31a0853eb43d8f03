"""Planted leaks, dead experts and bad slices are found; and none where there is none."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import EvaluationConfig
from multigate.model.assessment import gates, leaks, slices, tradeoff
from multigate.model.data.rows import Rows
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.report.checks import leak_sentences, warnings

START = datetime(2026, 1, 1, tzinfo=UTC)


def contract(**features: Any) -> Contract:
    values: dict[str, Any] = {
        "user": "user",
        "item": "item",
        "features": {
            "user": {"kind": "id", "side": "user", "dtype": "int"},
            "item": {"kind": "id", "side": "item", "dtype": "int"},
            "surface": {"kind": "id", "side": "context", "missing": "indicator"},
            "age": {"kind": "number", "side": "user", "missing": "indicator"},
            "tags": {"kind": "id_list", "side": "item"},
            **features,
        },
        "tasks": {
            "click": {
                "group": "engagement",
                "type": "binary",
                "label": {"rule": "column", "column": "click"},
                "score_weight": 1.0,
            },
            "rating": {
                "group": "satisfaction",
                "type": "regression",
                "label": {"rule": "column", "column": "rating"},
                "score_weight": 1.0,
            },
        },
    }
    return parse(Contract, values, "contract")


class World:
    """Users with ten rows each; the model knows the probability of a click exactly."""

    def __init__(self, seed: int = 0, users: int = 300, first: int = 0) -> None:
        rng = np.random.default_rng(seed)
        N = 10 * users
        self.p = np.clip(rng.beta(2, 3, N), 0.02, 0.98)
        self.expected = rng.normal(3, 1, N)
        self.click = (rng.random(N) < self.p).astype(np.float32)
        self.rating = (self.expected + rng.normal(0, 0.5, N)).astype(np.float32)
        self.columns: dict[str, Any] = {
            "user": np.repeat(np.arange(users), 10) % 200,
            "item": rng.integers(0, 40, N),
            "surface": pa.array(
                [["home", "search", "mail", None][n] for n in rng.integers(0, 4, N)]
            ),
            "age": pa.array(rng.normal(40, 10, N), mask=rng.random(N) < 0.1),
            "tags": pa.array([list("abcd"[: n % 5]) for n in rng.integers(0, 9, N)]),
            "meta/time": pa.array(
                [START + timedelta(minutes=first + n) for n in range(N)], pa.timestamp("us", "UTC")
            ),
            "meta/impression": np.arange(first, first + N),
        }

    @property
    def rows(self) -> Rows:
        labels = {"label/click": self.click, "label/rating": self.rating}
        return Rows(Path("made"), pa.table(self.columns | labels))

    @property
    def labels(self) -> np.ndarray:
        return np.stack([self.click, self.rating], axis=1)

    @property
    def scores(self) -> dict[str, np.ndarray]:
        return {"click": self.p, "rating": self.expected}

    def slices(self, train: "World", **options: Any) -> dict[str, Any]:
        resamples = Resamples(self.columns["user"], 200)
        return slices.measure_slices(
            contract(),
            parse(EvaluationConfig, options, "evaluation"),
            self.rows,
            train.rows,
            self.labels,
            self.scores,
            resamples,
        )


RULES = {
    "surface": {"by": "value", "feature": "surface"},
    "age": {"by": "value", "feature": "age"},
    "tags": {"by": "value", "feature": "tags"},
    "item seen": {"by": "seen", "feature": "item", "edges": [60, 75]},
    "hour": {"by": "hour", "block": 6},
}


def test_a_bad_slice_is_found_and_comes_first() -> None:
    world = World()
    mail = (
        np.asarray(world.rows.codes("surface"))
        == world.rows.codes("surface")[world.rows.table["surface"].to_pylist().index("mail")]
    )
    rng = np.random.default_rng(1)
    world.click[mail] = rng.random(mail.sum()) < 0.4  # there, scores say nothing about labels
    found = world.slices(World(1), slices=RULES)
    worst = found["rows"][0]
    assert (worst["slice"], worst["value"], worst["task"]) == ("surface", "mail", "click")
    assert worst["marked"]
    assert worst["measure"] == "auc"
    assert worst["found"]["value"] == pytest.approx(roc_auc_score(world.click[mail], world.p[mail]))
    assert worst["rows"] == mail.sum()
    assert {r["value"] for r in found["rows"] if r["marked"]} == {"mail"}
    assert found["looked_at"] == len(found["rows"])
    assert found["level"] == pytest.approx(0.05 / found["looked_at"])
    assert found["slices"] == 4 + 5 + 2 + 3 + 4  # those without a row do not count


def test_a_miscalibrated_slice_is_found() -> None:
    world = World()
    search = np.array([v == "search" for v in world.rows.table["surface"].to_pylist()])
    world.p = np.where(search, world.p * 0.5, world.p)
    world.expected = world.expected + np.where(search, 1.0, 0.0)
    marked = [r for r in world.slices(World(1), slices=RULES)["rows"] if r["marked"]]
    assert {(r["value"], r["measure"]) for r in marked} >= {
        ("search", "calibration"),
        ("search", "rmse"),
    }
    assert {r["slice"] for r in marked} == {"surface"}


def test_a_slice_that_is_calibrated_is_not_worse_than_a_whole_that_is_not() -> None:
    """Scores are half of what they should be, but for mail, where they are right."""
    world = World(0)
    mail = np.array(world.columns["surface"].to_pylist()) == "mail"
    world.p = np.where(mail, world.p, world.p / 2)
    found = world.slices(World(1), slices={"surface": RULES["surface"]})
    calibration = {r["value"]: r for r in found["rows"] if r["measure"] == "calibration"}
    assert calibration["mail"]["found"]["value"] == pytest.approx(1, abs=0.1)
    assert calibration["mail"]["whole"] < 0.7
    assert calibration["mail"]["gap"] > 0
    assert not calibration["mail"]["marked"]
    assert calibration["home"]["marked"]


def test_by_chance_alone_hardly_any_slice_is_marked() -> None:
    """In worlds without a fault, Bonferroni lets one in twenty have a mark."""
    marked = 0
    for seed in range(12):
        found = World(seed, users=100).slices(World(100), slices=RULES)
        marked += any(row["marked"] for row in found["rows"])
    assert marked <= 3


def test_what_the_slices_are() -> None:
    world, rows = World(), World().rows
    options = parse(EvaluationConfig, {"slices": RULES}, "evaluation").slices or {}
    found = {
        name: slices.slice_rows(rule, contract(), rows, World(1).rows)
        for name, rule in options.items()
    }
    assert list(found["surface"]) == ["home", "mail", "search", "other values", "missing"]
    assert list(found["hour"]) == ["00 to 05 h", "06 to 11 h", "12 to 17 h", "18 to 23 h"]
    assert list(found["item seen"]) == ["below 60", "60 to 74", "75 or more", "missing"]
    assert list(found["tags"])[:2] == ["none", "1 to 4"]
    for parts in found.values():
        np.testing.assert_array_equal(np.sum(list(parts.values()), axis=0), 1)  # each row once
    counts = np.bincount(World(1).columns["item"])[world.columns["item"]]
    np.testing.assert_array_equal(found["item seen"]["75 or more"], counts >= 75)
    assert found["hour"]["06 to 11 h"][6 * 60 : 12 * 60].all()
    # Values that training never saw, and a single value.
    new = slices.slice_rows(
        parse(EvaluationConfig, {"slices": {"u": {"by": "seen", "feature": "user"}}}, "e").slices[
            "u"
        ],
        contract(),
        Rows(Path("made"), pa.table({"user": [1, 999, None]})),
        World(1).rows,
    )
    assert new["never"].tolist() == [False, True, False]
    assert new["missing"].tolist() == [False, False, True]


def test_slices_of_like_names_stay_apart() -> None:
    world = World(0)
    world.columns["surface"] = pa.array(["missing", "other values", None, "a", "b"] * 600)
    world.columns["age"] = pa.array(1.46e9 + 100.0 * np.arange(3000))
    options = parse(EvaluationConfig, {"slices": RULES}, "evaluation").slices or {}
    named = {
        name: slices.slice_rows(options[name], contract(), world.rows, world.rows)
        for name in ("surface", "age")
    }
    sizes = {value: int(inside.sum()) for value, inside in named["surface"].items()}
    assert sizes["missing"] == sizes["(missing)"] == sizes["other values"] == 600
    assert sum(inside.sum() for inside in named["age"].values()) == 3000


def test_a_slice_that_is_nearly_the_whole_is_not_looked_at() -> None:
    world = World()
    world.columns["surface"] = pa.array(["home"] * 2800 + ["search"] * 200)
    found = world.slices(World(1), slices={"surface": RULES["surface"]})
    assert {row["value"] for row in found["rows"]} == {"search"}
    assert found["slices"] == 1


def test_default_slices_are_users_items_context_and_hour() -> None:
    found = slices.default_slices(contract())
    assert list(found) == ["user in training", "item in training", "surface", "hour of day"]


def test_a_leak_is_found() -> None:
    test, train = World(0, first=100_000), World(1)
    for world in (test, train):
        world.columns["dwell"] = 30.0 * world.click + np.random.default_rng(2).random(3000)
    given = contract(dwell={"kind": "number", "side": "context"})
    found = leaks.check_leaks(given, test.rows, train.rows, 0.95)
    first = found["features"][0]
    assert (first["feature"], first["task"], first["leak"]) == ("dwell", "click", True)
    assert first["auc"] == 1.0
    assert sum(row["leak"] for row in found["features"]) == 1
    assert leak_sentences(found)[0].startswith("dwell alone has an AUC of 1.0000 on click")
    assert found["in_order"]
    assert found["shared_rows"] == 0


def test_a_category_that_holds_the_label_is_found() -> None:
    test, train = World(0), World(1)
    for world in (test, train):
        world.columns["verdict"] = pa.array(["yes" if c else "no" for c in world.click])
        world.columns["marks"] = pa.array([["x", "read"] if c else ["x"] for c in world.click])
        present = world.rating > 3
        world.columns["stars"] = pa.array(np.ones(3000), mask=~present)
    given = contract(
        verdict={"kind": "id", "side": "context"},
        marks={"kind": "id_list", "side": "context"},
        stars={"kind": "number", "side": "context", "missing": "indicator"},
    )
    found = leaks.check_leaks(given, test.rows, train.rows, 0.95)
    assert {(r["feature"], r["task"]) for r in found["features"] if r["leak"]} == {
        ("verdict", "click"),
        ("marks", "click"),
        ("stars", "rating"),
    }


def test_an_id_with_chance_labels_is_no_leak() -> None:
    found = leaks.check_leaks(contract(), World(0).rows, World(1).rows, 0.95)
    assert all(row["auc"] < 0.6 for row in found["features"])
    assert leak_sentences(found)[0] == "No feature alone has an AUC above 0.95."


@pytest.mark.slow
def test_by_chance_a_feature_is_as_often_below_one_half_as_above() -> None:
    """Numbers and missing values that say nothing: their direction is not chosen on these rows."""
    areas = [
        row["auc"]
        for seed in range(20)
        for row in leaks.check_leaks(
            contract(), World(seed, users=20).rows, World(100 + seed).rows, 0.95
        )["features"]
    ]
    assert np.mean(areas) == pytest.approx(0.5, abs=0.01)
    assert len(areas) == 20 * 2 * 8  # user and item, and surface, age and tags in two ways each


def test_a_number_that_falls_with_the_label_is_a_leak_too() -> None:
    test, train = World(0), World(1)
    for world in (test, train):
        world.columns["skipped"] = 1.0 - world.click
    given = contract(skipped={"kind": "number", "side": "context"})
    first = leaks.check_leaks(given, test.rows, train.rows, 0.95)["features"][0]
    assert (first["feature"], first["by"], first["auc"]) == ("skipped", "value", 1.0)


def test_on_the_training_split_an_id_does_not_know_its_own_label() -> None:
    """Every item once: the mean label of its training rows is the label itself."""
    world = World(0)
    world.columns["item"] = np.arange(3000)
    world.columns["dwell"] = 30.0 * world.click
    rows = world.rows
    given = contract(dwell={"kind": "number", "side": "context"})
    found = leaks.check_leaks(given, rows, rows, 0.95)
    assert [row["feature"] for row in found["features"] if row["leak"]] == ["dwell"]
    assert found["shared_rows"] == 3000


def test_shared_rows_and_wrong_order_are_found() -> None:
    test, train = World(0, first=1000), World(1)  # the last 2,000 of training are in both
    found = leaks.check_leaks(contract(), test.rows, train.rows, 0.95) | {"split_by": "time"}
    assert found["shared_rows"] == 2000
    assert found["in_order"] is False
    assert found["late_training"] == pytest.approx(2 / 3)
    said = leak_sentences(found)
    assert "2,000 rows of this split are in training too." in said
    assert (
        "66.7 % of training is not older than the oldest row, although the split is by time."
        in said
    )
    without = Rows(Path("made"), test.rows.table.drop_columns(["meta/time", "meta/impression"]))
    found = leaks.check_leaks(contract(), without, train.rows, 0.95)
    assert (found["shared_rows"], found["in_order"]) == (None, None)


def gate(load: list[float], overlap: dict[str, float] | None = None) -> dict[str, Any]:
    return {"gate": "topk", "weights": load, "load": load, "overlap": overlap or {}}


def test_a_dead_expert_is_found() -> None:
    every = {"a": gate([0.5, 0.0, 1.0], {"b": 0.5}), "b": gate([1.0, 0.0, 0.6], {"a": 0.5})}
    said = gates.findings(every, [1.0, 0.0, 1.0])
    assert said[0] == "Expert 2 is never used."
    every = {"a": gate([0.0, 0.0, 1.0]), "b": gate([0.0, 0.0, 1.0])}
    said = gates.findings(every, None)
    assert said[0] == "Experts 1 and 2 are never used."
    assert "Expert 3 serves every task on more than 95 % of its rows." in said
    assert "a and b use the same experts on every row." in said


def test_rare_and_dense_gates_are_named() -> None:
    said = gates.findings({"a": gate([0.0004, 0.9, 0.8])}, [0.0004, 0.9, 0.8])
    assert said == [
        "Every expert is used by some task.",
        "Expert 1 is used on fewer than 1 row in 1,000.",
    ]
    dense = {name: gate([1.0, 1.0], {other: 1.0}) for name, other in (("a", "b"), ("b", "a"))}
    assert "Every task uses all 2 experts on nearly every row: it is dense." in gates.findings(
        dense, [1.0, 1.0]
    )
    assert gates.findings({}, None) == []


def test_overlap_between_tasks_is_put_into_words() -> None:
    pairs = {("a", "b"): 0.8, ("a", "c"): 0.1, ("b", "c"): 0.3}
    every = {
        one: gate(
            [0.5, 0.5, 0.5],
            {other: pairs[tuple(sorted((one, other)))] for other in "abc" if other != one},
        )
        for one in "abc"
    }
    said = gates.findings(every, None)
    assert said[-1] == "a and b share most experts (overlap 0.80), a and c fewest (0.10)."


def test_stability_by_hand() -> None:
    def run(value: float, overlap: float) -> dict[str, Any]:
        task = {"metric": "auc", "value": value}
        used = {"experts_per_row": 2.0, "overlap": {}}
        return {
            "tasks": {"a": task, "b": task | {"value": None}},
            "gates": {"a": used | {"overlap": {"b": overlap}}, "b": used},
        }

    found = gates.stability([run(0.7, 0.5), run(0.8, 0.7)])
    assert list(found["tasks"]) == ["a"]
    assert found["tasks"]["a"]["mean"] == pytest.approx(0.75)
    assert found["tasks"]["a"]["deviation"] == pytest.approx(0.1 / np.sqrt(2))
    assert found["overlap"] == pytest.approx(0.2 / np.sqrt(2))


def test_the_trade_off_by_hand() -> None:
    """Ten lists of two rows: one clicked, the other liked: what helps one hurts the other."""
    users = np.repeat(np.arange(10), 2)
    labels = np.tile(np.array([[1, 0], [0, 1.0]], np.float32), (10, 1))
    scores = {"click": np.tile([0.9, 0.1], 10), "rating": np.tile([0.2, 0.9], 10)}
    found = tradeoff.trade_off(contract(), labels, scores, users, Resamples(users, 50))
    assert found is not None
    second = 1 / np.log2(3)
    by_ratio = {p["ratio"]: p for p in found["points"]}
    for ratio, expected in (
        (0.0, (1, second)),
        (0.5, (1, second)),
        (2.0, (second, 1)),
        (None, (second, 1)),
    ):
        point = by_ratio[ratio]
        assert point["engagement"]["value"] == pytest.approx(expected[0])
        assert point["satisfaction"]["value"] == pytest.approx(expected[1])
        assert point["front"]
    assert [p["ratio"] for p in found["points"] if p["chosen"]] == [1.0]


def test_points_behind_the_front_are_not_on_it() -> None:
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(60), 10)
    good = rng.random(600)
    labels = np.stack([rng.random(600) < good**2, rng.random(600) < good**2], axis=1)
    # Satisfaction's score is noise: all weight on it is worse for both.
    scores = {"click": good, "rating": rng.random(600)}
    found = tradeoff.trade_off(
        contract(), labels.astype(np.float32), scores, users, Resamples(users, 50)
    )
    assert found is not None
    assert not next(p for p in found["points"] if p["ratio"] is None)["front"]
    assert {p["ratio"] for p in found["points"] if p["front"]} <= {0, 1 / 32, 1 / 16, 1 / 8, 1 / 4}
    masked = np.full((600, 2), np.nan, np.float32)
    assert tradeoff.trade_off(contract(), masked, scores, users, Resamples(users, 50)) is None


def test_warnings_name_what_a_reader_has_to_know_first() -> None:
    off = {"value": 1.4, "low": 1.2, "high": 1.6}
    fine = {"value": 1.1, "low": 0.9, "high": 1.3}
    slight = {"value": 0.97, "low": 0.96, "high": 0.98}
    sure = {"predicted_over_observed": slight, "ece": {"value": 0.041, "low": 0.03, "high": 0.05}}
    features = [{"feature": "age", "task": "like", "auc": 0.71, "leak": False}]
    look = {"marked": True, "slice": "surface", "value": "mail", "task": "click"}
    found = {
        "caveat": None,
        "training_warnings": ["the first of 3 epochs was kept"],
        "leaks": {"features": features, "limit": 0.9, "shared_rows": 0, "in_order": None},
        "tasks": {
            "click": {"value": 0.7, "metric": "auc", "measures": {"predicted_over_observed": off}},
            "like": {"value": 0.7, "metric": "auc", "measures": {"predicted_over_observed": fine}},
            "share": {
                "value": 0.7,
                "metric": "auc",
                "measures": {"predicted_over_observed": slight},
            },
            "follow": {"value": 0.7, "metric": "auc", "rate": 0.2, "measures": sure},
        },
        "slices": {"rows": [look]},
        "findings": ["Expert 2 is never used.", "Every task uses all."],
        "transfer": {"sentences": ["click is worse, beyond chance: negative transfer."]},
        "baseline": None,
        "stability": {"differences": ["Some runs have the same seed."]},
    }
    assert warnings(found) == [
        "Training: the first of 3 epochs was kept.",
        "click predicts 1.40 times what is observed.",
        "age alone ranks like better than the model does: AUC 0.7100 against 0.7000.",
        "follow is right on the whole, but its scores are 0.041 off on average: too sure or not "
        "sure enough, see Calibration.",
        "1 look at slices worse beyond chance, the worst of them surface: mail on click.",
        "Expert 2 is never used.",
        "click is worse, beyond chance: negative transfer.",
        "Some runs have the same seed.",
    ]
