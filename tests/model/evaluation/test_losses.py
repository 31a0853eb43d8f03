"""The default rule: nights of equal models pass, nights of a truly worse one are all refused.

A night has users, items, labels and two models' scores, drawn such that the true AUC and RMSE are
known: the score of a row with label y is d * y + e with e ~ N(0, 1), so that AUC = Phi(d / sqrt 2).
Most of e is what both models see alike; the rest is each model's own, by row, by user and by item,
as between two seeds of one training.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm

from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import Rules
from multigate.jobs.onboarding.bounds import bound
from multigate.model.data.rows import Rows
from multigate.model.evaluation.comparison import compare_scored, reasons_to_refuse, verdict
from multigate.model.evaluation.losses import losses, too_few_rows
from multigate.model.evaluation.measures.bootstrap import Interval, Resamples
from multigate.model.evaluation.results import Differences
from multigate.model.evaluation.scored import Scored

NIGHTS = 30
RATES = {"click": 0.3, "save": 0.15, "like": 0.1, "share": 0.08}
AUC = 0.75
SPREAD = 1.2  # of the rating's error, in stars
OWN = {"binary": 0.1, "regression": 0.02}  # share of the errors' variance that is a model's own
TASKS = (*RATES, "rating")
BOUND = Rules().largest_loss


@dataclass
class Night:
    """A test split, and the errors that both models make on it."""

    contract: Any
    random: np.random.Generator
    users: int = 600
    lists: int = 10
    own: dict[str, float] = field(default_factory=dict)  # by task, where it is not OWN

    def __post_init__(self) -> None:
        self.user = np.repeat(np.arange(self.users), self.lists)
        self.N = len(self.user)
        self.item = self.random.integers(0, 500, self.N)
        taste = self.random.uniform(0.5, 1.5, self.users)[self.user]
        self.labels = {
            task: (self.random.random(self.N) < rate * taste).astype(np.float32)
            for task, rate in RATES.items()
        }
        rating = self.random.normal(3, 1, self.N).astype(np.float32)
        self.labels["rating"] = np.where(self.labels["click"] > 0, rating, np.nan)
        self.alike = {task: self.errors() for task in TASKS}

    def errors(self) -> np.ndarray:
        """Half by row, a quarter by user and a quarter by item; variance 1, (N,)."""
        by_user, by_item = self.random.normal(size=(2, max(self.users, 500)))
        row = self.random.normal(size=self.N)
        return np.sqrt(0.5) * row + 0.5 * by_user[self.user] + 0.5 * by_item[self.item]

    def model(self, **loss: float) -> Scored:
        """A training with a seed of its own; by task, its true loss of AUC or relative of RMSE."""
        scores = {}
        for task in TASKS:
            own = self.own.get(task, OWN[self.contract.tasks[task].type])
            error = np.sqrt(1 - own) * self.alike[task] + np.sqrt(own) * self.errors()
            if task == "rating":
                wide = SPREAD * (1 + loss.get(task, 0.0))
                scores[task] = np.nan_to_num(self.labels[task], nan=3.0) + wide * error
                continue
            d = np.sqrt(2) * norm.ppf(AUC - loss.get(task, 0.0))
            rate = self.labels[task].mean()
            # The probability of label 1 given the score: calibrated.
            logit = np.log(rate / (1 - rate)) + d * (d * self.labels[task] + error) - d**2 / 2
            scores[task] = 1 / (1 + np.exp(-logit))
        return Scored(self.contract, scores, scores["click"] + scores["like"])

    def compare(self, candidate: Scored, replicates: int = 120) -> Differences:
        """The candidate against another training of the model in production."""
        columns = {f"label/{t}": pa.array(self.labels[t], from_pandas=True) for t in TASKS}
        names = {"user_id": pa.array(self.user), "meta/request": pa.array(self.user)}
        rows = Rows(Path("night"), pa.table(names | columns))
        return compare_scored(candidate, self.model(), rows, Resamples(self.user, replicates))


@pytest.fixture(scope="module")
def contract(tiny: Any) -> Any:
    """Four binary tasks of rates from 8 to 30 %, and a rating of what was clicked."""
    click = tiny.config.contract.tasks["click"].model_copy(update={"score_weight": 1.0})
    unweighted = click.model_copy(update={"score_weight": 0.0})
    tasks = {t: click if t in ("click", "like") else unweighted for t in RATES}
    tasks["rating"] = unweighted.model_copy(update={"type": "regression"})
    return tiny.config.contract.model_copy(update={"tasks": tasks})


@pytest.mark.slow
def test_of_thirty_nights_of_equal_models_at_most_two_are_refused(contract: Any) -> None:
    """The rule before it, 0.005 for every estimate, refuses most of them."""
    random = np.random.default_rng(0)
    nights = [Night(contract, random) for _ in range(NIGHTS)]
    found = [night.compare(night.model()) for night in nights]
    refused = [reasons for one in found if (reasons := reasons_to_refuse(one, Rules()))]
    assert len(refused) <= 2, refused
    before = Rules(judge="estimate", largest_loss=0.005, largest_ranking_loss=0.01)
    assert sum(bool(reasons_to_refuse(one, before)) for one in found) > NIGHTS / 2


@pytest.mark.slow
def test_a_model_that_is_worse_by_twice_the_bound_is_refused_every_night(contract: Any) -> None:
    """In one of five tasks, each in turn."""
    random = np.random.default_rng(1)
    for number in range(NIGHTS):
        task, night = TASKS[number % len(TASKS)], Night(contract, random)
        reasons = reasons_to_refuse(night.compare(night.model(**{task: 2 * BOUND})), Rules())
        assert any(line.startswith(f"{task}: the candidate is worse") for line in reasons), reasons


@pytest.mark.slow
def test_bounds_of_small_test_splits_pass_equal_models_and_no_worse_one(
    contract: Any,
) -> None:
    """As `init` drafts them. The fewer labels models learn from, the less they agree."""
    few = {task: round(rate * 1000) for task, rate in RATES.items()}
    alone = {task: OWN["binary"] * 400 / count for task, count in few.items()}
    bounds = {task: bound("binary", count) for task, count in few.items()}
    bounds["rating"] = bound("regression", few["click"])
    own = {task: {"largest_loss": one} for task, one in bounds.items()}
    rules = parse(Rules, {"tasks": own, "largest_ranking_loss": None}, "rules")
    default = Rules(largest_ranking_loss=None)
    random = np.random.default_rng(4)
    nights = [Night(contract, random, users=100, own=alone) for _ in range(NIGHTS)]
    found = [night.compare(night.model()) for night in nights]
    assert sum(bool(losses(one, rules)) for one in found) <= 2
    assert sum(bool(losses(one, default)) for one in found) > NIGHTS / 3
    for number, night in enumerate(nights):
        task = TASKS[number % len(TASKS)]
        worse = night.compare(night.model(**{task: min(2 * bounds[task], 0.3)}))
        assert any(line.startswith(f"{task}: ") for line in losses(worse, rules)), task


def test_a_test_split_that_is_too_small_says_so_and_how_many_rows_it_needs(contract: Any) -> None:
    random = np.random.default_rng(3)
    small = Night(contract, random, users=100)
    rules = Rules(largest_loss=0.04)
    judged = verdict(small.compare(small.model()), rules, True)
    assert judged["verdict"] == "bless"
    _, line = judged["reasons"]
    said = re.fullmatch(
        r"Too few test rows to tell a loss of twice the bound from chance: (.*); a larger test "
        r"split, or a larger bound, would tell\.",
        line,
    )
    assert said, line
    (needed,) = re.findall(
        r"share \(known to within [\d.]+ with 1,000 rows, about ([\d,]+) needed\)", said[1]
    )
    users = int(needed.replace(",", "")) // small.lists
    assert 100 < users < 2000
    large = Night(contract, random, users=int(1.3 * users))
    unseen = too_few_rows(large.compare(large.model()), rules)
    assert "share" not in (unseen or "")


def differences(**tasks: tuple[float, float | None]) -> Differences:
    """Binary tasks by loss of AUC and its standard error; no interval without one."""

    def measured(value: float, error: float | None) -> Interval:
        ends = (None, None) if error is None else (value - 1.96 * error, value + 1.96 * error)
        return {"value": value, "low": ends[0], "high": ends[1], "error": error, "rows": 1000}

    return {
        "tasks": {
            name: {
                "metric": "auc",
                "candidate": measured(0.8 - loss, 0.01),
                "production": measured(0.8, 0.01),
                "difference": measured(-loss, error),
                "wins": None,
                "rows": 1000,
                "group": "engagement",
                "type": "binary",
                "calibration": None,
            }
            for name, (loss, error) in tasks.items()
        },
        "ranking": None,
    }


def test_what_is_shown_depends_on_the_number_of_comparisons() -> None:
    """0.012 - 1.96 * 0.004 = 0.0042; of six, 0.012 - 2.638 * 0.004 = 0.0014: negligible."""
    (reason,) = losses(differences(a=(0.012, 0.004)), Rules())
    assert reason == (
        "a: the candidate is worse beyond chance: AUC -0.0120 (95 % interval -0.0198 to -0.0042), "
        "shown over 1 comparison to be more than the 0.002 that is negligible "
        "(evaluation.rules.negligible_loss)."
    )
    level = dict.fromkeys("bcdef", (0.0, 0.004))
    assert losses(differences(a=(0.012, 0.004), **level), Rules()) == []
    assert len(losses(differences(a=(0.013, 0.004), **level), Rules())) == 1


def test_a_negligible_loss_is_none_however_well_it_is_shown() -> None:
    assert losses(differences(a=(0.0019, 1e-6)), Rules()) == []
    assert len(losses(differences(a=(0.0021, 1e-6)), Rules())) == 1
    assert len(losses(differences(a=(0.0019, 1e-6)), Rules(negligible_loss=0.0))) == 1


def test_any_loss_beyond_the_bound_is_refused_and_the_key_is_named() -> None:
    """0.021 +- 0.02 may be chance: (3 * 0.02 / 0.02)^2 = 9 times the rows would tell."""
    assert losses(differences(a=(0.0199, 0.02)), Rules()) == []
    (reason,) = losses(differences(a=(0.021, 0.02)), Rules())
    assert reason == (
        "a: the candidate is worse: AUC -0.0210 (95 % interval -0.0602 to +0.0182); 0.02 is "
        "allowed (evaluation.rules.largest_loss). With 1,000 test rows this may be chance; about "
        "9,000 would tell."
    )
    (reason,) = losses(differences(a=(0.021, 0.006)), Rules())
    assert reason.endswith("0.02 is allowed (evaluation.rules.largest_loss).")
    (reason,) = losses(differences(a=(0.021, None)), Rules())  # fewer than ten users
    assert reason.endswith("With 1,000 test rows this may be chance.")
    own = parse(Rules, {"tasks": {"a": {"largest_loss": 0.03}}}, "rules")
    assert losses(differences(a=(0.029, 0.02)), own) == []
    (reason,) = losses(differences(a=(0.031, 0.02)), own)
    assert "0.03 is allowed (evaluation.rules.tasks.a.largest_loss)" in reason


def test_a_bound_alone_and_a_proof() -> None:
    estimate, interval = Rules(judge="estimate"), Rules(judge="interval")
    assert losses(differences(a=(0.019, 0.001)), estimate) == []
    assert len(losses(differences(a=(0.021, 0.02)), estimate)) == 1
    assert losses(differences(a=(0.0, 0.01)), interval) == []  # 0.0196
    (reason,) = losses(differences(a=(0.0, 0.011)), interval)  # 0.0216
    assert reason.startswith("a: the candidate may be worse: AUC")


def test_what_was_not_compared_is_said_in_the_blessing() -> None:
    found = differences(a=(0.0, 0.001), b=(0.0, None))
    found["tasks"]["b"]["difference"]["value"] = None
    found["tasks"]["b"]["rows"] = 12
    judged = verdict(found, Rules(), True)
    assert judged["verdict"] == "bless"
    assert judged["reasons"][1:] == [
        "Not compared, for lack of labels in the test split: b (12 rows with a label)."
    ]
    few = verdict(differences(a=(0.0, 0.001), b=(0.0, None)), Rules(), True)
    assert "from chance: b (too few users for an interval); a larger" in few["reasons"][1]
