"""Cost of embedding tables against the number of ids: rows of a batch, or all rows.

Part one, the table alone: look up a batch's ids, the mean over each example's, a linear layer, MSE,
gradients, update.

    rows        `train.embeddings: rows` of this project
    dense       Adam on all rows, `train.embeddings: dense`; at most a million ids
    torch       PyTorch's `nn.Embedding(sparse=True)` and `SparseAdam`, in the environment that
                --peers names

Part two, a whole training step of a ranker with users, items and a history of 20 items.

Every size reads batches of the same form: ids of 50,000 users or items that lie anywhere in the
table (as hashed ids do), or ids of the whole table, so that every batch brings new ones.
Contenders take turns; the figures are medians of the process's CPU time, with one thread.

    python benchmarks/embeddings.py [--quick] [--peers PYTHON] [--lookup | --memory] [--write]

--lookup measures how fast a column of ids is encoded instead; --memory, in a process for each
size, what a training of the second part adds to the resident memory (RSS), beside the bytes that
its variables (rows, moments, averages) have by their shapes.  Takes four minutes and 9 GiB;
--quick leaves out ten million ids.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.configs.sections.model import TrainConfig
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model.data.vocabulary_index import VocabularyIndex
from multigate.model.optimizer.optimizers import Adam, make_optimizer
from multigate.model.ranker.ranker import Ranker
from multigate.model.ranker.tables import Table

B, K, WIDTH, HISTORY, ACTIVE = 2048, 22, 32, 20, 50_000
MOST_DENSE = 1_000_000
PEER = Path(__file__).with_name("embeddings_torch.py")
PAGE = Path(__file__).parent.parent / "docs" / "results" / "embeddings.md"
Step = Callable[[], float]
"""Makes one step and returns its CPU time in milliseconds."""


def batches(rows: int, ids: str) -> list[np.ndarray]:
    """Codes (B, K) of eight batches.

    Args:
        rows: of the table.
        ids: `same`, of ACTIVE ids, or `all`.
    """
    rng = np.random.default_rng(0)
    if ids == "all":
        return [rng.integers(0, rows, (B, K), np.int32) for _ in range(8)]
    where = np.unique(np.random.default_rng(1).integers(0, rows, 2 * ACTIVE))
    where = np.random.default_rng(2).permutation(where)[:ACTIVE].astype(np.int32)
    return [where[rng.integers(0, len(where), (B, K))] for _ in range(8)]


def timed(step: Callable[[Any], Any], given: Iterator[Any]) -> Step:
    def measure() -> float:
        one = next(given)
        start = time.process_time()
        step(one)
        return 1e3 * (time.process_time() - start)

    return measure


def table_step(rows: int, ids: str, of_rows: bool) -> Step:
    """Part one, of this project."""
    table = Table({"id": rows}, WIDTH, {"id": 0})
    kernel = keras.Variable(np.full((WIDTH, 1), 0.1, np.float32))
    variables = [table.variable, kernel]
    optimizer = Adam()
    if of_rows:
        optimizer.update_rows([table.variable])
    optimizer.build(variables)

    @tf.function
    def step(codes: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            (found,) = table.look_up([("id", codes)])
            loss = tf.reduce_mean((tf.reduce_mean(found, 1) @ kernel.value - 1.0) ** 2)
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return loss

    given = itertools.cycle([tf.constant(codes) for codes in batches(rows, ids)])
    return timed(lambda codes: step(codes).numpy(), given)


def make_ranker(rows: int) -> Ranker:
    history = {"events": ["click"], "last": HISTORY}
    recent = {"kind": "id_list", "side": "user", "share": "item_id", "history": history}
    values = {
        "name": "embeddings",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user", "hash_buckets": rows // 2 - 1},
                "item_id": {"kind": "id", "side": "item", "hash_buckets": rows // 2 - 1},
                "recent": recent | {"max_length": HISTORY},
            },
            "tasks": {
                task: {
                    "group": "engagement",
                    "type": "binary",
                    "label": {"rule": "column", "column": task},
                }
                for task in ("click", "like")
            },
        },
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["log.jsonl"],
                "format": {"type": "jsonl"},
                "columns": {"time": "time", "user": "user_id", "item": "item_id"},
                "known_after": "10m",
            },
            "split": {"by": "time", "validation": 0.1, "test": 0.1},
        },
        "model": {"embedding_dim": WIDTH, "lists": {"match": False}},
    }
    config = parse(Config, values, "benchmark")
    tasks = {
        task: TaskStatistics(count=1, masked=0, mean=0.5, std=0.5) for task in ("click", "like")
    }
    statistics = Statistics(features={}, tasks=tasks, rows={"train": 1, "validation": 1, "test": 1})
    sizes = {"user_id": rows // 2, "item_id": rows // 2}
    return Ranker(config.contract, config.model, sizes, statistics, seed=0)


def ranker_step(rows: int, ids: str) -> Step:
    """Part two: a step as training makes it, with clipping, weight decay and averages."""
    return trained(make_ranker(rows), rows, ids)


def trained(ranker: Ranker, rows: int, ids: str) -> Step:
    """The step of a ranker, which gets its optimiser here."""
    ranker.compile(optimizer=make_optimizer(TrainConfig(), 1000, ranker=ranker))
    ranker.optimizer.build(ranker.trainable_variables)
    labels = tf.constant(np.random.default_rng(3).integers(0, 2, (B, 2)), tf.float32)
    step = tf.function(lambda encoded: ranker.train_step((encoded, labels))["loss"])
    given = []
    for codes in batches(rows // 2, ids):
        encoded = {"user_id": codes[:, 0], "item_id": codes[:, 1], "recent": codes[:, 2:]}
        encoded |= {"recent__length": np.full(B, np.log1p(HISTORY), np.float32)}
        given.append(tf.nest.map_structure(tf.constant, encoded))
    return timed(lambda encoded: step(encoded).numpy(), itertools.cycle(given))


class Peer:
    """PyTorch in another process, which makes one step for each request."""

    def __init__(self, python: str, rows: int, ids: str) -> None:
        self.process = subprocess.Popen(
            [python, str(PEER), str(rows), str(WIDTH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for codes in batches(rows, ids):
            self._write(codes.tobytes())
        self._read()

    def __call__(self) -> float:
        """Make a step; its CPU milliseconds."""
        self._write(b"\n")
        return float(self._read())

    def _write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def _read(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def medians(steps: dict[Any, Step], rounds: int) -> dict[Any, float]:
    """Median CPU milliseconds of each, in turns; the first two rounds warm up."""
    times: dict[Any, list[float]] = {key: [] for key in steps}
    for count in range(rounds + 2):
        for key, step in steps.items():
            measured = step()
            if count > 1:
                times[key].append(measured)
    return {key: float(np.median(found)) for key, found in times.items()}


def look_up(ids: int, values: int = 1_000_000) -> dict[str, float]:
    """Values/s of a column that is encoded against a vocabulary, and seconds to build the index."""
    vocabulary = pa.array(np.char.add("item-", np.arange(ids).astype(str)))
    index = VocabularyIndex(vocabulary)
    start = time.process_time()
    index.find(vocabulary[:1])
    built = time.process_time() - start
    places = np.random.default_rng(0).integers(0, ids, values)
    column = vocabulary.take(pa.array(places))
    seconds = []
    for _ in range(7):
        start = time.process_time()
        found = index.find(column)
        seconds.append(time.process_time() - start)
    assert (found == places).all()
    return {"ids": ids, "build_s": round(built, 2), "values_per_s": round(values / min(seconds))}


def resident() -> dict[str, int]:
    """Bytes of this process that are in memory, now and at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    return {key: 1024 * int(found[key][0]) for key in ("VmRSS", "VmHWM")}


