"""A ranker trained on JAX, in a process of its own, scores the same under TensorFlow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import on_jax

from multigate.model.checkpoints import checkpoint
from multigate.model.data import examples
from multigate.model.evaluation import evaluate

SPOILT = """
import shutil
import h5py
from multigate.configs.errors import ModelError

# A gate whose weights became NaN ends the training that goes on from it.
spoilt = out.with_name("spoilt")
shutil.copytree(out, spoilt)
with h5py.File(spoilt / checkpoint.WEIGHTS, "r+") as file:
    gate = next(iter(file["gates"].values()))
    gate["0_kernel"][...] = np.nan
try:
    train.train(config, examples, spoilt / "next", progress=False, start_from=spoilt)
except ModelError as error:
    print(error)
else:
    print("no error")
"""


@pytest.mark.parametrize(
    "pooling",
    [
        pytest.param("attention", marks=pytest.mark.long),
        pytest.param("mean", marks=pytest.mark.long),
        pytest.param("sequence", marks=pytest.mark.long),
    ],
)
def test_a_checkpoint_trained_on_jax_scores_the_same_on_tensorflow(
    tiny: Any, tmp_path: Path, pooling: str
) -> None:
    contract = tiny.config.contract.model_dump(mode="json")
    contract["features"]["recent"]["pooling"] = pooling
    experts: Any = {"count": 2, "units": [4]}
    more: Any = {"experts": experts, "shared_gate": "group"}
    if pooling != "mean":
        more = {"experts": experts | {"own": 1}, "cross": {"layers": 2, "rank": 3}}
    # Splits of one batch each: JAX compiles every batch shape anew, which takes seconds.
    config = tiny.make_config(
        contract=contract,
        model={
            "embedding_dim": 4,
            "gate": {"name": "moesart", "num_selected": 2},
            "towers": {"units": []},
        }
        | more,
        train={"epochs": 2, "batch_size": 60, "learning_rate": 0.01}
        | {"ema": 0.9, "clip_norm": 0.5, "weight_decay": 0.1},
    )
    tiny.write_examples(tmp_path / "examples", config, rows=100)
    expected, printed = on_jax.train(
        config, tmp_path / "examples", tmp_path / "checkpoint", then=SPOILT
    )
    assert "epoch 1, step 1: the training loss is not finite" in printed
    history = json.loads((tmp_path / "checkpoint" / "history.json").read_text())["epochs"]
    assert len(history) == 2
    assert history[1]["loss"] < history[0]["loss"]
    # Logs are written on either backend.
    assert list((tmp_path / "checkpoint" / "logs" / "train").iterdir())

    ranker, encoder, _, _ = checkpoint.load(tmp_path / "checkpoint")
    rows = examples.read_split(tmp_path / "examples", "test", encoder)
    found = evaluate.Predictions(ranker, config.contract, encoder.statistics, rows)
    for task in config.contract.tasks:
        np.testing.assert_allclose(found.scores[task], expected[task], rtol=1e-5, atol=1e-6)
