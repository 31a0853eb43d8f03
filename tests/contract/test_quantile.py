"""A task that predicts a quantile is stopped, measured, compared and judged as a quantile.

The log has groups of one mean and different spread. Whoever predicts the 0.9 quantile must know the
group; whoever is measured by squared error had better not.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import d2_pinball_score, mean_pinball_loss, root_mean_squared_error

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import Rules
from multigate.model.assessment.assess import assess
from multigate.model.baselines.lightgbm_baseline import LightGBM, fit
from multigate.model.checkpoints import checkpoint, history
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation import evaluate
from multigate.model.evaluation.against_baseline import compare_with_baseline, objections
from multigate.model.evaluation.comparison import compare, table
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.evaluation.scored import Scored, score
from multigate.model.report.page import write_report
from multigate.model.training import train
from multigate.pipeline import job

pytestmark = pytest.mark.slow

Q, MEAN, SPREADS = 0.9, 10.0, (0.2, 1.0, 2.0, 4.0)

SETTINGS: dict[str, Any] = {
    "name": "waits",
    "contract": {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item"},
            "group": {"kind": "id", "side": "context"},
        },
        "tasks": {
            "wait": {
                "group": "engagement",
                "type": "regression",
                "label": {"rule": "column", "column": "wait"},
                "loss": {"kind": "quantile", "q": Q},
                "score_weight": 1,
            }
        },
    },
    "pipeline": {
        "log": {
            "shape": "impressions",
            "files": ["*.jsonl"],
            "format": {"type": "jsonl"},
            "known_after": "1m",
            "columns": {"time": "time", "user": "user_id", "item": "item_id"},
        },
        "split": {"by": "time", "validation": 0.2, "test": 0.2},
    },
    "model": {
        "embedding_dim": 4,
        "experts": {"count": 2, "units": [16], "dropout": 0},
        "towers": {"units": [8]},
    },
    "train": {"epochs": 6, "batch_size": 128, "learning_rate": 0.005, "patience": 6},
    "evaluation": {"replicates": 100},
}


class Waits:
    """Examples of the log, a model that has learnt, and one that predicts a constant."""

    def __init__(self, root: Path) -> None:
        rng = np.random.default_rng(0)
        (root / "logs").mkdir()
        with (root / "logs/log.jsonl").open("w") as file:
            for n in range(6000):
                group = int(rng.integers(len(SPREADS)))
                row = {
                    "time": 1_780_272_000 + 60 * n,
                    "user_id": f"u{rng.integers(40)}",
                    "item_id": f"i{rng.integers(30)}",
                    "group": f"g{group}",
                    "wait": MEAN + SPREADS[group] * rng.normal(),
                }
                file.write(json.dumps(row) + "\n")
        self.config = parse(Config, SETTINGS, "waits.yaml")
        self.examples, self.good, self.constant = root / "e", root / "good", root / "constant"
        job.run(self.config, root / "logs", self.examples)
        train.train(self.config, self.examples, self.good, progress=False)
        options = self.config.train.model_copy(update={"epochs": 1, "learning_rate": 1e-9})
        idle = self.config.model_copy(update={"train": options})
        train.train(idle, self.examples, self.constant, progress=False)
        self.rows = read_rows(self.examples, "test")
        self.labels = self.rows.labels(self.config.contract)[:, 0].astype(np.float64)

    def spread(self, rows: Rows) -> np.ndarray:
        """(N,) of the label, by the row's group."""
        return np.array([SPREADS[int(group[1:])] for group in rows.table["group"].to_pylist()])

    def truth(self) -> np.ndarray:
        """The true quantile (N,) of each test row."""
        return np.asarray(MEAN + norm.ppf(Q) * self.spread(self.rows))


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Waits:
    return Waits(tmp_path_factory.mktemp("waits"))


@pytest.fixture(scope="module")
def boosted(waits: Waits) -> LightGBM:
    return fit(waits.examples, waits.config.contract, threads=1)


def test_the_kept_epoch_has_the_least_pinball_loss(waits: Waits) -> None:
    epochs = checkpoint.read_history(waits.good)
    losses = [epoch["tasks"]["wait"]["val_loss"] for epoch in epochs]
    kept = history.kept(epochs)
    assert history.monitor(epochs) == "quality"
    assert kept["epoch"] == 1 + int(np.argmin(losses))
    # The checkpoint has the quality that the history says, in any units.
    rows = read_rows(waits.examples, "validation")
    labels = rows.labels(waits.config.contract)[:, 0]
    found = d2_pinball_score(labels, score(waits.good, rows).scores["wait"], alpha=Q)
    assert kept["tasks"]["wait"]["val_quality"] == pytest.approx(found, abs=1e-3)
    assert found > 0.1


