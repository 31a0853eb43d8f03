"""Training that is killed and continued ends with the weights of one that was not."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from multigate.configs.errors import DataError, ModelError
from multigate.model.baselines import teacher
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.training import snapshots, train
from multigate.model.training.loop import TrainingLoop
from multigate.model.training.progress import Display
from multigate.model.training.workspace import Workspace
from multigate.verbs.command import main

pytestmark = pytest.mark.slow

# Dropout, sampled experts, a schedule and a moving baseline: all that a step can depend on.
MODEL = {
    "embedding_dim": 4,
    "cross": {"layers": 1, "rank": 2},
    "experts": {"count": 3, "own": 1, "units": [6], "dropout": 0.2},
    "gate": {"name": "moesart", "num_selected": 2},
    "gates": {
        "dwell": {"name": "dselect_k", "num_selected": 2, "gamma_end": 0.1, "gamma_steps": 100},
        "like": {"name": "sampled"},
    },
    "towers": {"units": [4], "dropout": 0.1},
    "id_dropout": 0.02,
}
# Early stopping ends it some epochs after the best; averaged weights belong to the state.
TRAIN = {
    "decay": "linear",
    "decay_to": 0.8,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "ema": 0.9,
    "epochs": 12,
    "batch_size": 4,
    "learning_rate": 0.1,
    "patience": 2,
    "seed": 3,
    "save_every": 20,
}

# Trains, and kills itself when so many steps are done, or, with -n, when the n-th validation is; 0
# trains to the end.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from multigate.configs.sections.base import parse
from multigate.configs.config import Config
from multigate.model.training import train
from multigate.model.training import loop
from multigate.model.training.loop import TrainingLoop
from multigate.model.training.progress import Display

config, examples, out, last = sys.argv[1:]
advance = Display.advance
done = 0

def count(self, step, loss):
    global done
    advance(self, step, loss)
    done += 1
    if done == int(last):
        os.kill(os.getpid(), signal.SIGKILL)

Display.advance = count
measure = loop.validate
validations = 0

def validate(*arguments):
    global validations
    found = measure(*arguments)
    validations += 1
    if validations == -int(last):
        os.kill(os.getpid(), signal.SIGKILL)
    return found

loop.validate = validate
config = parse(Config, json.loads(Path(config).read_text()), config)
train.train(config, Path(examples), Path(out), progress=False, resume=True)
"""


def make(tiny: Any, **changes: Any) -> Any:
    return tiny.make_config(model=MODEL, train=TRAIN | changes)


@pytest.fixture(scope="module")
def undisturbed(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "c"
    train.train(make(tiny), tiny.examples, out, progress=False)
    return out


def start(config: Any, examples: Path, out: Path, last: int, **environment: str) -> Any:
    """Train in a process of its own."""
    path = out.parent / f"{out.name}.json"
    path.write_text(config.model_dump_json())
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(examples), str(out), str(last)],
        env=os.environ | environment,
        cwd=Path(__file__).parents[3],
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(config: Any, examples: Path, out: Path, last: int, **environment: str) -> None:
    """Train until the process is killed."""
    process = start(config, examples, out, last, **environment)
    _, stderr = process.communicate(timeout=800)
    assert process.returncode == -signal.SIGKILL, stderr[-2000:]


def finish(config: Any, examples: Path, out: Path, **environment: str) -> None:
    """Train to the end."""
    process = start(config, examples, out, 0, **environment)
    _, stderr = process.communicate(timeout=800)
    assert process.returncode == 0, stderr[-2000:]


def assert_same(first: Path, second: Path) -> None:
    """The same weights, bit for bit, and the same losses."""
    a, b = (weights.copy(checkpoint.load(folder).ranker) for folder in (first, second))
    assert a.keys() == b.keys()
    for name, values in a.items():
        np.testing.assert_array_equal(values, b[name], err_msg=name)
    for one, other in zip(*map(checkpoint.read_history, (first, second)), strict=True):
        for key in ("loss", "val_loss", "regularisation", "tasks", "gates"):
            assert one[key] == other[key], key
    names = [sorted(path.name for path in folder.iterdir()) for folder in (first, second)]
    assert names[0] == names[1]


