"""The studies of the papers' claims: units, raw labels, inference modes, and the page's tables."""

import argparse
import gzip
import importlib
import json
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/papers"))
    return importlib.import_module


def test_the_papers_entropy_weights_in_our_unit(study: Any) -> None:
    settings = study("settings")
    per_example = [settings.entropy_weight(s, static=False) for s in settings.DSELECT_ENTROPY]
    assert per_example == pytest.approx([12.8, 128, 1280])
    static = [settings.entropy_weight(s, static=True) for s in settings.DSELECT_ENTROPY]
    assert static == [0.1, 1, 10]


@pytest.mark.parametrize("static", [False, True])
def test_the_entropy_weight_is_the_sum_over_the_batch(study: Any, static: bool) -> None:
    # The authors' loss: lambda * sum over the batch (if any) and the selectors of the entropy.
    import keras

    from multigate.model import gates

    strength, B = 0.1, 128
    weight = study("settings").entropy_weight(strength, static=static, batch=B)
    gate = gates.make("dselect_k", 8, 2, static, entropy_weight=weight, seed=1)
    x = np.random.default_rng(0).normal(size=(B, 5)).astype("float32")
    routing = gate(keras.ops.convert_to_tensor(x), training=True)
    # Bits start near 1/2, so that each of the two selectors is near uniform over eight experts.
    entropies = 2 * np.log(8) * (1 if static else B)
    assert float(routing.losses["entropy"]) == pytest.approx(strength * entropies, rel=2e-2)


def test_meeting_k_is_the_mean_of_each_task(study: Any) -> None:
    meets_k = study("settings").meets_k
    assert meets_k({"watch": 2.0, "rating": 1.3}, 2)
    assert meets_k({"watch": 2.03}, 2)
    assert not meets_k({"watch": 6.88, "rating": 2.0}, 2)
    assert meets_k({"watch": 16.0}, None) is None


def test_raw_examples_have_the_labels_as_they_are(study: Any, tmp_path: Path) -> None:
    settings = study("settings")
    examples = tmp_path / "examples"
    (examples / "train").mkdir(parents=True)
    (examples / "train" / "part").write_text("rows", encoding="utf-8")
    tasks = {"watch": {"type": "binary"}, "rating": {"type": "regression"}}
    contract = {"contract": {"tasks": tasks}}
    statistics = {
        "tasks": {
            "watch": {"mean": 0.5, "std": 0.5, "count": 4},
            "rating": {"mean": 3.5, "std": 1.1, "count": 2},
        }
    }
    (examples / "contract.json").write_text(json.dumps(contract), encoding="utf-8")
    (examples / "statistics.json").write_text(json.dumps(statistics), encoding="utf-8")
    raw = settings.with_targets(examples, "raw")
    found = json.loads((raw / "statistics.json").read_text(encoding="utf-8"))["tasks"]
    assert found["rating"] == {"mean": 0.0, "std": 1.0, "count": 2}
    assert found["watch"] == statistics["tasks"]["watch"]
    assert (raw / "train" / "part").read_text(encoding="utf-8") == "rows"
    assert json.loads((examples / "statistics.json").read_text()) == statistics
    assert settings.raw_examples(examples) == raw  # made once
    assert settings.with_targets(examples, "standardised") == examples


def test_the_best_rate_is_of_seed_0_and_of_a_run_that_met_k(study: Any) -> None:
    names = ("learning_rate", "seed", "val_loss", "meets_k")
    runs = [(0.1, 0, 3.0, True), (0.2, 0, 2.0, True), (0.3, 0, 1.0, False), (0.1, 1, 0.5, True)]
    rows = [dict(zip(names, run, strict=True)) for run in runs]
    best_rate = study("dselect_setup").best_rate
    assert best_rate(rows) == 0.2
    assert best_rate([row | {"meets_k": None} for row in rows]) == 0.3  # a model without a k
    assert best_rate([row | {"meets_k": False} for row in rows]) == 0.3  # the table says so


