"""Lines of numbers: what least squares finds, which tasks have one, and what training keeps."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest
from tests.model.export.test_graph import Exported
from tests.model.export.test_poolings import (
    assert_both_signatures_score_like_keras,
    matmul_rows,
)

from multigate.configs.files import ExamplesFolder
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.evaluation.evaluate import evaluate
from multigate.model.ranker.linear import LEAST_ROWS, Linear, least_squares
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


def test_a_line_without_noise_is_found() -> None:
    x, y = rows(noise=0.0)
    line = least_squares(x, y)
    assert line is not None
    assert line.explained > 0.999
    np.testing.assert_allclose(line.slopes, [0.5, 0, 0], atol=0.01)
    np.testing.assert_allclose(x @ line.slopes + line.start, y, atol=0.05)


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
    few = LEAST_ROWS - 1
    assert least_squares(x[:few], y[:few]) is None
    w = np.where(np.arange(N) < few, 1.0, 1e-9)  # as good as so few rows
    assert least_squares(x, y, w) is None
    assert least_squares(np.ones((N, 3)), y) is None
    assert least_squares(x, np.ones(N)) is None
    assert least_squares(x[:0], y[:0]) is None
    nothing = least_squares(x, np.random.default_rng(5).normal(size=N))
    assert nothing is not None
    assert nothing.explained < 0.05


def test_an_infinite_number_does_not_count() -> None:
    x, y = rows(noise=0.3)
    broken = np.vstack([x, [[np.inf, 0, 0], [0, np.nan, 0]]])
    found, expected = least_squares(broken, np.append(y, [9, 9])), least_squares(x, y)
    assert found is not None
    assert expected is not None
    np.testing.assert_array_equal(found.slopes, expected.slopes)
    assert found.start == expected.start


def test_more_numbers_than_rows_promise_nothing() -> None:
    rng = np.random.default_rng(3)
    line = least_squares(rng.normal(size=(40, 200)), rng.normal(size=40))
    assert line is not None
    assert line.explained < 0.3


def of_four_tasks() -> Linear:
    """A price and its indicator behind an id's columns, an age; the last three tasks regress."""
    return Linear({"id": 4, "price": 2, "age": 1}, ["price", "age"], 4, [1, 2, 3])


def test_only_tasks_that_a_line_helps_have_one() -> None:
    """Task 1 follows the line, task 2 is chance, task 3 has been learnt better than any line."""
    x, y = rows(noise=0.2, n=200)
    chance = np.random.default_rng(4).normal(size=len(y))
    curved = y + 2 * np.sin(5 * x[:, 1])
    targets = np.stack([y, y, chance, curved], axis=1)
    linear = of_four_tasks()
    assert list(linear.columns) == [4, 5, 6]
    linear.fit(x[:100], targets[:100])
    kernel = weights.to_numpy(linear.kernel)
    assert not kernel[:4].any()  # ids
    assert not kernel[:, 0].any()  # a binary task
    lines = linear.values(x[100:])
    outputs = np.stack([y, 0.1 * y, 0 * y, curved], axis=1)[100:]
    outputs += 0.05 * np.random.default_rng(6).normal(size=outputs.shape)
    saved = linear.blend(outputs, lines, targets[100:], np.ones(100))
    assert list(saved) == [1]
    assert saved[1] > 0.01
    np.testing.assert_array_equal(weights.to_numpy(linear.line)[[0, 2, 3]], 0)
    np.testing.assert_array_equal(weights.to_numpy(linear.deep)[[0, 2, 3]], 1)
    assert not linear.trainable_variables


def test_a_blend_is_better_than_either() -> None:
    """Two guesses with errors of their own, as stacking expects: the mean halves the variance."""
    rng = np.random.default_rng(7)
    y = rng.normal(size=(4000, 1))
    outputs, lines = (y + rng.normal(size=y.shape) for _ in range(2))
    linear = Linear({"price": 1}, ["price"], 1, [0])
    saved = linear.blend(outputs, lines, y, np.ones(len(y)))
    shares = [float(weights.to_numpy(v)[0]) for v in (linear.deep, linear.line)]
    assert shares == pytest.approx([1 / 3, 1 / 3], abs=0.03)
    assert saved[0] == pytest.approx(1 - (1 / 3) / (1 / 2), abs=0.03)


