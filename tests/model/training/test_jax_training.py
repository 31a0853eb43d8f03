"""A ranker trained on JAX, in a process of its own, scores the same under TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multigate.model.checkpoints import checkpoint
from multigate.model.data import examples
from multigate.model.evaluation import evaluate

SCRIPT = """
import json, shutil, sys
from pathlib import Path
import h5py
import numpy as np
from multigate.configs.sections.base import parse
from multigate.configs.config import Config
from multigate.configs.errors import ModelError
from multigate.model import backend
from multigate.model.checkpoints import checkpoint
from multigate.model.data.examples import read_split
from multigate.model.training import train
from multigate.model.ranker.scores import scores

config, examples, out, logits = sys.argv[1:]
assert backend.name() == "jax"
config = parse(Config, json.loads(Path(config).read_text()), config)
train.train(config, Path(examples), Path(out), progress=False)
ranker, encoder, _, _ = checkpoint.load(Path(out))
rows = read_split(Path(examples), "test", encoder)
found = scores(config.contract, encoder.statistics, ranker.infer(rows.features).logits)
np.savez(logits, **{name: np.asarray(value) for name, value in found.items()})

# A gate whose weights became NaN ends the training that goes on from it.
spoilt = Path(out).with_name("spoilt")
shutil.copytree(out, spoilt)
with h5py.File(spoilt / checkpoint.WEIGHTS, "r+") as file:
    file["gates/click/0_kernel"][...] = np.nan
try:
    train.train(config, Path(examples), spoilt / "next", progress=False, start_from=spoilt)
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
    more: Any = {"experts": experts}
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
    (tmp_path / "config.json").write_text(config.model_dump_json())
    arguments = ("config.json", "examples", "checkpoint", "scores.npz")
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *(str(tmp_path / name) for name in arguments)],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "epoch 1, step 1: the training loss is not finite" in done.stdout
    history = json.loads((tmp_path / "checkpoint" / "history.json").read_text())["epochs"]
    assert len(history) == 2
    assert history[1]["loss"] < history[0]["loss"]
    # Logs are written on either backend.
    assert list((tmp_path / "checkpoint" / "logs" / "train").iterdir())

    ranker, encoder, _, _ = checkpoint.load(tmp_path / "checkpoint")
    rows = examples.read_split(tmp_path / "examples", "test", encoder)
    found = evaluate.Predictions(ranker, config.contract, encoder.statistics, rows)
    with np.load(tmp_path / "scores.npz") as expected:
        for task in config.contract.tasks:
            np.testing.assert_allclose(found.scores[task], expected[task], rtol=1e-5, atol=1e-6)
