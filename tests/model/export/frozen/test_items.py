"""The item table inside the file: ids alone are ranked as with the features that they have."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from multigate.configs.config import Config
from multigate.configs.errors import ExportError
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.base import parse
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import raw_values
from multigate.model.export.export import export
from multigate.model.export.frozen.item_table import ItemTable
from multigate.model.export.graph import ServingGraph
from multigate.model.export.parity import check_parity
from multigate.runtime.signature import load_signatures

PRICES = {item: None if item % 5 == 0 else 3.0 * (item - 99) for item in range(100, 128)}
PRICES[5000] = 12.5  # known to the snapshot alone; 128 and 129 to the vocabulary alone


@pytest.fixture(scope="module")
def examples(case, tmp_path_factory) -> Path:
    """The case's examples with a snapshot of items."""
    folder = tmp_path_factory.mktemp("items") / "examples"
    shutil.copytree(case.examples, folder)
    snapshot = ExamplesFolder(folder).snapshot("items")
    snapshot.mkdir(parents=True)
    table = pa.table({"item_id": list(PRICES), "price": pa.array(PRICES.values(), pa.float32())})
    for part in range(2):
        pq.write_table(table.slice(part * 15, 15), snapshot / f"part-{part}.parquet")
    return folder


def requests(contract, ids: list[int]) -> tuple[dict, dict]:
    """Inputs of `rank_items`, and of `rank` with the features that the snapshot has."""
    table = pa.table(
        {
            "user_id": ["user 1", "stranger"],
            "region": pa.array(["north", None], pa.string()),
            "recent": [[101, 102], [7]],
            "hour": [3, 4],
        }
    )
    users = raw_values(contract, table, ["user_id", "region", "recent", "hour"])
    users["user_index"] = (np.arange(len(ids)) % 2).astype(np.int32)
    users["task_weights"] = np.ones((2, 3), np.float32)
    alone = users | {"item_id": np.array(ids)}
    prices = pa.array([PRICES.get(item) for item in ids], pa.float32())
    items = pa.table({"item_id": ids, "price": prices})
    return alone, users | raw_values(contract, items, ["item_id", "price"])


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize(
    ("mode", "gate"), [("precomputed", "topk"), ("features", "topk"), ("precomputed", "hash")]
)
def test_ids_alone_score_as_with_their_features(
    case, examples, tmp_path, served_operations, mode, gate
) -> None:
    checkpoint = case.checkpoint(model={"gate": {"name": gate}}, export={"items": mode})
    version = export(checkpoint, examples, tmp_path / "models")
    signatures = tf.saved_model.load(str(version)).signatures
    alone, whole = requests(case.config().contract, [100, 101, 127, 128, 129, 5000, 7, 8, 101])
    received = signatures["rank_items"](**alone)
    expected = signatures["rank"](**whole)
    for name, value in expected.items():
        np.testing.assert_allclose(received[name], value, rtol=2e-5, atol=1e-6)
    assert len(set(expected["score"].numpy().tolist())) > 5
    report = json.loads((version / "assets.extra" / "sparsity.json").read_text())
    assert report["parity"]["rows"] == 1800
    items = report["items"]
    assert (items["known"], items["as_of_the_cut_off"]) == (31, [])
    codes = (31 + 2) * (4 + 4 + 4)  # item, price and its presence, of 31 items and 2 other codes
    # Products of six experts of 10 units, of three tasks' lines, and of three gates.
    halves = (31 + 2) * 4 * (6 * 10 + 3 + (3 * 6 if gate == "topk" else 0))
    assert items["bytes"] == codes + (halves if mode == "precomputed" else 0)
    assert "features of 31 known items" in (version / "assets.extra" / "README.md").read_text()
    assert "VarHandleOp" not in served_operations(version)


def test_without_a_snapshot_it_says_so(case, tmp_path) -> None:
    checkpoint = case.checkpoint(export={"items": "features"})
    with pytest.raises(ExportError, match=r"no snapshot of items.* set export\.items: none"):
        export(checkpoint, case.examples, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_an_item_without_a_feature_that_it_must_have_is_refused(case, examples) -> None:
    loaded = checkpoints.load(case.checkpoint())
    values = loaded.config.model_dump(mode="json")
    values["contract"]["features"]["price"]["missing"] = "error"
    encoder = loaded.encoder
    contract = parse(Config, values, "case").contract
    strict = Encoder(contract, encoder.statistics, encoder.vocabularies)
    items = ItemTable(strict, examples)
    ids = [101, 104, 5000]
    codes = strict(pa.table({"item_id": ids}), ["item_id"])["item_id"]
    rows = items.index(tf.constant(ids, tf.int64), tf.constant(codes))
    prices = strict(pa.table({"price": [PRICES[item] for item in ids]}), ["price"])["price"]
    np.testing.assert_allclose(items.features(rows)["price"], prices)
    np.testing.assert_array_equal(items.features(rows)["item_id"], codes)
    for wrong in (100, 128, 7):
        with pytest.raises(tf.errors.InvalidArgumentError, match="send its features to signature"):
            items.index(tf.constant([101, wrong], tf.int64), tf.constant([2, 1], tf.int32))


@pytest.mark.slow
def test_matches_are_those_of_the_tables_features(case, examples, tmp_path) -> None:
    """Not of those that the items had in test rows: a topic may change until the cut-off."""
    values = case.config().model_dump(mode="json")
    values["contract"]["features"] |= {
        "topic": {"kind": "id", "side": "item", "missing": "indicator"},
        "topics": {"kind": "id_list", "side": "user", "share": "topic"},
    }
    config, known = parse(Config, values, "case"), Encoder.read(case.examples)
    topics = pa.array(["art", "news"])
    vocabularies = known.vocabularies | {"topic": topics}
    encoder = Encoder(config.contract, known.statistics, vocabularies)
    folder = tmp_path / "examples"
    shutil.copytree(examples, folder)
    for path in ExamplesFolder(folder).snapshot("items").glob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column("topic", topics.take(pa.array([1] * len(table)))), path)
    table = pq.read_table(case.examples / "test").slice(0, 40)
    table = table.append_column("topic", topics.take(pa.array([0] * 40)))
    table = table.append_column("topics", pa.array([["art"], ["news", "news"], [], ["x"]] * 10))
    items = ItemTable(encoder, folder)
    ranker = checkpoints.make_ranker(config.contract, config.model, encoder, 0)
    ServingGraph(ranker, encoder, items=items).save(tmp_path / "m")
    signatures = load_signatures(tmp_path / "m")
    assert check_parity(signatures, ranker, encoder, table, 1e-5, items=items)["rows"] == 120


@pytest.mark.slow
def test_parity_where_no_test_row_has_a_known_item(case, examples, tmp_path) -> None:
    """All items are refused by `rank_items`, which leaves nothing to compare."""
    loaded = checkpoints.load(case.checkpoint())
    items = ItemTable(loaded.encoder, examples)
    items.complete[:] = False
    ServingGraph(loaded.ranker, loaded.encoder, items=items).save(tmp_path / "m")
    signatures = load_signatures(tmp_path / "m")
    table = pq.read_table(case.examples / "test").slice(0, 40)
    found = check_parity(signatures, loaded.ranker, loaded.encoder, table, 1e-5, items=items)
    assert found["rows"] == 80