def test_outputs_that_know_less_than_the_line_do_not_count() -> None:
    rng = np.random.default_rng(8)
    y = rng.normal(size=(300, 1))
    lines = y + 0.1 * rng.normal(size=y.shape)
    outputs = lines + rng.normal(size=y.shape) - 0.1 * y
    linear = Linear({"price": 1}, ["price"], 1, [0])
    assert linear.blend(outputs, lines, y, np.ones(len(y)))[0] > 0.9
    shares = [float(weights.to_numpy(v)[0]) for v in (linear.deep, linear.line)]
    assert shares[0] == pytest.approx(0, abs=0.02)
    assert shares[0] >= 0
    assert shares[1] == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("line", ["noise", "copy"])
def test_chance_does_not_make_a_line(line: str) -> None:
    """A line that knows nothing, or nothing that the outputs do not know, with few labels."""
    accepted = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        y = rng.normal(size=(60, 1))
        outputs = y + 0.5 * rng.normal(size=y.shape)
        lines = rng.normal(size=y.shape) + (2 * outputs if line == "copy" else 0)
        linear = Linear({"price": 1}, ["price"], 1, [0])
        accepted.append(bool(linear.blend(outputs, lines, y, np.ones(len(y)))))
    assert sum(accepted) <= 3


def test_what_is_exact_needs_no_line() -> None:
    rng = np.random.default_rng(9)
    y = rng.normal(size=(40, 1))
    outputs, lines = (y + error * rng.normal(size=y.shape) for error in (0.005, 0.1))
    linear = Linear({"price": 1}, ["price"], 1, [0])
    assert not linear.blend(outputs, lines, y, np.ones(len(y)))


def test_a_line_says_nothing_beyond_the_labels_that_it_has_seen() -> None:
    """A discount that one labelled row has, and a third of the rows to score."""
    x, y = rows(noise=0.2, n=300)
    x[:, 1] = 0
    x[7, 1] = 0.01
    linear = of_four_tasks()
    linear.fit(x, np.stack([y] * 4, axis=1))
    strange = x.copy()
    strange[::3, 1] = 5.0
    found = linear.values(strange)[:, 1]
    assert y.min() - 1e-6 <= found.min()
    assert found.max() <= y.max() + 1e-6
    assert np.abs(found - linear.values(x)[:, 1]).max() < 0.1  # its slope is as good as 0


def with_paid(source: Path, folder: Path, of_position: float = 0.0) -> Path:
    """Examples whose dwell follows an item's length in some rows, and is masked elsewhere."""
    shutil.copytree(source, folder)
    rng = np.random.default_rng(6)
    for split in ("train", "validation", "test"):
        path = ExamplesFolder(folder).split(split) / "part-0.parquet"
        table = pl.read_parquet(path)
        # Within the labels that the statistics of the fixture describe.
        dwell = 0.3 * table["length"].to_numpy() * np.exp(0.1 * rng.normal(size=len(table)))
        dwell *= np.exp(-of_position * table["position"].fill_null(3).to_numpy())
        known = rng.random(len(table)) < 0.4
        table = table.with_columns(
            pl.Series("label/dwell", np.where(known, dwell, np.nan), pl.Float32).fill_nan(None)
        )
        table.write_parquet(path)
    return folder


