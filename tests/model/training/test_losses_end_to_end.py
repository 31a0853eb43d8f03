"""A funnel and every loss through training, warm start, export and the served graph."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data import examples
from multigate.model.data.raw import raw_values
from multigate.model.evaluation.evaluate import Predictions
from multigate.model.export.export import export
from multigate.model.training import train


@pytest.fixture(scope="module")
def version(heads: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(heads.checkpoint, heads.examples, tmp_path_factory.mktemp("export") / "base")


def test_every_loss_falls_and_is_reported(heads: Any) -> None:
    first, last = checkpoint.read_history(heads.checkpoint)
    for name in heads.make_config().contract.tasks:
        assert last["tasks"][name]["loss"] < first["tasks"][name]["loss"], name
        assert np.isfinite(last["tasks"][name]["val_loss"])
    statistics = json.loads((heads.checkpoint / "statistics.json").read_text())["tasks"]
    kept = {name for name, task in statistics.items() if "quantiles" in task}
    assert kept == {"quantile", "ordinal", "zero_inflated"}
    loaded = checkpoint.load(heads.checkpoint).ranker
    assert len(loaded.heads["ordinal"].start) > 4  # half of the labels are at the cap


def test_the_served_graph_scores_like_keras(heads: Any, version: Path) -> None:
    report = json.loads((version / "assets.extra/sparsity.json").read_text())
    assert report["parity"]["rows"] > 100
    assert report["parity"]["largest_difference"] < 1e-5


def test_a_conditional_score_is_never_served(heads: Any, version: Path) -> None:
    """The like's score is P(click) P(like | click), before calibration to the bit of it."""
    loaded = checkpoint.load(heads.checkpoint)
    contract = loaded.encoder.contract
    table = pq.read_table(heads.examples / "test")
    encoded = loaded.encoder(table)
    found = loaded.ranker.forward(encoded)
    p = {name: 1 / (1 + np.exp(-np.asarray(z, float))) for name, z in found.logits.items()}
    conditional = 1 / (1 + np.exp(-np.asarray(found.outputs["like"][:, 0], float)))
    np.testing.assert_allclose(p["like"], p["click"] * conditional, rtol=1e-5)
    assert (conditional > p["like"]).all()
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    model = tf.saved_model.load(str(version))
    served = model.signatures["serving_default"](**raw_values(contract, table, names))
    assert set(served) == {*contract.tasks, "score"}
    # Calibrated, it is still close to the labels of all impressions, not of the clicked ones.
    labels = np.asarray(table["label/like"].to_numpy(zero_copy_only=False), float)
    assert abs(float(np.mean(served["like"])) - np.nanmean(labels)) < 0.1


def test_a_quantile_is_not_calibrated_to_the_mean(version: Path) -> None:
    metrics = json.loads((version / "assets.extra/metrics.json").read_text())
    assert "predicts a quantile" in metrics["calibration"]["left_as_they_are"]["quantile"]


def test_predictions_stay_within_what_their_head_allows(heads: Any) -> None:
    found = scored(heads.checkpoint, heads.examples)
    for name in ("censored", "ordinal", "zero_inflated"):
        assert 0 <= found[name].min() < found[name].max() <= 12.0


def test_a_warm_start_keeps_the_scores_under_new_statistics(heads: Any, tmp_path: Path) -> None:
    """Thresholds stay those of the checkpoint; everything else is restandardised."""
    shutil.copytree(heads.examples, tmp_path / "examples")
    path = tmp_path / "examples/statistics.json"
    statistics = json.loads(path.read_text())
    for task in statistics["tasks"].values():
        task["mean"], task["std"] = 0.9 * task["mean"], 1.5 * task["std"]
    path.write_text(json.dumps(statistics))
    config = heads.make_config(train={"epochs": 1, "learning_rate": 1e-12, "weight_decay": 0.0})
    source = heads.checkpoint
    train.train(config, tmp_path / "examples", tmp_path / "next", progress=False, start_from=source)
    before, after = (scored(folder, heads.examples) for folder in (source, tmp_path / "next"))
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-4, atol=1e-4)


def scored(folder: Path, of: Path) -> dict[str, np.ndarray]:
    """A checkpoint's scores of the test split of a folder of examples."""
    loaded = checkpoint.load(folder)
    rows = examples.read_split(of, "test", loaded.encoder)
    contract, statistics = loaded.encoder.contract, loaded.encoder.statistics
    return Predictions(loaded.ranker, contract, statistics, rows).scores


def test_another_loss_needs_no_new_examples(heads: Any, tmp_path: Path) -> None:
    config = heads.make_config(train={"epochs": 1})
    contract = config.contract.model_dump(mode="json")
    contract["tasks"]["squared"]["loss"] = {"kind": "quantile", "q": 0.9}
    config = heads.make_config(contract=contract, train={"epochs": 1})
    train.train(config, heads.examples, tmp_path / "c", progress=False)
    head = checkpoint.load(tmp_path / "c").ranker.heads["squared"]
    assert head.start[0] > 0.7  # the 90 % quantile of the training labels
    with pytest.raises(Exception, match="the configuration's"):
        contract["tasks"]["like"].pop("given")
        other = heads.make_config(contract=contract)
        train.train(other, heads.examples, tmp_path / "d", progress=False)
    assert weights.read(tmp_path / "c" / "weights.h5")


@pytest.mark.parametrize("memory", [4.0, 0.0])
def test_ranking_recency_and_balance_train_together(
    heads: Any, tmp_path: Path, memory: float
) -> None:
    model = heads.make_config().model.model_dump(mode="json") | {"task_weighting": "balanced"}
    options = {"epochs": 3, "batch_size": 64, "learning_rate": 0.02, "memory": memory}
    config = heads.make_config(model=model, train=options | heads.everything)
    for name in ("c", "again"):
        train.train(config, heads.examples, tmp_path / name, progress=False)
    epochs = checkpoint.read_history(tmp_path / "c")
    assert epochs[-1]["ranking"] < epochs[0]["ranking"]
    assert "ranking" not in checkpoint.read_history(heads.checkpoint)[0]
    first, second = (
        weights.copy(checkpoint.load(tmp_path / name).ranker) for name in ("c", "again")
    )
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)
