"""The assessment of real checkpoints: whole, JSON, and compared with baselines and other seeds."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from sklearn.metrics import roc_auc_score

from multigate.configs import load
from multigate.configs.baselines import baseline
from multigate.configs.errors import ConfigError, DataError, ModelError
from multigate.configs.files import write_json
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import EvaluationConfig
from multigate.model.assessment.assess import _exported, assess
from multigate.model.assessment.explained import MIDDLE, NEGATIVE, POSITIVE, choose
from multigate.model.baselines.lightgbm_baseline import fit
from multigate.model.checkpoints import checkpoint
from multigate.model.data.rows import read_rows
from multigate.model.evaluation import evaluate
from multigate.model.evaluation.comparison import compare
from multigate.model.evaluation.scored import score
from multigate.model.report.checks import warnings
from multigate.model.training import train

pytestmark = pytest.mark.slow

SLICED = {"x": {"by": "value", "feature": "clik"}}


@pytest.fixture(scope="module")
def trained(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Examples and checkpoints: a mixture, its two baselines of one epoch, another seed."""
    root = tmp_path_factory.mktemp("assessed")
    tiny.write_examples(root / "examples", tiny.config, rows=2000)
    config = tiny.config
    short = config.train.model_copy(update={"epochs": 1, "learning_rate": 1e-6})
    configs = {
        "mixture": config,
        "seed": config.model_copy(
            update={"train": config.train.model_copy(update={"epochs": 1, "seed": 9})}
        ),
        "bottom": baseline(config.model_copy(update={"train": short}), "shared_bottom"),
        "single": baseline(config, "single_task:click"),
    }
    for name, one in configs.items():
        train.train(one, root / "examples", root / name, progress=False)
    return root


@pytest.fixture(scope="module")
def found(trained: Path) -> dict[str, Any]:
    return assess(
        trained / "mixture",
        trained / "examples",
        production=trained / "bottom",
        baselines=[trained / "bottom", trained / "single"],
        seeds=[trained / "seed"],
    )


def test_it_holds_what_the_light_evaluation_says(trained: Path, found: Any) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    light = evaluate.evaluate(trained / "mixture", trained / "examples")
    for key in ("split", "rows", "loss", "experts", "experts_per_row", "gates", "union"):
        assert found[key] == light[key]
    for name, task in light["tasks"].items():
        for key, value in task.items():
            assert found["tasks"][name][key] == value
        main = found["tasks"][name]["measures"][task["metric"]]
        assert main["value"] == pytest.approx(task["value"])
        assert main["low"] < main["value"] < main["high"]
        assert main["rows"] == task["rows"]
    for name, group in light["groups"].items():
        for key in ("auc", "relative_rmse"):
            if group[key] is not None:
                interval = found["groups"][name][f"{key}_interval"]
                assert interval["value"] == pytest.approx(group[key], rel=1e-6)


def test_a_group_with_few_labelled_users_has_no_interval(trained: Path, tmp_path: Path) -> None:
    """As its tasks: nine users know nothing of the others, however many there are."""
    shutil.copytree(trained / "examples", tmp_path / "examples")
    (path,) = (tmp_path / "examples/test").glob("*.parquet")
    table = pq.read_table(path)
    nine = pc.unique(table["user_id"]).drop_null()[:9]
    for name in ("label/click", "label/dwell"):
        known = pc.if_else(pc.is_in(table["user_id"], nine), table[name], None)
        table = table.set_column(table.column_names.index(name), name, known)
    pq.write_table(table, path)
    found = assess(trained / "mixture", tmp_path / "examples")
    assert found["users"] >= 10
    group = found["groups"][found["tasks"]["click"]["group"]]
    task = found["tasks"]["click"]
    assert task["value"] is not None
    assert group["auc_interval"] == task["measures"]["auc"]
    assert group["auc_interval"]["low"] is None


