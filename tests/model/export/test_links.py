"""Scores put right: downsampled negatives, and means of labels trained on their logarithm."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

from multigate.configs.errors import ModelError
from multigate.configs.files import SPLITS, ExamplesFolder
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import EvaluationConfig, Rules
from multigate.configs.statistics import Statistics
from multigate.model.assessment.assess import assess
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import read_split
from multigate.model.data.raw import raw_values
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation import calibration, smearing
from multigate.model.evaluation.calibration import sigmoid
from multigate.model.evaluation.comparison import compare
from multigate.model.evaluation.evaluate import Predictions
from multigate.model.evaluation.scored import score
from multigate.model.export import links
from multigate.model.export.export import export
from multigate.model.training import train

KEPT = 0.1


def log_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, 2), and labels (N, 3): click, dwell (unknown), and like where clicked."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (rows, 2))
    click = rng.random(rows) < sigmoid(x @ [1.0, 0.5] - 2)
    like = rng.random(rows) < sigmoid(x @ [-0.5, 1.0] - 1)
    labels = np.full((rows, 3), np.nan, np.float32)
    labels[:, 0], labels[click, 2] = click, like[click]
    return x, labels


def fit(x: np.ndarray, y: np.ndarray) -> LogisticRegression:
    return LogisticRegression(C=1e6).fit(x[~np.isnan(y)], y[~np.isnan(y)])


@pytest.mark.parametrize("method", [None, "platt", "isotonic"])
def test_a_downsampled_log_gives_the_full_logs_probabilities(case, method) -> None:
    contract = case.config().contract
    statistics = Statistics.read(ExamplesFolder(case.examples).statistics)
    x, labels = log_rows(200_000, 0)
    stays = (labels[:, 0] == 1) | (np.random.default_rng(9).random(len(x)) < KEPT)
    (validation, known), (test, _) = log_rows(60_000, 1), log_rows(20_000, 2)
    nothing = np.zeros(len(known), bool)
    shares = links.negative_shares(contract, KEPT, ("click",), known, nothing)
    assert shares == {"click": pytest.approx(KEPT)}  # likes are masked on what was left out
    assert links.negative_shares(contract, 1.0, (), known, nothing) == {}
    assert links.negative_shares(contract, KEPT, (), known, ~nothing) == {}  # sampled ones all stay
    for t, task in ((0, "click"), (2, "like")):
        logits = {}
        for log, rows in (("full", slice(None)), ("downsampled", stays)):
            model = fit(x[rows], labels[rows, t])
            offset = np.log(shares.get(task, 1.0)) if log == "downsampled" else 0.0
            raw = model.decision_function(test)
            found = raw + offset
            if method is not None:
                shown = {
                    name: model.decision_function(validation) + offset for name in contract.tasks
                }
                curves = calibration.fit(contract, statistics, method, shown, known).curves
                # As it goes into the file: one curve on the logits of the model.
                if task in curves:
                    curve = links.shift_input(curves[task], offset)
                    found = np.asarray(curve(raw.astype(np.float32)))
            logits[log] = found
            uncorrected = raw
        p, q = sigmoid(logits["full"]), sigmoid(logits["downsampled"])
        assert np.abs(p - q).mean() < 0.006
        if task == "click":
            assert np.abs(p - sigmoid(uncorrected)).mean() > 0.2
            np.testing.assert_allclose(  # the formula
                sigmoid(raw + np.log(KEPT)),
                sigmoid(raw) / (sigmoid(raw) + (1 - sigmoid(raw)) / KEPT),
            )


def test_negatives_that_are_anothers_positives_all_stay(case) -> None:
    contract = case.config().contract
    labels = np.array([[0, np.nan, 0]] * 6 + [[0, np.nan, 1]] * 2 + [[1, np.nan, 0]] * 3, float)
    shares = links.negative_shares(contract, 0.5, (), labels, np.zeros(11, bool))
    assert shares == {"click": pytest.approx(5 / 8), "like": pytest.approx(6 / 9)}


def test_an_impression_may_have_its_labels_in_several_rows(case) -> None:
    """A click that closed a day earlier: the impression stayed, whatever became of the like."""
    contract = case.config().contract
    once = np.array([[0, np.nan, 0]] * 6 + [[1, np.nan, 0]] * 3, float)
    expected = links.negative_shares(contract, 0.5, (), once, np.zeros(9, bool))
    clicks, likes = once.copy(), once.copy()
    clicks[:, 2], likes[:, 0] = np.nan, np.nan
    columns = dict(zip(contract.tasks, np.concatenate([clicks, likes]).T, strict=True))
    table = pa.table({f"label/{n}": pa.array(y, from_pandas=True) for n, y in columns.items()})
    table = table.append_column("meta/impression", pa.array(np.tile(np.arange(9), 2)))
    labels = Rows(case.examples, table).once().labels(contract)
    shares = links.negative_shares(contract, 0.5, (), labels, np.zeros(9, bool))
    assert shares == expected == {"click": 0.5, "like": pytest.approx(6 / 9)}


def test_smearing_estimates_the_mean_of_what_was_trained_on_its_logarithm(case) -> None:
    loaded = checkpoints.load(case.checkpoint())
    contract, statistics = loaded.encoder.contract, loaded.encoder.statistics
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1, 50_000)
    of_task = statistics.tasks["dwell"]
    labels = np.full((50_000, 3), np.nan)
    labels[:, 1] = np.expm1(z * of_task.std + of_task.mean + rng.normal(0, 0.8, 50_000))
    logits = dict.fromkeys(contract.tasks, z)
    found = smearing.fit(contract, statistics, logits, labels)
    predicted = z * of_task.std + of_task.mean
    assert found == {"dwell": (pytest.approx(np.exp(0.8**2 / 2), rel=0.02), 1.0)}
    score = np.expm1(predicted + np.log(found["dwell"].factor))
    assert score.mean() == pytest.approx(labels[:, 1].mean(), rel=0.02)
    # Low predictions err more: the factor is of the sums, and no score is better times another one.
    noise = rng.normal(0, np.where(z < 0, 1.0, 0.6))
    labels[:, 1] = np.expm1(z * of_task.std + of_task.mean + noise)
    (one,) = smearing.fit(contract, statistics, logits, labels).values()
    of_factor = one.factor * np.exp(one.power * predicted) - 1
    assert of_factor.mean() == pytest.approx(labels[:, 1].mean(), rel=1e-3)
    # Where the residuals are few and wild, it does not help, and is left out.
    labels[:, 1] = np.expm1(z * of_task.std + of_task.mean)
    labels[:5, 1] *= 1e4
    labels[5:25, 1] = 0.0
    wild = smearing.fit(contract, statistics, logits, labels)
    assert wild == {} or wild["dwell"].factor < 2


def test_a_row_of_weight_three_counts_like_three_rows(case) -> None:
    loaded = checkpoints.load(case.checkpoint())
    contract, statistics = loaded.encoder.contract, loaded.encoder.statistics
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1, 3000)
    of_task = statistics.tasks["dwell"]
    labels = np.full((3000, 3), np.nan)
    labels[:, 0], labels[:, 2] = rng.random((2, 3000)) < 0.3
    noise = rng.normal(0, np.where(z < 0, 1.0, 0.5))
    labels[:, 1] = np.expm1(z * of_task.std + of_task.mean + noise)
    weights = rng.integers(0, 4, 3000)
    repeated = np.repeat(np.arange(3000), weights)
    logits = dict.fromkeys(contract.tasks, z)
    of_repeated = {task: values[repeated] for task, values in logits.items()}
    times = np.arange(3000)
    once = smearing.fit(contract, statistics, logits, labels, times, weights)["dwell"]
    expected = smearing.fit(contract, statistics, of_repeated, labels[repeated], times[repeated])
    assert once == pytest.approx(expected["dwell"])
    equal = smearing.fit(contract, statistics, logits, labels, times)["dwell"]
    assert once != pytest.approx(equal, rel=1e-3)
    given = (np.zeros(3000, bool), weights)
    shares = links.negative_shares(contract, 0.25, ("click",), labels, *given)
    assert shares == pytest.approx(
        links.negative_shares(
            contract, 0.25, ("click",), labels[repeated], np.zeros(len(repeated), bool)
        )
    )


@pytest.mark.slow
def test_an_export_calibrates_to_the_weighted_rows(case, tmp_path) -> None:
    """Clicks of weight 9 make the rate that training learns, and what is served has it too."""
    folder = tmp_path / "examples"
    shutil.copytree(case.examples, folder)
    for path in (one for split in SPLITS for one in (folder / split).glob("*.parquet")):
        table = pq.read_table(path)
        clicked = table["label/click"].to_numpy(zero_copy_only=False) == 1
        values = pa.array(np.where(clicked, 9.0, 1.0).astype(np.float32))
        pq.write_table(table.append_column("meta/mine", values), path)
    config = case.config(
        train={"weight": "meta/mine", "epochs": 3}, export={"calibration": "platt"}
    )
    train.train(config, folder, tmp_path / "checkpoint", progress=False)
    version = export(tmp_path / "checkpoint", folder, tmp_path / "models")
    contract = config.contract
    table = pq.read_table(folder / "test")
    raw = raw_values(contract, table, [n for n, _ in contract.of_side("user", "item", "context")])
    scores = tf.saved_model.load(str(version)).signatures["serving_default"](**raw)
    labels, weights = (table[name].to_numpy() for name in ("label/click", "meta/mine"))
    known = ~np.isnan(labels)
    rate = np.average(labels[known], weights=weights[known])
    assert rate > labels[known].mean() + 0.2
    p = np.average(np.asarray(scores["click"])[known], weights=weights[known])
    assert p == pytest.approx(rate, abs=0.1)
    # By these weights LightGBM beside it is calibrated.
    assert score(version, read_rows(folder, "test")).weight == "meta/mine"


@pytest.mark.slow
def test_an_export_corrects_and_smears_and_says_so(case, tmp_path) -> None:
    checkpoint = case.checkpoint(
        seed=9,
        export={"smearing": True, "calibration": "platt"},
        pipeline=case.config().pipeline.model_dump(mode="json")
        | {"downsample": {"keep": 0.25, "tasks": ["click"]}},
    )
    path = ExamplesFolder(checkpoint).statistics
    path.write_text(json.dumps(json.loads(path.read_text()) | {"negatives_kept": 0.25}))
    version = export(checkpoint, case.examples, tmp_path / "models")
    metrics = json.loads((version / "assets.extra" / "metrics.json").read_text())
    card = (version / "assets.extra" / "README.md").read_text()
    shares = {task: found["share"] for task, found in metrics["negatives"]["tasks"].items()}
    assert shares["click"] == pytest.approx(0.25)
    assert 0.25 < shares["like"] < 1  # some of its negatives are clicks
    assert f"share of each task's negatives (click 0.250, like {shares['like']:.3f})" in card

    loaded = checkpoints.load(checkpoint)
    table = pq.read_table(case.examples / "test")
    contract = loaded.encoder.contract
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    raw = raw_values(contract, table, names)
    scores = tf.saved_model.load(str(version)).signatures["serving_default"](**raw)
    z = np.asarray(loaded.ranker.forward(loaded.encoder(table)).logits["dwell"], np.float64)
    of_task = loaded.encoder.statistics.tasks["dwell"]
    smeared = metrics["smearing"].get("dwell")
    factor, power = (1.0, 1.0) if smeared is None else (smeared["factor"], smeared["power"])
    # Calibration first, then power and factor.
    validation = read_split(case.examples, "validation", loaded.encoder)
    logits = Predictions(loaded.ranker, contract, loaded.encoder.statistics, validation).logits
    fitted = calibration.fit(
        contract, loaded.encoder.statistics, "platt", logits, validation.labels
    )
    curve = fitted.curves.get("dwell", links.shift(0.0))
    if "dwell" in fitted.left:
        assert metrics["calibration"]["left_as_they_are"]["dwell"] == fitted.left["dwell"]
    calibrated = curve.y[0] + curve.slope * (z - curve.x[0])
    expected = factor * np.exp(power * (calibrated * of_task.std + of_task.mean)) - 1
    np.testing.assert_allclose(scores["dwell"], expected, rtol=1e-3)
    labels = table["label/click"].to_numpy()
    loss = metrics["calibration"]["tasks"]["click"]["after"]["log_loss"]
    p = np.asarray(scores["click"], np.float64)
    assert loss == pytest.approx(
        -np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)), rel=1e-4
    )
    # By these positives LightGBM beside it is corrected, and beside a checkpoint it is not.
    rows = read_rows(case.examples, "test")
    assert score(version, rows).positive_by == ("click",)
    assert score(checkpoint, rows).positive_by is None


@pytest.mark.slow
def test_smearing_comes_after_calibration(case, tmp_path) -> None:
    """Calibrated logits and a factor make the mean right in the label's own units."""
    checkpoint = case.checkpoint(seed=9, export={"smearing": True, "calibration": "platt"})
    version = export(checkpoint, case.examples, tmp_path / "models")
    metrics = json.loads((version / "assets.extra" / "metrics.json").read_text())
    assert "dwell" in metrics["calibration"]["tasks"]
    found = metrics["smearing"]["dwell"]
    dwell = metrics["tasks"]["dwell"]
    assert found["after"] == pytest.approx(dwell["value"], rel=1e-5)  # the table is what is served
    assert found["before"] == pytest.approx(
        metrics["calibration"]["tasks"]["dwell"]["after"]["rmse"], rel=1e-5
    )
    assert dwell["mean_score"] == pytest.approx(dwell["label_mean"], rel=0.15)
    # What the version says of itself decides the units in which it is set against LightGBM.
    scored = score(version, read_rows(case.examples, "test"))
    assert (scored.smeared, scored.calibration) == ({"dwell"}, "platt")
    assert score(checkpoint, read_rows(case.examples, "test")).smeared == frozenset()
    rules = parse(Rules, {"beats": "lightgbm"}, "rules")
    against = compare(version, None, case.examples, rules, replicates=50)["baseline"]
    assert against["tasks"]["dwell"]["judged"] == "rmse"
    assert against["tasks"]["dwell"]["measures"]["rmse"]["candidate"]["value"] == pytest.approx(
        dwell["value"], rel=1e-5
    )
    options = parse(EvaluationConfig, {"rules": {"beats": "lightgbm"}, "replicates": 50}, "")
    assessed = assess(version, case.examples, options)["baseline"]
    assert assessed["tasks"]["dwell"]["judged"] == "rmse"
    (version / "assets.extra" / "metrics.json").write_text("{")
    with pytest.raises(ModelError, match=r"metrics\.json: cannot be read: "):
        score(version, read_rows(case.examples, "test"))
