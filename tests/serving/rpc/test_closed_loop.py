"""The loop closed: ids ranked, features from the store, logged as used, examples of the next model.

Feedback stands in files of its own and finds the answer that it belongs to by the request's id.
"""

import json
import time

import polars as pl
import pytest
import yaml

from multigate.configs.contract import FrozenContract
from multigate.serving.client.rank_client import RankClient
from multigate.serving.feature_store.snapshot_writer import write_snapshot
from multigate.verbs.command import main

USERS = {
    "user_id": ["u0", "u1", "u2"],
    "country": ["BR", None, "PT"],
    "age": [30.5, 41.0, None],
    "segment": [4, None, 5],
    "recent": [["i1", "i2", "i3", "i4", "i5"], ["i9"], ["i7", "i1"]],
}
ITEMS = {
    "item_id": ["i1", "i2", "i3"],
    "topic": ["news", None, "sport"],
    "length": [1.5, 2.5, 3.25],
    "tags": [["a", "b"], ["c"], ["d", "e"]],
}
REQUESTS = [f"r{n}" for n in range(12)]
CLICKS = {("r3", "i1"), ("r7", "i2"), ("r4", "i3")}


@pytest.fixture
def base(tmp_path, publish, contract):
    """A version with a snapshot of these users and items."""
    examples = tmp_path / "snapshot-of"
    for source, columns in (("users", USERS), ("items", ITEMS)):
        (examples / "snapshot" / source).mkdir(parents=True)
        pl.DataFrame(columns, schema_overrides={"age": pl.Float32}).write_parquet(
            examples / "snapshot" / source / "part.parquet"
        )
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint="0" * 16,
    )
    (examples / "contract.json").write_text(frozen.model_dump_json())
    (examples / "manifest.json").write_text('{"cut_off": null}')
    folder = tmp_path / "models"
    folder.mkdir()
    publish(folder, 1, lambda version: write_snapshot(examples, version / "assets.extra/snapshot"))
    return folder


@pytest.fixture
def config(tmp_path, contract):
    """Of the next model: its features are the logged ones, its label is the click."""
    values = contract.model_dump(mode="json", exclude_unset=True)
    click = {"group": "engagement", "type": "binary", "label": {"rule": "event"}}
    click["label"]["events"] = ["click"]
    values["tasks"] = {"click": click}
    ids = {"user": "user_id", "item": "item_id"}
    log = {
        "shape": "events",
        "impression": "impression",
        "files": ["shown/small/*.parquet"],
        "format": {"type": "parquet"},
        "time_unit": "us",
        "columns": {"time": "ranked/time", "request": "ranked/request_id", **ids},
        "feedback": {
            "files": ["feedback/*.jsonl"],
            "format": {"type": "jsonl"},
            "time_unit": "s",
            "columns": {"time": "time", "event": "event", "request": "request_id", **ids},
        },
    }
    split = {"by": "random", "validation": 0.1, "test": 0.1}
    path = tmp_path / "next.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": "next",
                "contract": values,
                "pipeline": {"log": log, "attribute_by": "request", "split": split},
            }
        )
    )
    return path


def test_what_was_ranked_by_ids_alone_becomes_examples(base, config, tmp_path, run_server, capsys):
    data = tmp_path / "data"
    orders = {}
    with (
        run_server(base, impression_log=data / "shown") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        for number, request in enumerate(REQUESTS):
            ranked = client.rank(
                "small",
                user={"user_id": f"u{number % 3}"} | ({"age": 99.0} if request == "r7" else {}),
                context={"hour": number},
                item_ids=ITEMS["item_id"],
                request_id=request,
            )
            orders[request] = [item["item_id"] for item in ranked]
    # All feedback comes after the last answer: the time alone would give it to the latest one.
    feedback = [
        {
            "time": int(time.time()) + 60,
            "user_id": f"u{int(request[1:]) % 3}",
            "item_id": item,
            "event": "click",
            "request_id": request,
        }
        for request, item in sorted(CLICKS)
    ]
    (data / "feedback").mkdir()
    (data / "feedback" / "day.jsonl").write_text("\n".join(map(json.dumps, feedback)))

    arguments = ["examples", "--config", str(config), "--data", str(data)]
    assert main([*arguments, "--out", str(tmp_path / "examples")]) == 0
    capsys.readouterr()
    parts = [tmp_path / "examples" / split for split in ("train", "validation", "test")]
    rows = pl.concat([pl.read_parquet(part / "*.parquet") for part in parts]).to_dicts()
    assert len(rows) == len(REQUESTS) * len(ITEMS["item_id"])
    for row in rows:
        request, item = row["meta/request"], row["item_id"]
        number = int(request[1:])
        user, place = number % 3, ITEMS["item_id"].index(item)
        assert row["label/click"] == float((request, item) in CLICKS)
        assert row["position"] == orders[request].index(item)
        assert (row["user_id"], row["hour"]) == (f"u{user}", number)
        for name in ("country", "age", "segment"):
            expected = 99.0 if (request, name) == ("r7", "age") else USERS[name][user]
            assert row[name] == expected, name
        assert row["recent"] == USERS["recent"][user][-4:]  # the contract keeps four
        for name in ("topic", "length", "tags"):
            assert row[name] == ITEMS[name][place], name
