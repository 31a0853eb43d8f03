"""Several steps of one program on JAX, as on a GPU, against one at a time, and what is logged."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import on_jax

from multigate.model.checkpoints import checkpoint
from multigate.model.data import examples
from multigate.model.evaluation import evaluate

AT_ONCE = """
import sys
import h5py

# The same training as on an accelerator: sixteen steps, then seven, then a smaller batch alone.
backend.has_accelerator = lambda: True
found = []
from multigate.model.backend import steps_jax
from multigate.model.moe import stack_jax

stack_jax._SORT = -(2**31)  # experts in blocks, which a GPU takes for large batches
scan = steps_jax.lax.scan
steps_jax.lax.scan = lambda *arguments: found.append(1) or scan(*arguments)
at_once = out.with_name("at_once")
kept = train.train(config, examples, at_once, progress=False)["best_epoch"]
assert found, "no program of several steps was made"

histories = ((folder / "history.json").read_text() for folder in (out, at_once))
one, other = (json.loads(text)["epochs"] for text in histories)
for name in ("loss", "val_loss"):
    np.testing.assert_allclose([e[name] for e in other], [e[name] for e in one], rtol=1e-5)


def compare(name, value):
    if isinstance(value, h5py.Dataset):
        np.testing.assert_allclose(theirs[name][...], value[...], rtol=1e-3, atol=1e-5)


files = (folder / checkpoint.WEIGHTS for folder in (out, at_once))
with h5py.File(next(files)) as ours, h5py.File(next(files)) as theirs:
    ours.visititems(compare)
print(json.dumps(one[kept - 1]["gates"]))
print("tensorflow" in sys.modules)
"""


@pytest.mark.slow
def test_steps_at_once_train_like_one_at_a_time(tiny: Any, tmp_path: Path) -> None:
    contract = tiny.config.contract.model_dump(mode="json")
    contract["tasks"] = dict(reversed(contract["tasks"].items()))  # not alphabetical
    config = tiny.make_config(
        contract=contract,
        train={"epochs": 2, "batch_size": 8, "learning_rate": 0.01, "embeddings": "rows"},
    )
    tiny.write_examples(tmp_path / "examples", config, rows=310)
    rows = json.loads((tmp_path / "examples" / "statistics.json").read_text())["rows"]["train"]
    assert rows > 16 * 8, rows
    assert rows % 8, rows
    _, printed = on_jax.train(config, tmp_path / "examples", tmp_path / "out", then=AT_ONCE)
    *_, gates, imported = printed.splitlines()
    loaded = checkpoint.load(tmp_path / "out")
    held_out = examples.read_split(tmp_path / "examples", "validation", loaded.encoder)
    contract, statistics = config.contract, loaded.encoder.statistics
    found = evaluate.Predictions(loaded.ranker, contract, statistics, held_out)
    for task in contract.tasks:
        assert json.loads(gates)[task]["load"] == pytest.approx(found.load[task], abs=1e-6)
    # A training on JAX leaves TensorFlow out, which would take most of a GPU's memory.
    assert imported == "False"
