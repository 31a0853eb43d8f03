"""Recommend against ranking everything: what retrieving first saves, by the size of the catalogue.

    python benchmarks/recommend.py [--items 4000 1000000] [--calls 200]

Made-up models of real size in a real server, in a process of its own: a candidate model that
compares a user's vector with those of all items (64 wide), and a ranker of four experts and two
tasks over five features, of which the server knows the items' (its embedded snapshot). Per number
of items, side by side, from a caller with one connection:

- `recommend`: the best 10 of 500 retrieved items, in one call;
- `rank`: Rank of 500 given items, so that the difference is retrieval;
- `everything`: Rank of all items, in calls of the 10,000 that one call may have at most; seconds
  until the last of them has answered. Finding the best of all answers is not counted.

Medians in milliseconds. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.sections.base import parse
from multigate.model.data.raw import as_json
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.layout import Layout, default_layout, rank_layout, retrieve_layout
from multigate.serving.feature_store.snapshot_writer import write_snapshot

CONTRACT = parse(
    Contract,
    {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user", "dtype": "int"},
            "recent": {
                "kind": "id_list",
                "side": "user",
                "dtype": "int",
                "share": "item_id",
                "max_length": 20,
            },
            "item_id": {"kind": "id", "side": "item", "dtype": "int"},
            "topic": {"kind": "id", "side": "item", "dtype": "int", "missing": "indicator"},
            "views": {"kind": "number", "side": "item", "missing": "indicator"},
        },
        "tasks": {
            name: {"group": group, "type": "binary", "label": {"rule": "column", "column": name}}
            for name, group in (("view", "engagement"), ("like", "satisfaction"))
        },
    },
    "benchmark",
)
WIDTH, EXPERTS, UNITS = 64, 4, 64
USERS, CANDIDATES, LIMIT = 1000, 500, 10
LARGEST = 10_000  # items of one Rank call
ROWS = 100_000  # of the ranker's embedding, by hash


class Model(tf.Module):
    """Both models' graphs, with random weights."""

    def __init__(self, items: int) -> None:
        super().__init__()
        random = np.random.default_rng(0)

        def variable(*shape: int) -> tf.Variable:
            values = random.standard_normal(shape, dtype=np.float32)
            return tf.Variable(values / np.float32(np.sqrt(shape[0])), trainable=False)

        self.vectors = variable(items, WIDTH)
        self.users, self.ids = variable(USERS, WIDTH), variable(ROWS, WIDTH)
        self.experts = variable(4 * WIDTH, EXPERTS * UNITS)
        self.gates = variable(4 * WIDTH, len(CONTRACT.tasks) * EXPERTS)
        self.heads = variable(UNITS, len(CONTRACT.tasks))
        self.items = items

    def user(self, inputs: dict[str, Any]) -> Any:
        """Vectors (M, 2 * WIDTH)."""
        recent = tf.gather(self.ids, inputs["recent"] % ROWS)
        held = tf.sequence_mask(inputs["recent__length"], tf.shape(recent)[1], tf.float32)
        pooled = tf.reduce_sum(recent * held[:, :, None], 1)
        return tf.concat([tf.gather(self.users, inputs["user_id"] % USERS), pooled], 1)

    def retrieve(self, k: Any, **inputs: Any) -> dict[str, Any]:
        """The candidate model."""
        user = self.user(inputs)
        scores = tf.matmul(user[:, :WIDTH] + user[:, WIDTH:], self.vectors, transpose_b=True)
        scores, places = tf.math.top_k(scores, tf.clip_by_value(k, 0, self.items))
        known = tf.ones_like(inputs["user_id"], tf.bool)
        return {"items": tf.cast(places, tf.int64), "scores": scores, "known": known}

    def rank(self, **inputs: Any) -> dict[str, Any]:
        """The ranker."""
        user = tf.gather(self.user(inputs), inputs["user_index"])
        present = tf.cast(inputs["views__present"], tf.float32)
        known = tf.cast(inputs["topic__present"], tf.float32)
        topic = tf.gather(self.ids, inputs["topic"] % ROWS) * known[:, None]
        item = tf.gather(self.ids, inputs["item_id"] % ROWS) + (inputs["views"] * present)[:, None]
        x = tf.concat([user, item, topic], 1)
        experts = tf.reshape(tf.nn.relu(x @ self.experts), [-1, EXPERTS, UNITS])
        gates = tf.nn.softmax(tf.reshape(x @ self.gates, [-1, len(CONTRACT.tasks), EXPERTS]))
        logits = tf.einsum("nte,neu,ut->nt", gates, experts, self.heads)
        scores = dict(zip(CONTRACT.tasks, tf.unstack(tf.sigmoid(logits), axis=1), strict=True))
        weights = tf.gather(inputs["task_weights"], inputs["user_index"])
        return scores | {"score": tf.reduce_sum(tf.stack([*scores.values()], 1) * weights, 1)}

    def rows(self, **inputs: Any) -> dict[str, Any]:
        """`serving_default`."""
        count = tf.shape(inputs["item_id"])[0]
        weights = tf.ones([count, len(CONTRACT.tasks)])
        return self.rank(**inputs, user_index=tf.range(count), task_weights=weights)


