"""Training the two towers: the loss by hand, repeatability, and what is refused."""

import dataclasses
import shutil
import subprocess
import sys

import numpy as np
import pytest

from multigate.candidates.batches import Batches, Hidden, hidden_shares
from multigate.candidates.pairs import (
    catalogue,
    catalogue_of_splits,
    positive_task,
    read_pairs,
)
from multigate.candidates.retrieval import Retrieval, recall_of_pairs
from multigate.candidates.training import load, train
from multigate.configs.errors import ConfigError, DataError, ModelError
from multigate.configs.files import SPLITS


def nothing_hidden(users, items):
    return {"hidden_users": np.zeros(users, bool), "hidden_items": np.zeros(items, bool)}


def test_the_loss_corrects_for_frequency_and_forgives_accidental_hits(trained):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    rows = np.arange(6)
    inputs = {name: values[rows] for name, values in pairs.features.items()}
    items = np.asarray([4, 7, 4, 1, 0, 7], np.int32)  # two pairs of equal items
    share = np.asarray([0.1, 0.2, 0.1, 0.05, 0.3, 0.2], np.float32)
    loss = model.compute_loss(inputs | {"item": items, "share": share} | nothing_hidden(6, 8))
    users = np.asarray(model.user_tower(inputs), np.float64)
    vectors = np.asarray(model.item_tower(inputs), np.float64)
    logits = users @ vectors.T / model.config.temperature - np.log(share)
    same = (items[:, None] == items) & ~np.eye(6, dtype=bool)
    logits[same] = -np.inf
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert float(loss) == pytest.approx(-np.diag(log_softmax).mean(), rel=1e-4)


def test_against_all_items_the_loss_is_their_softmax(trained):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    items = catalogue_of_splits(trained.examples, model.encoder, SPLITS)
    inputs = {name: values[:6] for name, values in pairs.features.items()}
    places = np.searchsorted(items.ids, pairs.items[:6]).astype(np.int32)
    model.against(items)
    loss = model.compute_loss(inputs | {"item": places} | nothing_hidden(6, len(items)))
    logits = np.asarray(model.user_tower(inputs), np.float64) @ model.item_vectors(items).T
    logits /= model.config.temperature
    own = np.take_along_axis(logits, places[:, None], axis=1)[:, 0]
    expected = np.log(np.exp(logits).sum(axis=1)) - own
    assert float(loss) == pytest.approx(expected.mean(), rel=1e-4)


@pytest.mark.parametrize(("beyond", "everyone"), [(0, True), (1, False)])
def test_all_items_are_negatives_up_to_a_number_of_items(
    trained, beyond, everyone, tmp_path, monkeypatch
):
    class ReachedError(Exception):
        pass

    called = []
    monkeypatch.setattr(Retrieval, "against", lambda self, items: called.append(len(items)))
    monkeypatch.setattr(Retrieval, "fit", lambda self, *given, **options: reach())

    def reach():
        raise ReachedError

    encoder = load(trained.checkpoint)[0].encoder
    count = len(catalogue_of_splits(trained.examples, encoder, SPLITS[:1]))
    options = trained.config.candidates.model_copy(update={"softmax_items": count - beyond})
    config = trained.config.model_copy(update={"candidates": options})
    with pytest.raises(ReachedError):
        train(config, trained.examples, tmp_path / "out", show=lambda line: None)
    assert called == ([count] if everyone else [])


