"""Texts, vectors and entries of histories, from the raw log to the served scores."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tests.tf_examples import tf_example

from multigate.configs.config import Config
from multigate.configs.contract import FrozenContract
from multigate.configs.sections.base import parse
from multigate.jobs.export import export
from multigate.jobs.scoring.columns import as_bytes, features_of
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import raw_values, take
from multigate.model.data.rows import Rows
from multigate.model.evaluation.scored import score
from multigate.model.training import train, warm_start
from multigate.pipeline import job
from multigate.pipeline.audit import audit
from multigate.serving.client.packing import rank_request
from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.core.layout import default_layout
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import InvalidRequestError
from multigate.serving.feature_store.interface import FeatureQuery, stored_features
from multigate.serving.feature_store.online_features import OnlineFeatures
from multigate.serving.feature_store.snapshot import Snapshot
from multigate.serving.request.rank_request import RequestReader
from multigate.serving.rpc.prediction import check_inputs
from multigate.serving.rpc.server import Server

pytestmark = pytest.mark.slow

START, ROWS = 1_750_000_000, 900
CUT_OFF = START + 600 * ROWS
CONTRACT: dict[str, Any] = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "bio": {"kind": "text", "side": "user", "source": "users", "hash_buckets": 64},
        "taste": {
            "kind": "vector",
            "side": "user",
            "source": "users",
            "size": 2,
            "separator": ";",
            "scale": "unit",
            "missing": "indicator",
        },
        "title": {
            "kind": "text",
            "side": "item",
            "source": "items",
            "hash_buckets": 64,
            "max_length": 4,
        },
        "cover": {
            "kind": "vector",
            "side": "item",
            "source": "items",
            "size": 6,
            "missing": "indicator",
            "project": 3,
        },
        "topic": {"kind": "id", "side": "item", "source": "items", "missing": "indicator"},
        "recent": {
            "kind": "id_list",
            "side": "user",
            "share": "item_id",
            "history": {"events": ["save", "click"], "last": 5, "with": ["event", "age", "topic"]},
            "max_length": 5,
        },
        "saved": {
            "kind": "id_list",
            "side": "user",
            "share": "item_id",
            "history": {"events": ["save"], "last": 3, "with": ["age"]},
            "max_length": 3,
            "pooling": "attention",
        },
        "sound": {"kind": "vector", "side": "item", "size": 3, "missing": "default"},
        "search": {"kind": "text", "side": "context", "ngrams": 1, "hash_buckets": 32},
        "place": {"kind": "vector", "side": "context", "size": 2, "scale": "none"},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
        }
    },
}
TITLES = ["Old news", "O São João de Évora", "東京 NEWS", "Big, big NEWS! 🎉", "", "news: old"]


def make_config(cut_off: int = CUT_OFF, **changes: Any) -> Config:
    values = {
        "name": "kinds",
        "contract": CONTRACT,
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["log.jsonl"],
                "format": {"type": "jsonl"},
                "columns": {"time": "time", "user": "user_id", "item": "item_id"},
                "known_after": "10m",
            },
            "users": {"files": ["users.csv"], "key": "user_id", "format": {"type": "csv"}},
            "items": {"files": ["items.parquet"], "key": "item_id", "format": {"type": "parquet"}},
            "split": {"by": "time", "validation": 0.2, "test": 0.2},
            "cut_off": datetime.fromtimestamp(cut_off, UTC).isoformat(),
            "hold_back": False,
        },
        "model": {
            "embedding_dim": 4,
            "experts": {"count": 4, "units": [8]},
            "gate": {"name": "topk", "num_selected": 2},
            "towers": {"units": [4]},
        },
        "train": {"epochs": 1, "batch_size": 64, "learning_rate": 0.01},
        "export": {"items": "precomputed", "calibration": "none"},
    }
    return parse(Config, values | changes, "kinds.yaml")


def write_logs(folder: Path, rows: int = ROWS) -> None:
    """A log with texts and vectors in JSON, CSV (as text) and Parquet (of fixed size).

    At the cut-off every user sees one more item.
    """
    rng = np.random.default_rng(5)
    folder.mkdir()
    users, items = [f"u{n}" for n in range(30)], [f"i{n}" for n in range(24)]
    sounds = rng.normal(3, 2, (24, 3)).astype(np.float32).tolist()
    sounds[5] = None
    with (folder / "log.jsonl").open("w") as file:
        for at in range(rows + 30):
            item = int(rng.integers(24))
            row = {
                "time": START + at * 600 if at < rows else CUT_OFF,
                "user_id": users[rng.integers(30) if at < rows else at - rows],
                "item_id": items[item],
                "click": int(rng.random() < (0.7 if item % 3 else 0.2)),
                "save": int(rng.random() < 0.2),
                "search": rng.choice(["café", "CAFÉ preto", "tea ☕", ""]).item(),
                "place": rng.normal(size=2).round(3).tolist(),
                "sound": sounds[item],
            }
            file.write(json.dumps(row) + "\n")
    lines = ["user_id,bio,taste"]
    lines += [
        f"{u},Likes {n % 5} CATS,{n % 4 or ''}{';-1.5' * bool(n % 4)}" for n, u in enumerate(users)
    ]
    (folder / "users.csv").write_text("\n".join(lines[:-2]) + "\n")  # not of all users
    covers = rng.normal(2, [1, 2, 3, 4, 5, 6], (24, 6)).astype(np.float32)
    covers = [None if n % 7 == 3 else row for n, row in enumerate(covers.tolist())]
    table = pl.DataFrame(
        {
            "item_id": items,
            "topic": [None if n % 6 == 2 else f"t{n % 4}" for n in range(24)],
            "title": [TITLES[n % 6] for n in range(24)],
            "cover": pl.Series(covers, dtype=pl.List(pl.Float32)).list.to_array(6),
        }
    )
    table.write_parquet(folder / "items.parquet")


class Run(NamedTuple):
    config: Config
    logs: Path
    examples: Path
    checkpoint: Path
    version: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("kinds")
    config = make_config()
    write_logs(root / "logs")
    job.run(config, root / "logs", root / "examples")
    train.train(config, root / "examples", root / "checkpoint", progress=False)
    export(root / "checkpoint", root / "examples", root / "models")
    return Run(config, root / "logs", root / "examples", root / "checkpoint", root / "models/1")


@pytest.fixture(scope="module")
def rows(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Examples at the cut-off, which the snapshot is of: those of a run of one second more."""
    folder = tmp_path_factory.mktemp("probes") / "examples"
    job.run(make_config(CUT_OFF + 1), run.logs, folder)
    table = pq.read_table(folder / "test")
    found = table.filter(pc.field("meta/time") == datetime.fromtimestamp(CUT_OFF, UTC))
    assert found.num_rows == 30
    return found


