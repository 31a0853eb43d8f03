"""What `score` and `Version` give without a server is what the server answers."""

import gzip
import json

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from multigate.configs.errors import DataError, ServingError
from multigate.configs.files import SPLITS
from multigate.jobs.scoring.version import Version
from multigate.model.data.raw import raw_values
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.options import ServerOptions
from multigate.serving.rpc.server import Server
from multigate.verbs.command import main

IDS = ("user_id", "item_id", "hour")


@pytest.fixture(scope="module")
def folder(small_run):
    return small_run.root / "run/models/demo/1"


@pytest.fixture(scope="module")
def version(folder):
    with Version(folder, feature_clock="cut_off") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def rows(small_run):
    """The first rows of the test split."""
    parts = sorted((small_run.root / "run/examples/test").glob("*.parquet"))
    return pa.concat_tables([pq.read_table(path) for path in parts]).slice(0, 300)


@pytest.fixture(scope="module")
def target(folder):
    options = ServerOptions(
        model_name="demo", model_base_path=folder.parent, port=0, feature_clock="cut_off"
    )
    server = Server(options)
    server.start()
    yield f"127.0.0.1:{server.port}"
    server.stop()


def score(*arguments):
    return main(["score", "--feature_clock", "cut_off", *map(str, arguments)])


def test_rows_with_all_features_score_as_predict_does(version, rows, target):
    found = version.predict(rows)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "demo"
    for name, values in raw_values(version.contract, rows, version.features).items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    with grpc.insecure_channel(target) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        answer = stub.Predict(request, timeout=30)
    assert set(found) == set(answer.outputs) == {"score", *version.tasks}
    for name, values in found.items():
        expected = tf.make_ndarray(answer.outputs[name])
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=name)


def test_ids_alone_score_as_rank_does(version, rows, target):
    """Neighbouring rows of one user and hour are one call of Rank; the snapshot has the rest."""
    ids = rows.select(IDS).sort_by([("user_id", "ascending"), ("hour", "ascending")])
    found = version.predict(ids)
    place = 0
    with RankClient(target, timeout=30) as client:
        while place < 60:
            first = ids.slice(place, 1).to_pylist()[0]
            same = pc.and_(
                pc.equal(ids["user_id"], first["user_id"]), pc.equal(ids["hour"], first["hour"])
            )
            count = pc.sum(same).as_py()
            ranked = client.rank(
                "demo",
                user={"user_id": first["user_id"]},
                context={"hour": first["hour"]},
                item_ids=ids["item_id"].to_pylist()[place : place + count],
            )
            for item in ranked:
                row = place + item["index"]
                assert found["score"][row] == pytest.approx(item["score"], rel=1e-5)
                for task, value in item["tasks"].items():
                    assert found[task][row] == pytest.approx(value, rel=1e-5)
            place += count


def test_a_loaded_version_ranks_as_the_server_does(version, target):
    request = {
        "user": {"user_id": "u0003", "age": None},
        "context": {"hour": 7},
        "item_ids": [f"i{number:04d}" for number in range(40)],
        "weights": {"click": 2.0, "rating": 0.0},
        "floors": {"click": [0.05, None]},
        "limit": 10,
    }
    found = version.rank(**request)
    with RankClient(target, timeout=30) as client:
        expected = client.rank("demo", **request)
    assert 0 < len(found) == len(expected) <= 10
    assert [item["item_id"] for item in found] == [item["item_id"] for item in expected]
    assert found[0]["tasks"] == pytest.approx(expected[0]["tasks"], rel=1e-5)
    assert (found.warnings, found.schema) == (expected.warnings, expected.schema)
    with pytest.raises(ServingError, match="unknown feature 'hours'"):
        version.rank(user={"user_id": "a"}, context={"hours": 1}, item_ids=["i0001"])


def test_columns_may_be_numpy_lists_or_arrow(version, rows):
    expected = version.predict(rows.select(IDS))
    plain = {
        "user_id": rows["user_id"].to_pylist(),
        "item_id": np.array(rows["item_id"].to_pylist(), object),
        "hour": rows["hour"].to_numpy(),
        "other": [None] * len(rows),
    }
    found = version.predict(plain)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    assert version.predict({name: [] for name in IDS})["score"].shape == (0,)


@pytest.mark.slow
def test_a_file_is_scored_in_every_format(folder, version, rows, tmp_path, capfd):
    ids = rows.select(IDS)
    expected = version.predict(ids)
    pacsv.write_csv(ids, tmp_path / "rows.csv")
    pq.write_table(ids, tmp_path / "rows.parquet")
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in ids.to_pylist())
    for given, written in (("csv", "csv"), ("parquet", "jsonl"), ("jsonl.gz", "parquet")):
        out = tmp_path / f"scored.{written}"
        files = ("--rows", tmp_path / f"rows.{given}", "--out", out)
        assert score("--version", folder, *files, "--json") == 0
        told = json.loads(capfd.readouterr().out)
        assert (told["rows"], told["columns"][0]) == (300, "score")
        assert "country" in told["filled"]
        if written == "csv":
            table = pacsv.read_csv(out)
        elif written == "parquet":
            table = pq.read_table(out)
        else:
            table = pa.Table.from_pylist(
                [json.loads(line) for line in out.read_text().splitlines()]
            )
        assert table["user_id"].to_pylist() == ids["user_id"].to_pylist()
        np.testing.assert_allclose(table["score"].to_numpy(), expected["score"], rtol=1e-5)
        np.testing.assert_allclose(table["score/dwell"].to_numpy(), expected["dwell"], rtol=1e-5)


