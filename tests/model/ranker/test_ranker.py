"""The ranker's layers: embeddings, pooling, towers, positions, scores."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.configs.sections.labels import Task
from multigate.configs.statistics import TaskStatistics
from multigate.model.checkpoints import checkpoint
from multigate.model.data import examples
from multigate.model.data.encoding import Encoder
from multigate.model.ranker import scores
from multigate.model.ranker.loss import task_weights
from multigate.model.ranker.ranker import Ranker


def make(tiny: Any, seed: int = 3, **changes: object) -> Ranker:
    config = tiny.make_config(**changes)
    return checkpoint.make_ranker(config.contract, config.model, Encoder.read(tiny.examples), seed)


def some_rows(tiny: Any, rows: int = 16) -> examples.Examples:
    return examples.read_split(tiny.examples, "train", Encoder.read(tiny.examples)).take(
        slice(rows)
    )


def numpy(value: Any) -> np.ndarray:
    return np.array(value.__array__())


def table(ranker: Ranker, name: str) -> np.ndarray:
    return numpy(ranker.embedder.tables[name].embeddings)


def test_features_that_share_a_vocabulary_share_the_table(tiny: Any) -> None:
    ranker = make(tiny)
    assert set(ranker.embedder.tables) == {"user_id", "item_id", "country", "age"}
    encoded = some_rows(tiny).features
    item = numpy(ranker.embed(encoded, ["item_id"]))
    np.testing.assert_array_equal(item, table(ranker, "item_id")[encoded["item_id"]])
    recent = encoded["recent"] * 0
    recent[:, 0] = encoded["item_id"]
    pooled = numpy(ranker.embed(encoded | {"recent": recent}, ["recent"]))
    np.testing.assert_allclose(pooled[:, :-1], item, rtol=1e-6)


def test_lists_are_pooled_without_their_padding(tiny: Any) -> None:
    ranker = make(tiny)
    recent = np.array([[3, 5, 0, 0], [0, 0, 0, 0], [7, 7, 7, 7]], np.int32)
    rows = table(ranker, "item_id")
    lengths = np.log1p([2.0, 0.0, 4.0]).astype(np.float32)
    found = numpy(ranker.embed({"recent": recent, "recent__length": lengths}, ["recent"]))
    pooled = found[:, :-1]
    np.testing.assert_allclose(pooled[0], (rows[3] + rows[5]) / 2, rtol=1e-5)
    np.testing.assert_array_equal(pooled[1], np.zeros(4))  # an empty list, not row 0
    np.testing.assert_allclose(pooled[2], rows[7], rtol=1e-5)
    np.testing.assert_array_equal(found[:, -1], lengths)


def test_what_a_list_says_beside_its_embedding_can_be_switched_off(tiny: Any) -> None:
    encoded = some_rows(tiny).features
    ranker = make(tiny)
    assert ranker.embedder.widths["recent"] == 4 + 1
    assert ranker.embedder.of["recent__match"] == "pair"
    column = numpy(ranker.embed(encoded, ["recent__match"]))[:, 0]
    np.testing.assert_array_equal(column, encoded["recent__match"])
    plain = make(tiny, model={"embedding_dim": 4, "lists": {"length": False, "match": False}})
    assert plain.embedder.widths["recent"] == 4
    assert "recent__match" not in plain.embedder.widths
    assert "pair" not in plain.embedder.of.values()


def test_the_parts_stand_in_the_contracts_order(tiny: Any) -> None:
    ranker = make(tiny)
    encoded = some_rows(tiny).features
    whole = numpy(ranker.embed(encoded))
    assert whole.shape[1] == sum(ranker.embedder.widths.values())
    start = 0
    for name, width in ranker.embedder.widths.items():
        part = numpy(ranker.embed(encoded, [name]))
        np.testing.assert_array_equal(whole[:, start : start + width], part)
        start += width
    # A number under `missing: indicator` says at its end whether it is there.
    age = numpy(ranker.embed(encoded, ["age"]))
    np.testing.assert_array_equal(age[:, -1], encoded["age__present"])
    assert set(age[:, -1]) == {0.0, 1.0}
    # The order of the names asked for does not matter.
    np.testing.assert_array_equal(
        numpy(ranker.embed(encoded, ["length", "user_id"])),
        numpy(ranker.embed(encoded, ["user_id", "length"])),
    )


def test_a_number_far_out_counts_as_one_at_the_limit(tiny: Any) -> None:
    """`length` is standardised; `age` is in buckets, which need no limit."""
    encoded = some_rows(tiny, 5).features
    encoded["length"] = np.array([-7, -2, 0.5, 2, 40], np.float32)
    plain, clipped = make(tiny), make(tiny, model={"embedding_dim": 4, "number_clip": 2.0})
    np.testing.assert_array_equal(numpy(plain.embed(encoded, ["length"]))[:, 0], encoded["length"])
    found = numpy(clipped.embed(encoded, ["length"]))[:, 0]
    np.testing.assert_array_equal(found, [-2, -2, 0.5, 2, 2])
    ages = numpy(clipped.embed(encoded, ["age"]))
    np.testing.assert_array_equal(ages[:, :-1], table(clipped, "age")[encoded["age"]])


def test_a_width_belongs_to_the_owner_of_the_table(tiny: Any) -> None:
    wide = make(tiny, model={"embedding_dim": 4, "embedding_dims": {"item_id": 8}})
    assert wide.embedder.widths["recent"] == 8 + 1  # and the list's length
    assert wide.embedder.widths["user_id"] == 4


def test_seeds_differ_between_parts_and_repeat_between_runs(tiny: Any) -> None:
    one, same, other = make(tiny, 3), make(tiny, 3), make(tiny, 4)
    encoded = some_rows(tiny).features
    for task in one.contract.tasks:
        a, b, c = (numpy(ranker(encoded)[task]) for ranker in (one, same, other))
        np.testing.assert_array_equal(a, b)
        assert not np.allclose(a, c)
    kernels = [numpy(gate.kernel) for gate in one.mixture.gates]
    assert not np.allclose(kernels[0], kernels[1])
    heads = [numpy(tower.head.kernel) for tower in one.towers.values()]
    assert not np.allclose(heads[0], heads[1])
    assert not np.allclose(table(one, "user_id")[:20], table(one, "item_id")[:20])


def test_positions_count_in_training_only(tiny: Any) -> None:
    ranker = make(tiny, model={"experts": {"count": 2, "units": [4]}})  # no noise, no dropout
    assert ranker.position_tower is not None
    effect = np.arange(21, dtype=np.float32).reshape(7, 3)
    ranker.position_tower.table.embeddings.assign(effect)
    encoded = some_rows(tiny, 4).features
    positions = np.array([0, 2, 4, 4], np.int32)
    encoded["position"] = positions
    served, trained = ranker(encoded), ranker(encoded, training=True)
    np.testing.assert_array_equal(
        numpy(served["click"]), numpy(ranker(encoded | {"position": positions * 0})["click"])
    )
    for t, task in enumerate(ranker.contract.tasks):
        added = numpy(trained[task]) - numpy(served[task])
        # Effects of positions 2, 4, 4 less their mean; none where the position is unknown.
        rows = effect[[2, 4, 4], t]
        np.testing.assert_allclose(added, [0, *(rows - rows.mean())], atol=1e-4)
        assert added[0] == 0


def test_towers_start_at_the_base_rate(tiny: Any) -> None:
    ranker = make(tiny)
    statistics = Encoder.read(tiny.examples).statistics
    for name in ("click", "like"):
        start = 1 / (1 + np.exp(-float(ranker.towers[name].head.bias[0])))
        assert start == pytest.approx(statistics.tasks[name].mean, abs=1e-5)
    assert float(ranker.towers["dwell"].head.bias[0]) == 0.0


def test_the_loss_is_weighted_over_tasks_and_masked(tiny: Any) -> None:
    ranker = make(tiny, model={"task_weighting": "fixed"})
    rows = some_rows(tiny)
    ranker(rows.features)
    logits = {
        task: keras.ops.convert_to_tensor(np.full(2, 1.0, np.float32))
        for task in ranker.contract.tasks
    }
    targets = np.array([[1, 3, np.nan], [0, np.nan, np.nan]], np.float32)
    loss = ranker.compute_loss(None, targets, logits, training=False)
    click = (np.log1p(np.exp(-1.0)) + np.log1p(np.exp(1.0))) / 2
    assert float(loss) == pytest.approx(1.0 * click + 0.5 * (3 - 1) ** 2 + 1.0 * 0, abs=1e-5)


def test_a_row_moves_a_task_as_far_however_many_rows_have_its_label(tiny: Any) -> None:
    """By default: a mean over the labelled rows alone would move the rare task's rows farther."""
    encoder = Encoder.read(tiny.examples)
    rare = encoder.statistics.tasks["dwell"].model_copy(update={"count": 80})
    often = encoder.statistics.tasks["click"].model_copy(update={"count": 800})
    statistics = encoder.statistics.model_copy(
        update={"tasks": encoder.statistics.tasks | {"dwell": rare, "click": often}}
    )
    config = tiny.make_config()
    weight = config.contract.tasks["dwell"].weight
    moved = {}
    for weighting in ("labels", "fixed"):
        model = config.model.model_copy(update={"task_weighting": weighting})
        ranker = checkpoint.make_ranker(config.contract, model, encoder, 3)
        ranker.task_weights = task_weights(config.contract, statistics, weighting)
        ranker(some_rows(tiny).features)
        logits = {name: tf.Variable(np.zeros(10, np.float32)) for name in config.contract.tasks}
        targets = np.full((10, len(logits)), np.nan, np.float32)
        names = list(logits)
        targets[:, names.index("click")] = 1  # gradient of a row's loss: sigmoid(0) - 1 = -1/2
        targets[0, names.index("dwell")] = 0.25  # 2 (0 - 1/4) = -1/2
        with tf.GradientTape() as tape:
            loss = ranker.compute_loss(None, targets, logits, training=False)
        click, dwell = tape.gradient(loss, [logits["click"], logits["dwell"]])
        moved[weighting] = float(dwell[0]) / (weight * float(click[0]))
    assert moved == pytest.approx({"labels": 1.0, "fixed": 10.0}, rel=1e-5)


