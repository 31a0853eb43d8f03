"""A tf.Example that the pipeline writes scores like the Parquet row beside it."""

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from multigate.configs.contract import FrozenContract
from multigate.pipeline import job
from multigate.pipeline.write.tfrecord import serialise, write_records

pytestmark = pytest.mark.slow

TRICKY = pl.DataFrame(
    {
        "text": ["", "ä€", None, "x" * 300],
        "number": pl.Series([0.0, -1.5, None, 3e38], dtype=pl.Float32),
        "whole": pl.Series([0, -1, None, 2**62], dtype=pl.Int64),
        "flag": [True, False, None, True],
        "texts": [["a", ""], [], None, ["b"] * 200],
        "wholes": pl.Series([[1, -2], [], None, [300]], dtype=pl.List(pl.Int64)),
        "time": pl.Series([0, 1, None, 10**15]).cast(pl.Datetime("us", "UTC")),
    }
)


def test_tensorflow_reads_what_was_written(tmp_path):
    with (tmp_path / "part.tfrecord").open("wb") as file:
        write_records(TRICKY, file)
        write_records(TRICKY.clear(), file)
        write_records(TRICKY.head(1), file)
    # TensorFlow's reader checks both checksums of every record.
    records = list(tf.data.TFRecordDataset(str(tmp_path / "part.tfrecord")).as_numpy_iterator())
    assert records == serialise(TRICKY) + serialise(TRICKY.head(1))
    for record, row in zip(records, TRICKY.iter_rows(named=True), strict=False):
        feature = tf.train.Example.FromString(record).features.feature
        assert set(feature) == {name for name, value in row.items() if value is not None}
        for name, value in row.items():
            if value is None:
                continue
            values = value if isinstance(value, list) else [value]
            if name == "time":
                values = [TRICKY["time"].to_physical()[TRICKY["text"].to_list().index(row["text"])]]
            kind = feature[name].WhichOneof("kind")
            found = list(getattr(feature[name], kind).value)
            expected = [v.encode() if isinstance(v, str) else v for v in values]
            assert found == (pytest.approx(expected) if kind == "float_list" else expected), name


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    """The small run's model, and the same log's examples with records beside them."""
    folder = tmp_path_factory.mktemp("records")
    job.run(small_run.config, small_run.root / "logs", folder / "examples", records=True)
    versions = sorted(path.parent for path in (small_run.root / "run").rglob("saved_model.pb"))
    return tf.saved_model.load(str(versions[-1])), folder / "examples"


def rows_of(table: pa.Table, contract, specs):
    """The rows as raw inputs of `serving_default`."""
    raw = {}
    for name in {key.removesuffix("__present").removesuffix("__length") for key in specs}:
        dtype = specs[name].dtype
        column = table[name].to_pylist()
        if contract.features[name].kind == "id_list":
            raw[name + "__length"] = tf.constant([len(v or []) for v in column], tf.int64)
            ragged = tf.ragged.constant([v or [] for v in column], dtype, ragged_rank=1)
            raw[name] = ragged.to_tensor()
            continue
        nothing = b"" if dtype == tf.string else 0
        raw[name] = tf.constant([nothing if v is None else v for v in column], dtype)
        if name + "__present" in specs:
            raw[name + "__present"] = tf.constant([v is not None for v in column])
    return raw


def test_records_score_like_their_rows(exported):
    model, examples = exported
    contract = FrozenContract.read(examples / "contract.json").contract
    (part, *_) = sorted((examples / "test").glob("*.parquet"))
    table = pq.read_table(part).slice(0, 200)
    records = list(
        tf.data.TFRecordDataset(str(part.with_suffix(".tfrecord"))).take(200).as_numpy_iterator()
    )
    assert len(records) == len(table) > 50
    default = model.signatures["serving_default"]
    specs = default.structured_input_signature[1]
    by_row = default(**rows_of(table, contract, specs))
    classified = model.signatures["classify"](inputs=tf.constant(records))
    for at, task in enumerate(classified["classes"][0].numpy().astype(str)):
        np.testing.assert_allclose(classified["scores"][:, at], by_row[task], rtol=1e-5)
    regressions = [name for name in model.signatures if name.startswith("regress/")]
    assert regressions
    for name in regressions:
        outputs = model.signatures[name](inputs=tf.constant(records))["outputs"]
        np.testing.assert_allclose(outputs, by_row[name.removeprefix("regress/")], rtol=1e-5)


def test_every_split_has_its_records(exported):
    _, examples = exported
    for split in ("train", "validation", "test"):
        parts = sorted((examples / split).glob("*.parquet"))
        rows = sum(pq.read_metadata(part).num_rows for part in parts)
        files = [str(part.with_suffix(".tfrecord")) for part in parts]
        assert rows == sum(1 for _ in tf.data.TFRecordDataset(files))