def test_the_better_quantile_is_blessed_though_its_squared_error_is_larger(waits: Waits) -> None:
    scores = {path: score(path, waits.rows).scores["wait"] for path in (waits.good, waits.constant)}
    pinball, squares = (
        [measure(waits.labels, p) for p in scores.values()]
        for measure in (lambda y, p: mean_pinball_loss(y, p, alpha=Q), root_mean_squared_error)
    )
    assert pinball[0] < 0.95 * pinball[1]
    assert squares[0] > 1.03 * squares[1]  # more than any rule allows
    better = compare(waits.good, waits.constant, waits.examples)
    assert better["verdict"] == "bless", better["reasons"]
    found = better["tasks"]["wait"]
    assert found["metric"] == "pinball"
    assert found["wins"] is True
    assert found["candidate"]["value"] == pytest.approx(pinball[0])
    assert found["difference"]["value"] == pytest.approx(pinball[0] / pinball[1] - 1)
    assert "pinball loss" in list(table(better).columns[1].cells)
    worse = compare(waits.constant, waits.good, waits.examples)
    assert worse["verdict"] == "refuse"
    assert worse["reasons"][0].startswith("wait: the candidate is worse: pinball loss +")


def test_the_candidates_contract_says_how_both_are_measured(waits: Waits, tmp_path: Path) -> None:
    """A model of the mean in production does not know the quantile that is wanted now."""
    loss = {"wait": SETTINGS["contract"]["tasks"]["wait"] | {"loss": None}}
    settings = SETTINGS | {"contract": SETTINGS["contract"] | {"tasks": loss}}
    train.train(parse(Config, settings, "m.yaml"), waits.examples, tmp_path / "m", progress=False)
    found = compare(waits.good, tmp_path / "m", waits.examples)
    assert (found["verdict"], found["tasks"]["wait"]["metric"]) == ("bless", "pinball")
    back = compare(tmp_path / "m", waits.good, waits.examples)
    assert (back["verdict"], back["tasks"]["wait"]["metric"]) == ("bless", "rmse")


def test_the_report_shows_pinball_loss_and_coverage(waits: Waits, tmp_path: Path) -> None:
    found = assess(waits.good, waits.examples, production=waits.constant)
    task, p = found["tasks"]["wait"], score(waits.good, waits.rows).scores["wait"]
    assert task["metric"] == "pinball"
    assert task["value"] == pytest.approx(mean_pinball_loss(waits.labels, p, alpha=Q))
    assert task["coverage"] == pytest.approx(np.mean(waits.labels <= p))
    assert abs(task["coverage"] - Q) < 0.05
    assert set(task["measures"]) == {"pinball", "coverage", "spearman"}
    for name in ("pinball", "coverage"):
        assert task["measures"][name]["value"] == pytest.approx(task[name])
    assert found["loss"] == pytest.approx(task["value"])
    assert found["groups"]["engagement"]["measured"] == 1
    assert found["groups"]["engagement"]["relative_rmse"] is None
    assert {look["measure"] for look in found["slices"]["rows"]} == {"pinball"}
    widest = next(look for look in found["slices"]["rows"] if look["value"] == "g3")
    inside = waits.spread(waits.rows) == SPREADS[3]
    expected = mean_pinball_loss(waits.labels[inside], p[inside], alpha=Q)
    assert widest["found"]["value"] == pytest.approx(expected)
    assert widest["gap"] == pytest.approx(1 - expected / task["value"])
    assert found["comparison"]["verdict"] == "bless"
    shown = evaluate.table(found)
    (cell,) = shown.columns[3].cells
    assert cell == f"{task['value']:.4f}\ncoverage: {task['coverage']:.4f} of 0.9"
    assert shown.caption is None  # no mean over the group's tasks
    write_report(tmp_path / "r.html", found)
    page = (tmp_path / "r.html").read_text()
    assert f"coverage {task['coverage']:.3f} of 0.9" in page
    assert "quantile 0.9" in page
    assert "R²" not in page
    assert "Mean label by score" not in page
    assert "wait,,pinball," in (tmp_path / "r.csv").read_text()


def test_lightgbm_learns_the_quantile(waits: Waits, boosted: LightGBM) -> None:
    """In each group, and not the mean with a shift that fits them all together."""
    scores = boosted.scores(waits.rows)["wait"]
    spread = waits.spread(waits.rows)
    for one in SPREADS:
        inside = spread == one
        assert abs(np.mean(waits.labels[inside] <= scores[inside]) - Q) < 0.08
    best = mean_pinball_loss(waits.labels, waits.truth(), alpha=Q)
    assert mean_pinball_loss(waits.labels, scores, alpha=Q) < 1.05 * best


def test_the_true_quantile_beats_lightgbm_and_the_true_mean_does_not(
    waits: Waits, boosted: LightGBM
) -> None:
    resamples = Resamples(waits.rows.codes("user_id"), 100)

    def against(p: np.ndarray) -> Any:
        ours = Scored(waits.config.contract, {"wait": p}, p)
        return compare_with_baseline(ours, boosted, waits.rows, resamples)

    found = against(waits.truth())
    assert found["tasks"]["wait"]["judged"] == "pinball"
    assert objections(found) == []
    (said,) = objections(against(np.full(len(waits.labels), MEAN)))
    assert said.startswith("wait: worse than LightGBM")
    assert "pinball loss +" in said
    rules = parse(Rules, {"beats": "lightgbm"}, "rules")
    refused = compare(waits.constant, None, waits.examples, rules)
    assert refused["verdict"] == "refuse"
    assert refused["reasons"][0].startswith("wait: worse than LightGBM")