def test_a_split_is_scored_whole(small_run, folder, version, rows, tmp_path):
    out, examples = tmp_path / "scored.parquet", small_run.root / "run/examples"
    files = ("--examples", examples, "--split", "test", "--out", out)
    assert score("--version", folder, *files, "--keep", "item_id,label/click") == 0
    found = pq.read_table(out)
    manifest = json.loads((examples / "manifest.json").read_text())
    assert SPLITS[2] == "test"
    assert len(found) == manifest["examples"]["splits"]["test"]
    assert found.column_names[:3] == ["item_id", "label/click", "score"]
    expected = version.predict(rows)["score"]
    np.testing.assert_allclose(found["score"].to_numpy()[:300], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_id,item_id\nu,i\n", "feature 'hour': expected a value"),
        ("user_id,item_id,hour\nu,i,\n,,\n", "none in row 0, and 2 rows lack such a value"),
        ("user_id,item_id,hour\nu,i,late\n", "feature 'hour': expected values of int64"),
        ("user_id,hour\nu,1\n", "column 'item_id': expected the item's id"),
        ("user_id,item_id,hour,score\nu,i,1,2\n", "'score': the rows have it already"),
        ("user_id,item_id,hour\n", "no rows to score"),
    ],
)
def test_what_cannot_be_scored_is_one_line_and_leaves_no_file(
    folder, text, message, tmp_path, capfd
):
    (tmp_path / "rows.csv").write_text(text)
    files = ("--rows", tmp_path / "rows.csv", "--out", tmp_path / "scored.csv")
    assert score("--version", folder, *files) == 2
    # TensorFlow's notices are silenced where a process begins with the verb.
    lines = capfd.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("error: ")]
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("full", [False, True])
def test_a_row_without_a_required_feature_is_left_without_scores(
    full, folder, version, rows, tmp_path, capfd
):
    """`hour` and the item's id are required; with all features the rows go through Predict."""
    table = rows.select(version.features if full else IDS).slice(0, 8)
    expected = version.predict(table)
    hours, items = table["hour"].to_pylist(), table["item_id"].to_pylist()
    hours[2], items[5] = None, None
    for name, values in (("hour", hours), ("item_id", items)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    pq.write_table(table, tmp_path / "rows.parquet")
    out = tmp_path / "scored.parquet"
    files = ("--rows", tmp_path / "rows.parquet", "--out", out)
    assert score("--version", folder, *files, "--json") == 0
    printed = capfd.readouterr()
    warnings = [line for line in printed.err.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: row 2: no score, it lacks 'hour' (missing: error)",
        "warning: row 5: no score, it lacks 'item_id' (missing: error)",
    ]
    told = json.loads(printed.out)
    assert (told["rows"], told["unscored"]) == (8, 2)
    assert told["lacking"] == {"2": ["hour"], "5": ["item_id"]}
    found = pq.read_table(out)
    for column, output in (("score", "score"), ("score/click", "click")):
        values = found[column].to_pylist()
        assert [row for row, value in enumerate(values) if value is None] == [2, 5]
        for row in {*range(8)} - {2, 5}:
            assert values[row] == pytest.approx(expected[output][row], rel=1e-5)
    lacking = version.score_rows(table)
    assert np.isnan(lacking.scores["score"]).tolist() == [row in (2, 5) for row in range(8)]
    with pytest.raises(ServingError, match=r"'hour': expected a value .* received none in row 2"):
        version.predict(table)


@pytest.mark.parametrize("full", [True, False], ids=["all features", "some features"])
def test_entries_that_a_list_lacks_do_not_count(full, version, rows):
    """As in a call, which drops them: through Predict and through Rank."""
    known = rows.select([name for name in version.features if full or name != "topic"]).slice(0, 8)
    columns = known.to_pydict()
    plain, blanks = (dict(columns) for _ in "12")
    plain["tags"] = [["a", "b"]] * 8
    blanks["tags"] = [["", "a", None, "b", ""]] * 8
    expected, found = (
        version.predict(pa.table(one, known.schema))["score"] for one in (plain, blanks)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("full", [True, False], ids=["all features", "some features"])
@pytest.mark.parametrize("value", [np.inf, 1e300])
def test_a_number_that_the_model_cannot_hold_is_refused(full, value, version, rows):
    """float64 holds 1e300; the model's float32 does not, and would read it as missing."""
    known = rows.select([name for name in version.features if full or name != "topic"]).slice(0, 3)
    columns = known.to_pydict()
    columns["length"] = [1.0, value, 2.0]
    with pytest.raises(DataError, match="feature 'length': expected finite numbers within float32"):
        version.predict(columns)


def test_an_item_that_the_snapshot_lacks_costs_no_other_row_its_score(version, rows):
    """All rows are of one user and hour, so that they are one request."""
    ids = [*dict.fromkeys(rows["item_id"].to_pylist())][:4]
    count = len(ids) + 1
    same = {"user_id": ["u0003"] * count, "hour": [7] * count}
    found = version.score_rows({**same, "item_id": [*ids[:2], "new", *ids[2:]]})
    assert list(found.lacking) == [2]
    assert {"topic", "length"} <= set(found.lacking[2])
    others = version.predict({**{k: v[1:] for k, v in same.items()}, "item_id": ids})
    np.testing.assert_allclose(np.delete(found.scores["score"], 2), others["score"], rtol=1e-5)


@pytest.mark.parametrize("full", [True, False], ids=["all features", "some features"])
def test_ids_that_the_vocabulary_lacks_are_counted(full, folder, version, rows, tmp_path, capfd):
    known = rows.select([name for name in version.features if full or name != "tags"]).slice(0, 8)
    assert not version.score_rows(known).unknown.get("user_id")
    columns = known.to_pydict()
    columns["user_id"][3:6] = ["nobody", "nobody", "none"]
    columns["item_id"][5] = "no item"
    pq.write_table(pa.table(columns, known.schema), tmp_path / "rows.parquet")
    files = ("--rows", tmp_path / "rows.parquet", "--out", tmp_path / "scored.parquet")
    assert score("--version", folder, *files, "--json") == 0
    printed = capfd.readouterr()
    before = version.score_rows(known).unknown.get("item_id", 0)
    assert json.loads(printed.out)["unknown"] == {"user_id": 3, "item_id": before + 1}
    assert "note: 3 of 8 rows have a user_id that the model's vocabulary lacks" in printed.err


@pytest.mark.slow
def test_rows_and_scores_may_lie_in_a_store(small_run, folder, version, rows, bucket, tmp_path):
    ids = rows.select(IDS)
    expected = version.predict(ids)["score"]
    pacsv.write_csv(ids, tmp_path / "rows.csv")
    pq.write_table(ids, tmp_path / "rows.parquet")
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress((tmp_path / "rows.csv").read_bytes()))
    for name, out in (
        ("rows.parquet", "a.csv"),
        ("rows.csv.gz", "b.parquet"),
        ("rows.csv", "c.jsonl"),
    ):
        (bucket.address / name).upload(tmp_path / name)
        files = ("--rows", bucket.address / name, "--out", bucket.address / "scored" / out)
        assert score("--version", folder, *files) == 0
        content = (bucket.address / "scored" / out).read_bytes()
        if out.endswith("csv"):
            found = pacsv.read_csv(pa.BufferReader(content))
        elif out.endswith("parquet"):
            found = pq.read_table(pa.BufferReader(content))
        else:
            found = pa.Table.from_pylist([json.loads(line) for line in content.splitlines()])
        np.testing.assert_allclose(found["score"].to_numpy(), expected, rtol=1e-5)


@pytest.mark.slow
def test_examples_in_a_store_are_scored(small_run, folder, version, rows, bucket, tmp_path):
    examples = small_run.root / "run/examples"
    for path in examples.rglob("*"):
        if path.is_file():
            (bucket.address / "examples" / str(path.relative_to(examples))).upload(path)
    out = tmp_path / "scored.parquet"
    files = ("--examples", bucket.address / "examples", "--out", out)
    assert score("--version", folder, *files, "--keep", "item_id") == 0
    found = pq.read_table(out)["score"].to_numpy()[: len(rows)]
    np.testing.assert_allclose(found, version.predict(rows)["score"], rtol=1e-5)


def test_an_absent_address_is_one_line(folder, bucket, capfd):
    address = bucket.address / "rows.csv"
    assert score("--version", folder, "--rows", address, "--out", bucket.address / "o.csv") == 2
    err = capfd.readouterr().err
    assert err == f"error: {address}: no such file; expected a file of rows\n"


def test_lists_do_not_fit_into_csv(version, rows, tmp_path):
    from multigate.jobs.scoring.score import score as run

    with pytest.raises(DataError, match=r"csv cannot hold the lists of column 'tags'.*--keep"):
        run(version, [rows], tmp_path / "scored.csv")
    assert run(version, [rows], tmp_path / "scored.csv", keep=["item_id"])["rows"] == 300


def test_parts_are_read_one_at_a_time(version, rows, tmp_path):
    """The second part is made only when the first has been written: memory is bounded."""
    from multigate.jobs.scoring.score import score as run

    made, seen = [], []

    def parts():
        for number in range(3):
            made.append(number)
            yield rows.slice(100 * number, 100)

    result = run(
        version, parts(), tmp_path / "o.parquet", progress=lambda n: seen.append((n, len(made)))
    )
    assert seen == [(100, 1), (200, 2), (300, 3)]
    assert result["rows"] == 300
    whole = version.predict(rows)["score"]
    np.testing.assert_allclose(
        pq.read_table(tmp_path / "o.parquet")["score"].to_numpy(), whole, rtol=1e-5
    )
