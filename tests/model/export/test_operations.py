"""How many look-ups and gathers a fused export runs: by side and width, not by feature."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tests.model.export.conftest import CONTRACT, randomise
from tests.model.export.test_graph import Exported, assert_scores_equal

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.encoding import Encoder

WORDS = ["red", "green", "blue", "grey"]


def model_with(case: Any, folder: Any, ids: int) -> Exported:
    """The case's model with more ids on each side, all of them texts."""
    features = dict(CONTRACT["features"])
    table, vocabularies = pq.read_table(case.examples / "test"), {}
    rng = np.random.default_rng(0)
    for side in ("user", "item"):
        for number in range(ids):
            name = f"{side}_text_{number}"
            features[name] = {"kind": "id", "side": side}
            vocabularies[name] = pa.array(WORDS)
            table = table.append_column(name, pa.array(rng.choice(WORDS, table.num_rows)))
    contract = parse(Contract, CONTRACT | {"features": features}, "contract")
    known = checkpoints.load(case.checkpoint()).encoder
    encoder = Encoder(contract, known.statistics, known.vocabularies | vocabularies)
    ranker = checkpoints.make_ranker(contract, case.config().model, encoder, seed=0)
    randomise(ranker, seed=0)
    return Exported.of(ranker, encoder, folder, table, "fused")


def counted(model: Exported) -> dict[str, int]:
    """Look-ups, and gathers of embeddings by side, of one call of `rank`, from its trace."""
    raw, pairs = model.request(np.arange(1), np.arange(50), np.zeros(50, int))
    trace = tf.compat.v1.RunMetadata()
    full = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    received = model.call("rank", raw, options=full, run_metadata=trace)
    assert_scores_equal(model, received, model.expected(pairs))
    found: Counter[str] = Counter()
    for device in trace.step_stats.dev_stats:
        for node in device.node_stats:
            if re.search(r" = LookupTableFind\w*\(", node.timeline_label):
                found["look-ups"] += 1
            side = re.search(r"embed_(user|item)/", node.node_name)
            gathers = re.search(r" = (Resource)?Gather\w*\(", node.timeline_label)
            # Rows of a table are (N, F, ..., d); columns of a block of codes are (N, F).
            if side and gathers and len(node.output[0].tensor_description.shape.dim) > 2:
                found[side[1]] += 1
    return dict(found)


@pytest.mark.slow
def test_look_ups_and_gathers_do_not_grow_with_the_features(case, tmp_path) -> None:
    """One look-up for all texts of a side and one for its integers, one gather of ids."""
    few = counted(model_with(case, tmp_path / "few", 1))
    # Look-ups: the user's texts (those with one code for unseen ids, and `user_id`, which has two),
    # the history, the item's text, the item's integer.
    assert few == {"look-ups": 5, "user": 2, "item": 1}
    assert counted(model_with(case, tmp_path / "many", 5)) == few