@pytest.fixture(scope="module")
def paid(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_paid(tiny.examples, tmp_path_factory.mktemp("paid") / "examples")


@pytest.fixture(scope="module")
def trained(tiny: Any, paid: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What trainings with and without lines said, and their folders."""
    folder, found = tmp_path_factory.mktemp("lines"), {}
    for linear in (True, False):
        config = tiny.make_config(model=tiny.config.model.model_dump() | {"linear": linear})
        out = folder / f"{linear}"
        found[linear] = train.train(config, paid, out, progress=False), out
    return found


def test_what_follows_a_number_is_learnt_from_few_rows(paid: Path, trained: Any) -> None:
    """The intent: some rows say what was paid, and most of the training is about clicks."""
    errors, others = {}, {}
    for linear, (result, out) in trained.items():
        assert list(result["lines"]) == (["dwell"] if linear else [])
        tasks = evaluate(out, paid, split="test")["tasks"]
        errors[linear] = tasks["dwell"]["mse"]
        others[linear] = [tasks[name]["value"] for name in ("click", "like")]
    assert errors[True] < 0.5 * errors[False]
    assert others[True] == others[False]  # no other task is touched


def test_positions_do_not_hide_a_line(tiny: Any, tmp_path: Path) -> None:
    """The position tower knows what no served model knows: lines are judged without it."""
    tiny.write_examples(tmp_path / "log", tiny.config, rows=1500)
    examples = with_paid(tmp_path / "log", tmp_path / "examples", of_position=0.2)
    errors = {}
    for linear in (True, False):
        config = tiny.make_config(
            model=tiny.config.model.model_dump() | {"linear": linear},
            train=tiny.config.train.model_dump() | {"epochs": 4},
        )
        out = tmp_path / f"{linear}"
        result = train.train(config, examples, out, progress=False)
        assert list(result["lines"]) == (["dwell"] if linear else [])
        errors[linear] = evaluate(out, examples, split="test")["tasks"]["dwell"]["mse"]
    assert errors[True] < errors[False]


def test_training_does_not_know_of_lines(trained: Any) -> None:
    with_lines, without = (
        json.loads((out / "history.json").read_text())["epochs"] for _, out in trained.values()
    )
    assert [epoch["tasks"] for epoch in with_lines] == [epoch["tasks"] for epoch in without]
    found, plain = (weights.read(out / checkpoint.WEIGHTS) for _, out in trained.values())
    assert found.keys() - plain.keys() == {name for name in found if name.startswith("linear/")}
    for name, values in plain.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_checkpoint_without_lines_adds_nothing(trained: Any, tmp_path: Path) -> None:
    """As one of an earlier version is read, whose configuration did not say `linear`."""
    _, out = trained[True]
    old = shutil.copytree(out, tmp_path / "old")
    assert checkpoint.load(old).ranker.linear.active
    with h5py.File(old / checkpoint.WEIGHTS, "a") as file:
        del file["linear"]
    loaded = checkpoint.load(old).ranker
    assert loaded.linear is not None
    assert not loaded.linear.active
    assert not weights.to_numpy(loaded.linear.line).any()


@pytest.mark.parametrize(("before", "now"), [(True, True), (False, True), (True, False)])
def test_a_warm_start_finds_its_own_lines(
    tiny: Any, paid: Path, trained: Any, tmp_path: Path, before: bool, now: bool
) -> None:
    """The layers never knew of the lines, so that those may come and go from night to night."""
    config = tiny.make_config(
        model=tiny.config.model.model_dump() | {"linear": now},
        train=tiny.config.train.model_dump() | {"epochs": 1},
    )
    out = tmp_path / "c"
    result = train.train(config, paid, out, progress=False, start_from=trained[before][1])
    assert list(result["lines"]) == (["dwell"] if now else [])


def test_a_resumed_training_keeps_its_lines(
    tiny: Any, paid: Path, trained: Any, tmp_path: Path
) -> None:
    class KilledError(Exception):
        pass

    def kill(epoch: Any) -> None:
        if epoch["epoch"] == 2:
            raise KilledError

    out = tmp_path / "c"
    with pytest.raises(KilledError):
        train.train(tiny.config, paid, out, progress=False, on_epoch=kill)
    result = train.train(tiny.config, paid, out, progress=False, resume=True)
    assert result["resumed"] is not None
    found, whole = (weights.read(path / checkpoint.WEIGHTS) for path in (out, trained[True][1]))
    for name, values in whole.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_the_export_has_the_lines(paid: Path, trained: Any, tmp_path: Path) -> None:
    """Parity is checked by `export`; the user's half of the lines is computed once per user."""
    (result, out) = trained[True]
    assert result["lines"]
    model = Exported(out, tmp_path / "m", paid)
    for raw, _ in assert_both_signatures_score_like_keras(model):
        assert raw
    raw, _ = model.request(np.arange(5), np.arange(60), np.arange(60) % 5)
    assert sorted(matmul_rows(model, raw, "linear")) == [(5, 3), (60, 3)]
