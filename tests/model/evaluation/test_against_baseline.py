"""Ours beside LightGBM: every measure by another way, and what the rule `beats` refuses."""

import copy
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, mean_pinball_loss, ndcg_score, roc_auc_score

from multigate.configs.errors import ConfigError
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import Rules
from multigate.model.baselines.lightgbm_baseline import LightGBM, fit
from multigate.model.baselines.table import unmatched
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation.against_baseline import (
    compare_with_baseline,
    measure_regression,
    objections,
    table,
)
from multigate.model.evaluation.calibration import sigmoid
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
    names = "mean of the binary tasks, combined score, mean within users, click, dwell, like"
    assert even.endswith(f" beyond chance: {names}.")
    assert unread.startswith("Neither model reads position: ")


def test_wins_are_told_and_keep_the_rule(fitted: Fitted) -> None:
    """LightGBM has learnt like itself without a fault."""
    found = fitted.against(fitted.oracle())
    assert objections(found) == []
    won, even, _ = found["sentences"]
    assert won.startswith("Better than LightGBM ")
    assert won.endswith(
        " beyond chance: mean of the binary tasks, combined score, mean within users, click, dwell."
    )
    assert even.endswith(" beyond chance: like.")


def test_a_worse_mean_is_refused(fitted: Fitted) -> None:
    found = fitted.against(fitted.noise("click", "like"))
    said = objections(found)
    assert [line.partition(":")[0] for line in said] == [
        "mean of the binary tasks",
        "combined score",
        "mean within users",
        "click",
        "like",
    ]
    title = found["title"]
    assert said[3].startswith(f"click: worse than {title}: AUC -0.")
    assert said[3].endswith(").")
    assert found["sentences"][3].startswith(f"click is worse than with {title}, beyond chance: AUC")


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
    assert all("with too few users or labels for an interval, no loss" in one for one in said)


def told(found: Any) -> dict[str, set[str]]:
    """What the sentences say of each name that the rule judges, by the kind of sentence."""
    names = ("mean of the binary tasks", "combined score", "mean within users", *found["tasks"])
    kinds = {
        "worse": (" is worse than with ", ", worse than "),
        "level": ("No difference from ", ", no worse than "),
        "better": ("Better than ",),
    }
    said: dict[str, set[str]] = {name: set() for name in names}
    for line in found["sentences"]:
        head, _, listed = line.rpartition("on these rows: ")
        listed = listed if head else line
        for kind, signs in kinds.items():
            if any(sign in line for sign in signs):
                for name in names:
                    if re.search(rf"(^|[ :]){name}( \(| is|, |\.)", listed):
                        said[name].add(kind)
    return said


@pytest.mark.parametrize("users", [5, 9, 10, 40])
@pytest.mark.parametrize("noisy", [("click",), ("like",), ("dwell",), ("click", "like", "dwell")])
def test_the_report_and_the_rule_say_the_same(
    fitted: Fitted, users: int, noisy: tuple[str, ...]
) -> None:
    """A name is refused if, and only if, a sentence says that it is worse; none says two things."""
    found = fitted.against(fitted.noise(*noisy), np.arange(len(fitted.rows)) % users)
    said = told(found)
    assert {name for name, kinds in said.items() if kinds == {"worse"}} == refused(found)
    assert all(len(kinds) <= 1 for kinds in said.values())
    assert all(said[name] for name in found["tasks"])
    beyond = [line for line in found["sentences"] if "beyond chance" in line]
    assert bool(beyond) == (users >= 10)


def test_a_class_that_resamples_lack_leaves_no_interval(fitted: Fitted) -> None:
    """Twelve users, and one of them has all likes: a third of the resamples draw none."""
    night = Night(fitted, 0, users=12)
    at = night.rows.table.column_names.index("label/like")
    one = pa.array((night.users == 3).astype(np.float32) * (np.arange(len(night.users)) % 2))
    night.rows = Rows(Path("made"), night.rows.table.set_column(at, "label/like", one))
    theirs = night.noisy()
    found = night.against(theirs | {"like": night.rng.permutation(theirs["like"])}, theirs)
    like = found["tasks"]["like"]["measures"]["auc"]
    assert like["difference"]["low"] is None
    worse = like["difference"]["value"] < 0
    assert told(found)["like"] == ({"worse"} if worse else {"level"})
    assert ("like" in refused(found)) == worse
    better = {"like": np.where(np.asarray(one) > 0, 0.9, 0.1)}
    assert told(night.against(theirs | better, theirs))["like"] == {"level"}
    swapped = {"like": 1 - better["like"]}
    assert told(night.against(theirs | swapped, theirs))["like"] == {"worse"}
    assert "like" in refused(night.against(theirs | swapped, theirs))


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
    assert found["within_users"] is None
    assert len(objections(found)) == 3  # the mean, the combined score, and click


def test_what_cannot_be_compared_is_refused(fitted: Fitted) -> None:
    found = copy.deepcopy(fitted.against(fitted.theirs))
    found["tasks"], found["auc"], found["within_users"] = (
        {},
        None,
        None,
    )  # as where LightGBM has no training label
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
    assert view.row_count == 3 + 5 + 2 + 5


