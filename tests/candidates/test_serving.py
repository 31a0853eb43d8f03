"""A real ranker and a real candidate model of the same examples, served without any Keras."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from multigate.configs.files import SPLITS
from multigate.serving.client.rank_client import RankClient
from multigate.verbs.command import main

ROOT = Path(__file__).parents[2]
SERVE = """
import argparse, sys
for name in ("keras", "tf_keras", "tensorflow_recommenders", "multigate.candidates",
             "multigate.model", "multigate.pipeline"):
    sys.modules[name] = None
from multigate.serving.core import options
from multigate.serving.rpc import server
parser = argparse.ArgumentParser()
options.add_arguments(parser)
server.serve(options.from_arguments(parser.parse_args()))
"""


@pytest.fixture(scope="module")
def target(trained, small_run):
    base = next((small_run.root / "run").glob("models/*/*/saved_model.pb")).parents[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", SERVE, "--port", "0", "--model_name", "demo"),
            *("--model_base_path", str(base), "--retrieval_timeout_ms", "20000"),
            *("--candidates_base_path", str(trained.version.parent), "--feature_clock", "cut_off"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT / "src")},
    )
    yield process.stdout.readline().split()[-1]
    process.terminate()
    process.communicate()


@pytest.fixture
def question(trained):
    """A user of the test split, and a row's context."""
    contract = trained.config.contract
    parts = [path for split in SPLITS[2:] for path in (trained.examples / split).glob("*.parquet")]
    row = pl.read_parquet(parts[0]).row(0, named=True)
    context = {name: row[name] for name, _ in contract.of_side("context")}
    return {contract.user: row[contract.user]}, context


def test_the_pair_recommends(target, trained, question):
    user, context = question
    contract = trained.config.contract
    snapshot = pl.read_parquet(trained.examples / "snapshot" / "users" / "*.parquet")
    known = snapshot.filter(pl.col(contract.user) == user[contract.user]).row(0, named=True)
    histories = [
        name
        for name, feature in contract.of_side("user")
        if getattr(feature, "share", None) == contract.item
    ]
    seen = {item for name in histories for item in known[name] or []}
    assert seen
    with RankClient(target, timeout=60) as client:
        found = client.recommend("demo", user=user, context=context, candidates=20, limit=5)
        assert (found.source, found.candidates_version) == ("RETRIEVED", 1)
        assert len(found) == 5
        assert not seen & {item["item_id"] for item in found}
        ids = [item["item_id"] for item in found]
        ranked = client.rank("demo", user=user, context=context, item_ids=ids)
        assert [item["item_id"] for item in ranked] == ids
        for one, other in zip(ranked, found, strict=True):
            assert one["score"] == pytest.approx(other["score"], rel=1e-5)
        popular = json.loads((trained.version / "assets.extra/popular.json").read_text())["items"]
        stranger = {contract.user: "nobody" if isinstance(ids[0], str) else -1}
        answer = client.recommend("demo", user=stranger, context=context, candidates=5)
        assert answer.source == "POPULAR"
        assert {item["item_id"] for item in answer} == {*popular[:5]}


def test_the_verb_prints_the_list(target, question, capsys):
    user, context = question
    status = main(
        [
            *("recommend", "--target", target, "--model", "demo", "--user", json.dumps(user)),
            *("--context", json.dumps(context), "--limit", "3", "--timeout", "60", "--json"),
        ]
    )
    assert status == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["source"] == "RETRIEVED"
    assert len(answer["ranked"]) == 3
