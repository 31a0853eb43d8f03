"""LightGBM on the tiny examples: what it learns from, what it keeps, and what it must not see."""

import shutil
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from multigate.configs.errors import ConfigError, DataError
from multigate.model.baselines import lightgbm_baseline
from multigate.model.baselines.lightgbm_baseline import SETTINGS, fit
from multigate.model.baselines.table import COUNT, read_tables
from multigate.model.data.rows import read_rows


@pytest.fixture(scope="module")
def examples(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boosted") / "examples"
    tiny.write_examples(folder, tiny.config, rows=2000)
    return folder


@pytest.fixture(scope="module")
def fitted(tiny: Any, examples: Path) -> Any:
    return fit(examples, tiny.config.contract, threads=1)


def changed(examples: Path, out: Path, split: str, **columns: Any) -> Path:
    """A copy of the examples with other columns in one split: values, or a function of the old."""
    shutil.copytree(examples, out)
    path = out / split / "part-0.parquet"
    table = pq.read_table(path)
    for name, make in columns.items():
        column = name.replace("__", "/")
        values = make(table[column].to_pylist())
        place = table.column_names.index(column)
        table = table.set_column(place, column, pa.array(values, table[column].type))
    pq.write_table(table, path)
    return out


def test_an_impression_with_labels_in_several_rows_is_one_row_of_its_ids(
    tiny: Any, examples: Path, labels_apart: Any, tmp_path: Path
) -> None:
    days = labels_apart(examples, tmp_path / "days", ["click"], ["train"])
    found, expected = (read_tables(folder, tiny.config.contract) for folder in (days, examples))
    values = found.values[0].reshape(2, *expected.values[0].shape)
    for table in values:
        np.testing.assert_array_equal(table, expected.values[0])
    np.testing.assert_array_equal(found.values[1], expected.values[1])


def test_it_learns_every_task(tiny: Any, examples: Path, fitted: Any) -> None:
    rows = read_rows(examples, "test")
    labels, scores = rows.labels(tiny.config.contract), fitted.scores(rows)
    assert fitted.title == f"LightGBM {lightgbm.__version__}"
    assert list(scores) == ["click", "dwell", "like"]
    for t, name in ((0, "click"), (2, "like")):
        known = ~np.isnan(labels[:, t])
        assert roc_auc_score(labels[known, t], scores[name][known]) > 0.7
        assert 0 < scores[name].min() < scores[name].max() < 1
    # dwell is exp(1 + taste + noise) - 1 at most; scores are in its own units, not logarithms.
    known = ~np.isnan(labels[:, 1])
    error = labels[known, 1] - scores["dwell"][known]
    assert np.sqrt(np.mean(error**2)) < 0.7 * labels[known, 1].std()


def test_the_kept_setting_is_the_best_on_validation(tiny: Any, examples: Path, fitted: Any) -> None:
    """Trained here one by one, as the module's docstring says."""
    contract = tiny.config.contract
    splits = [read_rows(examples, split) for split in ("train", "validation")]
    of = fitted.tabulator
    tables = [of(rows) for rows in splits]
    labels = [rows.labels(contract) for rows in splits]
    categories = [of.columns.index(name) for name in of.categories]
    for t, name, objective in ((0, "click", "binary"), (1, "dwell", "regression")):
        columns = [np.log1p(one[:, t]) if name == "dwell" else one[:, t] for one in labels]
        known = [~np.isnan(one) for one in columns]
        losses = []
        for leaves, rate, least_rows, ids, counts in SETTINGS:
            train, valid = (
                lightgbm.Dataset(
                    x[inside],
                    y[inside].astype(np.float64),
                    categorical_feature=categories,
                    params={"verbosity": -1},
                )
                for x, y, inside in zip(tables, columns, known, strict=True)
            )
            gains = [
                float((ids or name not in of.categories) and (counts or not name.endswith(COUNT)))
                for name in of.columns
            ]
            booster = lightgbm.train(
                {
                    "feature_contri": gains,
                    "objective": objective,
                    "num_leaves": leaves,
                    "learning_rate": rate,
                    "min_data_in_leaf": least_rows,
                    "feature_fraction": 0.8,
                    "bagging_fraction": 0.8,
                    "bagging_freq": 1,
                    "cat_smooth": 20,
                    "cat_l2": 20,
                    "seed": 0,
                    "deterministic": True,
                    "force_row_wise": True,
                    "feature_pre_filter": False,
                    "num_threads": 1,
                    "verbosity": -1,
                },
                train,
                1000,
                valid_sets=[valid.set_reference(train)],
                callbacks=[lightgbm.early_stopping(30, verbose=False)],
            )
            (loss,) = booster.best_score["valid_0"].values()
            setting = (leaves, rate, least_rows, ids, counts)
            losses.append((loss, booster.best_iteration, setting))
            used = dict(zip(of.columns, booster.feature_importance(), strict=True))
            assert ids or not any(used[name] for name in of.categories)
            assert counts or not any(used[name + COUNT] for name in of.categories)
        _, trees, setting = min(losses)
        assert fitted.tasks[name].setting == setting
        assert fitted.tasks[name].trees == trees


def test_the_number_of_threads_changes_no_score(tiny: Any, tmp_path: Path) -> None:
    contract = tiny.config.contract
    one_task = contract.model_copy(update={"tasks": {"click": contract.tasks["click"]}})
    tiny.write_examples(tmp_path / "examples", tiny.config, rows=500)
    rows = read_rows(tmp_path / "examples", "test")
    one, two = (fit(tmp_path / "examples", one_task, threads=n).scores(rows) for n in (0, 2))
    np.testing.assert_array_equal(one["click"], two["click"])
    assert len(set(one["click"])) > 10


def test_test_rows_take_no_part(tiny: Any, examples: Path, fitted: Any, tmp_path: Path) -> None:
    other = changed(
        examples,
        tmp_path / "other",
        "test",
        label__click=lambda old: [1 - value for value in old],
        user_id=lambda old: ["nobody"] * len(old),
    )
    rows = read_rows(examples, "test")
    found = fit(other, tiny.config.contract, threads=1).scores(rows)
    for name, values in fitted.scores(rows).items():
        np.testing.assert_array_equal(found[name], values)


def test_masked_rows_take_no_part(tiny: Any, examples: Path, tmp_path: Path) -> None:
    """Numbers of the rows without a label may be anything."""
    click = {"label__click": lambda old: [*old[:600], *[None] * (len(old) - 600)]}
    few = changed(examples, tmp_path / "few", "train", **click)
    other = changed(few, tmp_path / "other", "train", length=lambda old: [*old[:600], *old[:600]])
    rows = read_rows(examples, "test")
    a, b = (fit(one, tiny.config.contract, threads=1).scores(rows) for one in (few, other))
    np.testing.assert_array_equal(a["click"], b["click"])
    assert (a["like"] != b["like"]).any()


def test_tasks_that_cannot_be_learnt(tiny: Any, examples: Path, tmp_path: Path) -> None:
    made = changed(
        examples,
        tmp_path / "made",
        "train",
        label__click=lambda old: [None] * len(old),
        label__like=lambda old: [None if value is None else 1.0 for value in old],
    )
    made = changed(
        made, tmp_path / "more", "validation", label__dwell=lambda old: [None] * len(old)
    )
    found = fit(made, tiny.config.contract, threads=1)
    rows = read_rows(made, "test")
    scores = found.scores(rows)
    assert list(scores) == ["dwell", "like"]  # nothing is known of click
    assert set(scores["like"]) == {1.0}
    assert found.tasks["like"].note == "every training label is the same"
    dwell = found.tasks["dwell"]
    assert (dwell.setting, dwell.trees) == (SETTINGS[0], 100)
    assert dwell.note == "no validation label: the first setting, without early stopping"


@pytest.mark.parametrize("rows", [10, 40])
def test_tiny_data(tiny: Any, tmp_path: Path, rows: int) -> None:
    """Too few rows for any leaf: a constant, and no error."""
    tiny.write_examples(tmp_path / "examples", tiny.config, rows=rows)
    found = fit(tmp_path / "examples", tiny.config.contract, threads=1)
    for values in found.scores(read_rows(tmp_path / "examples", "test")).values():
        assert np.isfinite(values).all()


def test_clipped_labels_are_clipped_scores(tiny: Any, examples: Path) -> None:
    contract = tiny.config.contract
    task = contract.tasks["dwell"].model_copy(update={"clip": (2.0, 5.0)})
    limited = contract.model_copy(update={"tasks": {"dwell": task}})
    found = fit(examples, limited, threads=1).scores(read_rows(examples, "test"))
    assert list(found) == ["dwell"]
    assert found["dwell"].min() == 2.0
    assert found["dwell"].max() == 5.0


def test_without_the_library(tiny: Any, examples: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(
        ConfigError, match=r"not installed; run `pip install multigate\[baseline\]`"
    ):
        fit(examples, tiny.config.contract)


def test_without_a_validation_split(tiny: Any, examples: Path, tmp_path: Path) -> None:
    shutil.copytree(examples, tmp_path / "less")
    shutil.rmtree(tmp_path / "less/validation")
    with pytest.raises(DataError, match="validation: no examples in 0 Parquet files"):
        fit(tmp_path / "less", tiny.config.contract)


def test_the_choices_are_those_that_the_page_names() -> None:
    text = (Path(__file__).parents[3] / "docs/evaluation.md").read_text()
    for leaves, rate, least, ids, counts in lightgbm_baseline.SETTINGS:
        without = "" if ids else ", without ids"
        without += "" if counts else " and counts"
        assert f"({leaves}, {rate:g}, {least}{without})" in text
