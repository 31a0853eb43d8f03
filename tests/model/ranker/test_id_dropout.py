"""Id dropout: which ids become unknown ones, how many, and only in training."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.model.checkpoints import checkpoint
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Split
from multigate.model.data.unknown_ids import dropout_shares, unknown_shares
from multigate.model.ranker.id_dropout import IdDropout


def numpy(value: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(value))


def test_a_share_of_the_known_ids_becomes_unknown_and_all_else_stays(tiny: Any) -> None:
    contract = tiny.make_config().contract
    features = contract.features | {
        "item_id": contract.features["item_id"].model_copy(update={"oov_buckets": 3})
    }
    contract = contract.model_copy(update={"features": features})
    dropout = IdDropout(contract, {"user_id": 0.4, "recent": 0.25, "country": 0.0}, seed=1)
    rng = np.random.default_rng(0)
    encoded = {
        "user_id": rng.integers(0, 9, 20_000).astype(np.int32),
        "recent": rng.integers(0, 9, (20_000, 4)).astype(np.int32),
        "country": rng.integers(0, 4, 20_000).astype(np.int32),
        "length": rng.random(20_000).astype(np.float32),
    }
    found = {name: numpy(value) for name, value in dropout(encoded).items()}
    assert found.keys() == encoded.keys()
    for name in ("country", "length"):
        np.testing.assert_array_equal(found[name], encoded[name])
    for name, share, unknown in (("user_id", 0.4, 1), ("recent", 0.25, 3)):
        before, after = encoded[name], found[name]
        known = before > unknown  # missing ids, padding and unknown ids stay
        np.testing.assert_array_equal(after[~known], before[~known])
        changed = known & (after != before)
        assert changed.sum() / known.sum() == pytest.approx(share, abs=0.01)
        codes, counts = np.unique(after[changed], return_counts=True)
        assert codes.tolist() == list(range(1, unknown + 1))
        assert counts.min() / counts.max() > 0.9


def test_ids_are_replaced_in_training_only_and_anew_at_every_step(tiny: Any) -> None:
    config, encoder = tiny.make_config(), Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(
        config.contract, config.model, encoder, seed=1, id_dropout={"user_id": 0.5}
    )
    codes = {"user_id": np.full(1000, 5, np.int32)}
    draws = [numpy(ranker.id_dropout(codes)["user_id"]) for _ in range(2)]
    assert not np.array_equal(*draws)
    again = checkpoint.make_ranker(
        config.contract, config.model, encoder, seed=1, id_dropout={"user_id": 0.5}
    )
    np.testing.assert_array_equal(numpy(again.id_dropout(codes)["user_id"]), draws[0])


def test_the_default_share_is_validations_and_at_least_a_tenth_for_users_and_items(
    tiny: Any,
) -> None:
    config = tiny.make_config()
    encoded = {
        "user_id": np.array([1, 2, 3, 0]),  # one of three that are not missing
        "item_id": np.array([2, 3, 4, 5]),
        "country": np.array([2, 3, 3, 2]),
        "recent": np.array([[1, 1, 1, 0], [1, 5, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]),
    }
    unknown = unknown_shares(config.contract, encoded)
    assert unknown == pytest.approx({"user_id": 1 / 3, "item_id": 0, "country": 0, "recent": 5 / 6})
    nothing = dict.fromkeys(unknown, 0.0)
    shares = dropout_shares(config.contract, config.model, unknown, nothing)
    assert shares == pytest.approx(
        {"user_id": 1 / 3, "item_id": 0.1, "country": 0, "recent": 5 / 6}
    )
    chosen = config.model.model_copy(update={"id_dropout": 0.2, "id_dropouts": {"recent": 0.0}})
    assert dropout_shares(config.contract, chosen, unknown, nothing) == {
        "user_id": 0.2,
        "item_id": 0.2,
        "country": 0.2,
        "recent": 0.0,
    }


def test_what_training_lacks_itself_is_not_dropped_again(tiny: Any) -> None:
    """Of 1000 ids training lacks 250; with a third of the others dropped it lacks half."""
    config = tiny.make_config()
    unknown = {"user_id": 0.5, "item_id": 0.3, "country": 0.4, "recent": 0.2}
    in_training = {"user_id": 0.25, "item_id": 0.3, "country": 0.6, "recent": 1.0}
    shares = dropout_shares(config.contract, config.model, unknown, in_training)
    assert shares == pytest.approx({"user_id": 1 / 3, "item_id": 0.1, "country": 0, "recent": 0.1})


def test_a_missing_id_with_a_default_drops_nothing(tiny: Any, tmp_path: Path) -> None:
    """The default stands in no vocabulary: a fifth of all rows, in both splits alike."""
    values = tiny.config.model_dump(mode="json")
    values["contract"]["features"]["country"] |= {"missing": "default", "default": "none"}
    config = parse(Config, values, "tiny")
    tiny.write_examples(tmp_path, config, rows=2000)
    (tmp_path / "checkpoint").mkdir()
    checkpoint.create(tmp_path / "checkpoint", config, tmp_path)
    encoder = Encoder.read(tmp_path / "checkpoint")
    splits = (Split(tmp_path, split, encoder) for split in ("validation", "train"))
    unknown, in_training = (
        unknown_shares(config.contract, split.sample(1 << 18).features) for split in splits
    )
    assert in_training["country"] == pytest.approx(0.2, abs=0.05)
    shares = dropout_shares(config.contract, config.model, unknown, in_training)
    assert shares["country"] < 0.05
