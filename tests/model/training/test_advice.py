"""Which epoch is kept, and what training warns of."""

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from multigate.jobs.tune import with_settings
from multigate.model import gates
from multigate.model.checkpoints import history
from multigate.model.training.advice import ALWAYS_ONE, beforehand, warnings

STARTED: Any = {"checkpoint": "yesterday", "tables": {}, "pairs_gone": {}}


def epochs(monitor: str = "quality", error: float = 0.005, **qualities: Any) -> list[Any]:
    """A history with these qualities by epoch of each task; the losses rise."""
    length = len(next(iter(qualities.values())))
    found = []
    for n in range(length):
        tasks = {
            name: {"val_loss": 1.0 + n, "val_quality": values[n], "val_quality_error": error}
            for name, values in qualities.items()
        }
        known = [task["val_quality"] for task in tasks.values() if task["val_quality"] is not None]
        mean = sum(known) / len(known) if known else None
        found.append(
            {
                "epoch": n + 1,
                "monitor": monitor,
                "val_loss": 1.0 + n,
                "val_quality": mean,
                "tasks": tasks,
            }
        )
    return found


def test_the_kept_epoch_is_the_monitors_best_and_of_several_the_first() -> None:
    tasks: Any = {"click": [0.6, 0.7, 0.7], "like": [0.8, 0.75, 0.75]}
    assert history.kept(epochs(**tasks))["epoch"] == 2
    assert history.kept(epochs("loss", **tasks))["epoch"] == 1
    assert history.kept(epochs("like", **tasks))["epoch"] == 1
    assert history.best_epochs(epochs(**tasks)) == {"click": 2, "like": 1}
    assert history.monitored(epochs("like", **tasks)[0]) == 0.8


def test_tasks_without_a_quality_are_compared_by_their_loss() -> None:
    tasks: Any = {"click": [0.6, 0.7], "like": [None, None]}
    assert history.best_epochs(epochs(**tasks)) == {"click": 2, "like": 1}
    assert math.isnan(history.monitored(epochs("like", **tasks)[0]))


def test_histories_of_older_versions_kept_the_lowest_loss() -> None:
    old: list[Any] = [
        {"epoch": n, "val_loss": loss, "tasks": {"click": {"loss": loss, "val_loss": loss}}}
        for n, loss in ((1, 0.5), (2, 0.4), (3, 0.45))
    ]
    assert history.kept(old)["epoch"] == 2
    assert history.monitor(old) == "loss"
    assert history.best_epochs(old) == {"click": 2}


def test_the_first_epoch_is_warned_of(tiny: Any) -> None:
    found = epochs(click=[0.7512, 0.74, 0.73], like=[0.75, 0.74, 0.73])
    (warning,) = warnings(found, tiny.config, started=None)
    assert warning == (
        "the first of 3 epochs was kept: quality by epoch is 0.7506, 0.7400, 0.7300, so training "
        "fits what validation does not have. Lower train.learning_rate (now 0.01), raise "
        "model.experts.dropout (now 0) or model.id_dropout, or train on more rows"
    )
    assert warnings(found, tiny.config, started=STARTED) == []  # yesterday's weights may be enough
    assert warnings(found[:1], tiny.config, started=None) == []  # nothing to compare with


@pytest.mark.parametrize(
    ("late", "error", "warned"),
    [(0.72, 0.005, True), (0.709, 0.005, False), (0.72, 0.03, False)],
)
def test_tasks_that_disagree_are_warned_of(
    tiny: Any, late: float, error: float, warned: bool
) -> None:
    """By more than 0.01, and by more than a standard error."""
    found = epochs(click=[0.5, 0.9, 0.8], like=[0.6, 0.7, late], error=error)
    said = warnings(found, tiny.config, started=None)
    assert len(said) == warned
    if warned:
        assert said[0].startswith(
            "tasks disagree about the best epoch: epoch 2 was kept, others suit like (AUC 0.7000, "
            "0.7200 after epoch 3). Raise the loss weight (contract.tasks.NAME.weight) of a task "
        )


@pytest.mark.parametrize(
    ("loss", "said"), [(None, "explained variance"), ("quantile", "pinball skill")]
)
def test_the_warning_names_the_tasks_own_quality(tiny: Any, loss: str | None, said: str) -> None:
    contract = tiny.config.contract
    dwell = contract.tasks["dwell"]
    dwell = type(dwell).model_validate(dwell.model_dump() | {"loss": loss})
    contract = contract.model_copy(update={"tasks": contract.tasks | {"dwell": dwell}})
    config = tiny.config.model_copy(update={"contract": contract})
    (warning,) = warnings(epochs(click=[0.5, 0.9, 0.8], dwell=[0.6, 0.7, 0.8]), config, None)
    assert f"others suit dwell ({said} 0.7000, 0.8000 after epoch 3)" in warning