@pytest.fixture(scope="module")
def signatures(run: Run) -> Any:
    return tf.saved_model.load(str(run.version)).signatures


def features(contract: Any, *sides: Any) -> list[str]:
    return [name for name, _ in contract.of_side(*(sides or ("user", "context", "item")))]


def tensors(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tf.constant(v, tf.string if v.dtype == object else None) for name, v in raw.items()
    }


@pytest.fixture(scope="module")
def expected(run: Run, rows: Any, signatures: Any) -> np.ndarray:
    """The exported model's scores of the rows."""
    contract = run.config.contract
    raw = raw_values(contract, rows, features(contract))
    return signatures["serving_default"](**tensors(raw))["click"].numpy()


def test_the_examples_hold_what_the_sources_say(run: Run) -> None:
    examples = pl.read_parquet(run.examples / "train")
    assert examples.schema["cover"] == pl.List(pl.Float32)
    items = pl.read_parquet(run.logs / "items.parquet")
    joined = examples.join(items, on="item_id", how="left", maintain_order="left")
    assert joined["cover"].to_list() == joined["cover_right"].to_list()
    titles = joined["title_right"].replace("", None)  # an empty text is missing
    assert joined["title"].to_list() == titles.to_list()
    tastes = {tuple(t) if t is not None else None for t in examples["taste"].to_list()}
    assert tastes == {None, (1.0, -1.5), (2.0, -1.5), (3.0, -1.5)}
    assert audit.audit(run.config, run.logs, run.examples)["examples"] > 100
    report = json.loads((run.examples / "report.json").read_text())["features"]
    assert report["cover"]["coverage"] == pytest.approx(
        1 - examples["cover"].is_null().mean(), abs=0.05
    )
    assert len(report["cover"]["edges"]) == 9
    assert report["search"]["shares"].keys() == {"", "1", "2"}


