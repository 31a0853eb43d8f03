"""Ours beside LightGBM: every measure by another way, and what the rule `beats` refuses."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, mean_pinball_loss, ndcg_score, roc_auc_score

from multigate.configs.errors import ConfigError
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import Rules
from multigate.model.baselines.lightgbm_baseline import fit
from multigate.model.baselines.table import unmatched
from multigate.model.data.rows import read_rows
from multigate.model.evaluation.against_baseline import (
    compare_with_baseline,
    measure_regression,
    objections,
    table,
)
from multigate.model.evaluation.combine import combine
from multigate.model.evaluation.comparison import compare, reasons_to_refuse
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.evaluation.scored import Scored
from multigate.model.training import train

BEATS = parse(Rules, {"beats": "lightgbm", "calibration": None}, "rules")


class Fitted:
    """LightGBM on the tiny examples, and scores to set against it."""

    def __init__(self, tiny: Any, examples: Path) -> None:
        contract = tiny.config.contract
        click = contract.tasks["click"].model_copy(update={"score_weight": 1.0})
        self.contract = contract.model_copy(update={"tasks": contract.tasks | {"click": click}})
        self.examples = examples
        self.baseline = fit(examples, self.contract)
        self.rows = read_rows(examples, "test")
        self.labels = self.rows.labels(self.contract)
        self.theirs = self.baseline.scores(self.rows)
        self.rng = np.random.default_rng(0)

    def against(self, scores: dict[str, np.ndarray], users: np.ndarray | None = None) -> Any:
        ours = Scored(self.contract, scores, combine(self.contract, scores))
        codes = self.rows.codes("user_id") if users is None else users
        return compare_with_baseline(ours, self.baseline, self.rows, Resamples(codes, 200))

    def noise(self, *names: str) -> dict[str, np.ndarray]:
        """LightGBM's scores, those of some tasks in another order."""
        changed = {name: self.rng.permutation(self.theirs[name]) for name in names}
        return self.theirs | changed

    def oracle(self) -> dict[str, np.ndarray]:
        """Nearly the labels themselves."""
        known = np.nan_to_num(self.labels, nan=0.5).T
        return {
            name: 0.9 * y + 0.05 if task.type == "binary" else y.astype(np.float64)
            for (name, task), y in zip(self.contract.tasks.items(), known, strict=True)
        }