class Interrupt:
    """Interrupts a training of this process after so many calls of the progress bar."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        advance, self.left = Display.advance, after

        def count(display: Display, step: int, loss: float) -> None:
            advance(display, step, loss)
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

        monkeypatch.setattr(Display, "advance", count)


@pytest.fixture(scope="module")
def interrupted(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training that was interrupted in the second epoch leaves: its working folder."""
    # TensorFlow comes back every 16 steps: five times an epoch.
    out = tmp_path_factory.mktemp("interrupted") / "c"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        Interrupt(patch, 7)
        train.train(make(tiny), tiny.examples, out, progress=False)
    assert [path.name for path in out.parent.iterdir()] == [".c.training"]
    return out.with_name(".c.training")


@pytest.mark.long  # other kills are among the slow tests
def test_killed_in_validation_when_early_stopping_had_begun_to_count(
    tiny: Any, undisturbed: Path, tmp_path: Path
) -> None:
    """The second epoch without a better quality, its steps done, its validation lost."""
    history = checkpoint.read_history(undisturbed)
    best = max(history, key=lambda epoch: epoch["val_quality"])["epoch"]
    assert len(history) == best + 2 < TRAIN["epochs"]
    config, out = make(tiny), tmp_path / "c"
    killed(config, tiny.examples, out, -len(history))
    assert not out.exists()
    assert len(list((tmp_path / ".c.training").glob("snapshot-*.npz"))) in (1, 2)
    result = train.train(config, tiny.examples, out, progress=False, resume=True)
    assert result["resumed"] == {"epoch": best + 2, "step": 64}  # the last snapshot before
    assert (result["epochs"], result["best_epoch"]) == (best + 2, best)
    assert_same(undisturbed, out)
    assert [path.name for path in tmp_path.iterdir() if path.name != "c.json"] == ["c"]


