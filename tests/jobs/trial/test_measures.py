"""The measures of a trial, against sums over plain Python rows: other numbers than 0 and 1."""

import math
import random
from collections import defaultdict
from statistics import fmean

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom
from sklearn.metrics import mean_pinball_loss, ndcg_score

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.jobs.trial.measures import canary_measures, shadow_measures
from multigate.jobs.trial.records import Records

WEIGHTS = {"click": 1.0, "like": 2.0, "rating": 0.5}
BINARY = ("click", "like")
PERCENT, TRIAL, ITEMS = 30.0, 2, 13
DRAWS = (200, 9)
CONTRACT = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
    },
    "tasks": {
        name: {
            "group": "engagement",
            "type": "binary" if name in BINARY else "regression",
            "label": {"rule": "column", "column": name},
            "score_weight": weight,
        }
        for name, weight in WEIGHTS.items()
    },
}


@pytest.fixture(scope="module")
def contract():
    return parse(Contract, CONTRACT, "test")


def drawn_rows():
    """Rows of 40 users with one to three calls each; some labels and scores are absent."""
    draw, shown, both = random.Random(4), [], []

    def score(task):
        return round(draw.random(), 1) if task in BINARY else draw.gauss(-2, 1)

    def label(task):
        if draw.random() < 0.2:
            return None
        return float(draw.random() < 0.4) if task in BINARY else draw.gauss(-2, 1)

    for number in range(40):
        canary = number % 3 == 0
        for count in range(draw.choice([1, 2, 3])):
            version = TRIAL if canary and draw.random() < 0.8 else 1
            call = {"request": f"r{number}-{count}", "user": f"u{number}", "version": version}
            call_is_due, kept = draw.random() < 0.7, draw.random() < 0.8
            pairs = None if draw.random() < 0.2 else draw.random()
            overlap = draw.random()
            for item in range(draw.choice([1, 4, ITEMS])):
                labels = {f"label/{task}": label(task) for task in WEIGHTS}
                row = call | {"item": f"i{item}"} | labels
                row |= {f"score/{task}": score(task) for task in WEIGHTS}
                group = "canary" if canary else "stable"
                shown.append(row | {"group": group, "due": call_is_due})
                if not kept:  # also calls that nobody was to score: they do not count
                    continue
                scored = draw.random() < 0.9
                others = {"other": draw.random(), "pairs": pairs, "overlap": overlap}
                others |= {f"other/{task}": score(task) for task in WEIGHTS}
                if not scored:
                    others |= dict.fromkeys(["other", *(f"other/{task}" for task in WEIGHTS)])
                both.append(row | {"score": draw.random()} | others)
    return shown, both


SHOWN, BOTH = drawn_rows()


@pytest.fixture(scope="module")
def records():
    whole = {"infer_schema_length": None}
    return Records(pl.DataFrame(SHOWN, **whole), pl.DataFrame(BOTH, **whole), list(WEIGHTS))


def by_user(rows):
    found = defaultdict(list)
    for row in rows:
        found[row["user"]].append(row)
    return found


def check_interval(found, rows, measure):
    """Value, limits and error are those of a measure over resamples of whole users.

    Args:
        found: the interval.
        rows: whose users are drawn; a resample's rows say by `again` which draw they are of.
        measure: of a list of rows.
    """
    assert found["value"] == pytest.approx(measure(rows), abs=1e-12)
    groups = by_user(rows)
    names, random_ = sorted(groups), np.random.default_rng(DRAWS[1])
    replicates = []
    for _ in range(DRAWS[0]):
        drawn = random_.integers(0, len(names), len(names))
        again = [row | {"again": n} for n, one in enumerate(drawn) for row in groups[names[one]]]
        replicates.append(measure(again))
    low, high = np.quantile(replicates, [0.025, 0.975])
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-12)
    assert found["error"] == pytest.approx(np.std(replicates, ddof=1), abs=1e-12)


def check_pair(found, rows, measure, sides, relative=False):
    """Both versions' measures, and the difference.

    Args:
        found: the pair.
        rows: whose users are drawn.
        measure: of rows and a side.
        sides: the version on trial, and the one in production.
        relative: whether the difference is divided by production's value.
    """

    def difference(some):
        new, old = (measure(some, side) for side in sides)
        return (new - old) / abs(old) if relative else new - old

    assert found["relative"] is relative
    check_interval(found["candidate"], rows, lambda some: measure(some, sides[0]))
    check_interval(found["production"], rows, lambda some: measure(some, sides[1]))
    check_interval(found["difference"], rows, difference)
    values = [found[which]["value"] for which in ("candidate", "production", "difference")]
    assert not {*values} & {0.0, 1.0}


SIDES = ("canary", "stable")


def of_side(rows, side, task=None):
    """Rows of a group, with a label of the task."""
    rows = [row for row in rows if row["group"] == side]
    return rows if task is None else [row for row in rows if row[f"label/{task}"] is not None]


@pytest.fixture(scope="module")
def canary(records, contract):
    return canary_measures(records, contract, PERCENT, TRIAL, DRAWS)


