"""Training the two towers: the loss by hand, repeatability, and what is refused."""

import numpy as np
import pytest

from candidates.pairs import catalogue, positive_task, read_pairs
from candidates.retrieval import recall_of_pairs
from candidates.training import load, train
from configs.contract import Contract
from configs.errors import ConfigError, DataError, ModelError
from configs.files import SPLITS


def test_the_loss_corrects_for_frequency_and_forgives_accidental_hits(trained):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    rows = np.arange(6)
    inputs = {name: values[rows] for name, values in pairs.features.items()}
    items = np.asarray([4, 7, 4, 1, 0, 7], np.int32)  # two pairs of equal items
    share = np.asarray([0.1, 0.2, 0.1, 0.05, 0.3, 0.2], np.float32)
    hidden = np.zeros(6, bool)
    loss = model.compute_loss(inputs | {"item": items, "share": share, "hidden": hidden})
    users = np.asarray(model.user_tower(inputs), np.float64)
    vectors = np.asarray(model.item_tower(inputs), np.float64)
    logits = users @ vectors.T / model.config.temperature - np.log(share)
    same = (items[:, None] == items) & ~np.eye(6, dtype=bool)
    logits[same] = -np.inf
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert float(loss) == pytest.approx(-np.diag(log_softmax).mean(), rel=1e-4)


def test_hidden_users_come_in_as_unseen_ones(trained):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    rows = np.arange(4)
    inputs = {name: values[rows] for name, values in pairs.features.items()}
    batch = inputs | {"item": rows.astype(np.int32), "share": np.full(4, 0.1, np.float32)}
    hidden = model.compute_loss(batch | {"hidden": np.ones(4, bool)})
    unseen = batch | {model.encoder.contract.user: np.ones(4, np.int32)}
    assert float(hidden) == float(model.compute_loss(unseen | {"hidden": np.zeros(4, bool)}))
    assert float(hidden) != float(model.compute_loss(batch | {"hidden": np.zeros(4, bool)}))


def test_the_same_seed_gives_the_same_weights(trained, tmp_path):
    train(trained.config, trained.examples, tmp_path / "again", show=lambda line: None)
    with (
        np.load(trained.checkpoint / "weights.npz") as first,
        np.load(tmp_path / "again" / "weights.npz") as second,
    ):
        assert set(first) == set(second)
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


def test_training_learns_who_wants_what(trained):
    """Better than chance by far, on pairs that it has not seen."""
    model, config, _ = load(trained.checkpoint)
    from candidates.pairs import catalogue_of_splits

    items = catalogue_of_splits(trained.examples, model.encoder, SPLITS[:2])
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    found = recall_of_pairs(model, items, pairs, (20,))[20]
    assert found > 1.3 * 20 / len(items)


def test_items_that_nobody_can_find_count_as_misses(trained):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    import polars as pl

    names = [name for name, _ in model.encoder.contract.of_side("item")]
    first = pairs.table.select(names).unique(model.encoder.contract.item, maintain_order=True)[:1]
    one = catalogue(first.to_arrow(), model.encoder)
    share = pairs.table.select((pl.col(model.encoder.contract.item) == one.ids[0]).mean()).item()
    assert recall_of_pairs(model, one, pairs, (20,))[20] == pytest.approx(share)


def test_an_empty_catalogue_is_refused(trained):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    with pytest.raises(DataError, match="expected at least one item to retrieve"):
        catalogue(pairs.table[:0].to_arrow(), model.encoder)


def test_examples_of_another_contract_are_refused(trained, tmp_path):
    values = trained.config.contract.model_dump(mode="json")
    del values["features"][next(name for name in values["features"] if "age" in name)]
    other = trained.config.model_copy(
        update={"contract": Contract.model_validate_json(_json(values))}
    )
    with pytest.raises(ModelError, match="build the examples anew"):
        train(other, trained.examples, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_checkpoint(tmp_path):
    with pytest.raises(ModelError, match="expected a folder that `multigate candidates train`"):
        load(tmp_path)


def test_the_task_of_the_pairs(trained):
    tasks = trained.config.contract.tasks
    assert tasks[positive_task(trained.config)].group == "engagement"
    wrong = trained.config.candidates.model_copy(update={"positives": "dwell"})
    with pytest.raises(ConfigError, match=r"candidates.positives: expected one of .*'dwell'"):
        positive_task(trained.config.model_copy(update={"candidates": wrong}))


def _json(values):
    import json

    return json.dumps(values)
