"""A funnel and every loss through training, warm start, export and the served graph."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from sklearn.metrics import mean_pinball_loss
from tests import on_jax

from multigate.configs.errors import ModelError
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data import examples
from multigate.model.data.raw import raw_values
from multigate.model.evaluation.evaluate import Predictions, evaluate
from multigate.model.export.export import export
from multigate.model.training import train
from multigate.model.training.progress import Display

pytestmark = pytest.mark.slow


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


def test_a_quantile_has_its_own_measures_on_both_scales(heads: Any) -> None:
    found = evaluate(heads.checkpoint, heads.examples)
    task, other = found["tasks"]["quantile"], found["tasks"]["huber"]
    p = scored(heads.checkpoint, heads.examples)["quantile"]
    y = np.asarray(pq.read_table(heads.examples / "test")["label/quantile"].to_pylist(), float)
    y, p = (values[~np.isnan(y)] for values in (y, p))
    assert (task["metric"], task["q"]) == ("pinball", 0.5)
    assert task["value"] == pytest.approx(mean_pinball_loss(y, p, alpha=0.5), rel=1e-5)
    on_scale = mean_pinball_loss(np.log1p(y), np.log1p(p), alpha=0.5)
    assert task["trained_on"]["pinball"] == pytest.approx(on_scale, rel=1e-5)
    assert {"mse", "rmse"} & {*task, *task["trained_on"]} == set()
    assert {"mse", "rmse", "label_std", "scale"} == set(other["trained_on"])
    # The sum of the losses has the pinball loss of the quantile.
    losses = {"auc": "log_loss", "rmse": "mse", "pinball": "pinball"}
    total = sum(
        one.get("trained_on", one)[losses[one["metric"]]] for one in found["tasks"].values()
    )
    assert found["loss"] == pytest.approx(total)


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


def test_a_warm_start_follows_labels_that_change(heads: Any, tmp_path: Path) -> None:
    """Labels of a third of the size: thresholds stay, levels and the largest amount do not."""
    shutil.copytree(heads.examples, tmp_path / "examples")
    for path in (tmp_path / "examples").glob("*/part-0.parquet"):
        table = pl.read_parquet(path)
        names = ["label/ordinal", "label/zero_inflated"]
        table.with_columns(pl.col(names) / 3).write_parquet(path)
    config = heads.make_config(train={"epochs": 1, "learning_rate": 1e-12})
    source, new = heads.checkpoint, tmp_path / "next"
    train.train(config, tmp_path / "examples", new, progress=False, start_from=source)
    old, now = (
        json.loads((folder / "statistics.json").read_text())["tasks"] for folder in (source, new)
    )
    assert now["ordinal"]["thresholds"] == old["ordinal"]["thresholds"]
    assert now["ordinal"]["quantiles"][-1] == pytest.approx(np.log1p(4), rel=1e-5)
    # The outputs are still those of before; a training that goes on would lower them.
    lower, higher = (scored(folder, heads.examples)["ordinal"] for folder in (new, source))
    assert (lower < higher).all()
    head = checkpoint.load(new).ranker.heads["zero_inflated"]
    assert np.exp(head.limit) == pytest.approx(4, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "loss", "accepted"),
    [
        ("squared", {"kind": "huber"}, True),
        ("quantile", None, True),
        ("censored", {"kind": "ordinal", "thresholds": 2}, False),
        ("squared", {"kind": "ordinal", "thresholds": 1}, False),
        ("ordinal", {"kind": "ordinal", "thresholds": 4}, False),
    ],
)
def test_a_warm_start_needs_outputs_of_the_same_meaning(
    heads: Any, tmp_path: Path, task: str, loss: Any, accepted: bool
) -> None:
    contract = heads.make_config().contract.model_dump(mode="json")
    contract["tasks"][task]["loss"] = loss
    config = heads.make_config(contract=contract, train={"epochs": 1})
    outcome = (
        nullcontext()
        if accepted
        else pytest.raises(ModelError, match=rf"task '{task}': expected loss: .*, received loss: ")
    )
    with outcome:
        train.train(
            config, heads.examples, tmp_path / "c", progress=False, start_from=heads.checkpoint
        )


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


def everything(heads: Any, **train_options: Any) -> Any:
    """The configuration of `heads` with every option of this file."""
    model = heads.make_config().model.model_dump(mode="json") | {"task_weighting": "balanced"}
    options = {"epochs": 2, "batch_size": 8, "learning_rate": 0.02, "save_every": 10}
    return heads.make_config(model=model, train=options | heads.everything | train_options)


@pytest.mark.long  # test_resume.py has the shorter form
@pytest.mark.parametrize(
    "memory",
    [pytest.param(4.0, marks=pytest.mark.long), pytest.param(0.0, marks=pytest.mark.slow)],
)
def test_an_interrupted_training_goes_on_to_the_same_weights(
    heads: Any, tmp_path: Path, memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = everything(heads, memory=memory)
    train.train(config, heads.examples, tmp_path / "whole", progress=False)
    advance, calls = Display.advance, []

    def count(display: Display, step: int, loss: float) -> None:
        advance(display, step, loss)
        calls.append(step)
        if len(calls) == 2:  # within the first epoch: TensorFlow comes back every 16 steps
            raise KeyboardInterrupt

    monkeypatch.setattr(Display, "advance", count)
    with pytest.raises(KeyboardInterrupt):
        train.train(config, heads.examples, tmp_path / "c", progress=False)
    result = train.train(config, heads.examples, tmp_path / "c", progress=False, resume=True)
    assert result["resumed"]["step"] > 0
    first, last = checkpoint.read_history(tmp_path / "c")
    assert last["ranking"] < first["ranking"]
    assert "ranking" not in checkpoint.read_history(heads.checkpoint)[0]
    one, other = (weights.copy(checkpoint.load(tmp_path / name).ranker) for name in ("whole", "c"))
    for name, values in one.items():
        # Not to the bit: the order of some sums depends on how many graphs the process made before.
        # Rows in another order would differ a thousand times as much.
        np.testing.assert_allclose(values, other[name], rtol=0, atol=1e-5, err_msg=name)


JAX = """
import json, sys
from pathlib import Path
import numpy as np
from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.model import backend
from multigate.model.checkpoints import checkpoint
from multigate.model.data.examples import read_split
from multigate.model.training import train

