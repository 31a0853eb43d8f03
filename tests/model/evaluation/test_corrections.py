"""Scores of another library are put right as an export puts ours right."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.model import CalibrationMethod
from multigate.configs.statistics import Statistics
from multigate.model.baselines import lightgbm_baseline
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation.against_baseline import compare_with_baseline
from multigate.model.evaluation.combine import combine
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


class Unsure(lightgbm_baseline.LightGBM):
    """LightGBM that knows its tasks less well: lists can be in a worse order."""

    def outputs(self, rows: Rows) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        found = {}
        for name, outputs in super().outputs(rows).items():
            p = np.clip(outputs, 0.05, 0.95)
            found[name] = 1 / (1 + (1 - p) / p * np.exp(rng.normal(0, 2, len(p))))
        return found


def test_lightgbm_is_corrected_for_the_negatives_that_a_version_is_corrected_for(
    tiny: Any, examples: Path, tmp_path: Path
) -> None:
    """The same logits on both sides are level; LightGBM's were 20 times too high, and lost."""
    kept = 0.05
    folder = tmp_path / "examples"
    shutil.copytree(examples, folder)
    path = ExamplesFolder(folder).statistics
    path.write_text(json.dumps(json.loads(path.read_text()) | {"negatives_kept": kept}))
    contract = tiny.config.contract
    tasks = {
        name: contract.tasks[name].model_copy(update={"score_weight": weight})
        for name, weight in (("click", 1.0), ("like", 2.0))
    }
    contract = contract.model_copy(update={"tasks": tasks})
    baseline = Unsure(**vars(lightgbm_baseline.fit(folder, contract)))
    rows = read_rows(folder, "test")
    raw = baseline.scores(rows)
    y = read_rows(folder, "validation").labels(contract)
    # Of a task's negatives, those that are the other one's positives all stay.
    share = {
        "click": np.mean(np.where(y[y[:, 0] == 0, 1] == 1, 1.0, kept)),
        "like": np.mean(np.where(y[y[:, 1] == 0, 0] == 1, 1.0, kept)),
    }
    served = {n: p / (p + (1 - p) / share[n]) for n, p in raw.items()}
    resamples = Resamples(rows.codes(contract.user), 50)

    def compared(scores: dict[str, np.ndarray], positive_by: tuple[str, ...] | None) -> Any:
        ours = Scored(contract, scores, combine(contract, scores), positive_by=positive_by)
        return compare_with_baseline(ours, baseline, rows, resamples, folder)

    found = compared(served, ())
    assert found["ranking"]["difference"]["value"] == pytest.approx(0, abs=1e-6)
    uncorrected = compared(served, None)["ranking"]
    assert uncorrected["difference"]["value"] != pytest.approx(0, abs=1e-3)
    for name in tasks:
        loss = found["tasks"][name]["measures"]["log_loss"]
        assert loss["production"]["value"] == pytest.approx(loss["candidate"]["value"], rel=1e-4)
        known = ~np.isnan(rows.labels(contract)[:, list(tasks).index(name)])
        measured = log_loss(rows.labels(contract)[known, list(tasks).index(name)], raw[name][known])
        assert measured != pytest.approx(loss["production"]["value"], rel=0.05)
    # A checkpoint's scores are not corrected yet, and LightGBM's beside them are not either.
    assert compared(raw, None)["ranking"]["difference"]["value"] == 0
    # Of clicks alone, all negatives were drawn from; likes without a click lost theirs, too.
    loss = compared(served, ("click",))["tasks"]["click"]["measures"]["log_loss"]
    p = raw["click"] / (raw["click"] + (1 - raw["click"]) / kept)
    assert loss["production"]["value"] == pytest.approx(
        log_loss(rows.labels(contract)[:, 0], p), rel=1e-4
    )


def test_a_task_without_scores_makes_impressions_positive_all_the_same(
    tiny: Any, examples: Path
) -> None:
    contract = tiny.config.contract
    statistics = Statistics.read(ExamplesFolder(examples).statistics)
    statistics = statistics.model_copy(update={"negatives_kept": 0.25})
    validation = read_rows(examples, "validation")
    y = validation.labels(contract)
    half = {"click": np.full(len(validation), 0.5)}
    found = corrected(contract, statistics, validation, half, half, "none", ("like",))
    share = np.mean(np.where(y[y[:, 0] == 0, 2] == 1, 1.0, 0.25))
    assert found.scores["click"] == pytest.approx(share / (1 + share))


def test_row_weights_count_in_the_corrections(tiny: Any, examples: Path) -> None:
    """As in an export: the weighted rate, and the weighted mean in the label's own units."""
    contract = tiny.config.contract
    statistics = Statistics.read(ExamplesFolder(examples).statistics)
    rows = read_rows(examples, "validation")
    y = rows.labels(contract)
    rng = np.random.default_rng(0)
    weights = np.where(y[:, 0] == 1, rng.choice([4.0, 12.0], len(y)), 1.0)
    long = np.nan_to_num(y[:, 1]) > np.nanmedian(y[:, 1])
    weights[long] *= 5
    column = pa.array(weights.astype(np.float32))
    validation = Rows(rows.source, rows.table.append_column("meta/mine", column))
    click = 1 / (1 + np.exp(rng.normal(1 - 2 * y[:, 0], 1.2)))
    logs = np.nan_to_num(transform(contract.tasks["dwell"], y[:, 1]))
    given = {"click": click, "dwell": rng.normal(0.6 * logs, 0.3)}

    def put_right(weight: str | None, method: CalibrationMethod) -> Any:
        return corrected(contract, statistics, validation, given, given, method, weight=weight)

    found, alike = (put_right(weight, "platt") for weight in ("meta/mine", None))
    rate = np.average(y[:, 0], weights=weights)
    assert rate > y[:, 0].mean() + 0.2
    assert np.average(found.scores["click"], weights=weights) == pytest.approx(rate, abs=0.01)
    assert alike.scores["click"].mean() == pytest.approx(y[:, 0].mean(), abs=0.01)
    found, alike = (put_right(weight, "none") for weight in ("meta/mine", None))
    known = ~np.isnan(y[:, 1])
    for one, w in ((found, weights[known]), (alike, np.ones(known.sum()))):
        factor, power = one.smeared["dwell"]
        sums = np.sum(w * (1 + y[known, 1])), np.sum(w * (1 + one.scores["dwell"][known]) ** power)
        assert factor == pytest.approx(sums[0] / sums[1], rel=1e-4)
        means = (np.average(of[known], weights=w) for of in (y[:, 1], one.means["dwell"]))
        assert next(means) == pytest.approx(next(means), rel=1e-4)
    assert found.smeared["dwell"].factor != pytest.approx(alike.smeared["dwell"].factor, rel=0.01)
