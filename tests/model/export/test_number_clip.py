"""Numbers beyond `model.number_clip` in the exported graph and its item table."""

import numpy as np
import pytest
from tests.model.export.test_graph import Exported
from tests.model.export.test_poolings import assert_both_signatures_score_like_keras

from multigate.model.data.raw import take


@pytest.mark.parametrize("limit", [0.5, None])
def test_both_signatures_score_like_the_keras_model(case, tmp_path, limit) -> None:
    model = Exported(case.checkpoint(model={"number_clip": limit}), tmp_path / "m", case.examples)
    prices = model.encoder(model.table)["price"]
    assert (np.abs(prices) > 0.5).mean() > 0.3  # many are beyond the limit
    assert_both_signatures_score_like_keras(model)


def test_beyond_the_limit_nothing_changes(case, tmp_path) -> None:
    model = Exported(case.checkpoint(model={"number_clip": 1.0}), tmp_path / "m", case.examples)
    raw = take(model.raw("user", "item", "context"), np.zeros(5, np.int64))
    raw["price__present"] = np.ones(5, bool)
    raw["price"] = np.float32([30, 1e4, 1e9, 0, -1e9])
    scores = model.call("serving_default", raw)
    for of_task in scores.values():
        assert of_task[0] != of_task[1]
        assert of_task[1] == of_task[2]
        assert of_task[3] == of_task[4]
