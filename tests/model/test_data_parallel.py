"""Two processes that train one model together reach what one process reaches."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.base import parse
from configs.errors import ConfigError, ModelError
from configs.model import TrainConfig
from model import checkpoint, data, data_parallel, feeds, training, weights
from model.data_parallel import Workers
from model.encoding import Encoder

# Trains; kills itself when Keras has come back so many times, never at 0.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from configs.base import parse
from configs.config import Config
from configs.errors import ModelError
from model import training
from model.progress import Display

config, examples, out, last = sys.argv[1:]
advance = Display.advance
left = int(last)

def count(self, step, loss):
    global left
    advance(self, step, loss)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

Display.advance = count
config = parse(Config, json.loads(Path(config).read_text()), config)
try:
    training.train(config, Path(examples), Path(out), progress=False, resume=True)
except ModelError as error:
    sys.exit(f"ours: {error}")
"""

# 300 rows: nine batches of 32 and one of 12; no noise, which each worker would draw for itself.
MODEL = {
    "embedding_dim": 4,
    "experts": {"count": 4, "units": [8]},
    "gate": {"name": "topk", "num_selected": 2},
    "gates": {"like": {"name": "dselect_k", "num_selected": 2, "entropy_weight": 0.01}},
    "towers": {"units": [4]},
}
TRAIN = {"epochs": 2, "batch_size": 32, "learning_rate": 0.01, "seed": 3}


def free_ports(count: int) -> list[int]:
    """Ports that the system picks; all held until all are known."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_workers(folder: Path, lasts: list[int]) -> list[tuple[int, str]]:
    """Train `both.json` in processes that end: status and stderr of each.

    Args:
        folder: where it is, and where `two` becomes the checkpoint.
        lasts: when each kills itself.
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    paths = [str(folder / name) for name in ("both.json", "examples", "two")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *paths, str(last)],
            env=os.environ
            | {
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                )
            },
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, last in enumerate(lasts)
    ]
    try:
        found = []
        for process in processes:
            _, stderr = process.communicate(timeout=240)
            found.append((process.returncode, stderr))
        return found
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_worker_that_never_comes_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    monkeypatch.setattr(data_parallel, "WAIT_S", 0.3)
    with pytest.raises(ModelError, match=rf"worker 1 \({addresses[1]}\) is not there after 0.3 s"):
        data_parallel._meet(addresses, 0)
    with socket.create_server(("127.0.0.1", int(addresses[1].partition(":")[2]))):
        data_parallel._meet(addresses, 0)


@pytest.mark.slow
def test_two_processes_reach_the_loss_of_one(tiny: Any, tmp_path: Path) -> None:
    # Positions are centred over the rows of a worker, so they are left out.
    features = tiny.config.contract.model_dump(mode="json")
    features["features"].pop("position")
    single = tiny.make_config(contract=features, model=MODEL, train=TRAIN)
    tiny.write_examples(tmp_path / "examples", single)
    training.train(single, tmp_path / "examples", tmp_path / "one", progress=False)

    both = tiny.make_config(contract=features, model=MODEL, train=TRAIN | {"data_parallel": True})
    (tmp_path / "both.json").write_text(both.model_dump_json())
    # Worker 1 is killed at the end of the first epoch: the other says so, and both continue.
    (status, stderr), (killed, _) = run_workers(tmp_path, lasts=[0, 1])
    assert killed == -signal.SIGKILL
    assert status == 1
    assert "ours: train.data_parallel: another worker has ended" in stderr
    assert list((tmp_path / ".two.training").glob("snapshot-*.npz"))
    for status, stderr in run_workers(tmp_path, lasts=[0, 0]):
        assert status == 0, stderr[-3000:]
    first, second = map(checkpoint.read_history, (tmp_path / "one", tmp_path / "two"))
    for one, two in zip(first, second, strict=True):
        for key in ("loss", "val_loss", "regularisation"):
            assert two[key] == pytest.approx(one[key], rel=1e-4), key
        for task, losses in one["tasks"].items():
            assert two["tasks"][task]["loss"] == pytest.approx(losses["loss"], rel=1e-4), task
    alone, together = (
        weights.copy(checkpoint.load(tmp_path / name).ranker) for name in ("one", "two")
    )
    for name, values in alone.items():
        np.testing.assert_allclose(together[name], values, atol=2e-3, err_msg=name)
    assert not list(tmp_path.glob(".*"))


class Worker(Workers):
    """A worker without its peers, to look at what it is given."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize("kind", ["memory", "stream"])
def test_workers_share_every_batch(tiny: Any, kind: str) -> None:
    encoder = Encoder.read(tiny.examples)
    contract, statistics = tiny.config.contract, encoder.statistics
    split = data.Split(tiny.examples, "train", encoder)
    options = TrainConfig(memory=0.0 if kind == "stream" else 1.0, seed=2)

    def run(workers: Workers | None) -> list[np.ndarray]:
        feed = feeds.make_feed(split, contract, statistics, 299, options, workers)
        return [np.array(x["user_id"]) for x, _ in feed.epoch(1)]

    whole = run(None)
    parts = [run(Worker(rank, 3)) for rank in range(3)]
    assert [len(batch) for batch in whole] == [299, 1]
    for index, batch in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([part[index] for part in parts]), batch)
    assert [len(part[1]) for part in parts] == [0, 0, 1]  # an empty share is a batch too


def test_what_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"lazy_embeddings": True}, {"precision": "mixed_float16"}):
        with pytest.raises(ConfigError, match="and data_parallel cannot go together"):
            parse(TrainConfig, options | {"data_parallel": True}, "c.yaml")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    with pytest.raises(ModelError, match=r"TF_CONFIG to hold JSON .* received '{\"cluster\": {}}'"):
        Workers()