def test_vectors_are_standardised_by_the_training_split(run: Run) -> None:
    examples = pl.read_parquet(run.examples / "train")
    covers = np.array(examples["cover"].drop_nulls().to_list())
    encoder = Encoder.read(run.examples)
    encoded = encoder(pq.read_table(run.examples / "train"))
    found = encoded["cover"][encoded["cover__present"] == 1]
    np.testing.assert_allclose(
        found, (covers - covers.mean(0)) / covers.std(0), rtol=1e-3, atol=1e-5
    )
    assert not encoded["cover"][encoded["cover__present"] == 0].any()
    norms = np.linalg.norm(encoded["taste"], axis=1)
    np.testing.assert_allclose(norms, encoded["taste__present"], atol=1e-6)


def test_the_version_scores_as_the_checkpoint(run: Run, rows: Any, expected: np.ndarray) -> None:
    found = score(run.checkpoint, Rows(run.examples, rows)).scores["click"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert np.std(expected) > 1e-4


def test_tf_examples_score_as_their_rows(
    run: Run, rows: Any, signatures: Any, expected: np.ndarray
) -> None:
    names = [name for name, _ in run.config.contract.of_side("user", "item", "context")]
    examples = [tf_example(rows, row, names) for row in range(len(rows))]
    inputs = tf.constant(examples, tf.string)
    found = signatures["classify"](inputs)["scores"][:, 0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_examples_and_tensors_say_of_entries_must_fit_the_history(
    run: Run, rows: Any, signatures: Any
) -> None:
    """As in Rank: one value for each entry, or none, and no empty id beside them."""
    names = [name for name, _ in run.config.contract.of_side("user", "item", "context")]
    whole = tf.train.Example.FromString(tf_example(rows, 0, names))
    scores = []
    uneven = "recent__age: expected as many values as recent"
    empty = ("recent: an entry is an empty text", "'recent': value 2 of row 0 is an empty text")
    for ids, ages, wrong in (
        ([b"i1", b"i2"], [70, 5], None),
        ([b"i1", b"i2"], [], None),
        ([b"i1", b"", b"i2"], [], None),
        ([b"i1", b"i2"], [70], (uneven, "'recent__age': expected 2 values, one for each")),
        ([b"i1", b"", b"i2"], [70, 5], (uneven, "'recent__age': expected 3 values, one for")),
        ([b"i1", b"", b"i2"], [70, 30, 5], empty),
    ):
        whole.features.feature["recent"].bytes_list.value[:] = ids
        for other, values in (("recent__event", []), ("recent__topic", [])):
            whole.features.feature[other].bytes_list.value[:] = values
        whole.features.feature["recent__age"].int64_list.value[:] = ages
        inputs = tf.constant([whole.SerializeToString()], tf.string)
        if wrong is None:
            scores.append(signatures["classify"](inputs)["scores"].numpy())
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match=wrong[0]):
                signatures["classify"](inputs)
        columns = rows.slice(0, 1).to_pydict()
        columns |= {"recent__event": [[]], "recent__topic": [[]]}
        columns |= {"recent": [[one.decode() for one in ids]], "recent__age": [ages]}
        table = features_of(run.config.contract, columns)
        raw = raw_values(run.config.contract, table, names)
        sent = {n: as_bytes(v) if v.dtype == object else v for n, v in raw.items()}
        layout = default_layout(run.config.contract)
        if wrong is None:
            checked, _ = check_inputs(sent, layout, run.config.contract, 1)
            assert checked["recent__length"].tolist() == [2]
            assert checked["recent"][0, :2].tolist() == [b"i1", b"i2"]
        else:
            with pytest.raises(InvalidRequestError, match=wrong[1]):
                check_inputs(sent, layout, run.config.contract, 1)
    np.testing.assert_array_equal(scores[2], scores[1])  # without its empty id


def test_known_items_score_by_their_ids(
    run: Run, rows: Any, signatures: Any, expected: np.ndarray
) -> None:
    """The item table holds titles and vectors as of the snapshot; `sound` is there the same."""
    contract = run.config.contract
    raw = raw_values(contract, rows, [*features(contract, "user", "context"), "item_id"])
    raw["user_index"] = np.arange(len(rows), dtype=np.int32)
    raw["task_weights"] = np.ones((len(rows), 1), np.float32)
    found = signatures["rank_items"](**tensors(raw))["click"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_store_and_a_call_give_the_rows_features(
    run: Run, rows: Any, expected: np.ndarray
) -> None:
    contract = run.config.contract
    schema = FrozenContract.read(run.examples / "contract.json").schema_fingerprint
    store = OnlineFeatures(
        contract, Snapshot(run.version / "assets.extra/snapshot", contract, schema), clock=None
    )
    names = {side: list(stored_features(contract, side)) for side in ("user", "item")}
    for row in rows.to_pylist():
        ids = np.array([row["item_id"].encode()], object)
        query = FeatureQuery(row["user_id"].encode(), names["user"], ids, names["item"])
        for name, column in store.read(query).columns.items():
            (value,) = column.values.tolist()
            if column.lengths is not None:
                plain = [v.decode() if isinstance(v, bytes) else v for v in value]
                value = [v or None if v == "" else v for v in plain[: column.lengths[0]]]
            value = value.decode() if isinstance(value, bytes) else value
            assert (value if column.present[0] else None) == row[name], name
    options = ServerOptions(
        model_name="kinds", model_base_path=run.version.parent, port=0, feature_clock="cut_off"
    )
    with Server(options) as server, RankClient(f"127.0.0.1:{server.port}", timeout=60) as client:
        for at, row in enumerate(rows.to_pylist()[:12]):
            context = {"search": row["search"], "place": row["place"]}
            by_id = client.rank(
                "kinds",
                user={"user_id": row["user_id"]},
                context=context,
                item_ids=[row["item_id"]],
            )
            told = client.rank(
                "kinds",
                user={name: row[name] for name in features(contract, "user")},
                context=context,
                item_ids=[row["item_id"], "i1"],
                columns={n: [row[n], None] for n in names["item"]},
            )
            for ranked in (by_id, told):
                scores = {item["index"]: item["tasks"]["click"] for item in ranked}
                assert scores[0] == pytest.approx(float(expected[at]), rel=1e-4)
        wrong = {
            "expected a vector of 2 finite numbers, received 3 numbers in row 0": [1.0, 2.0, 3.0],
            "expected a vector of 2 finite numbers, received nan in row 0": [1.0, float("nan")],
            "expected a vector of 2 finite numbers, received string": ["a", "b"],
            "expected a value \\(a vector of 2 finite numbers; missing: error\\)": None,
        }
        for message, place in wrong.items():
            with pytest.raises(CallError, match=f"feature 'place': {message}"):
                client.rank(
                    "kinds",
                    user={"user_id": "u1"},
                    context={"search": "tea", "place": place},
                    item_ids=["i1"],
                )


def test_a_warm_start_keeps_scores_under_new_statistics(
    run: Run, rows: Any, tmp_path: Path
) -> None:
    """Projected with an indicator, and plain with zeros for missing vectors."""
    after = shutil.copytree(run.examples, tmp_path / "after")
    statistics = json.loads((after / "statistics.json").read_text())
    assert statistics["vectors"].keys() == {"cover", "sound"}
    for found in statistics["vectors"].values():
        found["mean"] = [mean + 1 + place for place, mean in enumerate(found["mean"])]
        found["std"] = [std * (2 + place) for place, std in enumerate(found["std"])]
    (after / "statistics.json").write_text(json.dumps(statistics))
    logits = []
    for folder in (run.checkpoint, after):
        encoder = Encoder.read(folder)
        ranker = checkpoint.make_ranker(run.config.contract, run.config.model, encoder, seed=8)
        if folder == after:
            warm_start.start(ranker, encoder, run.checkpoint)
        else:
            weights.load(ranker, folder / checkpoint.WEIGHTS)
        logits.append(ranker.infer(encoder(rows)).logits["click"].numpy())
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-5)


def test_a_call_describes_the_entries_of_the_history_that_it_sends(run: Run) -> None:
    contract = run.config.contract
    schema = FrozenContract.read(run.examples / "contract.json").schema_fingerprint
    store = OnlineFeatures(
        contract, Snapshot(run.version / "assets.extra/snapshot", contract, schema), clock=None
    )
    reader = RequestReader(contract, 100, store)

    def read(**user: Any) -> Any:
        context = {"place": [0.0, 1.0]}
        request = rank_request(None, {"user_id": "u1"} | user, context, ["i1"], {})
        return reader.read(request)

    stored = read()
    assert stored.inputs["recent__length"] == stored.inputs["recent__age__length"] == [5]
    assert stored.from_store["recent__event"] == 1
    # What the store knows is of its own history, and not of the one that is sent.
    sent = read(recent=["i3", "i4"])
    assert sent.inputs["recent__length"] == [2]
    assert sent.inputs["recent__event__length"] == [0]
    assert "recent__event" not in sent.from_store
    whole = read(recent=["i3", "i4"], recent__event=["click", None], recent__age=[70, 5])
    assert whole.inputs["recent__event"].tolist() == [[b"click", b""]]
    assert whole.inputs["recent__age"].tolist() == [[70, 5]]
    with pytest.raises(
        InvalidRequestError,
        match="'recent__age': expected 2 values, one for each entry of 'recent', received 1",
    ):
        read(recent=["i3", "i4"], recent__age=[70])
    # Both are cut to their last five, which would lie side by side.
    with pytest.raises(
        InvalidRequestError, match=r"'recent__age': expected 6 values, .* received 5"
    ):
        read(recent=[f"i{place}" for place in range(6)], recent__age=[9, 7, 5, 3, 1])
    # An empty id is left out of the history: what is said of its place would say it of another.
    with pytest.raises(InvalidRequestError, match="'recent': value 2 is an empty text, and 'rece"):
        read(recent=["i3", "", "i4"], recent__age=[70, 5, 8])
    assert read(recent=["i3", "", "i4"]).inputs["recent__length"] == [2]
    with pytest.raises(InvalidRequestError, match="'recent__age': expected feature 'recent' with"):
        read(recent__age=[70])


def test_ages_grow_with_the_clock(run: Run) -> None:
    contract = run.config.contract
    schema = FrozenContract.read(run.examples / "contract.json").schema_fingerprint
    snapshot = Snapshot(run.version / "assets.extra/snapshot", contract, schema)
    query = FeatureQuery(b"u1", ["recent__age", "recent"], np.empty(0, object), [])
    then = OnlineFeatures(contract, snapshot, clock=None).read(query).columns
    later = OnlineFeatures(contract, snapshot, clock=lambda: CUT_OFF + 7200.9).read(query).columns
    assert (then["recent__age"].values[0] > 0).all()
    np.testing.assert_array_equal(later["recent__age"].values, then["recent__age"].values + 7200)
    np.testing.assert_array_equal(later["recent"].values, then["recent"].values)


def test_metamorphic_histories(run: Run, rows: Any, signatures: Any, expected: np.ndarray) -> None:
    """Each thing that is known of an entry changes the score; another second does not."""
    contract = run.config.contract
    raw = raw_values(contract, rows, features(contract))
    full = raw["recent__length"] == 5
    assert full.sum() > 10
    changes = {
        "recent__event": np.where(raw["recent__event"] == "click", "save", "click").astype(object),
        "recent__age": raw["recent__age"] * 64,
        "recent__topic": np.full_like(raw["recent__topic"], "t1"),
    }
    for name, values in changes.items():
        found = signatures["serving_default"](**tensors(raw | {name: values}))["click"].numpy()
        assert (found != expected)[full].mean() > 0.9, name  # not where all units are at 0
    # Ages are of powers of two: 600 and 601 seconds are in one bucket.
    ages = raw["recent__age"] + (raw["recent__age"] > 0)
    found = signatures["serving_default"](**tensors(raw | {"recent__age": ages}))["click"]
    np.testing.assert_array_equal(found, expected)
    # The order of entries changes nothing if all that is known of them moves along.
    turned = dict(raw)
    for name in ("recent", *changes):
        turned[name] = raw[name].copy()
        turned[name][full] = raw[name][full][:, ::-1]
    found = signatures["serving_default"](**tensors(turned))["click"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_examples_entries_are_those_of_a_loop(run: Run) -> None:
    """Plain loops over the log: what the audit checks too, written once more."""
    log = [json.loads(line) for line in (run.logs / "log.jsonl").read_text().splitlines()]
    topics = dict(pl.read_parquet(run.logs / "items.parquet").select("item_id", "topic").rows())
    examples = pl.read_parquet(run.examples / "test")
    assert len(examples) > 100
    kinds = set()
    for row in examples.to_dicts():
        now = row["meta/time"].timestamp()
        past = []
        for event in log:
            known = event["time"] + 600
            if event["user_id"] == row["user_id"] and known < now:
                kind = "save" if event["save"] else "click" if event["click"] else None
                if kind is not None:
                    past.append(
                        (event["item_id"], kind, int(now - known), topics[event["item_id"]])
                    )
        lists = zip(*past[-5:], strict=True) if past else [()] * 4
        names = ["recent", "recent__event", "recent__age", "recent__topic"]
        for name, values in zip(names, lists, strict=True):
            assert (row[name] or []) == list(values), name
        kinds |= {kind for _, kind, _, _ in past}
    assert kinds == {"save", "click"}


def test_metamorphic_texts(run: Run, rows: Any, signatures: Any, expected: np.ndarray) -> None:
    """Case and punctuation between words change nothing; a word does."""
    contract = run.config.contract
    raw = raw_values(contract, rows, features(contract))
    shouted = [text.upper().replace(" ", " -- ") + "!" for text in raw["title"]]
    same = tensors(raw | {"title": np.array(shouted, object)})
    np.testing.assert_allclose(signatures["serving_default"](**same)["click"], expected, rtol=1e-5)
    longer = [f"aardvark {text}" for text in raw["title"]]
    other = tensors(raw | {"title": np.array(longer, object)})
    changed = signatures["serving_default"](**other)["click"].numpy() != expected
    assert changed[raw["title__present"]].mean() > 0.9  # not where all units are at 0


def test_metamorphic_vectors(run: Run, rows: Any, signatures: Any, expected: np.ndarray) -> None:
    """Under `unit` only the direction counts; what a missing vector holds does not."""
    contract = run.config.contract
    raw = raw_values(contract, rows, features(contract))
    longer = tensors(raw | {"taste": raw["taste"] * np.float32(8)})
    np.testing.assert_allclose(
        signatures["serving_default"](**longer)["click"], expected, rtol=1e-5
    )
    cover = raw["cover"].copy()
    absent = ~raw["cover__present"]
    assert absent.any()
    cover[absent] = 77
    junk = tensors(raw | {"cover": cover})
    np.testing.assert_array_equal(signatures["serving_default"](**junk)["click"], expected)
    one = tensors(take(raw, np.arange(1)) | {"cover": raw["cover"][:1] + np.float32(1)})
    if not absent[0]:
        assert signatures["serving_default"](**one)["click"][0] != expected[0]


BAD_VECTORS = (
    ([1.0], "place: expected a vector of 2 numbers, received one of 1"),
    ([1.0, None], "place: expected finite numbers within float32"),
    ([1.0, "x"], "place: expected finite numbers within float32"),
    ([1.0, 1e39], "place: expected finite numbers within float32"),
    ("1.0, 2.0, 3", "place: expected a vector of 2 numbers, received one of 3"),
    (None, "place: missing, and the contract says missing: error"),
    ([], "place: missing, and the contract says missing: error"),
)


def test_bad_vectors_are_rejected_with_a_line_each(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", rows=800)
    path = tmp_path / "logs/log.jsonl"
    lines = path.read_text().splitlines()
    for at, (value, _) in enumerate(BAD_VECTORS):
        lines[7 + 3 * at] = json.dumps(json.loads(lines[7 + 3 * at]) | {"place": value})
    path.write_text("\n".join(lines))
    job.run(make_config(), tmp_path / "logs", tmp_path / "examples")
    rejects = pl.read_parquet(tmp_path / "examples/rejects").sort("line")
    expected = [(8 + 3 * at, reason) for at, (_, reason) in enumerate(BAD_VECTORS)]
    assert rejects.select("line", "reason").rows() == expected


def test_a_bad_vector_of_a_side_table_stops_the_job_with_one_line(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", rows=40)
    (tmp_path / "logs/users.csv").write_text("user_id,bio,taste\nu1,hi,1;2;3\n")
    with pytest.raises(Exception, match=r"line 2: taste: expected a vector of 2 numbers, rec.* 3$"):
        job.run(make_config(), tmp_path / "logs", tmp_path / "examples")