def memory_of(rows: int) -> None:
    """Print what the tables of a ranker add, after some steps, as one JSON line.

    A first ranker with small tables brings in all that does not depend on their size.
    """
    step = ranker_step(10_000, "all")
    for _ in range(4):
        step()
    before = resident()
    ranker = make_ranker(rows)
    step = trained(ranker, rows, "all")
    for _ in range(4):
        step()
    after = resident()
    variables = [*ranker.variables, *ranker.optimizer.variables]
    shapes = sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables)
    now, most = (after[key] - before["VmRSS"] for key in ("VmRSS", "VmHWM"))
    print(json.dumps({"ids": rows, "shapes": shapes, "rss": now, "most": most}))


def measure_memory(sizes: list[int]) -> None:
    """A table of the memory by size, each measured in a process of its own."""
    found = []
    for size in sizes:
        command = [sys.executable, __file__, "--memory-of", str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    print(line(["ids", "variables, MB", "RSS, MB", "difference", "at most"]))
    print("|" + " ---: |" * 5)
    for one in found:
        megabytes = [one[key] / 1e6 for key in ("shapes", "rss", "most")]
        megabytes.insert(2, megabytes[1] - megabytes[0])
        print(line([f"{one['ids']:,}", *(f"{value:,.0f}" for value in megabytes)]))
    print(json.dumps(found))


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="at most a million ids")
    parser.add_argument("--peers", default=os.environ.get("EMBEDDINGS_PEERS"))
    parser.add_argument("--lookup", action="store_true", help="measure the encoding of ids")
    parser.add_argument("--memory", action="store_true", help="measure the memory of tables")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)  # see `measure_memory`
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write docs/results/embeddings.md")
    given = parser.parse_args()
    sizes = [100_000, 1_000_000] + ([] if given.quick else [10_000_000])
    if given.lookup:
        print(json.dumps([look_up(size) for size in sizes]))
        return
    if given.memory_of:
        memory_of(given.memory_of)
        return
    if given.memory:
        measure_memory(sizes)
        return
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    found: dict[tuple[str, str, int], float] = {}
    for ids in ("same", "all"):
        steps: dict[Any, Step] = {}
        peers = []
        for size in sizes:
            steps["rows", ids, size] = table_step(size, ids, of_rows=True)
            if size <= MOST_DENSE and ids == "same":
                steps["dense", ids, size] = table_step(size, ids, of_rows=False)
            if given.peers:
                peers.append(Peer(given.peers, size, ids))
                steps["torch", ids, size] = peers[-1]
        found |= medians(steps, given.rounds)
        for peer in peers:
            peer.close()
        del steps
        found |= medians(
            {("ranker", ids, size): ranker_step(size, ids) for size in sizes}, given.rounds
        )
    report = [line(["step", "ids", *(f"{size:,}, ms" for size in sizes), "most / fewest"])]
    report.append("| --- | --- |" + " ---: |" * (len(sizes) + 1))
    for what, ids in dict.fromkeys((what, ids) for what, ids, _ in found):
        row = [found.get((what, ids, size)) for size in sizes]
        known = [ms for ms in row if ms is not None]
        cells = ["" if ms is None else f"{ms:.2f}" for ms in row]
        report.append(line([what, ids, *cells, f"{known[-1] / known[0]:.2f}"]))
    ratios = {
        f"ranker_{ids}_ids": round(
            found["ranker", ids, sizes[-1]] / found["ranker", ids, sizes[0]], 3
        )
        for ids in ("same", "all")
    }
    ratios["dense_over_rows_1m"] = round(
        found["dense", "same", MOST_DENSE] / found["rows", "same", MOST_DENSE], 1
    )
    if given.peers:
        ratios["torch_over_rows"] = round(
            found["torch", "same", sizes[-1]] / found["rows", "same", sizes[-1]], 2
        )
    print("\n".join(report))
    if given.write:
        mark = "<!-- end of the measured part -->"
        rest = PAGE.read_text().partition(mark)[2] if PAGE.exists() else "\n"
        head = [
            "# Embedding tables",
            "    python benchmarks/embeddings.py --peers PYTHON --write",
            f"Batches of {B}, {K} ids each, rows of {WIDTH} numbers; CPU ms of one thread.",
            "\n".join(report),
            f"```json\n{json.dumps(ratios)}\n```",
            mark,
        ]
        PAGE.write_text("\n\n".join(head) + rest)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
