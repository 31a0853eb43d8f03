"""Mixed precision: what computes in half, what never does, and that the metrics stay."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multigate.model.checkpoints import checkpoint
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import read_split
from multigate.model.evaluation import evaluate
from multigate.model.training import train

MODEL = {
    "embedding_dim": 4,
    "experts": {"count": 4, "units": [16]},
    "gate": {"name": "topk", "num_selected": 2},
    "towers": {"units": [8]},
    "task_weighting": "fixed",  # dwell has few labels, and is to be learnt well
}


def make(tiny: Any, precision: str, pooling: str = "mean", **model: Any) -> Any:
    contract = tiny.config.contract.model_dump(mode="json")
    contract["features"]["recent"]["pooling"] = pooling
    options = {"epochs": 6, "batch_size": 32, "learning_rate": 0.01, "precision": precision}
    options |= {"ema": 0.9, "clip_norm": 1.0, "weight_decay": 0.01}
    # Row updates scatter more from seed to seed than half precision changes.
    options |= {"embeddings": "dense"}
    return tiny.make_config(contract=contract, model=MODEL | model, train=options)


@pytest.mark.parametrize("pooling", ["mean", "attention", "sequence"])
def test_gates_and_logits_stay_float32(tiny: Any, pooling: str) -> None:
    more: Any = {} if pooling == "mean" else {"cross": {"layers": 2, "rank": 4}}
    config, encoder = make(tiny, "mixed_bfloat16", pooling, **more), Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(
        config.contract, config.model, encoder, seed=1, precision="mixed_bfloat16"
    )
    assert {expert.compute_dtype for expert in ranker.mixture.experts} == {"bfloat16"}
    assert {tower.hidden.compute_dtype for tower in ranker.towers.values()} == {"bfloat16"}
    assert {gate.compute_dtype for gate in ranker.mixture.gates} == {"float32"}
    before = [*ranker.embedder.attentions.values(), *ranker.embedder.sequences.values()]
    before += [] if ranker.cross is None else [ranker.cross]
    assert len(before) == (0 if pooling == "mean" else 2)
    assert {layer.compute_dtype for layer in before} <= {"float32"}
    assert {variable.dtype for variable in ranker.trainable_variables} == {"float32"}
    rows = read_split(tiny.examples, "test", encoder).features
    forward = ranker.forward(rows, training=True)
    assert {z.dtype.name for z in forward.logits.values()} == {"float32"}
    assert {routing.weights.dtype.name for routing in forward.mixed.routings} == {"float32"}
    # The half precision is really there: the same weights give slightly other logits.
    exact = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    expected = exact.forward(rows, training=True)
    for task, z in forward.logits.items():
        assert not np.array_equal(z, expected.logits[task])
        np.testing.assert_allclose(z, expected.logits[task], atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.long)]
)
def test_the_metrics_stay_and_the_checkpoint_exports(
    tiny: Any, tmp_path: Path, precision: str
) -> None:
    from multigate.model.export.export import export

    found = {}
    for name in ("float32", precision):
        train.train(make(tiny, name), tiny.examples, tmp_path / name, progress=False)
        found[name] = evaluate.evaluate(tmp_path / name, tiny.examples)
    exact, half = (found[name]["tasks"] for name in found)
    for task in ("click", "like"):
        assert half[task]["value"] == pytest.approx(exact[task]["value"], abs=0.01), task
    # In deviations on the scale of training: a few long dwells decide the RMSE in seconds.
    errors = [tasks["dwell"]["trained_on"] for tasks in (exact, half)]
    relative = [error["rmse"] / error["label_std"] for error in errors]
    assert relative[0] < 0.85
    assert relative[1] == pytest.approx(relative[0], abs=0.02)
    assert relative[1] != relative[0]
    version = export(tmp_path / precision, tiny.examples, tmp_path / "models")  # checks parity
    assert (version / "saved_model.pb").exists()
