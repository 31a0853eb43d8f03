"""Factors in a training: found after it, kept where they help, and no part of the steps."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest
from tests import on_jax
from tests.model.export.test_graph import Exported
from tests.model.export.test_poolings import assert_both_signatures_score_like_keras, matmul_rows

from multigate.configs.config import Config
from multigate.configs.errors import ModelError
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.model import Factors
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.examples import read_split
from multigate.model.evaluation import factors as found_factors
from multigate.model.evaluation.evaluate import evaluate
from multigate.model.ranker.scores import scores
from multigate.model.training import train


def sign(values: np.ndarray, bit: int) -> np.ndarray:
    """1 or -1 for each whole number, as good as by chance."""
    return 1 - 2 * ((values * 2654435761 >> (7 + bit)) & 1)


def with_tastes(source: Path, folder: Path) -> Path:
    """Examples whose likes follow products of what no feature tells; the rest nothing."""
    shutil.copytree(source, folder)
    rng = np.random.default_rng(6)
    for split in ("train", "validation", "test"):
        path = ExamplesFolder(folder).split(split) / "part-0.parquet"
        table = pl.read_parquet(path)
        user = table["user_id"].str.strip_prefix("u").cast(pl.Int64).to_numpy()
        item = table["item_id"].to_numpy()
        taste = 2.0 * sum(sign(user + 1, bit) * sign(item, bit) for bit in (0, 3))
        like = (rng.random(len(table)) < 1 / (1 + np.exp(-taste))).astype(np.float32)
        known = rng.random(len(table)) < 0.7
        labels = pl.Series("label/like", np.where(known, like, np.nan), pl.Float32).fill_nan(None)
        noise = pl.Series("label/dwell", np.exp(rng.normal(size=len(table))), pl.Float32)
        dwell = pl.when(pl.col("label/dwell").is_not_null()).then(noise).alias("label/dwell")
        click = pl.Series("label/click", rng.random(len(table)) < 0.4).cast(pl.Float32)
        table.with_columns(labels, dwell, click).write_parquet(path)
    return folder


@pytest.fixture(scope="module")
def examples(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tastes")
    tiny.write_examples(folder / "log", tiny.config, rows=2500)
    return with_tastes(folder / "log", folder / "examples")


def make_config(tiny: Any, factors: Any, **train: Any) -> Config:
    config: Config = tiny.make_config(
        model=tiny.config.model.model_dump() | {"factors": factors},
        train=tiny.config.train.model_dump() | train,
    )
    return config


@pytest.fixture(scope="module")
def trained(tiny: Any, examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What trainings with and without factors said, and their folders."""
    folder, found = tmp_path_factory.mktemp("factors"), {}
    for factors in (True, False):
        out = folder / f"{factors}"
        config = make_config(tiny, {"width": 3} if factors else None)
        found[factors] = train.train(config, examples, out, progress=False), out
    return found


def test_only_the_task_of_tastes_has_factors_and_gains(examples: Path, trained: Any) -> None:
    assert list(trained[True][0]["factors"]) == ["like"]
    assert trained[True][0]["factors"]["like"]["user_id * item_id"] > 0.02
    assert trained[False][0]["factors"] == {}
    values = {
        factors: {
            name: one["value"]
            for name, one in evaluate(out, examples, split="test")["tasks"].items()
        }
        for factors, (_, out) in trained.items()
    }
    assert values[True].pop("like") > values[False].pop("like") + 0.03
    assert values[True] == values[False]


def test_training_does_not_know_of_factors(trained: Any) -> None:
    with_factors, without = (
        json.loads((out / "history.json").read_text())["epochs"] for _, out in trained.values()
    )
    assert [epoch["tasks"] for epoch in with_factors] == [epoch["tasks"] for epoch in without]
    found, plain = (weights.read(out / checkpoint.WEIGHTS) for _, out in trained.values())
    assert {name for name in found if name not in plain} == {
        f"factors/user_id * item_id/{part}"
        for part in ("first", "second", "tasks", "first_edges", "second_edges")
    }
    for name, values in plain.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    moments = [weights.read_moments(out / checkpoint.WEIGHTS) for _, out in trained.values()]
    assert moments[0].keys() == moments[1].keys()


def test_unknown_ids_have_no_factors(trained: Any) -> None:
    ranker = checkpoint.load(trained[True][1]).ranker
    (pair,) = ranker.factors.pairs.values()
    users, items, tasks, *edges = (weights.to_numpy(v) for v in pair)
    assert tasks.tolist() == [2]
    assert [len(one) for one in edges] == [0, 0]
    assert users.shape[1] == items.shape[1] == 3
    for table, owner in ((users, "user_id"), (items, "item_id")):
        assert len(table) == ranker.embedder.tables[owner].embeddings.shape[0]
        first = 1 + ranker.contract.unknown_codes(owner)
        assert not table[:first].any()
        assert table[first:].any(axis=1).all()
    assert not ranker.factors.trainable_variables


