"""`dispatch` evaluates the selected (row, expert) pairs alone, as the runtime's trace tells."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.model.export.conftest import CONTRACT, randomise
from tests.model.export.test_graph import Exported, assert_scores_equal, evaluated_rows

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.configs.statistics import VectorStatistics
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.encoding import Encoder

TEXT = {"kind": "text", "hash_buckets": 64, "max_length": 4}
VECTOR = {"kind": "vector", "size": 3}
HISTORY = CONTRACT["features"]["recent"]
FEATURES: dict[str, dict[str, Any]] = {
    "attention": {"recent": HISTORY | {"pooling": "attention"}},
    "sequence": {"recent": HISTORY | {"pooling": "sequence"}},
    "text": {"title": TEXT | {"side": "item"}, "bio": TEXT | {"side": "user"}},
    "vector": {
        "cover": VECTOR | {"side": "item", "missing": "indicator", "project": 2},
        "taste": VECTOR | {"side": "user", "scale": "unit", "missing": "default"},
    },
}


def with_columns(table: pa.Table) -> pa.Table:
    """The case's rows with texts and vectors."""
    rng = np.random.default_rng(4)
    for name in ("title", "bio"):
        words = rng.choice(["old", "news", "café", "tea"], (table.num_rows, 3))
        table = table.append_column(name, pa.array([" ".join(row) for row in words]))
    for name in ("cover", "taste"):
        values = rng.normal(3.0, 2.0, (table.num_rows, 3)).astype(np.float32)
        missing = rng.random(table.num_rows) < 0.2
        rows = [None if gone else row for row, gone in zip(values.tolist(), missing, strict=True)]
        table = table.append_column(name, pa.array(rows, pa.list_(pa.float32())))
    return table


def assert_selected_pairs_only(model: Exported, experts: int) -> None:
    """Of `serving_default`, and of `rank` with one user and with several."""
    assert model.servable.mixture.mode == "dispatch"
    for signature, request, table in (
        ("serving_default", model.raw("user", "item", "context"), model.table),
        ("rank", *model.request(np.arange(1), np.arange(100, 400), np.zeros(300, int))),
        ("rank", *model.request(np.arange(5), np.arange(100, 400), np.arange(300) % 5)),
    ):
        rows = evaluated_rows(model, signature, request)
        assert set(rows) == set(range(experts))
        assert sum(rows.values()) == model.selected(table)
        assert sum(rows.values()) < 0.9 * experts * table.num_rows


def test_auto_with_sixteen_experts_evaluates_the_selected_pairs(case, tmp_path) -> None:
    """Three tasks with k = 2: a row selects six experts of sixteen at most."""
    experts = {"count": 16, "units": [10]}
    gate = {"name": "topk", "num_selected": 2}
    checkpoint = case.checkpoint(model={"experts": experts, "gate": gate})
    model = Exported(checkpoint, tmp_path / "m", case.examples, "auto")
    assert model.servable.mixture.reason.startswith("16 experts, at least 16")
    assert_selected_pairs_only(model, 16)
    rows = evaluated_rows(model, "serving_default", model.raw("user", "item", "context"))
    assert sum(rows.values()) <= 6 * model.table.num_rows


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize("kind", FEATURES)
def test_every_kind_of_feature_is_sparse(case, tmp_path, kind) -> None:
    """What is computed before the mixture changes nothing in it."""
    values = CONTRACT | {"features": CONTRACT["features"] | FEATURES[kind]}
    contract = parse(Contract, values, kind)
    known = checkpoints.load(case.checkpoint()).encoder
    cover = VectorStatistics(count=1, missing=0, mean=(3.0,) * 3, std=(2.0,) * 3)
    statistics = known.statistics.model_copy(update={"vectors": {"cover": cover}})
    encoder = Encoder(contract, statistics, known.vocabularies)
    ranker = checkpoints.make_ranker(contract, case.config().model, encoder, seed=0)
    randomise(ranker, seed=0)
    table = with_columns(pq.read_table(case.examples / "test"))
    model = Exported.of(ranker, encoder, tmp_path / "m", table, "selected")
    assert_selected_pairs_only(model, 6)
    received = model.call("serving_default", model.raw("user", "item", "context"))
    assert_scores_equal(model, received, model.expected(model.table))
