"""Scores of another library are put right as an export puts ours right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.model import CalibrationMethod
from multigate.configs.statistics import Statistics
from multigate.model.baselines import lightgbm_baseline
from multigate.model.data.rows import read_rows
from multigate.model.evaluation.against_baseline import compare_with_baseline
from multigate.model.evaluation.corrections import corrected
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.evaluation.scored import Scored
from multigate.model.ranker.scores import transform


@pytest.fixture(scope="module")
def examples(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corrections") / "examples"
    tiny.write_examples(folder, tiny.config, rows=20_000)
    return folder


def test_how_scores_were_scaled_does_not_count(tiny: Any, examples: Path) -> None:
    """The same order at other heights: log loss and errors are those of the scores put right."""
    contract = tiny.config.contract
    statistics = Statistics.read(ExamplesFolder(examples).statistics)
    rng = np.random.default_rng(0)
    rows = {split: read_rows(examples, split) for split in ("validation", "test")}
    labels = {split: one.labels(contract) for split, one in rows.items()}
    click = {s: 1 / (1 + np.exp(rng.normal(1 - 2 * y[:, 0], 1.2))) for s, y in labels.items()}
    dwell = {}
    for split, y in labels.items():
        logs = transform(contract.tasks["dwell"], y[:, 1])
        dwell[split] = np.nan_to_num(logs) * 0.5 + rng.normal(1, 0.5, len(y))
    as_they_are, scaled = (
        corrected(
            contract,
            statistics,
            rows["validation"],
            {"click": of_click(click["validation"]), "dwell": of_dwell(dwell["validation"])},
            {"click": of_click(click["test"]), "dwell": of_dwell(dwell["test"])},
        )
        for of_click, of_dwell in (
            (lambda p: p, lambda z: z),
            (lambda p: p**3 / (p**3 + (1 - p)), lambda z: 0.6 * z - 1),
        )
    )
    y = labels["test"][:, 0]
    losses = [log_loss(y, found.scores["click"]) for found in (as_they_are, scaled)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] < 0.9 * log_loss(
        y, click["test"] ** 3 / (click["test"] ** 3 + 1 - click["test"])
    )
    area = roc_auc_score(y, click["test"])
    assert roc_auc_score(y, scaled.scores["click"]) == pytest.approx(area, abs=1e-3)
    known = ~np.isnan(labels["test"][:, 1])
    errors = [
        np.sqrt(np.mean((found.means["dwell"] - labels["test"][:, 1])[known] ** 2))
        for found in (as_they_are, scaled)
    ]
    assert errors[1] == pytest.approx(errors[0], rel=0.05)


def test_lightgbm_is_calibrated_beside_a_version_and_not_beside_a_checkpoint(
    tiny: Any, examples: Path
) -> None:
    contract = tiny.config.contract
    contract = contract.model_copy(update={"tasks": {"click": contract.tasks["click"]}})
    baseline = lightgbm_baseline.fit(examples, contract)
    rows = read_rows(examples, "test")
    scores = baseline.scores(rows)
    resamples = Resamples(rows.codes(contract.user), 50)

    def loss(method: CalibrationMethod) -> float:
        ours = Scored(contract, scores, scores["click"], calibration=method)
        found = compare_with_baseline(ours, baseline, rows, resamples, examples)
        measure = found["tasks"]["click"]["measures"]["log_loss"]
        assert measure["candidate"]["value"] == pytest.approx(
            log_loss(rows.labels(contract)[:, 0], scores["click"])
        )
        return float(measure["production"]["value"])

    y = rows.labels(contract)[:, 0]
    assert loss("none") == pytest.approx(log_loss(y, scores["click"]))
    statistics = Statistics.read(ExamplesFolder(examples).statistics)
    validation = read_rows(examples, "validation")
    held_out = baseline.scores(validation)
    losses = {}
    for method in ("auto", "platt", "isotonic"):  # as the version was
        put_right = corrected(contract, statistics, validation, held_out, scores, method)
        losses[method] = loss(method)
        assert losses[method] == pytest.approx(log_loss(y, put_right.scores["click"]))
    assert len(set(losses.values())) > 1