config, examples, out, logits = sys.argv[1:]
assert backend.name() == "jax"
config = parse(Config, json.loads(Path(config).read_text()), config)
train.train(config, Path(examples), Path(out), progress=False)
ranker, encoder, _, _ = checkpoint.load(Path(out))
rows = read_split(Path(examples), "test", encoder)
np.savez(logits, **{k: np.asarray(z) for k, z in ranker.infer(rows.features).logits.items()})
"""


@pytest.mark.long  # test_jax_training.py has the shorter form
def test_jax_trains_every_loss_and_scores_the_same_on_tensorflow(
    tiny: Any, heads: Any, tmp_path: Path
) -> None:
    # Splits of few batches: JAX compiles every batch shape anew, which takes seconds.
    tiny.write_examples(tmp_path / "examples", tiny.config, rows=100)
    heads.add_labels(tmp_path / "examples")
    config = everything(heads, batch_size=30)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    names = ("config.json", "examples", "checkpoint", "logits.npz")
    on_jax.run(JAX, *(tmp_path / name for name in names))
    first, last = checkpoint.read_history(tmp_path / "checkpoint")
    assert last["loss"] < first["loss"]
    assert np.isfinite(last["ranking"])
    loaded = checkpoint.load(tmp_path / "checkpoint")
    rows = examples.read_split(tmp_path / "examples", "test", loaded.encoder)
    found = loaded.ranker.forward(rows.features).logits
    with np.load(tmp_path / "logits.npz") as expected:
        for task, z in found.items():
            np.testing.assert_allclose(np.asarray(z), expected[task], rtol=1e-4, atol=1e-5)
    # The first epoch on TensorFlow begins at the same weights and sees the same rows.
    train.train(config, tmp_path / "examples", tmp_path / "tf", progress=False)
    again = checkpoint.read_history(tmp_path / "tf")[0]
    assert again["ranking"] == pytest.approx(first["ranking"], rel=0.2)
