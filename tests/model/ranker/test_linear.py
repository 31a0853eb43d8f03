"""Lines of numbers: what least squares finds, which tasks have one, and what training keeps."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.configs.files import ExamplesFolder
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.ranker.linear import LEAST_EXPLAINED, LEAST_ROWS, Linear, least_squares
from multigate.model.training import train

N = 80


def rows(noise: float, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Three columns, of which the first decides the label, at levels far from 0."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 3)) * [2.0, 1.0, 0.5] + [7.0, -3.0, 0.0]
    return x, 4.0 + 0.5 * x[:, 0] + noise * rng.normal(size=n)


def left_out(x: np.ndarray, y: np.ndarray, w: np.ndarray, penalty: float) -> float:
    """What the other rows' ridge regressions leave of each row's y, of one; refitted N times.

    Level and deviation are those of all rows, as they are in `least_squares`.
    """
    w = w / w.sum()
    mean = w @ x
    z = (x - mean) / np.sqrt(w @ (x - mean) ** 2)
    errors = []
    for n in range(len(y)):
        others = np.arange(len(y)) != n
        root = np.sqrt(w * len(y))[others, None]
        a = np.hstack([np.ones((others.sum(), 1)), z[others]]) * root
        ridge = np.diag([0.0, *[penalty] * x.shape[1]])
        found = np.linalg.solve(a.T @ a + ridge, a.T @ (y[others] * root[:, 0]))
        errors.append(w[n] * (y[n] - found[0] - z[n] @ found[1:]) ** 2)
    return 1 - sum(errors) / (w @ (y - w @ y) ** 2)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_line_is_judged_by_rows_that_it_was_not_fitted_to(weighted: bool) -> None:
    x, y = rows(noise=0.6)
    w = np.where(np.arange(N) % 3, 1.0, 2.5) if weighted else np.ones(N)
    line = least_squares(x, y, w if weighted else None)
    assert line is not None
    best = max(left_out(x, y, w, penalty) for penalty in (1.0, 10.0, 100.0, 1e3, 1e4))
    assert line.explained == pytest.approx(best, abs=1e-6)
    assert 0.6 < line.explained < 0.8


def test_a_line_without_noise_is_found_and_is_zero_in_the_mean() -> None:
    x, y = rows(noise=0.0)
    line = least_squares(x, y)
    assert line is not None
    assert line.explained > 0.999
    np.testing.assert_allclose(line.slopes, [0.5, 0, 0], atol=0.01)
    found = x @ line.slopes + line.start
    assert found.mean() == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(found + y.mean(), y, atol=0.05)


def test_units_of_a_number_do_not_matter_and_constants_have_no_slope() -> None:
    x, y = rows(noise=0.3)
    line = least_squares(x, y)
    scaled = least_squares(np.hstack([1000 * x, np.full((N, 1), 9.0)]), y)
    assert line is not None
    assert scaled is not None
    np.testing.assert_allclose(1000 * scaled.slopes[:3], line.slopes, rtol=1e-6)
    assert scaled.slopes[3] == 0
    assert scaled.explained == pytest.approx(line.explained, abs=1e-9)


def test_rows_without_weight_do_not_count() -> None:
    x, y = rows(noise=0.3)
    w = np.ones(2 * N)
    w[N:] = 0
    both = least_squares(np.vstack([x, 100 * x]), np.concatenate([y, -y]), w)
    alone = least_squares(x, y)
    assert both is not None
    assert alone is not None
    np.testing.assert_allclose(both.slopes, alone.slopes, rtol=1e-9)


def test_there_is_no_line_where_nothing_can_be_learnt() -> None:
    x, y = rows(noise=0.3)
    assert least_squares(x[: LEAST_ROWS - 1], y[: LEAST_ROWS - 1]) is None
    assert least_squares(np.ones((N, 3)), y) is None
    assert least_squares(x, np.ones(N)) is None
    nothing = least_squares(x, np.random.default_rng(5).normal(size=N))
    assert nothing is not None
    assert nothing.explained < 0.05


def test_more_numbers_than_rows_promise_nothing() -> None:
    rng = np.random.default_rng(3)
    line = least_squares(rng.normal(size=(40, 200)), rng.normal(size=40))
    assert line is not None
    assert line.explained < LEAST_EXPLAINED


def test_only_tasks_that_a_line_explains_have_one() -> None:
    x, y = rows(noise=0.2)
    chance = np.random.default_rng(4).normal(size=N)
    targets = np.stack([y, y, chance, np.where(np.arange(N) % 2, y, np.nan)], axis=1)
    linear = Linear({"id": 4, "price": 2, "age": 1}, ["price", "age"], 4, [1, 2, 3])
    assert list(linear.columns) == [4, 5, 6]
    explained = linear.fit(x, targets)
    assert list(explained) == [1, 3]
    assert linear.active
    kernel = weights.to_numpy(linear.kernel)
    assert not kernel[:4].any()  # ids
    assert not kernel[:, [0, 2]].any()  # a binary task, and one that no line explains
    assert kernel[4:, [1, 3]].any(axis=0).all()
    assert not linear.trainable_variables
    linear.fit(x, np.stack([y, chance, chance, chance], axis=1))
    assert not linear.active


def with_paid(tiny: Any, folder: Path) -> Path:
    """Examples whose dwell follows an item's length in as many rows, and is masked elsewhere."""
    shutil.copytree(tiny.examples, folder)
    rng = np.random.default_rng(6)
    for split in ("train", "validation", "test"):
        path = ExamplesFolder(folder).split(split) / "part-0.parquet"
        table = pl.read_parquet(path)
        noise = np.exp(0.1 * rng.normal(size=len(table)))
        dwell = 3.0 * table["length"].to_numpy() * noise
        known = rng.random(len(table)) < 0.25
        table = table.with_columns(
            pl.Series("label/dwell", np.where(known, dwell, np.nan), pl.Float32).fill_nan(None)
        )
        table.write_parquet(path)
    return folder


