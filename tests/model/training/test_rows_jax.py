"""On JAX too a step updates the rows of its batch alone, and as dense Adam where all are in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import on_jax

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.model import backend
from multigate.model.backend import rows as some_rows
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import read_split
from multigate.model.data.feeds import to_arrays
from multigate.model.optimizer.optimizers import averaged, make_optimizer

config, examples, target = sys.argv[1:]
assert backend.name() == "jax"
some_rows._SMALL, some_rows._CHUNK = 0, 7  # rows are written in place, a few at a time
config = parse(Config, json.loads(Path(config).read_text()), config)
encoder = Encoder.read(Path(examples))
rows = read_split(Path(examples), "train", encoder)
inputs, targets = to_arrays(rows, config.contract, encoder.statistics)
found = {}
for name, count, changes in (
    ("rows", 8, {}), ("halved", 8, {"moments": "bfloat16"}), ("dense", 8, {"embeddings": "dense"}),
    ("scaled", 8, {"precision": "mixed_float16"}),
    ("few", 1, {}), ("few_scaled", 1, {"precision": "mixed_float16"}),
):
    options = config.train.model_copy(update=changes)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    before = weights.copy(ranker)
    ranker.compile(optimizer=make_optimizer(options, 10, ranker=ranker))
    ranker.optimizer.build(ranker.trainable_variables)
    size = len(targets) if count > 1 else 4
    batch = {key: value[:size] for key, value in inputs.items()}
    for _ in range(count):
        ranker.fit(batch, targets[:size], batch_size=size, shuffle=False, verbose=0)
    if count == 1:
        steps = [table.variable[:, 0] for table in ranker.optimizer.tables.values()]
        found[f"{name}/stepped"] = np.concatenate(steps)
    with averaged(ranker.optimizer, ranker.trainable_variables):
        found |= {f"{name}/average/{key}": value for key, value in weights.copy(ranker).items()}
    found |= {f"{name}/weights/{key}": value for key, value in weights.copy(ranker).items()}
found |= {f"before/{key}": value for key, value in before.items()}
found["codes"] = inputs["user_id"][:4]
np.savez(target, **found)
"""


@pytest.fixture(scope="module")
def trained(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("rows")
    model = tiny.config.model.model_dump() | {"id_dropout": 0.0}
    model |= {"wide": {"crosses": 8192, "crosses_rate": 4.0}}
    model["experts"] |= {"count": 2}
    train = {"learning_rate": 0.01, "ema": 0.9, "clip_norm": 1.0}
    config = tiny.make_config(model=model, train=train)
    (folder / "config.json").write_text(config.model_dump_json())
    on_jax.run(SCRIPT, folder / "config.json", tiny.examples, folder / "found.npz")
    return dict(np.load(folder / "found.npz"))


@pytest.mark.long  # tables of a few rows are among the slow tests
def test_rows_of_every_batch_move_as_under_dense_adam(trained: dict[str, np.ndarray]) -> None:
    names = [name for name in trained if name.startswith("rows/")]
    assert names
    for name in names:
        dense = trained[name.replace("rows", "dense", 1)]
        np.testing.assert_allclose(trained[name], dense, atol=2e-5, err_msg=name)
        # The loss is scaled by a power of two, and so is every gradient: nothing is rounded.
        scaled = trained[name.replace("rows", "scaled", 1)]
        np.testing.assert_allclose(scaled, trained[name], atol=1e-6, err_msg=name)
        halved = trained[name.replace("rows", "halved", 1)]
        np.testing.assert_allclose(halved, dense, atol=0.02, err_msg=name)


@pytest.mark.long  # tables of a few rows are among the slow tests
def test_rows_that_are_not_in_the_batch_stay(trained: dict[str, np.ndarray]) -> None:
    name = "embeddings/user_id"
    moved = np.flatnonzero((trained[f"few/weights/{name}"] != trained[f"before/{name}"]).any(1))
    assert set(moved) == set(trained["codes"])
    np.testing.assert_array_equal(
        trained[f"few/average/{name}"], trained[f"few/weights/{name}"]
    )  # after one step the average is the weights
    steps = trained["few/stepped"]
    assert 0 < steps.sum() < len(steps) / 2
    np.testing.assert_array_equal(trained["few_scaled/stepped"], steps)  # nor under loss scaling


TABLES = """
import sys
import numpy as np, keras
from multigate.model.backend import rows as some_rows
from multigate.model.optimizer.optimizers import Adam

found, rng = {}, np.random.default_rng(0)
# Row 0 is in no batch, row 1 in one alone; the others come and go, some of them twice in a batch.
batches = [np.array([2, 2, 3, 4, 5, 5, 6]), np.array([6, 1, 3, 3, 3, 2, 6])]
batches += [rng.integers(2, 7, 7) for _ in range(6)]
gradients = [rng.normal(size=(7, 3)).astype(np.float32) for _ in batches]
start = rng.normal(size=(7, 3)).astype(np.float32)
for moments in ("float32", "bfloat16"):
    for small in (True, False):
        some_rows._is_small = lambda size, count: small
        table = keras.Variable(start)
        optimizer = Adam(0.1, average=0.9, moments=moments)
        optimizer.multiply_rate(table, 4.0, 5)
        optimizer.update_rows([table])
        optimizer.build([table])
        for batch, values in zip(batches, gradients):
            merged = some_rows.merge(keras.ops.convert_to_tensor(batch), values, 7)
            assert (merged.rows is None) == small
            optimizer.apply([merged], [table])
        (state,) = optimizer.tables.values()
        name = f"{moments}/{small}"
        found |= {f"table/{name}": table, f"state/{name}": state.variable}
np.savez(sys.argv[1], start=start, **{name: np.asarray(value) for name, value in found.items()})
"""


@pytest.mark.slow
def test_a_small_table_moves_as_one_whose_distinct_rows_are_looked_for(tmp_path: Path) -> None:
    on_jax.run(TABLES, tmp_path / "found.npz")
    found = dict(np.load(tmp_path / "found.npz"))
    for name in ("table/float32", "state/float32", "table/bfloat16"):
        tolerance = 1e-6 if name.endswith("float32") else 0.02  # rounded at random
        np.testing.assert_allclose(
            found[f"{name}/True"], found[f"{name}/False"], atol=tolerance, err_msg=name
        )
    for moments in ("float32", "bfloat16"):
        np.testing.assert_array_equal(found[f"table/{moments}/True"][0], found["start"][0])
        steps = found[f"state/{moments}/True"][:, 0]
        np.testing.assert_array_equal(steps, found[f"state/{moments}/False"][:, 0])
        assert steps[:2].tolist() == [0, 1]
    assert not found["state/float32/True"][0].any()