@pytest.mark.parametrize("side", ["users", "items"])
def test_the_share_of_hidden_ids_is_that_of_validations_unknown_ones(trained, side):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "validation", model.encoder, positive_task(config))
    contract, options = config.contract, config.candidates
    name = contract.user if side == "users" else contract.item

    def share(options, held_out=pairs, contract=contract):
        return getattr(hidden_shares(contract, options, held_out), side)

    for unknown, expected in ((0, 0.1), (50, 0.5), (100, 0.9)):
        codes = np.full(len(pairs), 7, np.int32)
        codes[: len(pairs) * unknown // 100] = 1
        held_out = dataclasses.replace(pairs, features=pairs.features | {name: codes})
        assert share(options, held_out) == pytest.approx(expected, abs=0.01)
    assert share(options.model_copy(update={f"hidden_{side}": 0.25})) == 0.25
    hashed = contract.features[name].model_copy(update={"hash_buckets": 64})
    features = {**contract.features, name: hashed}
    assert share(options, contract=contract.model_copy(update={"features": features})) == 0


@pytest.mark.parametrize("all_items", [False, True])
def test_hidden_ids_come_in_as_unseen_ones(trained, all_items):
    model, config, _ = load(trained.checkpoint)
    contract = model.encoder.contract
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    items = catalogue_of_splits(trained.examples, model.encoder, SPLITS)
    places = np.searchsorted(items.ids, pairs.items[:4]).astype(np.int32)
    inputs = {name: values[:4] for name, values in pairs.features.items()}
    batch = inputs | {"item": places, "share": np.full(4, 0.1, np.float32)}
    batch |= nothing_hidden(4, len(items))
    unseen = np.zeros(len(items), np.int32) + 1

    def loss(catalogue=items, **changes):
        model.against(catalogue) if all_items else None
        return float(model.compute_loss(batch | changes))

    plain = loss()
    without_users = loss(hidden_users=np.ones(4, bool))
    assert without_users == loss(**{contract.user: np.ones(4, np.int32)}) != plain
    without_items = loss(hidden_items=np.ones(len(items), bool))
    other = dataclasses.replace(items, features=items.features | {contract.item: unseen})
    assert without_items == loss(other, **{contract.item: np.ones(4, np.int32)}) != plain


@pytest.mark.long
def test_the_same_seed_gives_the_same_weights(trained, tmp_path):
    """As the command trains, in processes of their own."""
    for name in ("first", "second"):
        command = ["--config", "demo", "--examples", trained.examples]
        command = [sys.executable, "-m", "multigate", "candidates", "train", *command]
        subprocess.run([*command, "--out", tmp_path / name], check=True, capture_output=True)
    with (
        np.load(tmp_path / "first" / "weights.npz") as first,
        np.load(tmp_path / "second" / "weights.npz") as second,
    ):
        assert set(first) == set(second)
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


GROUPS = """
name: groups
contract:
  user: user_id
  item: item_id
  features:
    user_id: {kind: id, side: user}
    item_id: {kind: id, side: item}
  tasks:
    read: {group: engagement, type: binary, label: {rule: impression}, score_weight: 1}
pipeline:
  log:
    shape: impressions
    files: [log.csv]
    format: {type: csv}
    time_unit: s
    columns: {time: time, user: user_id, item: item_id}
  split: {by: time, validation: 0.1, test: 0.1}
candidates: {embedding_dim: 8, epochs: 12, batch_size: 128, learning_rate: 0.01, patience: 12,
  hidden_users: 0, hidden_items: 0, recall_at: 5}
"""


@pytest.mark.slow
def test_training_learns_who_wants_what(tmp_path):
    """Two groups of users, ten items each: of 20 items, a user's ten come first."""
    from multigate.configs import load as load_config
    from multigate.pipeline import job

    random = np.random.default_rng(0)
    (tmp_path / "groups.yaml").write_text(GROUPS)
    (tmp_path / "logs").mkdir()
    lines = ["user_id,item_id,time"]
    for second in range(1600):
        user = int(random.integers(40))
        lines.append(f"u{user},i{10 * (user % 2) + int(random.integers(10))},{second}")
    (tmp_path / "logs" / "log.csv").write_text("\n".join(lines) + "\n")
    config = load_config(tmp_path / "groups.yaml")
    job.run(config, tmp_path / "logs", tmp_path / "examples")
    train(config, tmp_path / "examples", tmp_path / "out", show=lambda line: None)
    model, config, _ = load(tmp_path / "out")
    items = catalogue_of_splits(tmp_path / "examples", model.encoder, SPLITS[:2])
    pairs = read_pairs(tmp_path / "examples", "test", model.encoder, "read")
    assert recall_of_pairs(model, items, pairs, (10,))[10] > 0.95  # by chance 0.5


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
    contract = trained.config.contract
    features = dict(contract.features)
    del features[next(name for name in features if "age" in name)]
    other = trained.config.model_copy(
        update={"contract": contract.model_copy(update={"features": features})}
    )
    with pytest.raises(ModelError, match="build the examples again"):
        train(other, trained.examples, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_checkpoint(tmp_path):
    with pytest.raises(ModelError, match="expected a folder that `multigate candidates train`"):
        load(tmp_path)


@pytest.mark.parametrize("left", [0, 20, -30], ids=["empty", "a beginning", "no end"])
def test_a_checkpoint_with_damaged_weights(trained, tmp_path, left):
    folder = tmp_path / "damaged"
    shutil.copytree(trained.checkpoint, folder)
    (folder / "weights.npz").write_bytes((folder / "weights.npz").read_bytes()[:left])
    with pytest.raises(ModelError, match="expected a folder that `multigate candidates train` wr"):
        load(folder)


def test_the_task_of_the_pairs(trained):
    tasks = trained.config.contract.tasks
    assert tasks[positive_task(trained.config)].group == "engagement"
    wrong = trained.config.candidates.model_copy(update={"positives": "dwell"})
    with pytest.raises(ConfigError, match=r"candidates.positives: expected one of .*'dwell'"):
        positive_task(trained.config.model_copy(update={"candidates": wrong}))


def test_the_end_of_an_epoch_does_not_wait_for_tuning(trained):
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    items = catalogue_of_splits(trained.examples, model.encoder, SPLITS)
    batches = Batches(pairs, items, model.config, Hidden(0.0, 0.0))
    # Else the thread that tunes sleeps for as long as the epoch took, and its end waits for it.
    assert batches.epoch(1).options().autotune.enabled is False
