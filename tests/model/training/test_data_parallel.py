"""Processes and devices that train one model together reach what one process reaches."""

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
from tests.ports import free_port

from multigate.configs.errors import ConfigError, ModelError
from multigate.configs.sections.base import parse
from multigate.configs.sections.model import TrainConfig
from multigate.model.backend import peers
from multigate.model.backend.workers import Workers
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data import examples, feeds
from multigate.model.data.encoding import Encoder
from multigate.model.optimizer.optimizers import make_optimizer
from multigate.model.training import train
from multigate.model.training.loop import TrainingLoop
from multigate.model.training.workspace import Workspace

# Trains; kills itself when Keras has come back so many times, never at 0.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from multigate.configs.sections.base import parse
from multigate.configs.config import Config
from multigate.configs.errors import ModelError
from multigate.model.training import train
from multigate.model.training.progress import Display

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
    train.train(config, Path(examples), Path(out), progress=False, resume=True)
except ModelError as error:
    sys.exit(f"ours: {error}")
"""

# 300 rows: nine batches of 32 and one of 12; no noise, because each worker draws its own.
MODEL = {
    "embedding_dim": 4,
    "id_dropout": 0.0,
    "experts": {"count": 4, "units": [8]},
    "gate": {"name": "topk", "num_selected": 2},
    "gates": {"like": {"name": "dselect_k", "num_selected": 2, "entropy_weight": 0.01}},
    "towers": {"units": [4]},
    "factors": {"width": 2},
}
TRAIN = {
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 0.01,
    "seed": 3,
    "weight_decay": 0.1,
    "clip_norm": 0.5,  # of the summed gradient
    "ema": 0.9,
}


def run_all(folder: Path, environments: list[dict[str, str]], lasts: list[int]) -> list[Any]:
    """Train `both.json` in processes that end: status and stderr of each.

    Args:
        folder: where it is, and where `two` becomes the checkpoint.
        environments: what each process has in its environment besides.
        lasts: when each kills itself.
    """
    paths = [str(folder / name) for name in ("both.json", "examples", "two")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *paths, str(last)],
            env=os.environ | environment,
            cwd=Path(__file__).parents[3],
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment, last in zip(environments, lasts, strict=True)
    ]
    try:
        found = []
        for process in processes:
            _, stderr = process.communicate()
            found.append((process.returncode, stderr))
        return found
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()


def workers() -> list[dict[str, str]]:
    """Environments of two processes on TensorFlow."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in (free_port(), free_port())]}
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


def processes() -> list[dict[str, str]]:
    """Environments of two processes on JAX."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in (free_port(), free_port()))
    prefix = "KERAS_DISTRIBUTION_"
    return [
        JAX | {f"{prefix}JOB_ADDRESSES": addresses, f"{prefix}PROCESS_ID": str(index)}
        for index in range(2)
    ]


def assert_alike(first: Path, second: Path, weights_atol: float) -> None:
    """Two checkpoints of the same training but for the order of sums."""
    for one, two in zip(*map(checkpoint.read_history, (first, second)), strict=True):
        for key in ("loss", "val_loss", "regularisation"):
            assert two[key] == pytest.approx(one[key], rel=1e-4), key
        for task, losses in one["tasks"].items():
            assert two["tasks"][task]["loss"] == pytest.approx(losses["loss"], rel=1e-4), task
    alone, together = (weights.copy(checkpoint.load(path).ranker) for path in (first, second))
    for name, values in alone.items():
        np.testing.assert_allclose(together[name], values, atol=weights_atol, err_msg=name)


def test_a_worker_that_never_comes_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = [f"127.0.0.1:{port}" for port in (free_port(), free_port())]
    monkeypatch.setattr(peers, "WAIT_S", 0.3)
    message = rf"process 1 \({addresses[1]}\) did not answer within 0.3 s"
    with pytest.raises(ModelError, match=message), peers.wait_for_peers(addresses, 0):
        pass
    ports = [int(address.partition(":")[2]) for address in addresses]
    with socket.create_server(("127.0.0.1", ports[1])), peers.wait_for_peers(addresses, 0):
        # Another may come later, and finds this one.
        socket.create_connection(("127.0.0.1", ports[0])).close()


@pytest.mark.slow
def test_two_processes_reach_the_loss_of_one(tiny: Any, tmp_path: Path) -> None:
    # Positions are centred over the rows of a worker, so they are left out.
    features = tiny.config.contract.model_dump(mode="json")
    features["features"].pop("position")
    single = tiny.make_config(contract=features, model=MODEL, train=TRAIN)
    tiny.write_examples(tmp_path / "examples", single)
    train.train(single, tmp_path / "examples", tmp_path / "one", progress=False)

    both = tiny.make_config(contract=features, model=MODEL, train=TRAIN | {"data_parallel": True})
    (tmp_path / "both.json").write_text(both.model_dump_json())
    # Worker 1 is killed at the end of the first epoch: the other says so, and both continue.
    (status, stderr), (killed, _) = run_all(tmp_path, workers(), lasts=[0, 1])
    assert killed == -signal.SIGKILL
    assert status == 1
    assert "ours: train.data_parallel: another process has ended" in stderr
    assert list((tmp_path / ".two.training").glob("snapshot-*.npz"))
    for status, stderr in run_all(tmp_path, workers(), lasts=[0, 0]):
        assert status == 0, stderr[-3000:]
    # Adam divides a gradient near zero by its own size, and with it its rounding error.
    assert_alike(tmp_path / "one", tmp_path / "two", weights_atol=2e-3)
    assert not list(tmp_path.glob(".*"))


# What depends on the batch as a whole: noise, balance losses, who is chosen, centred positions.
JAX_MODEL = {
    "embedding_dim": 4,
    "experts": {"count": 2, "units": [4]},
    "gate": {"name": "noisy_topk", "num_selected": 1, "importance_weight": 0.1},
    "gates": {"like": {"name": "expert_choice"}},
    "towers": {"units": []},
}


@pytest.fixture(scope="module")
def on_jax(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with examples, `both.json`, and `one`, what one device makes of them."""
    folder = tmp_path_factory.mktemp("on_jax")
    contract = tiny.config.contract.model_dump(mode="json")
    contract["tasks"].pop("dwell")
    # Batches of 20 rows and one of 5, which two devices cannot divide; 15 rows to validate.
    options = {"epochs": 2, "batch_size": 20, "learning_rate": 0.01, "seed": 3}
    for name, together in (("one", False), ("both", True)):
        config = tiny.make_config(
            contract=contract, model=JAX_MODEL, train=options | {"data_parallel": together}
        )
        (folder / f"{name}.json").write_text(config.model_dump_json())
    tiny.write_examples(folder / "examples", config, rows=75)
    arguments = [str(folder / name) for name in ("one.json", "examples", "one")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments, "0"],
        env=os.environ | JAX,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.long
