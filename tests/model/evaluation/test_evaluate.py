"""Checkpoints loaded again, and what evaluation says about them."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import roc_auc_score

from multigate.configs import load
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError
from multigate.configs.files import ExamplesFolder, write_json
from multigate.configs.sections.base import parse
from multigate.model.checkpoints import checkpoint
from multigate.model.data import examples
from multigate.model.evaluation import evaluate
from multigate.model.ranker.scores import scores
from multigate.model.training import train


@pytest.fixture(scope="module")
def trained(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "checkpoint"
    train.train(tiny.config, tiny.examples, out, progress=False)
    return out


def numpy(value: Any) -> np.ndarray:
    return np.array(value.__array__())


def test_the_order_of_a_forward_pass_does_not_mix_up_the_tasks(
    tiny: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX gives dictionaries back in alphabetical order, not in the contract's."""
    ranker, encoder, config, _ = checkpoint.load(trained)
    rows = examples.read_split(tiny.examples, "test", encoder)

    def predict() -> evaluate.Predictions:
        return evaluate.Predictions(ranker, config.contract, encoder.statistics, rows)

    expected, infer = predict(), ranker.infer

    def reordered(encoded: Any) -> Any:
        found = infer(encoded)
        return found._replace(logits=dict(reversed(found.logits.items())))

    monkeypatch.setitem(ranker.__dict__, "infer", reordered)
    found = predict()
    for task in config.contract.tasks:
        np.testing.assert_array_equal(found.logits[task], expected.logits[task])
        np.testing.assert_array_equal(found.weights[task], expected.weights[task])
        assert found.diagnostics[task] == expected.diagnostics[task]


def test_metrics_are_those_of_the_loaded_model(tiny: Any, trained: Path) -> None:
    result = evaluate.evaluate(trained, tiny.examples)
    assert json.loads(json.dumps(result)) == result
    ranker, encoder, config, _ = checkpoint.load(trained)
    rows = examples.read_split(tiny.examples, "test", encoder)
    scored = scores(config.contract, encoder.statistics, ranker(rows.features))
    click, dwell, like = rows.labels.T
    assert result["rows"] == 100
    assert result["tasks"]["click"]["value"] == pytest.approx(
        roc_auc_score(click, numpy(scored["click"]))
    )
    known = ~np.isnan(like)
    assert result["tasks"]["like"]["rows"] == known.sum()
    assert result["tasks"]["like"]["value"] == pytest.approx(
        roc_auc_score(like[known], numpy(scored["like"])[known])
    )
    known = ~np.isnan(dwell)
    error = dwell[known] - numpy(scored["dwell"])[known]
    assert result["tasks"]["dwell"]["value"] == pytest.approx(np.sqrt(np.mean(error**2)))
    logged = np.log1p(dwell[known]) - np.log1p(numpy(scored["dwell"])[known])
    expected = (
        result["tasks"]["click"]["log_loss"]
        + 0.5 * np.mean(logged**2)
        + result["tasks"]["like"]["log_loss"]
    )
    assert result["loss"] == pytest.approx(expected, rel=1e-5)


def test_an_impression_with_labels_in_several_rows_counts_once(
    tiny: Any, trained: Path, labels_apart: Any, tmp_path: Path
) -> None:
    days = labels_apart(tiny.examples, tmp_path / "examples", ["click"], ["test"])
    found, expected = (evaluate.evaluate(trained, folder) for folder in (days, tiny.examples))
    assert found == expected


def test_the_gates_numbers(tiny: Any, trained: Path) -> None:
    result = evaluate.evaluate(trained, tiny.examples, split="validation")
    assert result["experts"] == 4
    for gate in result["gates"].values():
        assert gate["gate"] == "topk"
        assert sum(gate["weights"]) == pytest.approx(1, abs=1e-5)
        assert sum(gate["load"]) == pytest.approx(2, abs=1e-5)
        assert gate["experts_per_row"] == pytest.approx(2)
    assert 2 <= result["experts_per_row"] <= 4


def test_positions_are_left_out(tiny: Any, trained: Path) -> None:
    ranker, encoder, _, _ = checkpoint.load(trained)
    features = examples.read_split(tiny.examples, "test", encoder).features
    shown = ranker(features)["click"]
    unknown = ranker(features | {"position": features["position"] * 0})["click"]
    np.testing.assert_array_equal(numpy(shown), numpy(unknown))