def export(folder: Path, model: Model, layouts: dict[str, tuple[Any, Layout]]) -> Path:
    """A version with a golden request of the last signature; returns its folder."""
    shapes = {0: [], 1: [None], 2: [None, None]}
    signatures, golden = {}, {}
    for name, (function, layout) in layouts.items():
        specs = {
            key: tf.TensorSpec(shapes[what.dimensions], what.dtype, key)
            for key, what in layout.inputs.items()
        }
        signatures[name] = tf.function(function).get_concrete_function(**specs)
        golden = {
            key: (np.zeros if what.role == "index" else np.ones)([1] * what.dimensions, what.dtype)
            for key, what in layout.inputs.items()
        }
    tf.saved_model.save(model, str(folder), signatures)
    answer = signatures[name](**{key: tf.constant(value) for key, value in golden.items()})
    extra = folder / "assets.extra"
    extra.mkdir()
    schema = CONTRACT.schema_fingerprint()
    frozen = FrozenContract(contract=CONTRACT, schema_fingerprint=schema, data_fingerprint="")
    (extra / "contract.json").write_text(frozen.model_dump_json())
    outputs = as_json({key: np.asarray(value) for key, value in answer.items()})
    described = {"signature": name, "inputs": as_json(golden), "outputs": outputs}
    (extra / "golden.json").write_text(json.dumps(described))
    return folder


def write_examples(folder: Path, items: int) -> None:
    """What the pipeline leaves of a snapshot."""
    random = np.random.default_rng(1)
    lists = random.integers(0, items, (USERS, 20)).tolist()
    tables = {
        "users": {"user_id": np.arange(USERS), "recent": lists},
        "items": {
            "item_id": np.arange(items),
            "topic": random.integers(0, 500, items),
            "views": random.random(items, dtype=np.float32),
        },
    }
    for source, columns in tables.items():
        (folder / "snapshot" / source).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "snapshot" / source / "part.parquet")
    schema = CONTRACT.schema_fingerprint()
    frozen = FrozenContract(contract=CONTRACT, schema_fingerprint=schema, data_fingerprint="")
    (folder / "contract.json").write_text(frozen.model_dump_json())
    (folder / "manifest.json").write_text('{"name": "benchmark", "cut_off": null}')


def build(folder: Path, items: int) -> None:
    """Versions of both models, in `ranker` and `candidates`."""
    ranking, finding = Model(1), Model(items)
    for base in ("ranker", "candidates", "examples"):
        (folder / base).mkdir()
    write_examples(folder / "examples", items)
    layouts = {
        "serving_default": (ranking.rows, default_layout(CONTRACT)),
        "rank": (ranking.rank, rank_layout(CONTRACT)),
    }
    ranker = export(folder / "ranker" / "1", ranking, layouts)
    write_snapshot(folder / "examples", ranker / "assets.extra" / "snapshot")
    retrieve = {"retrieve": (finding.retrieve, retrieve_layout(CONTRACT))}
    candidates = export(folder / "candidates" / "1", finding, retrieve)
    popular = {"items": list(range(LIMIT)), "counts": [1] * LIMIT}
    (candidates / "assets.extra" / "popular.json").write_text(json.dumps(popular))


@contextmanager
def served(items: int) -> Iterator[RankClient]:
    """A client of a server with both models."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder, items)
        flags = {
            "model_name": "benchmark",
            "model_base_path": folder / "ranker",
            "candidates_base_path": folder / "candidates",
            "retrieval_timeout_ms": 60_000,
            "recommend_candidates": CANDIDATES,
            "max_candidates": LARGEST,
            "port": 0,
        }
        command = [sys.executable, "-m", "multigate", "serve"]
        process = subprocess.Popen(
            [*command, *(str(part) for key, v in flags.items() for part in (f"--{key}", v))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        try:
            assert process.stdout is not None
            with RankClient(process.stdout.readline().split()[-1], timeout=120) as client:
                yield client
        finally:
            process.terminate()
            process.wait()


def median_ms(call: Callable[[int], Any], calls: int) -> float:
    """Median of so many calls, after a tenth as many that are not counted."""
    times = []
    for number in range(calls + calls // 10 + 1):
        started = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times[-calls:])


def measure(items: int, calls: int) -> dict[str, float]:
    """Medians of the three ways."""
    random = np.random.default_rng(2)
    given = [random.choice(items, CANDIDATES, replace=False).tolist() for _ in range(20)]
    parts = [list(range(start, min(start + LARGEST, items))) for start in range(0, items, LARGEST)]
    with served(items) as client:

        def user(number: int) -> dict[str, Any]:
            return {"user_id": number % USERS}

        def recommend(number: int) -> None:
            answer = client.recommend("benchmark", user=user(number), limit=LIMIT)
            assert answer.source == "RETRIEVED"
            assert len(answer) == LIMIT

        def rank(number: int) -> None:
            ids = given[number % len(given)]
            client.rank("benchmark", user=user(number), item_ids=ids, limit=LIMIT)

        def everything(number: int) -> None:
            for part in parts:
                client.rank("benchmark", user=user(number), item_ids=part, limit=LIMIT)

        found = {
            "recommend": median_ms(recommend, calls),
            "rank": median_ms(rank, calls),
            "everything": median_ms(everything, max(calls // (4 * len(parts)), 3)),
        }
    return found | {"ratio": found["everything"] / found["recommend"]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--items", type=int, nargs="+", default=[4_000, 1_000_000])
    arguments.add_argument("--calls", type=int, default=200)
    options = arguments.parse_args()
    result = {}
    print("| items | Recommend, p50 | Rank of 500 | Rank of everything | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for items in options.items:
        found = result[str(items)] = measure(items, options.calls)
        times = [f"{found[name]:.1f} ms" for name in ("recommend", "rank", "everything")]
        print(f"| {items:,} | {' | '.join(times)} | {found['ratio']:.1f} |", flush=True)
    print(json.dumps({"p50_ms": result, "candidates": CANDIDATES, "calls": options.calls}))


if __name__ == "__main__":
    main()