def test_what_follows_a_number_is_learnt_from_few_rows(tiny: Any, tmp_path: Path) -> None:
    """The intent: some eighty rows say what was paid, and most of the training is about clicks."""
    examples = with_paid(tiny, tmp_path / "examples")
    quality = {}
    for linear in (True, False):
        config = tiny.make_config(model=tiny.config.model.model_dump() | {"linear": linear})
        out = tmp_path / f"c{linear}"
        result = train.train(config, examples, out, progress=False)
        assert list(result["lines"]) == (["dwell"] if linear else [])
        ranker = checkpoint.load(out).ranker
        epochs = [e["tasks"]["dwell"]["val_quality"] for e in history_of(out)]
        quality[linear] = max(epochs)
        assert (ranker.linear is not None) is linear
    assert quality[True] > 0.95
    assert quality[False] < quality[True] - 0.1


def history_of(folder: Path) -> list[Any]:
    found: list[Any] = json.loads((folder / "history.json").read_text())["epochs"]
    return found


def test_a_checkpoint_without_lines_adds_nothing(tiny: Any, tmp_path: Path) -> None:
    """As one of an earlier version is read, whose configuration did not say `linear`."""
    examples = with_paid(tiny, tmp_path / "examples")
    out = tmp_path / "c"
    train.train(tiny.config, examples, out, progress=False)
    loaded = checkpoint.load(out).ranker
    assert loaded.linear is not None
    assert loaded.linear.active
    found = weights.read(out / checkpoint.WEIGHTS)
    old = {name: value for name, value in found.items() if not name.startswith("linear/")}
    assert len(old) == len(found) - 2
    weights.assign(loaded, old, out)
    assert not loaded.linear.active
    assert not weights.to_numpy(loaded.linear.kernel).any()