@dataclass(frozen=True)
class Given(LightGBM):
    """LightGBM with scores of rows that it was not trained for."""

    given: Mapping[str, np.ndarray] = field(default_factory=dict)

    def scores(self, rows: Rows) -> dict[str, np.ndarray]:
        return dict(self.given)


class Night:
    """Requests of many users, whose labels follow a user's and a row's own part; two tasks.

    Args:
        fitted: whose features the rows have.
        seed: of everything.
        users: with three requests of five rows each.
    """

    def __init__(self, fitted: Fitted, seed: int, users: int = 80) -> None:
        self.rng = np.random.default_rng(seed)
        self.fitted, N = fitted, users * 15
        self.users = np.repeat(np.arange(users), 15)
        click, like = fitted.contract.tasks["click"], fitted.contract.tasks["like"]
        like = like.model_copy(update={"score_weight": 1.0})
        self.contract = fitted.contract.model_copy(update={"tasks": {"click": click, "like": like}})
        self.of_user = {name: self.rng.normal(size=users)[self.users] for name in ("click", "like")}
        self.logits = {
            name: of_user + self.rng.normal(size=N) - (1 if name == "click" else 2.5)
            for name, of_user in self.of_user.items()
        }
        columns = {
            "user_id": pa.array(self.users),
            "meta/request": pa.array(np.arange(N) // 5),
        }
        for name, z in self.logits.items():
            y = (self.rng.random(N) < sigmoid(z)).astype(np.float32)
            columns[f"label/{name}"] = pa.array(y)
        table = fitted.rows.table.take(pa.array(self.rng.integers(0, len(fitted.rows), N)))
        for name, column in columns.items():
            if name in table.column_names:
                table = table.drop_columns(name)
            table = table.append_column(name, column)
        self.rows = Rows(Path("made"), table)

    def noisy(self) -> dict[str, np.ndarray]:
        """Scores that are as far from the truth as those of every other call."""
        return {name: sigmoid(z + self.rng.normal(size=len(z))) for name, z in self.logits.items()}

    def against(self, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> Any:
        baseline = Given(**vars(self.fitted.baseline), given=theirs)
        scored = Scored(self.contract, ours, combine(self.contract, ours))
        return compare_with_baseline(scored, baseline, self.rows, Resamples(self.users, 200))


def refused(found: Any) -> set[str]:
    """What the rule refuses by."""
    return {line.partition(":")[0] for line in objections(found)}


def test_level_models_are_seldom_refused_by_the_order_of_lists(fitted: Fitted) -> None:
    """Each of the two tests: about once in forty nights; worse orders by both, nearly always."""
    nights = 160
    level, worse = Counter[str](), Counter[str]()
    for seed in range(nights):
        night = Night(fitted, seed)
        theirs = night.noisy()
        level.update(refused(night.against(night.noisy(), theirs)))
        if seed < 20:
            noisier = {
                name: sigmoid(z + 3 * night.rng.normal(size=len(z)))
                for name, z in night.logits.items()
            }
            worse.update(refused(night.against(noisier, theirs)))
    for name in ("combined score", "mean within users"):
        assert level[name] <= 8, f"{name}: one in forty is 4 of {nights}"
        assert worse[name] >= 18, name


def test_a_task_that_no_longer_counts_in_the_sum_is_refused(fitted: Fitted) -> None:
    """AUC does not see a task's scale, and the sum of the scores orders by the other task."""
    night = Night(fitted, 0, users=300)
    theirs = night.noisy()
    found = night.against(theirs | {"click": 1e-3 * theirs["click"]}, theirs)
    assert found["tasks"]["click"]["measures"]["auc"]["difference"]["value"] == 0
    (reason,) = objections(found)
    assert reason.startswith("combined score: worse than LightGBM ")
    assert "NDCG@10 -0." in reason
    assert any(line.startswith("combined score is worse than") for line in found["sentences"])


def test_knowing_users_alone_is_refused(fitted: Fitted) -> None:
    """The user's own part without noise: as good an AUC over all rows, and no order of a list."""
    night = Night(fitted, 0, users=300)
    rare = sigmoid(2 * night.of_user["like"])
    theirs = {
        name: sigmoid(z + 1.4 * night.rng.normal(size=len(z))) for name, z in night.logits.items()
    }
    found = night.against(theirs | {"like": rare}, theirs)
    like = found["tasks"]["like"]["measures"]
    assert like["auc"]["wins"] is not False
    assert like["gauc"]["candidate"]["value"] == 0.5
    assert "mean within users" in refused(found)
    assert not {"like", "mean of the binary tasks"} & refused(found)


def test_the_order_within_few_users_is_not_judged(fitted: Fitted) -> None:
    """Of many users few have both classes: a sign alone would refuse every second level model."""
    night = Night(fitted, 0)
    both = 15 * np.arange(9)  # a row of nine users each
    for name in ("click", "like"):
        y = np.repeat(np.arange(80) % 2, 15).astype(np.float32)
        y[both] = 1 - y[both]
        column = night.rows.table.column_names.index(f"label/{name}")
        table = night.rows.table.set_column(column, f"label/{name}", pa.array(y))
        night.rows = Rows(Path("made"), table)
    theirs = night.noisy()
    found = night.against(night.noisy(), theirs)
    assert found["tasks"]["click"]["measures"]["gauc"]["candidate"]["value"] is not None
    assert found["within_users"] is None
    y[15 * 9] = 1 - y[15 * 9]  # a tenth user
    for name in ("click", "like"):
        column = night.rows.table.column_names.index(f"label/{name}")
        table = night.rows.table.set_column(column, f"label/{name}", pa.array(y))
        night.rows = Rows(Path("made"), table)
    within = night.against(night.noisy(), theirs)["within_users"]
    assert within["candidate"]["rows"] == 10 * 15
    assert within["difference"]["low"] is not None


class Smeared:
    """LightGBM on seconds of which a row's logarithm varies much, and scores to set against it."""

    def __init__(self, tiny: Any, examples: Path) -> None:
        dwell = tiny.config.contract.tasks["dwell"]
        self.contract = tiny.config.contract.model_copy(update={"tasks": {"dwell": dwell}})
        self.examples, rng = examples, np.random.default_rng(0)
        for path in sorted(examples.glob("*/part-0.parquet")):
            table = pq.read_table(path)
            z = 0.3 * np.log(table["label/dwell"].to_numpy())
            y = np.exp(3 + z + rng.normal(size=len(table)))
            at = table.column_names.index("label/dwell")
            column = pa.array(y.astype(np.float32), from_pandas=True)
            pq.write_table(table.set_column(at, "label/dwell", column), path)
        self.baseline = fit(examples, self.contract)
        self.rows, validation = (read_rows(examples, split) for split in ("test", "validation"))
        self.theirs = self.baseline.scores(self.rows)["dwell"]
        y = validation.labels(self.contract)[:, 0]
        held_out = self.baseline.scores(validation)["dwell"]
        self.factor = float(np.nansum(1 + y) / (1 + held_out)[~np.isnan(y)].sum())
        self.labels = self.rows.labels(self.contract)[:, 0]

    def against(self, scores: np.ndarray, smeared: bool = True) -> Any:
        ours = Scored(
            self.contract,
            {"dwell": scores},
            combine(self.contract, {"dwell": scores}),
            smeared=frozenset({"dwell"} if smeared else ()),
        )
        resamples = Resamples(self.rows.codes("user_id"), 200)
        examples = self.examples if smeared else None
        return compare_with_baseline(ours, self.baseline, self.rows, resamples, examples)


@pytest.fixture(scope="module")
def smeared(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Smeared:
    folder = tmp_path_factory.mktemp("smeared") / "examples"
    tiny.write_examples(folder, tiny.config, rows=5000)
    return Smeared(tiny, folder)


def test_a_mean_in_own_units_is_judged_there_against_a_mean(smeared: Smeared) -> None:
    """Both corrected by the same factor are level; on the logarithm a mean looks worse."""
    assert smeared.factor > 1.3
    scores = (1 + smeared.theirs) * smeared.factor - 1
    found = smeared.against(scores)
    dwell = found["tasks"]["dwell"]
    assert dwell["judged"] == "rmse"
    for measure in dwell["measures"].values():
        assert measure["difference"]["value"] == pytest.approx(0, abs=1e-6)
    known = ~np.isnan(smeared.labels)
    error = np.sqrt(np.mean((scores - smeared.labels)[known] ** 2))
    assert dwell["measures"]["rmse"]["production"]["value"] == pytest.approx(error, rel=1e-6)
    assert error < np.sqrt(np.mean((smeared.theirs - smeared.labels)[known] ** 2))
    assert objections(found) == []
    assert f"corrected to the mean by a factor of {smeared.factor:.3g}, as ours is" in dwell["note"]
    # The same scores, judged as if they were near the median.
    (reason,) = objections(smeared.against(scores, smeared=False))
    assert "RMSE of the transformed label +" in reason


def test_a_smeared_task_that_is_worse_is_refused(smeared: Smeared) -> None:
    mixed = np.random.default_rng(0).permutation(smeared.theirs)
    (reason,) = objections(smeared.against((1 + mixed) * smeared.factor - 1))
    assert reason.startswith("dwell: worse than LightGBM ")
    assert ": RMSE +" in reason
    # Near the median, although it says that it is a mean: LightGBM's is one.
    found = smeared.against(smeared.theirs)["tasks"]["dwell"]["measures"]["rmse"]
    assert found["difference"]["value"] > 0


def test_without_smearing_lightgbm_is_left_as_it_is(smeared: Smeared) -> None:
    found = smeared.against(smeared.theirs, smeared=False)["tasks"]["dwell"]
    assert found["judged"] == "rmse_transformed"
    assert "corrected" not in found["note"]
    assert all(one["difference"]["value"] == 0 for one in found["measures"].values())
    with pytest.raises(ValueError, match="is calibrated: expected the examples"):
        ours = Scored(smeared.contract, {}, smeared.theirs, smeared=frozenset({"dwell"}))
        compare_with_baseline(ours, smeared.baseline, smeared.rows, Resamples(smeared.labels))


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
