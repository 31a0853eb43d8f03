"""Weights of pairs of ids in the exported graph and its item table."""

import pytest
from tests.model.export.test_graph import Exported
from tests.model.export.test_poolings import assert_both_signatures_score_like_keras

from multigate.model.checkpoints import checkpoint as checkpoints

WIDE = {"wide": {"crosses": 4096}}


def test_both_signatures_score_like_the_keras_model(case, tmp_path) -> None:
    checkpoint = case.checkpoint(model=WIDE)
    ranker = checkpoints.load(checkpoint).ranker
    assert len(ranker.wide.crosses) > 1
    assert all(ranker.wide.tables[one].embeddings.numpy().any() for one in ranker.wide.crosses)
    model = Exported(checkpoint, tmp_path / "m", case.examples)
    assert_both_signatures_score_like_keras(model)


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize("items", ["features", "precomputed"])
def test_items_of_the_table_have_them_too(case, with_items, tmp_path, items) -> None:
    """Export compares `rank_items` with the checkpoint, and refuses what differs."""
    from multigate.model.export.export import export

    assert export(
        case.checkpoint(model=WIDE, export={"items": items}), with_items, tmp_path / "models"
    ).is_dir()