def test_a_training_that_was_killed_finds_the_same(
    tiny: Any, examples: Path, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when all epochs are done, and factors are not."""

    class KilledError(Exception):
        pass

    def kill(*_: Any) -> None:
        raise KilledError

    out, config = tmp_path / "c", make_config(tiny, {"width": 3})
    with monkeypatch.context() as patch:
        patch.setattr(found_factors, "evidence", kill)
        with pytest.raises(KilledError):
            train.train(config, examples, out, progress=False)
    assert not out.exists()
    result = train.train(config, examples, out, progress=False, resume=True)
    assert result["resumed"] is not None
    assert result["factors"] == trained[True][0]["factors"]
    found, whole = (weights.read(path / checkpoint.WEIGHTS) for path in (out, trained[True][1]))
    assert found.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "now"), [(True, True), (False, True), (True, False)])
def test_a_warm_start_finds_its_own_factors(
    tiny: Any, examples: Path, trained: Any, tmp_path: Path, before: bool, now: bool
) -> None:
    out = tmp_path / "c"
    config = make_config(tiny, {} if now else None, epochs=1)
    result = train.train(config, examples, out, progress=False, start_from=trained[before][1])
    assert list(result["factors"]) == (["like"] if now else [])


@pytest.mark.slow
def test_rows_without_weight_do_not_count(tiny: Any, examples: Path, tmp_path: Path) -> None:
    """Where only rows of noise have weight, tastes are not found."""
    weighted = shutil.copytree(examples, tmp_path / "examples")
    for split in ("train", "validation", "test"):
        path = ExamplesFolder(weighted).split(split) / "part-0.parquet"
        table, rng = pl.read_parquet(path), np.random.default_rng(8)
        noise = rng.random(len(table)) < 0.5
        like = np.where(noise, rng.random(len(table)) < 0.5, table["label/like"].to_numpy())
        table.with_columns(
            pl.Series("label/like", like, pl.Float32).fill_nan(None),
            pl.Series("trust", noise.astype(np.float32)),
        ).write_parquet(path)
    results = [
        train.train(
            make_config(tiny, {}, weight=weight), weighted, tmp_path / f"{weight}", progress=False
        )
        for weight in ("trust", None)
    ]
    assert ["like" in result["factors"] for result in results] == [False, True]


@pytest.mark.slow
def test_the_export_has_the_factors(examples: Path, trained: Any, tmp_path: Path) -> None:
    """Parity is checked by `export`; a user's factors are looked up once."""
    model = Exported(trained[True][1], tmp_path / "m", examples)
    assert_both_signatures_score_like_keras(model)
    raw, _ = model.request(np.arange(5), np.arange(60), np.arange(60) % 5)
    assert matmul_rows(model, raw, "factors") == [(60, 3)]
    other = Exported(trained[False][1], tmp_path / "other", examples)
    assert matmul_rows(other, raw, "factors") == []


def test_a_file_with_factors_of_other_ids_is_refused(trained: Any, tmp_path: Path) -> None:
    broken = shutil.copytree(trained[True][1], tmp_path / "broken")
    with h5py.File(broken / checkpoint.WEIGHTS, "a") as file:
        users = file["factors/user_id * item_id/first"][:-1]
        del file["factors/user_id * item_id/first"]
        file["factors/user_id * item_id/first"] = users
    with pytest.raises(ModelError, match=r"item_id: expected 22 rows of user_id, received 21"):
        checkpoint.load(broken)
    with h5py.File(broken / checkpoint.WEIGHTS, "a") as file:
        del file["factors/user_id * item_id/first"]
    with pytest.raises(ModelError, match=r"user_id \* item_id/first: missing in the file"):
        checkpoint.load(broken)


@pytest.mark.long  # test_export exports what JAX trains
def test_jax_finds_factors_that_tensorflow_serves(
    tiny: Any, examples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    expected, _ = on_jax.train(make_config(tiny, {"width": 3}), examples, out)
    loaded = checkpoint.load(out)
    assert loaded.ranker.factors is not None
    rows = read_split(examples, "test", loaded.encoder)
    logits = loaded.ranker.infer(rows.features).logits
    received = scores(loaded.config.contract, loaded.encoder.statistics, logits)
    for name, values in expected.items():
        np.testing.assert_allclose(received[name], values, rtol=1e-4, err_msg=name)


@pytest.fixture(scope="module")
def of_lengths(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Examples whose likes ask for other lengths in each country, and a checkpoint of them."""
    folder = tmp_path_factory.mktemp("lengths")
    tiny.write_examples(folder / "log", tiny.config, rows=2500)
    examples = with_tastes(folder / "log", folder / "examples")
    rng = np.random.default_rng(9)
    for split in ("train", "validation", "test"):
        path = ExamplesFolder(examples).split(split) / "part-0.parquet"
        table = pl.read_parquet(path)
        length = rng.uniform(10, 300, len(table)).astype(np.float32)
        country = table["country"].fill_null("c0").to_numpy()
        long = np.where(length > 150, 1, -1) * np.where(country == "c1", -1, 1)
        like = (rng.random(len(table)) < 1 / (1 + np.exp(-1.5 * long))).astype(np.float32)
        columns = pl.Series("label/like", like), pl.Series("length", length)
        table.with_columns(*columns).write_parquet(path)
    config = make_config(tiny, {}, epochs=1)
    train.train(config, examples, folder / "c", progress=False)
    return examples, folder / "c"


@pytest.mark.slow
def test_numbers_are_cut_into_bins(of_lengths: tuple[Path, Path]) -> None:
    ranker = checkpoint.load(of_lengths[1]).ranker
    pairs = ranker.factors.pairs
    assert any("length" in pair for pair in pairs)
    for pair, tables in pairs.items():
        of_both = zip(pair, tables[:2], tables[3:], strict=True)
        for name, table, edges in of_both:
            if name == "length":
                assert 8 <= edges.shape[0] <= 16
                assert table.shape[0] == edges.shape[0] + 1
                assert (np.diff(weights.to_numpy(edges)) > 0).all()


@pytest.mark.slow
def test_the_export_has_bins_too(of_lengths: tuple[Path, Path], tmp_path: Path) -> None:
    model = Exported(of_lengths[1], tmp_path / "m", of_lengths[0])
    assert_both_signatures_score_like_keras(model)


@pytest.mark.slow
def test_a_training_whose_tasks_may_have_none_has_none(
    tiny: Any, examples: Path, tmp_path: Path
) -> None:
    """Later steps of a funnel and medians; the first step's labels are chance here."""
    contract = tiny.config.contract.model_dump(mode="json")
    contract["tasks"]["like"]["given"] = "click"
    contract["tasks"]["dwell"]["loss"] = "quantile"
    both = pl.col("label/click") * pl.col("label/like").fill_null(0)
    funnel = shutil.copytree(examples, tmp_path / "examples")
    for split in ("train", "validation", "test"):
        path = ExamplesFolder(funnel).split(split) / "part-0.parquet"
        pl.read_parquet(path).with_columns(both.alias("label/like")).write_parquet(path)
    config = tiny.make_config(contract=contract, model={"factors": {}}, train={"epochs": 1})
    tiny_contract = json.loads(ExamplesFolder(funnel).contract.read_text())
    frozen = tiny_contract | {
        "contract": config.contract.model_dump(mode="json"),
        "schema_fingerprint": config.contract.schema_fingerprint(),
    }
    ExamplesFolder(funnel).contract.write_text(json.dumps(frozen))
    result = train.train(config, funnel, tmp_path / "c", progress=False)
    assert set(result["factors"]) <= {"click"}


@pytest.mark.slow
def test_factors_are_not_found_twice(examples: Path, trained: Any, tmp_path: Path) -> None:
    """A checkpoint that has factors gets the same again, whatever it had."""
    folder = shutil.copytree(trained[True][1], tmp_path / "c")
    assert found_factors.add(folder, examples, Factors(width=3)) == trained[True][0]["factors"]
    again, before = (weights.read(path / checkpoint.WEIGHTS) for path in (folder, trained[True][1]))
    for name, values in before.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)


@pytest.mark.slow
def test_rows_of_a_new_user_are_rows_of_one_user(tiny: Any, examples: Path, tmp_path: Path) -> None:
    """Users whom no vocabulary knows differ like others; many of their rows are not many users."""
    strangers = shutil.copytree(examples, tmp_path / "examples")
    path = ExamplesFolder(strangers).split("validation") / "part-0.parquet"
    table = pl.read_parquet(path)
    new = pl.concat_str(pl.lit("new "), "user_id").alias("user_id")
    table.with_columns(new).write_parquet(path)
    seen: list[int] = []

    def evidence(_: Any, judged: Any, *__: Any) -> float:
        seen.append(len(np.unique(judged.users)))
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found_factors, "evidence", evidence)
        config = make_config(tiny, {}, epochs=1)
        result = train.train(config, strangers, tmp_path / "c", progress=False)
    assert result["factors"] == {}
    assert max(seen) == table["user_id"].n_unique()