def test_the_gates_overlap_is_that_of_their_experts(found: Any) -> None:
    for name, gate in found["gates"].items():
        for other, overlap in gate["overlap"].items():
            assert 0 <= overlap <= 1
            assert overlap == found["gates"][other]["overlap"][name]
    # k = 2 of 4 each: whatever both use, some task uses.
    assert sum(found["union"]) == pytest.approx(found["experts_per_row"], rel=1e-5)
    for e, share in enumerate(found["union"]):
        loads = [gate["load"][e] for gate in found["gates"].values()]
        assert max(loads) - 1e-6 <= share <= min(1, sum(loads)) + 1e-6


def test_baselines_are_named_and_compared(found: Any) -> None:
    models = {model["name"]: model for model in found["transfer"]["models"]}
    assert list(models) == ["shared_bottom", "single_task:click"]
    assert list(models["single_task:click"]["tasks"]) == ["click"]
    assert set(models["shared_bottom"]["tasks"]) == set(found["tasks"])
    assert models["shared_bottom"]["budget"] == ["epochs", "learning_rate"]
    assert models["single_task:click"]["budget"] == []
    better = models["shared_bottom"]["tasks"]["click"]
    assert better["wins"] is True  # than one that learnt nothing
    assert better["difference"]["low"] > 0
    assert found["comparison"]["verdict"] in {"bless", "refuse"}
    assert found["comparison"]["tasks"]["click"]["difference"] == better["difference"]


def test_unmatched_rows_have_an_auc_of_their_own(trained: Path, found: Any) -> None:
    """Row by row: the candidate is not among the user's recent items."""
    table = pq.read_table(trained / "examples/test/part-0.parquet")
    new = np.array(
        [
            item not in (recent or [])
            for item, recent in zip(
                table["item_id"].to_pylist(), table["recent"].to_pylist(), strict=True
            )
        ]
    )
    rows = read_rows(trained / "examples", "test")
    scores = score(trained / "mixture", rows).scores["click"]
    labels = table["label/click"].to_numpy()
    measured = found["tasks"]["click"]["measures"]["auc_unmatched"]
    assert measured["rows"] == new.sum() < len(new)
    assert measured["value"] == pytest.approx(roc_auc_score(labels[new], scores[new]))
    assert measured["low"] < measured["value"] < measured["high"]
    assert "auc_unmatched" not in found["tasks"]["dwell"]["measures"]


def test_lightgbm_beside_ours(trained: Path, found: Any) -> None:
    """On the same resamples as the report's own figures; a verdict that needs it trains it."""
    assert found["baseline"] is None
    contract = checkpoint.read_config(trained / "mixture")[0].contract
    fitted = fit(trained / "examples", contract)
    other = assess(trained / "mixture", trained / "examples", baseline=fitted)
    compared = other["baseline"]["tasks"]["click"]["measures"]["auc"]
    assert compared["candidate"] == found["tasks"]["click"]["measures"]["auc"]
    assert other["comparison"] is None
    rules = parse(EvaluationConfig, {"rules": {"beats": "lightgbm"}}, "evaluation")
    judged = assess(trained / "bottom", trained / "examples", rules, production=trained / "bottom")
    assert judged["comparison"]["verdict"] == "refuse"
    reasons = judged["comparison"]["reasons"]
    assert any(line.startswith("click: worse than LightGBM ") for line in reasons)
    assert judged["baseline"]["tasks"]["click"]["measures"]["auc"]["wins"] is False


def test_seeds_are_compared(found: Any) -> None:
    assert found["stability"]["runs"] == 2
    assert found["stability"]["tasks"]["click"]["deviation"] > 0
    assert found["stability"]["differences"] == [
        "The runs differ in train.epochs, not in their seed alone."
    ]


def test_runs_of_one_seed_are_no_evidence_of_stability(trained: Path) -> None:
    found = assess(trained / "mixture", trained / "examples", seeds=[trained / "mixture"])
    assert found["stability"]["tasks"]["click"]["deviation"] == 0
    (said,) = found["stability"]["differences"]
    assert said == "Some runs have the same seed: that they agree says nothing."


def test_a_mixture_is_no_baseline(trained: Path) -> None:
    with pytest.raises(ModelError, match="seed: expected a baseline, received a mixture of 4"):
        assess(trained / "mixture", trained / "examples", baselines=[trained / "seed"])