def test_adagrad_in_the_place_of_our_optimizer(study: Any) -> None:
    """By its formula, for a table whose gradient names a row twice; afterwards ours is back."""
    import keras
    import tensorflow as tf

    from multigate.configs.sections.model import TrainConfig
    from multigate.model.training import loop

    ours = loop.make_optimizer
    with study("dselect_setup").optimizing_with("adagrad"):
        made = loop.make_optimizer(TrainConfig(learning_rate=0.2), 5)
    assert loop.make_optimizer is ours
    table = keras.Variable(np.ones((3, 1), np.float32))
    made.build([table])
    gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0], [-0.5]]), [0, 0, 2], tf.shape(table))
    summed, sums = np.array([[3.0], [0.0], [-0.5]]), 0.1
    expected = np.ones((3, 1))
    for _ in range(2):
        made.apply([gradient], [table])
        sums = sums + summed**2
        expected -= 0.2 * summed / np.sqrt(sums)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(table), expected, rtol=1e-5)


def test_the_tables_model_has_nothing_that_the_papers_lack(study: Any) -> None:
    for name in ("movielens", "reduced", "book_crossing"):
        model = study(name).make_values()["model"]
        assert (model["wide"], model["id_dropout"]) == (None, 0.0), name


def test_modes_of_inference_on_a_known_router(study: Any) -> None:
    import keras

    modes = study("inference_modes")
    g = np.array([[0.1, 0.5, 0.1, 0.3]], "float32")
    logits = keras.ops.convert_to_tensor(np.log(g))
    found = {m: np.asarray(modes.weights_of(logits, m, 2)) for m in modes.MODES}
    np.testing.assert_allclose(found["dense"], g, rtol=1e-5)
    np.testing.assert_allclose(found["renormalised"], [[0, 0.625, 0, 0.375]], rtol=1e-5)
    np.testing.assert_allclose(found["equal"], [[0, 0.5, 0, 0.5]])


@pytest.mark.parametrize("gate", ["topk", "moesart", "softmax"])
def test_each_gates_own_mode_is_what_it_does_at_inference(study: Any, gate: str) -> None:
    import keras

    from multigate.model import gates

    modes = study("inference_modes")
    made = gates.make(gate, 8, 2, seed=3)
    x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(6, 5)).astype("float32"))
    own = np.asarray(made(x).weights)
    made.route = modes.routed_by(made, modes.OWN[gate], 2)
    np.testing.assert_allclose(np.asarray(made(x).weights), own, rtol=1e-5)


