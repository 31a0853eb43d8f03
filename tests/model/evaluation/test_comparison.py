"""The verdict: a worse model is refused, a better one blessed, and each rule has its reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multigate.configs.errors import ConfigError, DataError, ModelError
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import Rules
from multigate.model.checkpoints import checkpoint
from multigate.model.data.rows import Rows
from multigate.model.evaluation.comparison import compare, compare_scored, reasons_to_refuse
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.evaluation.scored import Scored
from multigate.model.training import train

pytestmark = pytest.mark.slow

MUST_WIN = parse(Rules, {"tasks": {"click": {"must_win": True}}}, "rules")


@pytest.fixture(scope="module")
def models(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained checkpoint, and one whose learning rate lets it learn nothing."""
    root = tmp_path_factory.mktemp("compared")
    tasks = {
        name: task.model_copy(update={"score_weight": float(task.type == "binary")})
        for name, task in tiny.config.contract.tasks.items()
    }
    contract = tiny.config.contract.model_copy(update={"tasks": tasks})
    tiny.write_examples(root / "examples", tiny.config, rows=2000)
    for name, rate, epochs in (("good", 0.02, 3), ("bad", 1e-7, 1)):
        options = tiny.config.train.model_copy(update={"epochs": epochs, "learning_rate": rate})
        config = tiny.config.model_copy(update={"train": options, "contract": contract})
        train.train(config, root / "examples", root / name, progress=False)
    return {name: root / name for name in ("good", "bad", "examples")}


def test_a_worse_model_is_refused_and_a_better_one_blessed(tiny: Any, models: Any) -> None:
    better = compare(models["good"], models["bad"], models["examples"], MUST_WIN)
    assert better["verdict"] == "bless", better["reasons"]
    assert better["tasks"]["click"]["wins"] is True
    assert better["tasks"]["click"]["difference"]["low"] > 0
    reason = better["reasons"][0]
    assert reason.startswith("No task loses more than is allowed; better beyond chance: click")
    worse = compare(models["bad"], models["good"], models["examples"])
    assert worse["verdict"] == "refuse"
    (lost,) = [r for r in worse["reasons"] if r.startswith("click: the candidate is worse: AUC -")]
    assert "0.02 is allowed (evaluation.rules.largest_loss)." in lost
    assert worse["tasks"]["click"]["wins"] is False
    assert worse["tasks"]["click"]["rows"] == worse["rows"] == 400
    assert json.loads(json.dumps(worse, allow_nan=False)) == worse
    # The same rows and draws, seen from the other side.
    for limit, other in (("low", "high"), ("high", "low")):
        assert worse["tasks"]["click"]["difference"][limit] == pytest.approx(
            -better["tasks"]["click"]["difference"][other]
        )


def test_equal_models_tie(tiny: Any, models: Any) -> None:
    same = compare(models["good"], models["good"], models["examples"])
    assert same["verdict"] == "bless"
    for task in same["tasks"].values():
        assert task["difference"]["value"] == 0
        assert task["wins"] is None
    proof = parse(Rules, {"judge": "interval", "largest_loss": 0.0}, "rules")
    assert compare(models["good"], models["good"], models["examples"], proof)["verdict"] == "bless"
    must = compare(models["good"], models["good"], models["examples"], MUST_WIN)
    assert must["verdict"] == "refuse"
    (reason,) = must["reasons"]
    assert reason.startswith("click: it must win, and the difference AUC +0.0000 (95 % interval")


def test_nothing_in_production(tiny: Any, models: Any) -> None:
    first = compare(models["good"], None, models["examples"])
    assert first["verdict"] == "bless"
    assert first["reasons"] == ["Nothing is in production, and the candidate keeps every bound."]
    assert first["tasks"]["click"]["difference"] is None
    strict = parse(Rules, {"least_auc": 0.999}, "rules")
    first = compare(models["good"], None, models["examples"], strict)
    assert first["verdict"] == "refuse"
    assert "is below the least allowed, 0.999" in first["reasons"][0]