def test_the_groups_are_counted(canary):
    calls = {side: {row["request"] for row in of_side(SHOWN, side)} for side in SIDES}
    users = {side: {row["user"] for row in of_side(SHOWN, side)} for side in SIDES}
    assert canary["calls"] == {side: len(found) for side, found in calls.items()}
    assert canary["users"] == {"canary": 14, "stable": 26}
    assert {side: len(found) for side, found in users.items()} == canary["users"]
    assert (canary["share"], canary["expected"]) == pytest.approx((14 / 40, 0.3))
    chances = [binom.pmf(k, 40, 0.3) for k in range(41)]
    two_sided = sum(one for one in chances if one <= chances[14] * (1 + 1e-7))
    assert canary["chance"] == pytest.approx(two_sided)
    elsewhere = {row["request"] for row in of_side(SHOWN, "canary") if row["version"] == 1}
    assert canary["fallbacks"] == pytest.approx(len(elsewhere) / canary["calls"]["canary"])
    assert 0 < canary["fallbacks"] < 1


def test_items_per_user(canary):
    def items(rows, side):
        rows = of_side(rows, side)
        return len(rows) / len({(row["user"], row.get("again")) for row in rows})

    check_pair(canary["items_per_user"], SHOWN, items, SIDES, relative=True)
    rows = [canary["items_per_user"][which]["rows"] for which in ("candidate", "production")]
    assert rows == [len(of_side(SHOWN, side)) for side in SIDES]


@pytest.mark.parametrize("task", WEIGHTS)
def test_labels_of_both_groups(canary, task):
    def label(rows, side):
        return fmean(row[f"label/{task}"] for row in of_side(rows, side, task))

    found = canary["tasks"][task]["label"]
    assert found["metric"] == ("rate" if task in BINARY else "mean")
    check_pair(found, SHOWN, label, SIDES, relative=True)  # ratings are below zero
    assert found["candidate"]["rows"] == len(of_side(SHOWN, "canary", task))


@pytest.mark.parametrize("task", WEIGHTS)
def test_scores_of_both_groups(canary, task):
    def score(rows, side):
        return fmean(row[f"score/{task}"] for row in of_side(rows, side, task))

    found = canary["tasks"][task]["score"]
    assert found["metric"] == "score"
    check_pair(found, SHOWN, score, SIDES)


def test_calibration_of_both_groups(canary):
    assert canary["tasks"]["rating"]["calibration"] is None
    for task in BINARY:

        def predicted_over_observed(rows, side, task=task):
            rows = of_side(rows, side, task)
            return sum(r[f"score/{task}"] for r in rows) / sum(r[f"label/{task}"] for r in rows)

        found = canary["tasks"][task]["calibration"]
        assert found["metric"] == "predicted_over_observed"
        check_pair(found, SHOWN, predicted_over_observed, SIDES)


def test_few_users_with_labels_have_no_interval(records, contract):
    """Nine of forty users know nothing of the others, however many there are."""
    few = {f"u{number}" for number in (0, 3, 6, 9, 12, 15, 18, 21, 1)}

    def masked(rows):
        label = pl.col("^label/.*$")
        return rows.with_columns(pl.when(pl.col("user").is_in(few)).then(label).name.keep())

    some = Records(masked(records.shown), masked(records.both), records.labelled)
    found = canary_measures(some, contract, PERCENT, TRIAL, DRAWS)
    assert min(found["users"].values()) >= 10
    for outcome in found["tasks"].values():
        for pair in filter(None, outcome.values()):
            assert pair["candidate"]["value"] is not None
            assert [pair[of]["error"] for of in ("candidate", "production", "difference")] == [
                None,
                None,
                None,
            ]
    assert found["items_per_user"]["difference"]["error"] is not None
    order = shadow_measures(some, contract, TRIAL, DRAWS)["chosen_by"]["stable"]["ranking"]
    assert order["difference"]["value"] is not None
    assert order["difference"]["error"] is None


def test_one_group_alone_is_not_compared(records, contract):
    alone = records.shown.filter(pl.col("group") == "stable")
    one = Records(alone, records.both, records.labelled)
    assert canary_measures(one, contract, PERCENT, TRIAL, DRAWS) is None


# ------------------------------------------------------------------------------------ the shadow

DUE = {row["request"] for row in SHOWN if row["due"]}
SCORED = [row for row in BOTH if row["request"] in DUE]
COMPARED = [row for row in SCORED if row["other"] is not None]
VERSIONS = ("candidate", "production")


@pytest.fixture(scope="module")
def shadow(records, contract):
    return shadow_measures(records, contract, TRIAL, DRAWS)


def score_of(row, version, task=None):
    """The score of the version on trial or of the one in production, whoever answered."""
    own, other = ("score", "other") if task is None else (f"score/{task}", f"other/{task}")
    return row[own] if (row["version"] == TRIAL) == (version == "candidate") else row[other]


def test_calls_of_the_shadow_are_counted(shadow):
    calls = {row["request"] for row in SCORED}
    assert (shadow["due"], shadow["calls"]) == (len(DUE), len(calls))
    assert shadow["lost"] == pytest.approx(1 - len(calls) / len(DUE))
    assert 0 < shadow["lost"] < 1
    assert {row["request"] for row in BOTH} - DUE  # of which there are some to leave out


