"""What features from the store, and watching, cost a Rank call.

    python benchmarks/feature_store.py [--items 1000000] [--candidates 500] [--repeats 300]

One query for a user and all candidates, with seven features of both sides: the embedded snapshot
with few items (ids and texts kept as objects) and with many (searched in their files), and Redis,
where redis-server is installed. Beside them what every call pays for the watch when it is not
sampled, for the counters of stored and missing values, and for the fields of its log lines.

Medians in microseconds. The last line is JSON.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.sections.base import parse
from multigate.serving.core import logs
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.feature_store.interface import FeatureQuery, FeatureStore, stored_features
from multigate.serving.feature_store.redis_loader import load_snapshot
from multigate.serving.feature_store.redis_store import RedisStore
from multigate.serving.feature_store.snapshot import Snapshot
from multigate.serving.feature_store.snapshot_writer import write_snapshot
from multigate.serving.observe.drift import DriftMonitor

FEATURES = {
    "user_id": {"kind": "id", "side": "user"},
    "country": {"kind": "id", "side": "user", "missing": "indicator"},
    "recent": {"kind": "id_list", "side": "user", "share": "item_id", "max_length": 20},
    "item_id": {"kind": "id", "side": "item"},
    "topic": {"kind": "id", "side": "item"},
    "tags": {"kind": "id_list", "side": "item", "max_length": 5},
    "views": {"kind": "number", "side": "item"},
    "likes": {"kind": "number", "side": "item"},
    "age": {"kind": "number", "side": "item", "missing": "indicator"},
}
TASKS = {"view": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}}
CONTRACT = parse(
    Contract,
    {"user": "user_id", "item": "item_id", "features": FEATURES, "tasks": TASKS},
    "benchmark",
)


def write_examples(folder: Path, items: int, users: int = 1000) -> list[str]:
    """A snapshot of made-up users and items; the items' ids."""
    random = np.random.default_rng(0)
    ids = [str(one) for one in random.choice(2**62, items, replace=False)]
    tags = np.array([f"tag{n:03}" for n in range(500)])
    tables = {
        "users": {
            "user_id": [f"u{n}" for n in range(users)],
            "country": random.choice(["BR", "US", "PT"], users),
            "recent": [random.choice(ids[:1000], 20).tolist() for _ in range(users)],
        },
        "items": {
            "item_id": ids,
            "topic": random.choice(tags[:40], items),
            "tags": tags[random.integers(0, 500, (items, 3))].tolist(),
            **{
                name: pa.array(random.random(items), pa.float32())
                for name in ("views", "likes", "age")
            },
        },
    }
    for source, columns in tables.items():
        (folder / "snapshot" / source).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "snapshot" / source / "part.parquet")
    schema = CONTRACT.schema_fingerprint()
    frozen = FrozenContract(contract=CONTRACT, schema_fingerprint=schema, data_fingerprint="")
    (folder / "contract.json").write_text(frozen.model_dump_json())
    (folder / "manifest.json").write_text('{"name": "benchmark", "cut_off": null}')
    return ids


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """The address of a Redis that ends with the block."""
    socket = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            time.sleep(0.02)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait()


def microseconds(run: Callable[[], Any], repeats: int, times: int = 1) -> float:
    """Median of repeats, each of so many runs."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(times):
            run()
        found.append((time.perf_counter() - started) / times * 1e6)
    return round(statistics.median(found), 2)


def queries(ids: list[str], candidates: int) -> Iterator[FeatureQuery]:
    """Queries for different users and items."""
    random = np.random.default_rng(1)
    names = {side: list(stored_features(CONTRACT, side)) for side in ("user", "item")}
    while True:
        items = np.array(
            [ids[n].encode() for n in random.integers(0, len(ids), candidates)], object
        )
        yield FeatureQuery(b"u%d" % random.integers(1000), names["user"], items, names["item"])


def look_up(store: FeatureStore, ids: list[str], candidates: int, repeats: int) -> float:
    """Median time of a query, in microseconds."""
    source = queries(ids, candidates)
    found = []
    for _ in range(repeats):
        query = next(source)
        started = time.perf_counter()
        answer = store.read(query)
        found.append((time.perf_counter() - started) * 1e6)
        if answer.problem or not answer.columns["views"].present.all():
            raise SystemExit(f"the store does not know what was loaded: {answer.problem}")
    return round(statistics.median(found), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--candidates", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=300)
    options = parser.parse_args()
    schema = CONTRACT.schema_fingerprint()
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for which, count in (("few", 10_000), ("many", options.items)):
            ids = write_examples(root / which, count)
            write_snapshot(root / which, root / f"{which}-store")
            store = Snapshot(root / f"{which}-store", CONTRACT, schema)
            result[f"embedded_{which}"] = look_up(store, ids, options.candidates, options.repeats)
            print(f"embedded, {count} items: {result[f'embedded_{which}']} us")
            if which == "few" and shutil.which("redis-server"):
                with redis(root) as address:
                    load_snapshot(root / which, address)
                    remote = RedisStore(address, "benchmark", CONTRACT, schema, 5.0)
                    result["redis"] = look_up(remote, ids, options.candidates, options.repeats)
                    remote.close()
                print(f"Redis, {count} items: {result['redis']} us")
    metrics = ServerMetrics()
    watch = DriftMonitor(
        ServerOptions(model_name="m", model_base_path=root, watch_rate=1e-9), metrics
    )
    served: Any = None
    result["watch_unsampled"] = microseconds(lambda: watch.add(served, {}, {}), 200, 1000)
    watch.close()
    counts = dict.fromkeys(stored_features(CONTRACT, "item"), 500)
    result["counters"] = microseconds(lambda: metrics.stored.add_all("m", counts), 200, 1000)

    def fields() -> None:
        logs.begin()
        logs.say(request_id="r")
        logs.say(model="m", version=1)
        logs.say(candidates=500)
        logs.end()

    result["log_fields"] = microseconds(fields, 200, 1000)
    for part in ("watch_unsampled", "counters", "log_fields"):
        print(f"{part}: {result[part]} us")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