def test_two_devices_of_one_process_reach_the_loss_of_one(on_jax: Path) -> None:
    two = JAX | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ((status, stderr),) = run_all(on_jax, [two], lasts=[0])
    assert status == 0, stderr[-3000:]
    assert_alike(on_jax / "one", on_jax / "two", weights_atol=2e-3)
    (on_jax / "two").rename(on_jax / "two_devices")


@pytest.mark.long
def test_two_processes_on_jax_reach_the_loss_of_one(on_jax: Path) -> None:
    # Process 1 is killed after the first epoch's three steps and one more.
    (status, stderr), (killed, _) = run_all(on_jax, processes(), lasts=[0, 4])
    assert killed == -signal.SIGKILL
    assert status != 0
    assert "ours: train.data_parallel: another process has ended" in stderr
    assert list((on_jax / ".two.training").glob("snapshot-*.npz"))
    for status, stderr in run_all(on_jax, processes(), lasts=[0, 0]):
        assert status == 0, stderr[-3000:]
    assert_alike(on_jax / "one", on_jax / "two", weights_atol=2e-3)
    assert not list(on_jax.glob(".*"))


class Worker(Workers):
    """A worker without its peers, to look at what it is given."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.slow
def test_workers_draw_different_noise_also_after_a_snapshot(tiny: Any, tmp_path: Path) -> None:
    model = {
        "embedding_dim": 4,
        "experts": {"count": 4, "units": [8], "dropout": 0.5},
        "gate": {"name": "noisy_topk", "num_selected": 2},
        "towers": {"units": []},
    }
    config = tiny.make_config(model=model, train=TRAIN)
    encoder = Encoder.read(tiny.examples)
    split = examples.Split(tiny.examples, "train", encoder)
    feed = feeds.make_feed(split, config.contract, encoder.statistics, 32, config.train)
    batch = next(split.read(split.groups)).take(slice(16)).features
    batch = {name: np.repeat(values[:1], 16, axis=0) for name, values in batch.items()}

    def start(worker: Worker | None, work: Workspace) -> TrainingLoop:
        ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=3)
        ranker.workers = worker
        return TrainingLoop(
            ranker, config, encoder.statistics, feed, feed, work, tmp_path, False, False
        )

    def noise(run: TrainingLoop) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the first gate, and what dropout leaves of its task's logits."""
        forward = run.ranker.forward(batch, training=True)
        return np.array(forward.mixed.routings[0].weights), np.array(forward.logits["click"])

    with Workspace(tmp_path / "alone", False) as work:
        alone = start(None, work)
        before, after = noise(alone), noise(alone)
        (work.checkpoint / "file").touch()
    with Workspace(tmp_path / "c", False) as work:
        workers = [start(Worker(rank, 3), work) for rank in range(3)]
        for worker in workers[1:]:
            for name, values in weights.copy(alone.ranker).items():
                np.testing.assert_array_equal(weights.copy(worker.ranker)[name], values, name)
        drawn = [noise(worker) for worker in workers]
        for one, other in zip(drawn[0], before, strict=True):
            np.testing.assert_array_equal(one, other)  # worker 0 draws what one process draws
        for first, second in ((0, 1), (0, 2), (1, 2)):
            for one, other in zip(drawn[first], drawn[second], strict=True):
                assert (one != other).mean() > 0.3, (first, second)
        workers[0].state.step = 1
        workers[0].save()
        for rank in range(3):
            again = start(Worker(rank, 3), work)
            assert again.resumed == {"epoch": 1, "step": 1}
            expected = after if rank == 0 else noise(workers[rank])
            for one, other in zip(noise(again), expected, strict=True):
                np.testing.assert_array_equal(one, other)


