"""The position tower on logs whose positions bias the clicks, against the true relevance."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.configs.contract import FrozenContract, fingerprint
from multigate.configs.files import ExamplesFolder, write_json
from multigate.model.checkpoints import checkpoint
from multigate.model.data.examples import Examples, read_split
from multigate.model.evaluation import evaluate, metrics
from multigate.model.training import train

SLOTS, ITEMS, USERS = 8, 40, 30
CONTRACT = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user", "dtype": "int"},
        "item_id": {"kind": "id", "side": "item", "dtype": "int"},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
        }
    },
}
MODEL = {
    "embedding_dim": 4,
    "experts": {"count": 2, "units": [8]},
    "gate": {"name": "topk", "num_selected": 1},
    "towers": {"units": []},
}
TRAIN = {"epochs": 10, "batch_size": 256, "learning_rate": 0.03, "seed": 1}


def make_config(tiny: Any, position: bool) -> Any:
    place = {"position": {"kind": "position", "max_position": SLOTS - 1}} if position else {}
    contract = CONTRACT | {"features": CONTRACT["features"] | place}
    return tiny.make_config(contract=contract, model=MODEL, train=TRAIN)


def simulate(folder: Path, config: Any, rows: int = 16_000) -> np.ndarray:
    """Write examples; the relevance (N,) of the test rows.

    The old ranker showed items by a taste of its own, which has nothing to do with their
    relevance: what it liked stood on top, where items are clicked more.
    """
    rng = np.random.default_rng(4)
    relevance = rng.normal(size=ITEMS)  # logit
    liked = rng.normal(size=ITEMS)
    user, item = rng.integers(0, USERS, rows), rng.integers(0, ITEMS, rows)
    rank = np.argsort(np.argsort(-liked)) / ITEMS  # 0: what the old ranker likes best
    position = np.clip(rank[item] * SLOTS + rng.normal(0, 1.5, rows), 0, SLOTS - 1).astype(int)
    logit = relevance[item] - 0.6 * position + 1.5
    click = rng.random(rows) < 1 / (1 + np.exp(-logit))
    table = pl.DataFrame(
        {
            "user_id": user,
            "item_id": item,
            "position": position,
            "label/click": click.astype(np.float32),
        }
    )
    files = ExamplesFolder(folder)
    cuts = (0, int(0.8 * rows), int(0.9 * rows), rows)
    for name, start, stop in zip(("train", "validation", "test"), cuts, cuts[1:], strict=False):
        files.split(name).mkdir(parents=True)
        table[start:stop].write_parquet(files.split(name) / "part-0.parquet")
    (folder / "vocabularies").mkdir()
    for name, size in (("user_id", USERS), ("item_id", ITEMS)):
        values = pl.DataFrame({"value": np.arange(size), "count": np.ones(size, int)})
        values.write_parquet(files.vocabulary(name))
    rate = float(click[: cuts[1]].mean())
    statistics = {
        "features": {},
        "tasks": {"click": {"count": cuts[1], "masked": 0, "mean": rate, "std": 0.5}},
        "rows": {"train": cuts[1], "validation": cuts[2] - cuts[1], "test": rows - cuts[2]},
    }
    write_json(files.statistics, statistics)
    frozen = FrozenContract(
        contract=config.contract,
        schema_fingerprint=config.contract.schema_fingerprint(),
        data_fingerprint=fingerprint([statistics]),
    )
    write_json(files.contract, frozen.model_dump(mode="json"))
    return relevance[item[cuts[2] :]]


@pytest.mark.slow
def test_the_position_tower_finds_the_true_relevance(tiny: Any, tmp_path: Path) -> None:
    areas = {}
    for name, position in (("with", True), ("without", False)):
        config = make_config(tiny, position)
        relevance = simulate(tmp_path / name, config)
        train.train(config, tmp_path / name, tmp_path / f"{name}-c", progress=False)
        loaded = checkpoint.load(tmp_path / f"{name}-c")
        rows = read_split(tmp_path / name, "test", loaded.encoder)
        found = evaluate.Predictions(
            loaded.ranker, config.contract, loaded.encoder.statistics, rows
        )
        relevant = (relevance > np.median(relevance)).astype(np.float32)
        areas[name] = metrics.binary(relevant, found.scores["click"])["value"]
        if position:
            # As when serving: what was shown where makes no difference to the scores.
            elsewhere = rows.features | {"position": np.zeros_like(rows.features["position"])}
            again = evaluate.Predictions(
                loaded.ranker,
                config.contract,
                loaded.encoder.statistics,
                Examples(elsewhere, rows.labels),
            )
            np.testing.assert_array_equal(again.scores["click"], found.scores["click"])
            effect = np.array(loaded.ranker.position_tower.table.embeddings.__array__())[1:, 0]
            slope = np.polyfit(np.arange(SLOTS), effect, 1)[0]
            assert slope == pytest.approx(-0.6, abs=0.15)  # the bias that was simulated
    # Without it, what stood on top passes for relevant.
    assert areas["without"] < 0.85
    assert areas["with"] > 0.95, areas