def test_a_baseline_of_other_examples_is_refused(tiny: Any, trained: Path, tmp_path: Path) -> None:
    """It may have been trained on what is the test split here."""
    other = trained / "bottom"
    shutil.copytree(other, tmp_path / "bottom")
    contract = json.loads((other / "contract.json").read_text())
    contract["data_fingerprint"] = "0" * len(contract["data_fingerprint"])
    (tmp_path / "bottom/contract.json").write_text(json.dumps(contract))
    with pytest.raises(ModelError, match="bottom: trained on examples of data fingerprint"):
        assess(trained / "mixture", trained / "examples", baselines=[tmp_path / "bottom"])


def test_rules_and_slices_of_what_there_is_not_are_refused(trained: Path) -> None:
    rules = parse(EvaluationConfig, {"rules": {"tasks": {"clik": {"must_win": True}}}}, "x")
    for options in (rules, parse(EvaluationConfig, {"slices": SLICED}, "x")):
        with pytest.raises(
            ConfigError, match=r"evaluation\..* expected one of .*, received 'clik'"
        ):
            assess(trained / "mixture", trained / "examples", options)
    with pytest.raises(ConfigError, match="received 'clik'"):
        compare(trained / "mixture", None, trained / "examples", rules.rules)


def test_infinite_labels_are_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "examples", tmp_path / "examples")
    for path in (tmp_path / "examples/test").glob("*.parquet"):
        table = pq.read_table(path)
        place = table.column_names.index("label/dwell")
        endless = pa.array(np.full(len(table), np.inf, np.float32))
        pq.write_table(table.set_column(place, "label/dwell", endless), path)
    with pytest.raises(DataError, match=r"label/dwell: expected finite numbers or null, received"):
        assess(trained / "mixture", tmp_path / "examples")


def test_negative_transfer_is_said(trained: Path) -> None:
    """The model that learnt nothing, against the single-task model."""
    found = assess(trained / "bottom", trained / "examples", baselines=[trained / "single"])
    (sentence,) = found["transfer"]["sentences"]
    assert sentence.startswith("click is worse than with the single-task model of click")
    assert found["comparison"] is None


def test_overlap_by_hand() -> None:
    # Row 0: tasks use {0, 1} and {1, 2}: 1 of 3.  Row 1: {0} and {0}: 1.  Row 2: none and none: 1.
    used = np.zeros((3, 2, 3), np.float32)
    used[0] = [[1, 1, 0], [0, 1, 1]]
    used[1] = [[1, 0, 0], [1, 0, 0]]
    found = evaluate._overlap(used)
    np.testing.assert_allclose(found, [[3, 1 / 3 + 2], [1 / 3 + 2, 3]])


def test_the_training_split_can_be_assessed(trained: Path) -> None:
    found = assess(trained / "mixture", trained / "examples", split="train")
    assert found["rows"] == 1200
    assert found["leaks"]["shared_rows"] == 1200


def test_a_version_that_does_not_tell_its_gates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "assets.extra").mkdir()
    write_json(tmp_path / "assets.extra/metrics.json", {"experts_per_row": 2.0, "experts": 4})
    with pytest.raises(ModelError, match=r"metrics\.json: expected .* gates is missing; export"):
        _exported(tmp_path)


@pytest.mark.parametrize(
    ("split", "said"), [("train", "trained on"), ("validation", "chosen on"), ("test", None)]
)
def test_numbers_of_rows_that_the_model_was_made_with_say_so(
    trained: Path, split: str, said: str | None
) -> None:
    found = assess(trained / "mixture", trained / "examples", split=split)
    page = io.StringIO()
    Console(file=page, width=140).print(evaluate.table(found))
    if said is None:
        assert found["caveat"] is None
        assert "these rows" not in page.getvalue()
    else:
        assert f"{said} these rows" in found["caveat"]
        assert found["caveat"] in page.getvalue()
        assert warnings(found)[0] == found["caveat"]