def test_summaries_per_group() -> None:
    def task(group: str, kind: str, value: float | None, std: float = 0.0) -> dict[str, Any]:
        return {"group": group, "type": kind, "value": value, "label_std": std}

    tasks = {
        "a": task("engagement", "binary", 0.6),
        "b": task("engagement", "binary", 0.8),
        "c": task("engagement", "binary", None),
        "d": task("engagement", "regression", 3.0, std=4.0),
        "e": task("satisfaction", "regression", None),
    }
    assert evaluate.summarise(tasks) == {
        "engagement": {"tasks": 4, "measured": 3, "auc": pytest.approx(0.7), "relative_rmse": 0.75},
        "satisfaction": {"tasks": 1, "measured": 0, "auc": None, "relative_rmse": None},
    }


def test_the_terminals_table(tiny: Any, trained: Path) -> None:
    result = evaluate.evaluate(trained, tiny.examples)
    result["tasks"]["like"] |= {"value": None, "reason": "every label is masked"}
    page = io.StringIO()
    Console(file=page, width=120).print(evaluate.table(result, {"click": 0.875, "like": None}))
    text = page.getvalue()
    assert f"{result['tasks']['click']['value']:.4f}" in text
    assert "0.8750" in text
    assert "every label is masked" in text
    assert "best possible" in text


def test_examples_of_another_run_are_refused(tiny: Any, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny.examples, tmp_path / "examples")
    path = ExamplesFolder(tmp_path / "examples").contract
    frozen = FrozenContract.read(path)
    other = frozen.model_copy(update={"data_fingerprint": "feedfeedfeedfeed"})
    write_json(path, other.model_dump(mode="json"))
    message = f"data fingerprint {frozen.data_fingerprint}, .* has feedfeedfeedfeed; use the"
    with pytest.raises(ModelError, match=message):
        evaluate.evaluate(trained, tmp_path / "examples")


def test_damaged_checkpoints(tiny: Any, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: no such file; expected a folder that"):
        checkpoint.load(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    (broken / "weights.h5").write_bytes(b"not HDF5")
    with pytest.raises(ModelError, match=r"weights\.h5: damaged"):
        checkpoint.load(broken)
    (broken / "weights.h5").unlink()
    with pytest.raises(ModelError, match=r"weights\.h5: no such file; train again"):
        checkpoint.load(broken)
    shutil.copyfile(trained / "weights.h5", broken / "weights.h5")
    config = json.loads((broken / "config.json").read_text())
    config["model"]["experts"]["count"] = 5
    write_json(broken / "config.json", config)
    with pytest.raises(ModelError, match="variable experts/4/0_kernel: missing in the file"):
        checkpoint.load(broken)
    config["model"]["experts"] = {"count": 4, "units": [9]}
    write_json(broken / "config.json", config)
    with pytest.raises(ModelError, match=r"expected shape \(24, 9\), received \(24, 8\)"):
        checkpoint.load(broken)
    (broken / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: not valid JSON"):
        checkpoint.load(broken)


def test_a_transformed_label_is_measured_on_both_scales() -> None:
    """Labels 0 and e^2 - 1, scores e - 1 and e - 1: on log1p's scale labels 0, 2, scores 1, 1.

    There the errors are 1 and 1, RMSE 1, and the labels' deviation is 1.  In own units the errors
    are e - 1 and e^2 - e.
    """
    e = np.e
    task = {"group": "engagement", "type": "regression", "label": {"rule": "column", "column": "x"}}
    values = load("demo").contract.model_dump(mode="json")
    values["features"] = {name: values["features"][name] for name in ("user_id", "item_id")}
    values["tasks"] = {"dwell": task | {"transform": "log1p", "weight": 0.5}}
    contract = parse(Contract, values, "x")
    labels = np.array([[0.0], [e**2 - 1], [np.nan]], np.float32)
    found = evaluate.task_metrics(contract, labels, {"dwell": np.full(3, e - 1, np.float32)})
    assert found["dwell"]["value"] == pytest.approx(
        (((e - 1) ** 2 + (e**2 - e) ** 2) / 2) ** 0.5, rel=1e-6
    )
    assert found["dwell"]["trained_on"] == {
        "scale": "log1p",
        "mse": pytest.approx(1.0, rel=1e-6),
        "rmse": pytest.approx(1.0, rel=1e-6),
        "label_std": pytest.approx(1.0, rel=1e-6),
    }
    summary = evaluate.summarise(found)["engagement"]
    assert summary["relative_rmse"] == pytest.approx(1.0, rel=1e-6)