class Twin(Worker):
    """One of two workers, the other of which sends the same; notes how many numbers are sent."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.reduced: list[int] = []
        self.gathered: list[int] = []

    def all_reduce(self, values: Any, key: int) -> list[Any]:
        self.reduced.append(sum(int(np.size(value)) for value in values))
        return [2 * value for value in values]

    def _gather(self, value: Any, key: Any) -> Any:
        self.gathered.append(int(np.size(value)))
        return np.concatenate([value, value])


@pytest.mark.parametrize("rows", [2_000, 200_000])
def test_workers_exchange_touched_rows_not_tables(tiny: Any, rows: int) -> None:
    """A message is as long as the batch makes it, however many rows the tables have."""
    contract = tiny.config.contract.model_dump(mode="json")
    for name in ("user_id", "item_id"):
        contract["features"][name]["hash_buckets"] = rows
    config = tiny.make_config(
        contract=contract, model=MODEL | {"wide": None, "factors": None}, train=TRAIN
    )
    encoder = Encoder.read(tiny.examples)
    encoder = Encoder(config.contract, encoder.statistics, encoder.vocabularies)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=3)
    twin = Twin()
    ranker.workers = twin
    ranker.compile(optimizer=make_optimizer(config.train, 10, workers=twin, ranker=ranker))
    ranker.optimizer.build(ranker.trainable_variables)
    split = examples.Split(tiny.examples, "train", encoder)
    batch = next(split.read(split.groups)).take(slice(32))
    x, y = feeds.to_arrays(batch, config.contract, encoder.statistics)
    tables = {id(variable) for variable in ranker.row_variables()}
    dense = [v for v in ranker.trainable_variables if id(v) not in tables]
    before = [np.array(variable) for variable in ranker.row_variables()]
    ranker.train_step((x, y))
    assert max(twin.reduced) == sum(int(np.prod(v.shape)) for v in dense)
    # Tables of width 4: at most 32 users, 32 items and lists of 4, countries and ages.
    most = 32 * (1 + 1 + 4 + 1 + 1)
    moved = [
        int((np.array(variable) != old).any(axis=1).sum())
        for variable, old in zip(ranker.row_variables(), before, strict=True)
    ]
    assert 32 < sum(moved) <= most
    (counts, *messages) = twin.gathered
    assert counts == len(moved)
    longest = sum(16 + 1.125 * touched + 1 for touched in moved)
    assert sum(messages) <= (1 + 4) * longest
    assert sum(messages) >= (1 + 4) * sum(moved)


@pytest.mark.parametrize("kind", ["memory", "stream"])
def test_workers_share_every_batch(tiny: Any, kind: str) -> None:
    encoder = Encoder.read(tiny.examples)
    contract, statistics = tiny.config.contract, encoder.statistics
    split = examples.Split(tiny.examples, "train", encoder)
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
    with pytest.raises(ConfigError, match="and data_parallel cannot go together"):
        parse(TrainConfig, {"precision": "mixed_float16", "data_parallel": True}, "c.yaml")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    with pytest.raises(ModelError, match=r"TF_CONFIG to hold JSON .* received '{\"cluster\": {}}'"):
        Workers()


@pytest.mark.parametrize(
    ("addresses", "process", "count"),
    [
        ("a:1,b:2", "", ""),
        ("a:1,b:2", "2", ""),
        ("a:1,b:2", "0", "3"),
        ("a:1,b", "0", ""),
        ("", "0", "2"),
    ],
)
def test_processes_that_jax_is_told_wrongly(
    monkeypatch: pytest.MonkeyPatch, addresses: str, process: str, count: str
) -> None:
    pytest.importorskip("jax")
    from multigate.model.backend import devices

    for name in ("JOB_ADDRESSES", "PROCESS_ID", "NUM_PROCESSES"):
        monkeypatch.delenv(f"KERAS_DISTRIBUTION_{name}", raising=False)
    assert devices._environment() == (["this process alone"], 0)
    monkeypatch.setenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", "a:1, b:2")
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "1")
    assert devices._environment() == (["a:1", "b:2"], 1)
    monkeypatch.setenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", addresses)
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", process)
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", count)
    with pytest.raises(ModelError, match=r"JOB_ADDRESSES to list host:port of every process"):
        devices._environment()