def test_the_pipelines_report_is_taken_along(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "examples", tmp_path / "examples")
    write_json(tmp_path / "examples/report.json", {"rows": {"train": 1200}})
    found = assess(trained / "mixture", tmp_path / "examples", split="validation")
    assert found["data"] == {"rows": {"train": 1200}}
    (tmp_path / "examples/report.json").write_text("{")
    with pytest.raises(ModelError, match=r"report\.json: not valid JSON"):
        assess(trained / "mixture", tmp_path / "examples")
    # As `evaluate --report examples/report.html` leaves it.
    write_json(tmp_path / "examples/report.json", {"rows": 400, "tasks": {}})
    with pytest.raises(ModelError, match=r"report\.json: expected the pipeline's report"):
        assess(trained / "mixture", tmp_path / "examples")


def test_a_history_of_something_else_is_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "mixture", tmp_path / "copy")
    path = tmp_path / "copy/history.json"
    for history in ([], {}, {"epochs": {"epoch": 1}}, {"epochs": [1]}):
        write_json(path, history)
        with pytest.raises(ModelError, match=r'history\.json: expected {"epochs": \[...\]}'):
            checkpoint.read_history(tmp_path / "copy")
    write_json(path, {"epochs": [{"epoch": 1, "loss": 0.5}]})
    with pytest.raises(ModelError, match=r"history\.json: an epoch lacks gates"):
        assess(tmp_path / "copy", trained / "examples")


def test_three_rows_are_chosen_by_score_and_gain() -> None:
    contract = config_contract()
    combined = np.array([0.9, 0.8, 0.7, 0.95, 0.1, 0.2])
    nan = np.nan
    labels = np.array([[0, 0], [1, 0], [0, 1], [nan, nan], [0, nan], [1, 1]])
    # By score: rows 4, 5, 2, 1, 0 (row 3 has no label); row 1 has a gain, row 0 none, and of the
    # rest the middle one is row 5.
    assert choose(contract, combined, labels) == {POSITIVE: 1, NEGATIVE: 0, MIDDLE: 5}
    assert choose(contract, combined[:1], labels[:1]) == {NEGATIVE: 0}
    assert choose(contract, combined[3:4], labels[3:4]) == {}
    # Without any weight the first task decides: row 2 has no gain.
    plain = {name: task.model_copy(update={"score_weight": 0.0})
             for name, task in contract.tasks.items()}  # fmt: skip
    contract = contract.model_copy(update={"tasks": plain})
    assert choose(contract, combined, labels) == {POSITIVE: 1, NEGATIVE: 0, MIDDLE: 5}
    assert choose(contract, combined[2:3], labels[2:3]) == {NEGATIVE: 0}


def config_contract() -> Any:
    """Two binary tasks with score weights of 1."""
    contract = load("demo").contract
    task = contract.tasks["click"].model_copy(update={"score_weight": 1.0})
    return contract.model_copy(update={"tasks": {"click": task, "like": task}})


def test_explained_rows_add_up_to_the_scores_of_the_model(trained: Path, found: Any) -> None:
    contract = score(trained / "mixture", read_rows(trained / "examples", "test")).contract
    rows = read_rows(trained / "examples", "test")
    scored, labels = score(trained / "mixture", rows), rows.labels(contract)
    assert [row["chosen"] for row in found["explained"]] == [POSITIVE, NEGATIVE, MIDDLE]
    for row in found["explained"]:
        at, explained = row["row"], row["explanation"]
        assert explained["score"] == pytest.approx(scored.combined[at], abs=1e-5)
        assert explained["item"] == rows.table[contract.item][at].as_py()
        for t, (task, label) in enumerate(row["labels"].items()):
            known = labels[at, t]
            assert label is None if np.isnan(known) else label == known
            assert explained["terms"][task]["score"] == pytest.approx(
                scored.scores[task][at], rel=1e-5, abs=1e-5
            )
            assert explained["experts"][task]
        for output, mean in explained["background"]["scores"].items():
            own = explained["score"]
            own = own if output == "score" else explained["terms"][output]["score"]
            added = sum(group["contributions"][output] for group in explained["features"])
            assert added == pytest.approx(own - mean, abs=1e-4)
