"""The wide term: known ids add their weights, unknown ones nothing, rare ones are held back."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from multigate.configs.sections.model import Wide as WideConfig
from multigate.model.checkpoints import checkpoint
from multigate.model.data import examples
from multigate.model.data.encoding import Encoder
from multigate.model.ranker.ranker import Ranker
from multigate.model.ranker.wide import Wide
from multigate.model.training import train


def numpy(value: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(value))


def make_wide() -> Wide:
    """Users have codes 2 .. 4 after a missing and one unknown code, items 4 .. 5."""
    wide = Wide({"user": (2, np.array([10, 5, 1])), "item": (4, np.array([4, 2]))}, tasks=2)
    rng = np.random.default_rng(0)
    for table in wide.tables.values():
        table.embeddings.assign(rng.normal(size=table.embeddings.shape))
    return wide


def test_known_ids_add_their_weights_and_unknown_ones_add_nothing() -> None:
    wide = make_wide()
    user, item = (numpy(wide.tables[name].embeddings) for name in ("user", "item"))
    codes = {"user": np.array([0, 1, 2, 4, 3]), "item": np.array([0, 3, 4, 5, 1])}
    found = numpy(wide({name: value.astype(np.int32) for name, value in codes.items()}))
    np.testing.assert_array_equal(found[:2], 0)
    np.testing.assert_allclose(found[2], user[2] + item[4], rtol=1e-6)
    np.testing.assert_allclose(found[3], user[4] + item[5], rtol=1e-6)
    np.testing.assert_allclose(found[4], user[3], rtol=1e-6)
    exported = wide.weights_of(["item", "user", "country"])
    assert list(exported) == ["item", "user"]
    np.testing.assert_array_equal(exported["user"][:2], 0)
    np.testing.assert_array_equal(exported["user"][2:], user[2:])


def test_over_an_epoch_each_weight_pays_its_square_once_however_frequent_its_id_is() -> None:
    wide = make_wide()
    user = numpy(wide.tables["user"].embeddings)
    rows = np.repeat([2, 3, 4], [10, 5, 1]).astype(np.int32)  # as often as counted
    nothing = np.zeros(len(rows), np.int32)
    paid = float(wide.penalty({"user": rows, "item": nothing})) * len(rows)
    assert paid == pytest.approx((user[2:] ** 2).sum(), rel=1e-5)


def test_pairs_of_known_ids_have_weights_of_their_own() -> None:
    counts = {"user": (2, np.array([10, 5, 1])), "item": (4, np.array([4, 2]))}
    wide = Wide(counts, tasks=2, crosses={"user * item": ("user", "item")})
    pairs = wide.tables["user * item"].embeddings
    weights = np.random.default_rng(0).normal(size=pairs.shape)
    assert pairs.shape == (1 + 3 * 2, 2)
    pairs.assign(weights)
    users, items = np.meshgrid(np.arange(5), np.arange(6), indexing="ij")
    codes = {"user": users.ravel().astype(np.int32), "item": items.ravel().astype(np.int32)}
    found = numpy(wide(codes)).reshape(5, 6, 2)
    assert not found[:2].any()
    assert not found[:, :4].any()
    np.testing.assert_allclose(found[2:, 4:].reshape(6, 2), weights[1:], rtol=1e-6)


def test_pairs_are_of_a_user_and_an_item_and_few(tiny: Any) -> None:
    both = ["country * item_id", "user_id * item_id"]  # 90 and 600 pairs
    for most, expected in ((0, []), (89, []), (90, both[:1]), (689, both[:1]), (690, both)):
        ranker, _ = make(tiny, wide=WideConfig(crosses=most))
        assert ranker.wide is not None
        assert list(ranker.wide.crosses) == expected


def test_named_pairs_alone_have_weights(tiny: Any) -> None:
    """They need room as others do, in the order in which they are named."""
    both = ("user_id", "item_id"), ("country", "item_id")  # 600 and 90 pairs
    for most, pairs, expected in (
        (600, both[:1], ["user_id * item_id"]),
        (8192, both, ["user_id * item_id", "country * item_id"]),
        (600, both, ["user_id * item_id"]),
        (690, (both[0], *both), ["user_id * item_id", "country * item_id"]),  # named twice
        (599, both, ["country * item_id"]),
        (8192, (), []),
    ):
        ranker, _ = make(tiny, wide=WideConfig(crosses=most, pairs=pairs))
        assert ranker.wide is not None
        assert list(ranker.wide.crosses) == expected


def test_a_pair_counts_as_many_rows_as_two_independent_features_would_give_it() -> None:
    counts = {"user": (2, np.array([30, 10])), "item": (2, np.array([20]))}
    wide = Wide(counts, tasks=1, crosses={"user * item": ("user", "item")}, rows=100)
    part = wide.tables["user * item"]
    part.embeddings.assign(np.ones(part.embeddings.shape))
    rows = {"user": np.array([2, 3], np.int32), "item": np.array([2, 2], np.int32)}
    assert float(wide.penalty(rows)) == pytest.approx((1 / 6 + 1 / 2) / 2)


def test_over_an_epoch_the_embedding_of_each_known_id_pays_its_square_once() -> None:
    wide = make_wide()
    rows = np.repeat([2, 3, 4], [10, 5, 1]).astype(np.int32)
    of_id = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    unknown = np.ones(len(rows), np.int32)
    encoded = {"user": np.concatenate([rows, unknown]), "item": np.zeros(32, np.int32)}
    x = {"user": of_id[encoded["user"]]}
    paid = float(wide.embedding_penalty(encoded, x)) * 32
    assert paid == pytest.approx((of_id[2:] ** 2).sum(), rel=1e-5)


def test_a_penalty_keeps_the_embeddings_of_rare_ids_near_zero(tiny: Any, tmp_path: Path) -> None:
    norms = []
    for place, penalty in enumerate((0.0, 30.0)):
        config = tiny.make_config(model={"wide": {"embeddings": penalty}})
        train.train(config, tiny.examples, tmp_path / str(place), progress=False)
        ranker, encoder, _, _ = checkpoint.load(tmp_path / str(place))
        first = 2
        rows = numpy(ranker.embedder.tables["user_id"].embeddings)[first:]
        assert len(rows) == len(encoder.vocabularies["user_id"])
        norms.append(np.linalg.norm(rows))
    assert norms[1] < 0.5 * norms[0]


def make(tiny: Any, **model: object) -> tuple[Ranker, Encoder]:
    config, encoder = tiny.make_config(), Encoder.read(tiny.examples)
    changed = config.model.model_copy(update=model)
    return checkpoint.make_ranker(config.contract, changed, encoder, seed=1), encoder


def test_the_ranker_adds_it_to_every_logit(tiny: Any) -> None:
    ranker, encoder = make(tiny)
    assert ranker.wide is not None
    assert set(ranker.wide.tables) == {"user_id", "item_id", "country"}
    rows = examples.read_split(tiny.examples, "train", encoder).take(slice(8)).features
    before = {task: numpy(z) for task, z in ranker.forward(rows).logits.items()}
    rng = np.random.default_rng(0)
    for table in ranker.wide.tables.values():
        table.embeddings.assign(rng.normal(size=table.embeddings.shape))
    effect = numpy(ranker.wide(rows))
    after = ranker.forward(rows).logits
    for t, task in enumerate(ranker.contract.tasks):
        np.testing.assert_allclose(numpy(after[task]), before[task] + effect[:, t], rtol=1e-5)


def test_it_can_be_switched_off(tiny: Any) -> None:
    ranker, encoder = make(tiny, wide=None)
    assert ranker.wide is None
    rows = examples.read_split(tiny.examples, "train", encoder).take(slice(8)).features
    assert ranker(rows, training=True).keys() == ranker.contract.tasks.keys()
