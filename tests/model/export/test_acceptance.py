"""What hardening and rounding may cost: judged on validation rows, by an interval over users."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multigate.configs.errors import ExportError
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import read_split
from multigate.model.evaluation.evaluate import Predictions
from multigate.model.evaluation.measures import tasks
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.export import acceptance
from multigate.model.export.export import export

TASKS = ("click", "dwell", "like")
SOFT = {"name": "dselect_k", "num_selected": 1}
HALF = {"name": "hierarchical", "num_groups": 2, "primary": {"name": "softmax"}, "secondary": SOFT}


def soft_checkpoint(case: Any, gate: Any = SOFT, **options: float) -> Path:
    """A checkpoint of which every bit is near 1/2: its hardened form ranks otherwise."""
    # Not dwell, whose exponential of random weights changes a thousandfold.
    gates = {"gate": gate, "gates": {"dwell": {"name": "topk"}}}
    checkpoint: Path = case.checkpoint(seed=2, model=gates, export=options)
    ranker = checkpoints.load(checkpoint).ranker
    for mixed in ranker.mixture.gates:
        for variable in mixed.weights:
            if "float" in str(variable.dtype):
                variable.assign(0.02 * variable)
    checkpoints.weights.save(ranker, checkpoint / checkpoints.WEIGHTS)
    return checkpoint


def labelled_by(checkpoint: Path, examples: Path, folder: Path, *splits: str) -> Path:
    """The examples, with labels that the checkpoint knows perfectly in some splits."""
    shutil.copytree(examples, folder)
    loaded = checkpoints.load(checkpoint)
    contract, statistics = loaded.encoder.contract, loaded.encoder.statistics
    for split in splits:
        rows = read_split(folder, split, loaded.encoder)
        scores = Predictions(loaded.ranker, contract, statistics, rows).scores
        path = folder / split / "part-0.parquet"
        table = pq.read_table(path)
        for name in TASKS:
            label = scores[name]
            if name != "dwell":
                label = (label > np.median(label)).astype(np.float32)
            index = table.column_names.index(f"label/{name}")
            table = table.set_column(index, f"label/{name}", pa.array(label, pa.float32()))
        pq.write_table(table, path)
    return folder


def read(version: Path, name: str) -> Any:
    return json.loads((version / "assets.extra" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("gate", [SOFT, HALF], ids=["all of it", "a level"])
def test_gates_that_have_not_converged_are_refused(case, tmp_path, gate) -> None:
    checkpoint = soft_checkpoint(case, gate)
    examples = labelled_by(checkpoint, case.examples, tmp_path / "examples", "validation")
    message = (
        r"task 'click': hardening the gates .* changes AUC from 1\.0000 to 0\.\d{4} on 600 "
        r"validation rows, a loss of 0\.\d{4} \(95 % interval 0\.\d{4} to 0\.\d{4}\), all of it "
        r"beyond export\.hardening_tolerance, which allows 0\.005\. The gates have not converged"
    )
    with pytest.raises(ExportError, match=message):
        export(checkpoint, examples, tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_a_loss_that_may_be_chance_is_accepted_and_reported(case, tmp_path, caplog) -> None:
    """Test rows, which lose for certain, decide nothing; validation labels are pure noise."""
    checkpoint = soft_checkpoint(case, hardening_tolerance=0.0, log_loss_tolerance=10.0)
    examples = labelled_by(checkpoint, case.examples, tmp_path / "examples", "test")
    with caplog.at_level(logging.WARNING):
        version = export(checkpoint, examples, tmp_path / "models")
    changes = read(version, "sparsity.json")["hardening"]
    assert changes.keys() == {"click", "like"}
    for change in changes.values():
        assert change["before"] != change["after"]
        assert change["low"] <= 0 or change["loss"] <= 0
        assert change["low"] <= change["loss"] <= change["high"]
    worst = max(changes, key=lambda name: changes[name]["loss"])
    assert f"task '{worst}': hardening the gates" in caplog.text
    assert "not shown to be more than chance" in caplog.text
    assert read(version, "sparsity.json")["tasks"]["click"]["experts_per_row"] == pytest.approx(1)
    # The test metrics are of what is served, and worse than those of the soft gates.
    assert 0.5 < read(version, "metrics.json")["tasks"]["click"]["value"] < 0.99
    card = (version / "assets.extra" / "README.md").read_text()
    assert "Hardening the gates changed click's AUC from" in card
    assert f"95 % interval {changes['click']['low']:.4f} to {changes['click']['high']:.4f}" in card


def test_rounding_that_costs_too_much_is_refused(case, tmp_path) -> None:
    options = {"weights": "int8", "weights_tolerance": 0.0, "log_loss_tolerance": 10.0}
    checkpoint = case.checkpoint(export=options)
    examples = labelled_by(checkpoint, case.examples, tmp_path / "examples", "validation")
    message = (
        r"storing the weights as int8 changes .* beyond export\.weights_tolerance, which allows 0\."
        r" Store them in a finer type"
    )
    with pytest.raises(ExportError, match=message):
        export(checkpoint, examples, tmp_path / "models")
    assert not (tmp_path / "models").exists()


RULE = acceptance.Rule("hardening", "hardening_tolerance", 0.005, 0.02, "Train on.")


def changes(case: Any, users: int, scale: float, allowed: float = 0.02) -> acceptance.Changes:
    """What `judge` says where probabilities move away from 0.5 by a factor, in order."""
    contract = case.config().contract
    rng = np.random.default_rng(0)
    labels = np.full((2000, 3), np.nan)
    z = rng.normal(0, 1, 2000)
    labels[:, 0] = rng.random(2000) < 1 / (1 + np.exp(-z))
    resamples = Resamples(rng.integers(0, users, 2000), 200)

    def measured(factor: float) -> dict[str, tasks.Replicates]:
        p = 1 / (1 + np.exp(-factor * z))
        return {
            name: tasks.measure(task, resamples, labels[:, t], p)
            for t, (name, task) in enumerate(contract.tasks.items())
        }

    rule = RULE._replace(log_loss_tolerance=allowed)
    return acceptance.judge(contract, labels, resamples, measured(1.0), measured(scale), rule)


def test_probabilities_that_shift_are_refused_where_the_order_stays(case) -> None:
    message = (
        r"task 'click': hardening changes LOG LOSS from 0\.\d+ to \d\.\d+ on 2000 validation rows, "
        r"a relative loss of .* beyond export\.log_loss_tolerance, which allows 0\.02\. Train on\."
    )
    with pytest.raises(ExportError, match=message):
        changes(case, users=100, scale=3.0)
    found = changes(case, users=100, scale=3.0, allowed=1.0)["click"]
    assert found["loss"] == found["low"] == found["high"] == 0
    rise = found["log_loss"]
    assert rise["rise"] == pytest.approx(rise["after"] / rise["before"] - 1)
    assert 0.02 < rise["low"] < rise["rise"] < rise["high"]


def test_too_few_users_for_an_interval_refuse_nothing(case) -> None:
    found = changes(case, users=5, scale=3.0)["click"]
    assert found["log_loss"]["rise"] > 0.02
    assert found["log_loss"]["low"] is None
    assert found["low"] is None


def test_what_does_not_change_and_what_has_no_label_is_left_out(case) -> None:
    assert changes(case, users=100, scale=1.0) == {}
    assert changes(case, users=100, scale=1.01).keys() == {"click"}