@pytest.fixture(scope="module")
def fitted(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    folder = tmp_path_factory.mktemp("against") / "examples"
    tiny.write_examples(folder, tiny.config, rows=2000)
    return Fitted(tiny, folder)


def test_every_measure_by_another_way(fitted: Fitted) -> None:
    ours = fitted.noise("click")
    found = fitted.against(ours)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert list(found["tasks"]) == ["click", "dwell", "like"]
    click, y = found["tasks"]["click"]["measures"], fitted.labels[:, 0]
    assert list(click) == ["auc", "auc_unmatched", "gauc", "log_loss", "ndcg@10"]
    new = unmatched(fitted.contract, fitted.rows)
    users = fitted.rows.codes("user_id")
    for side, scores in (("candidate", ours["click"]), ("production", fitted.theirs["click"])):
        assert click["auc"][side]["value"] == pytest.approx(roc_auc_score(y, scores))
        assert click["auc_unmatched"][side]["value"] == pytest.approx(
            roc_auc_score(y[new], scores[new])
        )
        assert click["log_loss"][side]["value"] == pytest.approx(log_loss(y, scores))
        assert click["auc_unmatched"][side]["rows"] == new.sum() < len(y)
        areas, weights, gains = [], [], []
        for user in range(users.max() + 1):
            inside = users == user
            if 0 < y[inside].mean() < 1:
                areas.append(roc_auc_score(y[inside], scores[inside]))
                weights.append(inside.sum())
            if y[inside].any():
                gains.append(ndcg_score([y[inside]], [scores[inside]], k=10))
        assert click["gauc"][side]["value"] == pytest.approx(np.average(areas, weights=weights))
        assert click["ndcg@10"][side]["value"] == pytest.approx(np.mean(gains))
    known = ~np.isnan(fitted.labels[:, 1])
    dwell = found["tasks"]["dwell"]
    assert dwell["judged"] == "rmse_transformed"
    scores = np.maximum(fitted.theirs["dwell"][known], 0)
    error = np.log1p(fitted.labels[known, 1]) - np.log1p(scores)
    measured = dwell["measures"]["rmse_transformed"]["candidate"]["value"]
    assert measured == pytest.approx(np.sqrt(np.mean(error**2)))


def test_a_quantile_is_measured_in_its_units_and_on_the_scale_of_training(fitted: Fitted) -> None:
    dwell = fitted.contract.tasks["dwell"]
    changes = {"loss": {"kind": "quantile", "q": 0.8}}
    quantile = type(dwell).model_validate(dwell.model_dump() | changes)
    resamples = Resamples(fitted.rows.codes("user_id"), 5)
    y, p = fitted.labels[:, 1], np.maximum(fitted.theirs["dwell"], 0)
    known = ~np.isnan(y)
    found = {
        name: one[0] for name, (one, _) in measure_regression(resamples, quantile, y, p).items()
    }
    assert list(found) == ["pinball", "pinball_transformed"]  # the last decides
    assert found["pinball"] == pytest.approx(mean_pinball_loss(y[known], p[known], alpha=0.8))
    on_scale = [np.log1p(one[known]) for one in (y, p)]
    assert found["pinball_transformed"] == pytest.approx(mean_pinball_loss(*on_scale, alpha=0.8))


def test_where_all_candidates_are_new_they_are_not_measured_twice(fitted: Fitted) -> None:
    fewer = Fitted.__new__(Fitted)
    new = unmatched(fitted.contract, fitted.rows)
    fewer.__dict__ = fitted.__dict__ | {
        "rows": fitted.rows.take(np.flatnonzero(new)),
        "labels": fitted.labels[new],
        "theirs": {name: scores[new] for name, scores in fitted.theirs.items()},
    }
    scores = {name: values[new] for name, values in fitted.noise("click").items()}
    assert "auc_unmatched" not in fewer.against(scores)["tasks"]["click"]["measures"]


def test_rows_without_a_label_fill_no_place_of_a_list(fitted: Fitted) -> None:
    """NDCG of like: its masked rows get the highest scores, which changes nothing."""
    masked = np.isnan(fitted.labels[:, 2])
    assert masked.sum() > 0
    high = np.where(masked, 0.999, fitted.theirs["like"])
    found = fitted.against(fitted.theirs | {"like": high})["tasks"]["like"]["measures"]
    assert found["ndcg@10"]["difference"]["value"] == 0
    assert found["auc"]["difference"]["value"] == 0


def test_equal_scores_are_no_loss(fitted: Fitted) -> None:
    found = fitted.against(fitted.theirs)
    assert objections(found) == []
    assert found["auc"]["difference"]["value"] == 0
    assert found["auc"]["wins"] is None
    assert found["ranking"]["difference"]["value"] == 0
    (even, unread) = found["sentences"]
    assert even.startswith("No difference from LightGBM ")
    assert even.endswith(" beyond chance: mean of the binary tasks, click, dwell, like.")
    assert unread.startswith("Neither model reads position: ")


def test_wins_are_told_and_keep_the_rule(fitted: Fitted) -> None:
    """LightGBM has learnt like itself without a fault."""
    found = fitted.against(fitted.oracle())
    assert objections(found) == []
    won, even, _ = found["sentences"]
    assert won.startswith("Better than LightGBM ")
    assert won.endswith(" beyond chance: mean of the binary tasks, click, dwell.")
    assert even.endswith(" beyond chance: like.")


def test_a_worse_mean_is_refused(fitted: Fitted) -> None:
    found = fitted.against(fitted.noise("click", "like"))
    said = objections(found)
    assert [line.partition(":")[0] for line in said] == [
        "mean of the binary tasks",
        "click",
        "like",
    ]
    title = found["title"]
    assert said[1].startswith(f"click: worse than {title}: AUC -0.")
    assert said[1].endswith(").")
    assert found["sentences"][1].startswith(f"click is worse than with {title}, beyond chance: AUC")


def test_one_worse_task_is_refused_though_the_mean_is_better(fitted: Fitted) -> None:
    scores = fitted.oracle() | {"dwell": fitted.noise("dwell")["dwell"]}
    (reason,) = objections(fitted.against(scores))
    assert reason.startswith("dwell: worse than LightGBM ")
    assert "RMSE of the transformed label +" in reason
    assert " % (95 % interval +" in reason


def test_few_users_have_no_interval(fitted: Fitted) -> None:
    """Then no loss at all is allowed, and equal scores still pass."""
    users = np.arange(len(fitted.rows)) % 5
    assert objections(fitted.against(fitted.theirs, users)) == []
    scores = fitted.theirs | {"click": np.where(fitted.labels[:, 0] > 0, 0.4, 0.5)}
    said = objections(fitted.against(scores, users))
    assert len(said) == 2  # the mean, and click
    assert "95 %" not in "".join(said)


def test_users_with_one_row_each(fitted: Fitted) -> None:
    """No AUC within users; the rule looks at what there is."""
    users = np.arange(len(fitted.rows))
    found = fitted.against(fitted.noise("click"), users)
    assert list(found["tasks"]["click"]["measures"]) == [
        "auc",
        "auc_unmatched",
        "log_loss",
        "ndcg@10",
    ]
    assert len(objections(found)) == 2


def test_what_cannot_be_compared_is_refused(fitted: Fitted) -> None:
    found = copy.deepcopy(fitted.against(fitted.theirs))
    found["tasks"], found["auc"] = {}, None  # as where LightGBM has no training label
    (reason,) = objections(found)
    assert reason.startswith("No task can be compared with LightGBM ")
    differences: Any = {"tasks": {}, "ranking": None}
    assert "The rules ask to beat lightgbm, which was not measured." in reasons_to_refuse(
        differences, BEATS
    )


def test_a_task_with_one_class_is_left_out_of_the_mean(fitted: Fitted) -> None:
    one_class = Fitted.__new__(Fitted)
    one_class.__dict__ = fitted.__dict__ | {
        "rows": fitted.rows.take(np.flatnonzero(fitted.labels[:, 2] == 1))
    }
    scores = fitted.baseline.scores(one_class.rows)
    found = one_class.against(scores)
    assert "auc" not in found["tasks"]["like"]["measures"]
    assert found["auc"]["candidate"]["value"] == pytest.approx(
        found["tasks"]["click"]["measures"]["auc"]["candidate"]["value"]
    )
    assert objections(found) == []


def test_the_table_names_both(fitted: Fitted) -> None:
    view = table(fitted.against(fitted.noise("click")))
    assert [column.header for column in view.columns][2:5] == [
        "ours",
        fitted.baseline.title,
        "difference",
    ]
    assert view.row_count == 2 + 5 + 2 + 5


@pytest.mark.slow
def test_compare_demands_it(tiny: Any, fitted: Fitted, tmp_path: Path) -> None:
    """A model that learnt nothing is refused by name; without the rule LightGBM is not trained."""
    options = tiny.config.train.model_copy(update={"epochs": 1, "learning_rate": 1e-7})
    config = tiny.config.model_copy(update={"train": options})
    train.train(config, fitted.examples, tmp_path / "bad", progress=False)
    found = compare(tmp_path / "bad", None, fitted.examples, BEATS, replicates=200)
    assert found["verdict"] == "refuse"
    assert any(line.startswith("click: worse than LightGBM ") for line in found["reasons"])
    assert found["baseline"]["tasks"]["click"]["measures"]["auc"]["wins"] is False
    # What the caller has measured is not measured again.
    again = compare(
        tmp_path / "bad", None, fitted.examples, BEATS, replicates=200, baseline=found["baseline"]
    )
    assert again["baseline"] is found["baseline"]
    assert again["reasons"] == found["reasons"]
    without = compare(tmp_path / "bad", None, fitted.examples, replicates=200)
    assert "baseline" not in without


def test_the_rule_knows_one_library() -> None:
    with pytest.raises(ConfigError, match=r"rules: beats: expected 'lightgbm'|lightgbm"):
        parse(Rules, {"beats": "xgboost"}, "rules")
