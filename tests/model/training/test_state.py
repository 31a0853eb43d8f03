"""A snapshot continues only the training of a model of the same variables."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from multigate.configs.errors import ModelError
from multigate.model.training import snapshots
from multigate.model.training.snapshots import Snapshot
from multigate.model.training.state import TrainingState, restore, save
from multigate.model.training.workspace import Workspace


def make(**shapes: tuple[int, ...]) -> Any:
    """What `save` and `restore` read of a ranker."""
    variables = [
        keras.Variable(np.full(shape, n, np.float32), name=name)
        for n, (name, shape) in enumerate(shapes.items(), 1)
    ]
    optimizer = SimpleNamespace(variables=[keras.Variable(0.5, name="iterations")])
    means = [keras.Variable(0.25, name="loss")]
    return SimpleNamespace(variables=variables, optimizer=optimizer, metrics_variables=means)


def restored(folder: Path, ranker: Any) -> Any:
    with Workspace(folder / "c", resume=True) as work:
        try:
            return restore(work, ranker, lambda note: None)
        finally:
            (work.checkpoint / "weights").touch()


def saved(folder: Path, ranker: Any) -> None:
    """A snapshot of an interrupted training."""
    with pytest.raises(KeyboardInterrupt), Workspace(folder / "c", resume=False) as work:
        save(work, ranker, TrainingState(epoch=2, step=7))
        raise KeyboardInterrupt


def test_a_snapshot_continues_a_model_of_the_same_variables(tmp_path: Path) -> None:
    saved(tmp_path, make(table_3=(5, 2), kernel=(2, 2)))
    ranker = make(table_8=(5, 2), kernel=(2, 2))  # Keras counts a process's layers
    for variable in ranker.variables:
        variable.assign(np.zeros(variable.shape))
    state, means = restored(tmp_path, ranker)
    assert (state.epoch, state.step) == (2, 7)
    assert [float(np.max(v)) for v in ranker.variables] == [1.0, 2.0]
    assert [float(mean) for mean in means] == [0.25]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"table": (5, 4), "kernel": (2, 2)}, r"table of shape \[5, 4\], received .*\[5, 2\]"),
        ({"kernel": (5, 2), "table": (2, 2)}, r"kernel of shape \[5, 2\], received table"),
        ({"table": (5, 2)}, r"iterations of shape \[\], received kernel of shape \[2, 2\]"),
        ({"table": (5, 2), "kernel": (2, 2), "bias": (2,)}, r"expected bias of shape \[2\]"),
    ],
)
def test_a_snapshot_of_another_layout_is_refused_with_a_way_out(
    tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    """Also where all shapes are alike: a table would be read as a kernel."""
    saved(tmp_path, make(table=(5, 2), kernel=(2, 2)))
    with pytest.raises(ModelError, match=message) as raised:
        restored(tmp_path, make(**other))
    assert str(raised.value).endswith(
        "finish the training with the version that began it, or remove the folder to start over"
    )
    assert "\n" not in str(raised.value)


def test_a_snapshot_without_names_is_judged_by_its_shapes(tmp_path: Path) -> None:
    """As former versions wrote it."""
    ranker = make(table=(5, 2))
    with Workspace(tmp_path / "c", resume=True) as work:
        arrays = [np.ones((5, 2)), np.float32(3), np.float32(4)]
        meta = {"epoch": 1, "step": 2, "seconds": 0.0, "history": [], "measured": [], "best": []}
        snapshots.save(work.root, Snapshot(arrays, meta))
        assert restore(work, ranker, lambda note: None) is not None
        with pytest.raises(ModelError, match=r"expected one of shape \[5, 3\], received one of"):
            restore(work, make(table=(5, 3)), lambda note: None)