def test_scores_are_in_the_labels_own_units() -> None:
    statistics = TaskStatistics(count=9, masked=0, mean=1.0, std=2.0)
    base = {"group": "engagement", "label": {"rule": "impression"}}
    logit = keras.ops.convert_to_tensor(np.array([0.0, 0.5], np.float32))

    def score(**fields: object) -> np.ndarray:
        return numpy(scores.score(Task.model_validate(base | fields), statistics, logit))

    np.testing.assert_allclose(score(type="binary"), [0.5, 1 / (1 + np.exp(-0.5))], rtol=1e-6)
    np.testing.assert_allclose(score(type="regression"), [1.0, 2.0])
    logged = {"type": "regression", "transform": "log1p"}
    np.testing.assert_allclose(score(**logged), [np.e - 1, np.e**2 - 1], rtol=1e-6)
    np.testing.assert_allclose(score(**logged, clip=(0.0, 3.0)), [np.e - 1, 3.0], rtol=1e-6)


def test_targets_and_scores_are_inverse() -> None:
    statistics = TaskStatistics(count=9, masked=0, mean=2.5, std=0.7)
    task = Task.model_validate(
        {
            "group": "engagement",
            "type": "regression",
            "label": {"rule": "impression"},
            "transform": "log1p",
        }
    )
    labels = np.array([0, 3, 250, np.nan], np.float32)
    back = numpy(scores.score(task, statistics, scores.targets(task, statistics, labels)))
    np.testing.assert_allclose(back, labels, rtol=1e-4, atol=1e-4)