def test_a_task_without_loss_weight_cannot_disagree(tiny: Any) -> None:
    found = epochs("click", click=[0.5, 0.9, 0.8], like=[0.6, 0.7, 0.9])
    contract = tiny.config.contract
    like = contract.tasks["like"].model_copy(update={"weight": 0.0})
    tasks = contract.tasks | {"like": like}
    config = tiny.config.model_copy(
        update={"contract": contract.model_copy(update={"tasks": tasks})}
    )
    assert len(warnings(found, tiny.config, started=None)) == 1
    assert warnings(found, config, started=None) == []


def test_wanted_pairs_without_weights_are_warned_of(tiny: Any) -> None:
    pairs = (("country", "item_id"), ("user_id", "item_id"))
    wide = tiny.config.model.wide.model_copy(update={"crosses": 599, "pairs": pairs})
    model = tiny.config.model.model_copy(update={"wide": wide})
    config = tiny.config.model_copy(update={"model": model})
    found = epochs(click=[0.7, 0.8])
    crosses = {"country * item_id": pairs[0]}
    (warning,) = warnings(found, config, None, crosses)
    assert warning.startswith("user_id and item_id have no weights of pairs")
    assert "(now 599)" in warning
    assert warnings(found, config, None, crosses | {"user_id * item_id": pairs[1]}) == []


def test_pairs_that_lost_their_weights_are_warned_of(tiny: Any) -> None:
    started: Any = STARTED | {"pairs_gone": {"city * genre": 1200}}
    (warning,) = warnings(epochs(click=[0.7, 0.8]), tiny.config, started)
    limit = tiny.config.model.wide.crosses
    assert warning == (
        "1,200 pairs of city * genre lost the weights that yesterday has of them: their features "
        f"have outgrown model.wide.crosses (now {limit:,}). Raise it to keep them"
    )


@pytest.mark.parametrize(
    ("gate", "where"),
    [
        ({"name": "topk", "num_selected": 1}, "model.gate"),
        ({"name": "topk", "num_selected": 2}, None),
        ({"name": "switch", "num_selected": 1}, None),
        (
            {
                "name": "hierarchical",
                "num_groups": 2,
                "primary": {"name": "noisy_topk", "num_selected": 1},
                "secondary": {"name": "topk", "num_selected": 2},
            },
            "model.gate.primary",
        ),
    ],
)
def test_a_gate_that_does_not_learn_is_warned_of(
    tiny: Any, gate: dict[str, Any], where: str | None
) -> None:
    config = with_settings(tiny.config, {"model.gate": gate, "model.experts.count": 4}, "test")
    found = warnings(epochs(click=[0.6, 0.7]), config, None)
    said = [warning.partition(" does not learn")[0] for warning in found]
    assert said == ([] if where is None else [where])
    # A gate that no task has is not warned of.
    others = {task: {"name": "softmax"} for task in config.contract.tasks}
    unused = with_settings(config, {"model.gates": others}, "test")
    assert warnings(epochs(click=[0.6, 0.7]), unused, None) == []
    alone = {"name": "topk", "num_selected": 1}
    single = with_settings(tiny.config, {"model.gate": alone, "model.experts.count": 1}, "test")
    assert warnings(epochs(click=[0.6, 0.7]), single, None) == []


def test_the_advice_about_a_gate_is_one_that_the_configuration_takes(tiny: Any) -> None:
    for gate in ({"name": "topk"}, {"name": "topk", "static": True}, {"name": "noisy_topk"}):
        changes = {"model.gate": gate | {"num_selected": 1}, "model.experts.count": 4}
        (said,) = beforehand(with_settings(tiny.config, changes, "test"))
        advised = yaml.safe_load(said.partition("or take ")[2].removesuffix(" instead"))
        taken = with_settings(tiny.config, changes | {"model.gate": advised}, "test")
        assert beforehand(taken) == []
        assert getattr(taken.model.gate, "static", False) == gate.get("static", False)


@pytest.mark.parametrize(
    "name",
    [
        "topk",
        "noisy_topk",
        "switch",
        "vmoe",
        "xmoe",
        "dselect_k",
        "comet",
        "softmax_selector",
        "expert_choice",
    ],
)
def test_gates_that_choose_one_expert_learn_but_for_those_that_are_warned_of(name: str) -> None:
    keras.utils.set_random_seed(0)
    gate = gates.make(name, 4, 1, seed=0)
    rng = np.random.default_rng(0)
    x, outputs = (rng.normal(size=(64, 4)).astype("float32") for _ in range(2))
    gate(x, training=False)
    for variable in gate.trainable_variables:  # away from a start at 0, where some are flat
        variable.assign_add(rng.normal(scale=0.3, size=variable.shape).astype("float32"))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(gate(x, training=True).weights * outputs)
    found = tape.gradient(loss, gate.trainable_variables)
    learns = any(one is not None and np.abs(one).max() > 1e-6 for one in found)
    assert learns == (name not in ALWAYS_ONE)