def test_what_is_neither_version_nor_checkpoint(tiny: Any, models: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected a checkpoint .* or an exported version"):
        compare(tmp_path, models["good"], models["examples"])
    with pytest.raises(DataError, match="no examples in 0 Parquet files"):
        compare(models["good"], None, tmp_path)


def test_calibration_and_intervals_are_those_of_the_rows(tiny: Any, models: Any) -> None:
    found = compare(models["good"], models["bad"], models["examples"])
    config, _ = checkpoint.read_config(models["good"])
    assert list(found["tasks"]) == list(config.contract.tasks)
    assert found["tasks"]["dwell"]["metric"] == "rmse"
    assert found["tasks"]["dwell"]["calibration"] is None
    rate = found["tasks"]["click"]["calibration"]
    assert rate["low"] < rate["value"] < rate["high"]
    dwell = found["tasks"]["dwell"]
    assert dwell["difference"]["value"] == pytest.approx(
        dwell["candidate"]["value"] / dwell["production"]["value"] - 1
    )


def test_an_impression_with_labels_in_several_rows_is_ranked_once(
    tiny: Any, models: Any, tmp_path: Path
) -> None:
    """As in days that are read as one folder: clicks closed a day before the rest."""
    examples = tmp_path / "examples"
    shutil.copytree(models["examples"], examples)
    (part,) = (examples / "test").glob("*.parquet")
    table = pq.read_table(part)

    def masked(rows: pa.Table, labels: list[str]) -> pa.Table:
        for name in (f"label/{label}" for label in labels):
            nulls = pa.nulls(len(rows), rows[name].type)
            rows = rows.set_column(rows.column_names.index(name), name, nulls)
        return rows

    pq.write_table(masked(table, ["dwell", "like"]), examples / "test" / "0.parquet")
    later = table.take(pa.array(np.arange(0, len(table), 2)[::-1]))
    pq.write_table(masked(later, ["click"]), examples / "test" / "1.parquet")
    odd = masked(table.take(pa.array(np.arange(1, len(table), 2))), ["click"])
    pq.write_table(odd, examples / "test" / "2.parquet")
    part.unlink()
    expected = compare(models["good"], models["bad"], models["examples"])
    found = compare(models["good"], models["bad"], examples)
    for key in ("rows", "tasks", "ranking"):
        assert found[key] == expected[key]
    assert expected["ranking"]["difference"]["value"] > 0.05


class Made:
    """Labels and scores made by hand: one binary task, so many users, ten rows each."""

    def __init__(self, tiny: Any, users: int = 40) -> None:
        contract = tiny.config.contract
        self.contract = contract.model_copy(update={"tasks": {"click": contract.tasks["click"]}})
        self.rng = np.random.default_rng(0)
        N = 10 * users
        self.p = np.clip(self.rng.beta(2, 3, N), 0.05, 0.9)
        self.labels = (self.rng.random(N) < self.p).astype(np.float32)
        self.users = np.repeat(np.arange(users), 10)

    def judge(self, ours: Any, theirs: Any, rules: dict[str, Any] | None = None) -> list[str]:
        table = pa.table(
            {
                "user_id": pa.array(self.users),
                "label/click": pa.array(self.labels, from_pandas=True),
                "meta/request": pa.array(self.users),
            }
        )
        scored = [
            None if p is None else Scored(self.contract, {"click": p}, p) for p in (ours, theirs)
        ]
        assert scored[0] is not None
        rows = Rows(Path("made"), table)
        found = compare_scored(scored[0], scored[1], rows, Resamples(self.users, 200))
        return reasons_to_refuse(found, parse(Rules, rules or {}, "rules"))


def test_a_model_that_learnt_nothing_is_refused(tiny: Any) -> None:
    made = Made(tiny)
    noise = made.rng.permutation(made.p)
    (reason,) = made.judge(noise, None)
    assert reason == "No task is shown to rank better than chance: no AUC's interval is above 0.5."
    (reason,) = made.judge(np.full_like(made.p, made.labels.mean()), None)
    assert reason.startswith("No task is shown to rank better than chance")


def test_chance_puts_no_task_below_the_least_auc(tiny: Any) -> None:
    """Of four tasks of which nothing can be learnt, it refused one first night in ten."""
    made = Made(tiny)
    click = made.contract.tasks["click"]
    contract = made.contract.model_copy(update={"tasks": dict.fromkeys("abcd", click)})
    refused = {False: 0, True: 0}  # by whether a task ranks backwards, truly
    for night in range(120):
        rng = np.random.default_rng(night)
        labels = {name: (rng.random(len(made.p)) < made.p).astype(np.float32) for name in "abcd"}
        table = pa.table(
            {"user_id": made.users} | {f"label/{name}": label for name, label in labels.items()}
        )
        resamples = Resamples(made.users, 200, seed=night)
        for backwards in refused:
            scores = {name: rng.permutation(made.p) for name in "abcd"}
            if backwards:
                scores["d"] = 1 - made.p
            found = compare_scored(
                Scored(contract, scores, made.p), None, Rows(Path("made"), table), resamples
            )
            reasons = reasons_to_refuse(found, parse(Rules, {"calibration": None}, "rules"))
            refused[backwards] += any("below the least allowed, 0.5 (" in one for one in reasons)
    assert refused[False] <= 6, "one in forty is three"
    assert refused[True] == 120


def test_a_rare_label_puts_no_task_below_the_least_auc(tiny: Any) -> None:
    """Two positives give an AUC and no interval: nothing is shown."""
    made = Made(tiny)
    click = made.contract.tasks["click"]
    contract = made.contract.model_copy(update={"tasks": {"click": click, "buy": click}})
    buys = np.zeros(len(made.p), np.float32)
    buys[[7, 8]] = 1  # of one user: a third of the resamples have none
    table = pa.table({"user_id": made.users, "label/click": made.labels, "label/buy": buys})
    scores = {"click": made.p, "buy": np.where(buys == 1, 0.001, 0.5)}
    found = compare_scored(
        Scored(contract, scores, made.p),
        None,
        Rows(Path("made"), table),
        Resamples(made.users, 200),
    )
    task = found["tasks"]["buy"]["candidate"]
    assert (task["value"], task["error"]) == (0.0, None)
    assert reasons_to_refuse(found, parse(Rules, {"calibration": None}, "rules")) == []


def test_a_miscalibrated_candidate_is_refused(tiny: Any) -> None:
    made = Made(tiny)
    assert made.judge(made.p, made.p) == []
    (reason,) = made.judge(made.p / 3, made.p)  # ranks alike: no loss of AUC
    assert reason.startswith("click: predicts 0.28 times what is observed; 0.5 to 2 is allowed (")
    assert made.judge(made.p / 3, made.p, {"calibration": None}) == []


def test_proof_is_asked_for_only_where_the_rules_say_so(tiny: Any) -> None:
    made = Made(tiny)
    noisy = np.clip(made.p + made.rng.normal(0, 0.05, len(made.p)), 0.01, 0.99)
    loose = {"largest_loss": 0.05, "largest_ranking_loss": None, "negligible_loss": 0.05}
    assert made.judge(noisy, made.p, loose) == []
    (reason,) = made.judge(noisy, made.p, loose | {"judge": "interval", "largest_loss": 0.001})
    assert reason.startswith("click: the candidate may be worse: AUC ")
    few = Made(tiny, users=3)
    (reason,) = few.judge(few.p, few.p, {"judge": "interval", "largest_ranking_loss": None})
    assert reason == (
        "click: too few users for an interval of the difference, which is judged "
        "(evaluation.rules.judge)."
    )


@pytest.mark.parametrize("label", [0.0, 1.0, np.nan])
def test_nothing_to_measure_is_no_blessing(tiny: Any, label: float) -> None:
    made = Made(tiny)
    made.labels[:] = label
    (reason,) = made.judge(made.p, made.p)
    assert reason == "No task has labels of both classes here: nothing could be measured."
    assert len(made.judge(made.p, None, {"tasks": {"click": {"must_win": True}}})) == 2


def test_scores_that_are_not_numbers_are_refused(tiny: Any) -> None:
    made = Made(tiny)
    broken = made.p.copy()
    broken[3] = np.nan
    with pytest.raises(ModelError, match="click: 1 of 400 scores is not a finite number"):
        made.judge(broken, made.p)


def test_one_user(tiny: Any) -> None:
    made = Made(tiny, users=1)
    assert made.judge(made.p, made.p) == []  # nothing is lost, although no interval exists


def test_a_task_that_the_candidate_lacks(tiny: Any) -> None:
    made = Made(tiny)
    theirs = Scored(tiny.config.contract, dict.fromkeys(tiny.config.contract.tasks, made.p), made.p)
    table = pa.table({"user_id": made.users, "label/click": made.labels})
    rows = Rows(Path("made"), table)
    ours = Scored(made.contract, {"click": made.p}, made.p)
    found = compare_scored(ours, theirs, rows, Resamples(made.users, 50))
    reasons = reasons_to_refuse(found, Rules())
    assert "like: production has this task, the candidate does not." in reasons


def test_a_task_of_another_type_is_not_compared(tiny: Any) -> None:
    made = Made(tiny)
    other = made.contract.tasks["click"].model_copy(update={"type": "regression"})
    contract = made.contract.model_copy(update={"tasks": {"click": other}})
    rows = Rows(Path("made"), pa.table({"user_id": made.users, "label/click": made.labels}))
    scored = [Scored(one, {"click": made.p}, made.p) for one in (made.contract, contract)]
    with pytest.raises(ModelError, match="click: a binary task of the candidate, a regression"):
        compare_scored(scored[0], scored[1], rows, Resamples(made.users, 50))


def test_rules_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="calibration: expected limits that ascend"):
        parse(Rules, {"calibration": [2, 1]}, "rules")