def test_the_pages_tables_are_what_the_rows_say(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "papers.md"
    shutil.copy(ROOT / "docs/results/papers.md", page)
    monkeypatch.setattr(study("rows"), "PAGE", page)
    study("tables").write()
    assert page.read_text() == (ROOT / "docs/results/papers.md").read_text()


def compared(
    study: Any, losses: dict[str, dict[int, float]], published: dict[str, Any], **on: str
) -> list[str]:
    """Cells of the first table's line: trained on `on` by model, else on one machine."""
    runs = {
        model: {seed: {"loss": v, "trained_on": on.get(model)} for seed, v in by_seed.items()}
        for model, by_seed in losses.items()
    }
    made = study("summary").Comparison("data", "MSE", 1, runs, published, ", why")
    return [part.strip() for part in made.line().strip("|").split("|")]


# Every seed has a loss of its own, far larger than what the models differ by.
NEAR = {0: 1.0, 1: 51.0, 2: 101.0}
FAR = {0: 2.0, 1: 52.1, 2: 102.2}


def test_the_first_table_compares_seed_by_seed(study: Any) -> None:
    cells = compared(study, {"far": FAR, "near": NEAR, "only": {7: 0.5}}, {"far": 2, "near": 1})
    assert cells == [
        *("data", "near 51.0 ± 28.9 (MSE)", "**far +1.1 ± 0.1**", "3"),
        *("near 1, far 2", "yes"),
    ]  # `only` shares no seed with the others, and its one loss makes it no first
    (_, _, others, *_) = compared(study, {"near": NEAR, "once": {0: 900.0}}, {"near": 1})
    assert others == "once +899.0 (1 of 3 seeds)"  # one seed is no proof


def test_the_first_table_proves_nothing_across_machines(study: Any) -> None:
    cells = compared(study, {"far": FAR, "near": NEAR}, {"near": 1}, near="GPU", far="CPU")
    assert cells[2] == "far +1.1 ± 0.1 †"
    assert cells[-1] == "yes †"


def test_the_first_table_marks_models_that_used_more_than_k_experts(study: Any) -> None:
    runs = {
        model: {seed: {"loss": loss, "meets_k": met[seed]} for seed, loss in losses.items()}
        for model, losses, met in (
            ("near", NEAR, [True, True, True]),
            ("far", FAR, [True, False, True]),
            ("dense", FAR, [None, None, None]),
        )
    }
    line = study("summary").Comparison("data", "MSE", 1, runs, {"near": 1.0}).line()
    assert "| near 51.0 ± 28.9 (MSE) |" in line
    assert "| **far +1.1 ± 0.1 ‡**, **dense +1.1 ± 0.1** |" in line


def test_images_meet_k_where_no_task_uses_more(study: Any) -> None:
    met_k = study("multi_mnist").met_k
    row = {"set": "fashion", "model": "moesart", "experts": [2.0, 2.04]}  # k = 2
    assert met_k(row) is True
    assert met_k(row | {"experts": [1.0, 2.1]}) is False
    assert met_k(row | {"set": "mnist", "experts": [1.0, 2.1]}) is True  # k = 4
    assert met_k(row | {"model": "softmax", "experts": [5.0, 5.0]}) is None


def test_the_first_table_says_whether_the_papers_first_is_ours(study: Any) -> None:
    both = {"far": FAR, "near": NEAR}
    assert compared(study, both, {"far": 1, "near": 2, "unrun": 0})[-1] == "no, why"
    noisy = {0: 1.1, 1: 50.9, 2: 101.2}
    cells = compared(study, {"noisy": noisy, "near": NEAR}, {"noisy": None, "near": None})
    assert cells[-2:] == ["noisy, near", "no, within chance, why"]
    # A first that is no farther ahead of our second than by chance is no proof either.
    all_three = {"noisy": noisy, "near": NEAR, "far": FAR}
    cells = compared(study, all_three, {"near": 1, "noisy": 2, "far": 3})
    assert cells[-1] == "yes, within chance"
    # A model that the paper does not have is not asked.
    cells = compared(study, all_three, {"noisy": 1, "far": 2})
    assert cells[1].startswith("near ")
    assert cells[-1] == "yes"


@pytest.mark.parametrize(
    ("seeds", "told"),
    [((3, 3, 1), True), ((2, 2), True), ((1, 1), False), ((2, 1, 1), False), ((2, 1), False)],
)
def test_the_first_table_leaves_out_what_has_one_seed_yet(
    study: Any, seeds: tuple[int, ...], told: bool
) -> None:
    runs = {
        f"model {n}": {seed: {"loss": float(n)} for seed in range(count)}
        for n, count in enumerate(seeds)
    }
    made = study("summary").Comparison("data", "MSE", 1, runs, {"model 0": 1.0})
    assert made.is_told is told


def test_a_row_in_the_unit_of_dselect_k_has_half_the_ratings_error(study: Any) -> None:
    row = {"weight": 0.9, "log_loss": 0.36, "mse": 0.74}
    assert study("movielens").in_dselects_unit(row) == pytest.approx(0.9 * 0.36 + 0.1 * 0.37)


@pytest.mark.parametrize("first", ["watch", "read"])  # of MovieLens and Book-Crossing
def test_models_of_one_task_each_make_one_row(study: Any, first: str) -> None:
    two_tasks = study("two_tasks")
    key = {"weight": 0.9, "seed": 1, "setting": "tuned"}
    rest = {"best_epoch": 4, "epochs": 8, "experts_per_row": 1.0, "auc": 0.9}
    rest |= {"experts": {first: 1.0, "rating": 1.0}}
    # Each is measured on both tasks; what it did not learn is bad.
    watch = key | rest | {"model": f"single_task:{first}", "log_loss": 0.3, "mse": 14.0}
    watch |= {"loss": 1.67}
    rating = key | rest | {"model": "single_task:rating", "log_loss": 9.0, "mse": 0.8, "auc": 0.5}
    rating |= {"loss": 1.62, "best_epoch": 6, "weight": 0.1}
    lonely = watch | {"seed": 2}
    other = key | rest | {"model": "topk", "loss": 0.4}
    kept, *joined = two_tasks.with_single_task([rating, other, watch, lonely])
    assert kept == other
    # Each is trained at one weight, and their row stands at both.
    assert {row["weight"]: row["loss"] for row in joined} == {
        0.9: pytest.approx(0.9 * 0.3 + 0.1 * 0.8),
        0.1: pytest.approx(0.1 * 0.3 + 0.9 * 0.8),
    }
    for row in joined:
        assert {name: row[name] for name in ("model", "auc", "mse", "best_epoch", "seed")} == {
            "model": "single_task",
            "auc": 0.9,
            "mse": 0.8,
            "best_epoch": 5,
            "seed": 1,
        }
    # The study trains each at the weight that gives its task more.
    name = {"watch": "movielens", "read": "book_crossing"}[first]
    tuned = study("tuned")
    steps = tuned.plan([f"single_task:{first}", "single_task:rating", "hash"], [0.9, 0.1], 1, 0)
    needed = [run for _, run in steps if tuned.STUDIES[name].is_needed(run)]
    assert [(run["model"], run["weight"]) for run in needed] == [
        (f"single_task:{first}", 0.9),
        ("hash", 0.9),
        ("single_task:rating", 0.1),
        ("hash", 0.1),
    ]


@pytest.mark.parametrize("weight", [0.9, 0.1])
def test_a_trial_of_one_task_has_the_loss_of_that_task(
    study: Any, weight: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"weight": weight, "trial": 0, "meets_k": None, "best_epoch": 4}
    row |= {"settings": {"train.learning_rate": 0.000177, "model.experts.units": [32]}}
    row |= {"val_loss": 0.3, "experts": {"watch": 1.0, "rating": 1.0}, "log_loss": 0.5, "mse": 0.8}
    row |= {"loss": weight * 0.5 + (1 - weight) * 0.8}
    names = ("single_task:watch", "single_task:rating", "shared_bottom")
    page = tmp_path / "papers.md"
    page.write_text("<!-- books trials -->\n<!-- end books trials -->\n")
    monkeypatch.setattr(study("rows"), "PAGE", page)
    study("trials").write_trials("books", [row | {"model": name} for name in names], {})
    assert page.read_text().count("| learning_rate 0.000177, units [32] |") == 3
    cells = [line.split(" | ") for line in page.read_text().splitlines()]
    losses = {one[1]: float(one[5]) for one in cells if one[1:] and one[1] in names}
    watch, rating, both = (losses[name] for name in names)
    assert watch == pytest.approx(100 * weight * 0.5, abs=0.006)
    assert watch + rating == pytest.approx(both, abs=0.011)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_beyond_chance_is_students_test(study: Any, seeds: int) -> None:
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(seeds)
    drawn = [list(rng.normal(shift, 1, seeds)) for shift in (0, 1, 3, 10) for _ in range(20)]
    found = [study("rows").is_beyond_chance(values) for values in drawn]
    assert found == [ttest_1samp(values, 0).pvalue < 0.05 for values in drawn]
    assert 0 < sum(found) < len(found)


def test_the_best_trial_is_among_those_that_met_k(study: Any) -> None:
    tuned = study("tuned")

    def row(trial: int, loss: float, met: bool | None, model: str = "dselect_k") -> dict[str, Any]:
        return {"model": model, "weight": 0.9, "trial": trial, "val_loss": loss, "meets_k": met}

    rows = [row(0, 0.1, False), row(1, 0.3, True), row(2, 0.2, True), row(0, 0.0, True, "topk")]
    assert tuned.best_trial(rows, "dselect_k", 0.9)["trial"] == 2
    assert tuned.best_trial(rows[:1], "dselect_k", 0.9)["trial"] == 0  # none met k
    assert tuned.best_trial([row(4, 1.0, None, "softmax")], "softmax", 0.9)["trial"] == 4
    with pytest.raises(LookupError, match=r"dselect_k at 0.1: expected trials"):
        tuned.best_trial(rows, "dselect_k", 0.1)


def test_the_best_trials_own_seed_is_not_trained_twice_on_a_cpu(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multigate.configs import load

    tuned, two_tasks = study("tuned"), study("two_tasks")
    movielens = tuned.STUDIES["movielens"]
    begun = list[int]()

    def measure(run: Any, config: Any, examples: Path, work: Path) -> dict[str, Any]:
        begun.append(run["seed"])
        return {"loss": 0.5}

    best = {"model": "topk", "weight": 0.9, "trial": 6, "loss": 0.4, "experts": {"watch": 2.0}}
    best |= {"settings": {"train.learning_rate": 2e-4}, "trained_on": "tensorflow, CPU"}
    statistics = argparse.Namespace(rows={"train": 7})
    monkeypatch.setattr(tuned, "measure", measure)
    monkeypatch.setattr(tuned, "configuration", lambda *given: load("movielens"))
    monkeypatch.setattr(tuned, "trained_on", lambda: "tensorflow, CPU")
    monkeypatch.setattr(two_tasks.Statistics, "read", lambda path: statistics)

    def final(seed: int, best: dict[str, Any]) -> dict[str, Any]:
        run = {"seed": seed, "weight": 0.9}
        return tuned.measure_final(run, best, movielens, tmp_path, tmp_path)

    same = final(0, best)
    assert (same["loss"], same["trial"], same["tuned"], same["rows"]) == (0.4, 6, True, 7)
    assert same["learning_rate"] == 2e-4
    assert "weight" not in same
    assert final(1, best)["loss"] == 0.5
    assert final(0, best | {"trained_on": "jax, GPU"})["loss"] == 0.5
    assert begun == [1, 0]


@pytest.fixture
def tables(study: Any, tmp_path: Path) -> Any:
    """Tables of tuned models, empty and apart from the repository's."""
    rows = study("rows")
    return {
        kind: rows.Rows(table.path.stem, table.key, tmp_path)
        for kind, table in study("tuned").STUDIES["movielens"].tables.items()
    }


def test_the_plan_tunes_the_first_models_at_both_weights_before_the_rest(
    study: Any, tables: Any
) -> None:
    tuned = study("tuned")
    steps = list(tuned.plan(["hash", "topk"], [0.9, 0.1], 2, 1))
    assert [(kind, run["model"], run["weight"]) for kind, run in steps] == [
        (kind, model, weight)
        for model in ("topk", "hash")
        for weight in (0.9, 0.1)
        for kind in ("trial", "trial", "final")
    ]
    other = {"model": "topk", "weight": 0.9, "seed": 0, "setting": "ours"}
    tables["trial"].run([steps[0][1]], dict)
    tables["final"].run([steps[2][1], other], dict)
    found = tuned.left(steps, tables)
    assert (found["done"], found["left"]) == (2, 10)
    assert found["next"] == steps[1][1]


@pytest.mark.parametrize(
    ("script", "given", "message"),
    [
        ("tuned", ["--models", "single_task"], "--models: expected some of softmax, "),
        ("tuned", ["--weights", "0.5"], "--weights: invalid choice: 0.5"),
        ("tuned", ["--change", '{"a": 1}'], "--change: expected an object of settings beside"),
        ("tuned", ["--change", "5", "--again", "0"], "--change: expected an object of settings"),
        ("tuned", ["--again", "8"], "--again: expected trials 0 to 7, received 8"),
        ("tuned", ["--again", "0", "--seeds", "1"], "--again: expected --seeds of at least 2"),
        ("multi_mnist", ["--gates", "dselect_k_static"], "--gates: invalid choice"),
        ("fashion_routers", ["--rows", "-1"], "--rows: expected at least 1, received -1"),
    ],
)
def test_a_study_of_days_refuses_wrong_options_before_it_begins(
    study: Any, script: str, given: list[str], message: str, monkeypatch: Any, capsys: Any
) -> None:
    folders = ["--data", "nowhere"] + (["--work", "nowhere"] if script == "tuned" else [])
    monkeypatch.setattr(sys, "argv", [script, *given, *folders])
    with pytest.raises(SystemExit) as ended:
        study(script).main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_trial_again_has_the_trials_settings_and_other_seeds(
    study: Any, tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multigate.configs import load

    tuned = study("tuned")
    movielens = tuned.STUDIES["movielens"]
    begun = list[Any]()

    def measure(run: Any, config: Any, examples: Path, work: Path) -> dict[str, Any]:
        begun.append((run["seed"], run["setting"], config.train.learning_rate))
        return {"loss": 0.4 + run["seed"] / 100, "meets_k": True}

    monkeypatch.setattr(tuned, "measure", measure)
    monkeypatch.setattr(tuned, "configuration", lambda *given: load("movielens"))
    trial = {"model": "topk", "weight": 0.1, "trial": 7, "loss": 0.4, "meets_k": True}
    trial["settings"] = {"train.learning_rate": 6e-5}
    others = [trial | {"trial": 6, "settings": {"train.learning_rate": 4e-4}, "loss": 0.3}]
    steps = list(tuned.plan_again(["topk"], [0.1], [7], 3))
    assert [run["seed"] for _, run in steps] == [1, 2]
    with pytest.raises(LookupError, match=r"trial 7 of topk at 0\.1: expected its row"):
        tuned.trial_of(others, steps[0][1])
    for kind, run in steps:
        found = tuned.trial_of([*others, trial], run)
        tables[kind].run(
            [run], lambda run, t=found: tuned.measure_again(run, t, movielens, tmp_path, tmp_path)
        )
    assert begun == [(1, "trial-7", 6e-5), (2, "trial-7", 6e-5)]
    assert tuned.left(steps, tables)["left"] == 0
    # With a change the trial's own seed is trained, too, apart from the trial.
    ((kind, run),) = tuned.plan_again(["topk"], [0.1], [7], 1, {"train.learning_rate": 0.5})
    assert (kind, run["seed"]) == ("changed", 0)
    found = tuned.measure_again(run, trial, movielens, tmp_path, tmp_path)
    assert begun[2:] == [(0, "trial-7-learning_rate-0.5", 0.5)]
    assert found["settings"] == {"train.learning_rate": 0.5}
    # The table by rate has the mean of the three seeds, and the one seed of the other trial.
    page = tmp_path / "papers.md"
    page.write_text("<!-- books rates -->\n<!-- end books rates -->\n")
    monkeypatch.setattr(study("rows"), "PAGE", page)
    again = tables["again"].read()
    study("trials").write_rates("books", [*others, trial], again, [], {})
    assert "| 0.1 | 6e-05 | 41.00 ± 0.58 |" in page.read_text()
    assert "| 0.1 | 0.0004 | 30.00 |" in page.read_text()


def test_pairs_leave_out_a_model_that_has_none(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def final(model: str, seed: int, loss: float) -> dict[str, Any]:
        known = {"setting": "tuned", "meets_k": None, "weight": 0.9}
        return known | {"model": model, "seed": seed, "loss": loss}

    page = tmp_path / "papers.md"
    page.write_text("<!-- books pairs -->\n<!-- end books pairs -->\n")
    monkeypatch.setattr(study("rows"), "PAGE", page)
    rows = [final("softmax", seed, 0.4) for seed in (0, 1)]
    rows += [final("topk", 1, 0.43), final("hash", 2, 0.5)]
    study("trials").write_pairs("books", [], rows)
    _, *lines, _ = page.read_text().splitlines()
    assert lines[2:] == ["| 0.9 | seeds | topk | +3.00 (1) |  |"]


@pytest.mark.parametrize("name", ["movielens", "book_crossing"])
def test_every_space_names_settings_that_the_gate_has(study: Any, name: str) -> None:
    from multigate.configs.config import Config
    from multigate.configs.sections.base import parse
    from multigate.jobs.tune import check

    tuned, two_tasks = study("tuned"), study("two_tasks")
    data_set = tuned.STUDIES[name]
    first = {"movielens": "watch", "book_crossing": "read"}[name]
    assert data_set.models[-2:] == [f"single_task:{first}", "single_task:rating"]
    for model in data_set.models:
        values = data_set.make_values()
        if model in two_tasks.GATES:
            values["model"]["gate"] = {"name": model} | two_tasks.GATES[model]
        rates = {"train.learning_rate": {"low": 5e-5, "high": 5e-4, "log": True}}
        values["tune"] = {"space": rates | tuned.SPACES.get(model, {})}
        check(parse(Config, values, "test"))


def test_seeds_wait_for_all_trials_of_their_model(study: Any, monkeypatch: Any) -> None:
    """A model with a failed trial gets no seeds: it would be tuned less than the others."""
    tuned = study("tuned")
    lock, begun, ended = threading.Lock(), list[Any](), list[Any]()

    def run_alone(step: Any, options: Any) -> str:
        with lock:
            begun.append((step, list(ended)))
        time.sleep(0.01)
        with lock:
            ended.append(step)
        return "no memory" if step == ("trial", {"model": "a", "weight": 0.9, "trial": 1}) else ""

    monkeypatch.setattr(tuned, "run_alone", run_alone)
    steps = list(tuned.plan(["a", "b"], [0.9], 3, 2))
    with pytest.raises(RuntimeError, match="no memory"):
        tuned.run_together(steps, argparse.Namespace(jobs=4))
    assert [step for step, _ in begun if step[0] == "final"] == [
        ("final", {"model": "b", "weight": 0.9, "seed": seed, "setting": "tuned"})
        for seed in (0, 1)
    ]
    for step, before in begun:
        if step[0] == "final":
            assert sum(s[0] == "trial" and s[1]["model"] == "b" for s in before) == 3


def test_the_distance_of_two_distributions(study: Any) -> None:
    from scipy.stats import wasserstein_distance

    routers = study("fashion_routers")
    rng = np.random.default_rng(0)
    one, other = rng.exponential(1, 10_000), rng.exponential(1.5, 10_000)
    kept, others = (routers.quantiles(losses) for losses in (one, other))
    assert routers.distance(kept, kept) == 0
    assert routers.distance(kept, kept + 0.25) == pytest.approx(0.25)
    exact = wasserstein_distance(one, other)
    assert exact * 0.99 < routers.distance(kept, others) <= exact
    assert kept.mean() == pytest.approx(one.mean())


def write_images(folder: Path, name: str, pixels: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        with gzip.open(folder / f"{name}-{kind}-ubyte.gz", "wb") as file:
            file.write(head + values.tobytes())


def test_two_images_on_top_of_each_other(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each image is of one brightness, so that a corner of a pair tells which image it is from.
    multi = study("multi_mnist")
    monkeypatch.setattr(multi, "HELD_OUT", 300)
    brightness = {"train": np.arange(1, 121), "t10k": np.arange(121, 181)}
    for name, values in brightness.items():
        pixels = np.repeat(values.astype(np.uint8), 28 * 28).reshape(-1, 28, 28)
        write_images(tmp_path / "mnist", name, pixels, (values % 10).astype(np.uint8))
    splits = multi.data(tmp_path / "mnist", 200)
    drawn = {}
    for split, (images, labels) in splits.items():
        corners = np.rint(255 * images[:, [0, -1], [0, -1], 0]).astype(int)
        assert np.array_equal(corners % 10, labels)
        overlap = np.rint(255 * images[:, 18, 18, 0])
        assert np.array_equal(overlap, corners.max(axis=1))
        drawn[split] = set(corners.ravel().tolist())
    assert drawn["train"] <= set(range(1, 101))
    assert drawn["validation"] == set(range(101, 121))
    assert drawn["test"] == set(range(121, 181))
    # More training rows are held against the same rows.
    more = multi.data(tmp_path / "mnist", 250)
    for split in ("validation", "test"):
        for one, other in zip(splits[split], more[split], strict=True):
            assert np.array_equal(one, other)
    assert not np.array_equal(splits["validation"][1], splits["test"][1])


@pytest.mark.parametrize("gate", ["dselect_k", "moesart"])
def test_a_gates_setting_of_images_is_chosen_on_validation(study: Any, gate: str) -> None:
    """Among those that met k with seed 0; for Multi-MNIST it is Multi-Fashion's."""
    multi = study("multi_mnist")
    rows = study("rows").Rows("multi_mnist", multi.KEY).read()
    tried = {"dselect_k": multi.DSELECT, "moesart": multi.MOESART}[gate]
    chosen = multi.CHOSEN[gate]
    compared = 0
    for name in multi.SETS:
        losses = {
            row["model"]: row["val_loss"]
            for row in rows
            if row["set"] == name and row["model"] in tried and row["seed"] == 0
            if multi.met_k(row)
        }
        compared += len(losses)
        assert min(losses, default=chosen, key=losses.get) == chosen
    assert compared > 1
    assert multi.named(gate) == chosen
    assert multi.published_as(chosen) == gate
    assert multi.named("topk") == multi.published_as("topk") == "topk"


def test_blocks_convolve_and_pool_as_keras_does(study: Any) -> None:
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(3, 12, 14, 2)), "float32")
    weighing = tf.constant(rng.normal(size=(3, 4, 5, 4)), "float32")
    start = keras.initializers.GlorotUniform(seed=1)
    ours = study("conv_pool").ConvPool(4, 5, start)
    theirs = keras.Sequential(
        [
            keras.layers.Conv2D(4, 5, activation="relu", kernel_initializer=start),
            keras.layers.MaxPooling2D(),
        ]
    )
    found = {}
    for name, layer in {"ours": ours, "theirs": theirs}.items():
        layer.build(images.shape)
        layer.set_weights([layer.get_weights()[0], np.array([0.3, -0.2, 0.1, 0], "float32")])
        with tf.GradientTape() as tape:
            tape.watch(images)
            y = layer(images)
            loss = tf.reduce_sum(weighing * y)
        gradients = tape.gradient(loss, [images, *layer.trainable_variables])
        found[name] = [*layer.get_weights(), y, *gradients]
    assert np.asarray(found["ours"][2]).std() > 0.1
    assert ours.compute_output_shape((None, 12, 14, 2)) == (None, 4, 5, 4)
    for one, other in zip(found["ours"], found["theirs"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_blocks_refuse_what_they_would_cut_off(study: Any) -> None:
    layer = study("conv_pool").ConvPool
    with pytest.raises(ValueError, match="side: expected an odd number of pixels, received 4"):
        layer(4, 4, "glorot_uniform")
    with pytest.raises(ValueError, match=r"even numbers of rows and columns, received \(None, 13"):
        layer(4, 5, "glorot_uniform").build((None, 13, 12, 1))


def test_images_that_are_not_there_are_told_in_one_line(study: Any, tmp_path: Path) -> None:
    for read in (study("fashion_routers").read, study("multi_mnist").data):
        with pytest.raises(SystemExit) as told:
            read(tmp_path / "fashion-mnist", 100)
        assert str(told.value) == (
            f"--data {tmp_path}/fashion-mnist: expected one file train-images-idx3-ubyte.gz, "
            "found none"
        )


@pytest.mark.parametrize("replacement", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.slow
def test_a_router_of_images_is_measured_in_both_ways(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacement: bool
) -> None:
    routers = study("fashion_routers")
    for name, value in {"EPOCHS": 2, "VALIDATION": 40, "EXPERTS": 3}.items():
        monkeypatch.setattr(routers, name, value)
    rng = np.random.default_rng(0)
    folder = tmp_path / "fashion-mnist"
    for name, count in (("train", 140), ("t10k", 200)):
        labels = rng.integers(0, 10, count, np.uint8)
        pixels = np.repeat(labels * 25, 28 * 28).reshape(count, 28, 28)
        write_images(folder, name, pixels, labels)
    splits = routers.read(folder, 100)
    assert [len(splits[name][1]) for name in ("train", "validation", "test")] == [100, 40, 200]
    run = {"gate": "moesart", "k": 2, "replacement": replacement, "seed": 0, "rows": 100}
    found = json.loads(json.dumps(routers.measure(run, tmp_path)))
    assert found["epochs"] == 2
    assert found["dense"]["quantiles"] != found["sparse"]["quantiles"]
    for mode in ("dense", "sparse"):
        assert np.mean(found[mode]["quantiles"]) == pytest.approx(found[mode]["loss"], abs=1e-4)
    with pytest.raises(SystemExit, match="expected at most 100 training images, received 101"):
        routers.read(folder, 101)