def test_nothing_is_kept_without_a_snapshot(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interrupt(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        train.train(make(tiny), tiny.examples, tmp_path / "c", progress=False, resume=True)
    assert not list(tmp_path.iterdir())


def test_a_damaged_snapshot_falls_back_to_the_one_before(
    tiny: Any,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "c"
    Interrupt(monkeypatch, 10)
    with pytest.raises(KeyboardInterrupt):
        train.train(make(tiny), tiny.examples, out, progress=False)
    newest = max((tmp_path / ".c.training").glob("snapshot-*.npz"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    result = train.train(make(tiny), tiny.examples, out, resume=True)
    # The newest is of step 64 of the second epoch, the one before of step 48.
    assert result["resumed"] == {"epoch": 2, "step": 48}
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == f"{newest.name} is damaged: continuing from the one before it"
    assert shown[1] == "continuing at epoch 2, step 48"
    assert_same(undisturbed, out)


@pytest.mark.long  # another damaged file is among the slow tests
def test_damaged_best_weights_damage_the_snapshot(
    tiny: Any, undisturbed: Path, interrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    shutil.copytree(interrupted, tmp_path / interrupted.name)
    (best,) = (tmp_path / interrupted.name).glob("best-*.h5")
    best.write_bytes(best.read_bytes()[:-1])
    result = train.train(make(tiny), tiny.examples, out, progress=False, resume=True)
    # The newest snapshot, of the first epoch's end, names them; the one before does not.
    assert result["resumed"] == {"epoch": 1, "step": 64}
    assert_same(undisturbed, out)


def test_what_is_not_continued_and_what_is(
    tiny: Any, undisturbed: Path, interrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    shutil.copytree(interrupted, tmp_path / interrupted.name)
    with pytest.raises(DataError, match=r"holds an interrupted training .* --resume, or remove"):
        train.train(make(tiny), tiny.examples, out, progress=False)
    other = make(tiny, learning_rate=0.03)
    with pytest.raises(ModelError, match="another configuration; continue it with the same"):
        train.train(other, tiny.examples, out, progress=False, resume=True)
    contract = tiny.config.contract
    turned = {"features": dict(reversed(contract.features.items()))}
    other = make(tiny).model_copy(update={"contract": contract.model_copy(update=turned)})
    with pytest.raises(ModelError, match="another order of features and tasks; continue it"):
        train.train(other, tiny.examples, out, progress=False, resume=True)
    assert snapshots.exist(tmp_path / ".c.training")
    assert train.train(make(tiny), tiny.examples, out, progress=False, resume=True)["resumed"]
    assert_same(undisturbed, out)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_one_process_at_a_time(tiny: Any, interrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    shutil.copytree(interrupted, tmp_path / interrupted.name)
    with Workspace(out, resume=True), pytest.raises(DataError, match="another process is training"):
        train.train(make(tiny), tiny.examples, out, progress=False, resume=True)


def test_the_verb_continues(tiny: Any, undisturbed: Path, tmp_path: Path, capfd: Any) -> None:
    """After the last steps of an epoch, before its validation."""
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(make(tiny).model_dump(mode="json"), sort_keys=False))
    out = tmp_path / "c"
    arguments = ["train", "--config", config, "--examples", tiny.examples, "--out", out]
    with pytest.MonkeyPatch.context() as patch:
        Interrupt(patch, 5)
        assert main([str(argument) for argument in arguments]) == 130
    assert main([str(argument) for argument in arguments]) == 2
    assert "--resume" in capfd.readouterr().err
    assert main([str(argument) for argument in [*arguments, "--resume"]]) == 0
    assert_same(undisturbed, out)


@pytest.mark.long  # a snapshot that cannot be read is among the slow tests
def test_a_full_disk_keeps_what_was_saved(
    tiny: Any, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "c"
    save, calls = snapshots.save, []

    def full(folder: Path, snapshot: Any) -> Path:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return save(folder, snapshot)

    monkeypatch.setattr(snapshots, "save", full)
    with pytest.raises(OSError, match="No space left"):
        train.train(make(tiny), tiny.examples, out, progress=False)
    result = train.train(make(tiny), tiny.examples, out, progress=False, resume=True)
    assert result["resumed"] == {"epoch": 1, "step": 48}
    assert_same(undisturbed, out)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_killed_again_and_again(tiny: Any, tmp_path: Path, backend: str) -> None:
    """Killed at two random steps, then at a random moment."""
    draw = random.Random(2)
    # JAX compiles every shape of a batch: 12 steps of 25 rows. TensorFlow comes back every 16.
    config = make(tiny, batch_size=25 if backend == "jax" else 12, epochs=2, save_every=3)
    run = (config, tiny.examples)
    finish(*run, tmp_path / "whole", KERAS_BACKEND=backend)
    out = tmp_path / "c"
    for _ in range(2):
        last = draw.randrange(4, 11) if backend == "jax" else draw.randrange(1, 3)
        killed(*run, out, last, KERAS_BACKEND=backend)
    process = start(*run, out, 0, KERAS_BACKEND=backend)
    time.sleep(draw.uniform(5, 10))
    process.kill()
    process.communicate()
    if not out.exists():
        finish(*run, out, KERAS_BACKEND=backend)
    assert_same(tmp_path / "whole", out)


@pytest.mark.long  # test_every_kind interrupts a training with a teacher
def test_what_the_teacher_teaches_is_read_from_the_history(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranker passes it in the first epoch: from then on rows with a label alone learn."""

    def fit(tables: Any, *given: Any) -> tuple[np.ndarray, ...]:
        return tuple(np.full(labels.shape, 0.2, np.float32) for labels in tables.labels)

    def compared(*given: Any) -> dict[str, list[str]]:
        return {"outgrown": [], "passed": ["like"]}

    monkeypatch.setattr(teacher, "_fit", fit)
    monkeypatch.setattr(TrainingLoop, "_compared", compared)
    config = make(tiny, epochs=2, teacher={})
    train.train(config, tiny.examples, tmp_path / "whole", progress=False)
    Interrupt(monkeypatch, 8)
    with pytest.raises(KeyboardInterrupt):
        train.train(config, tiny.examples, tmp_path / "c", progress=False)
    result = train.train(config, tiny.examples, tmp_path / "c", progress=False, resume=True)
    assert result["resumed"] == {"epoch": 2, "step": 32}
    assert_same(tmp_path / "whole", tmp_path / "c")