def test_agreement_is_the_mean_over_calls(shadow):
    calls = list({row["request"]: row for row in SCORED}.values())
    for name in ("pairs", "overlap"):

        def mean(rows, name=name):
            return fmean(row[name] for row in rows if row[name] is not None)

        check_interval(shadow[name], calls, mean)
        assert shadow[name]["rows"] == sum(row[name] is not None for row in calls)
        assert 0 < shadow[name]["value"] < 1


@pytest.mark.parametrize("task", WEIGHTS)
def test_mean_scores_of_both_versions(shadow, task):
    def mean(rows, version):
        return fmean(score_of(row, version, task) for row in rows)

    check_pair(shadow["scores"][task], COMPARED, mean, VERSIONS)


def chosen_by(group):
    rows = [row for row in COMPARED if (row["version"] == TRIAL) == (group == "canary")]
    assert {row["version"] for row in rows} == {TRIAL if group == "canary" else 1}
    return rows


def area(rows, version, task):
    """Share of the pairs of a positive and a negative in the right order; a tie counts half."""
    known = [row for row in rows if row[f"label/{task}"] is not None]
    scores = {
        y: [score_of(r, version, task) for r in known if r[f"label/{task}"] == y] for y in (0, 1)
    }
    pairs = [(p > n) + (p == n) / 2 for p in scores[1] for n in scores[0]]
    return sum(pairs) / len(pairs)


def error(rows, version, task):
    known = [row for row in rows if row[f"label/{task}"] is not None]
    return math.sqrt(fmean((score_of(r, version, task) - r[f"label/{task}"]) ** 2 for r in known))


def ndcg(rows, version):
    """Mean NDCG@10 of the calls whose items differ in what they were worth."""
    calls, found = defaultdict(list), []
    for row in rows:
        calls[row["request"], row.get("again")].append(row)
    for of_call in calls.values():
        worth = [
            max(0.0, sum(w * (row[f"label/{task}"] or 0.0) for task, w in WEIGHTS.items()))
            for row in of_call
        ]
        if len(of_call) > 1 and any(worth):
            found.append(ndcg_score([worth], [[score_of(row, version) for row in of_call]], k=10))
    return fmean(found)


@pytest.mark.parametrize("group", SIDES)
def test_measures_on_the_rows_that_one_version_chose(shadow, group):
    rows, found = chosen_by(group), shadow["chosen_by"][group]
    assert found["rows"] == len(rows)
    assert {name: one["metric"] for name, one in found["tasks"].items()} == {
        "click": "auc",
        "like": "auc",
        "rating": "rmse",
    }
    for task, pair in found["tasks"].items():
        measure = area if task in BINARY else error
        check_pair_value(pair, rows, lambda some, v, m=measure, t=task: m(some, v, t))
    assert found["ranking"]["metric"] == "ndcg@10"
    check_pair_value(found["ranking"], rows, ndcg)


@pytest.mark.parametrize("group", SIDES)
def test_a_quantile_is_compared_by_its_pinball_loss(records, group):
    quantile = CONTRACT["tasks"]["rating"] | {"loss": {"kind": "quantile", "q": 0.3}}
    changed = CONTRACT | {"tasks": CONTRACT["tasks"] | {"rating": quantile}}
    shadow = shadow_measures(records, parse(Contract, changed, "test"), TRIAL, DRAWS)
    pair = shadow["chosen_by"][group]["tasks"]["rating"]

    def pinball(rows, version):
        known = [row for row in rows if row["label/rating"] is not None]
        labels = [row["label/rating"] for row in known]
        return mean_pinball_loss(
            labels, [score_of(row, version, "rating") for row in known], alpha=0.3
        )

    assert pair["metric"] == "pinball"
    check_pair_value(pair, chosen_by(group), pinball)


def check_pair_value(pair, rows, measure):
    """As `check_pair`, of the sample alone: these measures take long, and their resamples are
    tested where they are computed."""
    new, old = (measure(rows, version) for version in VERSIONS)
    assert pair["relative"] is (pair["metric"] in {"rmse", "pinball"})
    expected = (new, old, (new - old) / old if pair["relative"] else new - old)
    values = [pair[which]["value"] for which in (*VERSIONS, "difference")]
    assert values == pytest.approx(expected, abs=1e-12)
    assert not {*values} & {0.0, 1.0}
    if pair["candidate"]["error"] is not None:
        assert pair["difference"]["low"] < pair["difference"]["value"] < pair["difference"]["high"]


def test_without_labels_scores_alone_are_compared(records, contract, shadow):
    bare = Records(records.shown, records.both, [])
    found = shadow_measures(bare, contract, TRIAL, DRAWS)
    assert found["chosen_by"] == {}
    assert found["scores"] == shadow["scores"]
    nobody = Records(records.shown.with_columns(due=pl.lit(False)), records.both, [])
    assert shadow_measures(nobody, contract, TRIAL, DRAWS) is None
