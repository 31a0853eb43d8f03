"""The Python interface: from a log to a ranking without the command, and the same results."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

import multigate
from multigate.configs import load as read_config


@pytest.fixture(scope="module")
def run(small_run):
    return small_run.root / "run"


@pytest.fixture(scope="module")
def examples(run):
    return multigate.Examples(run / "examples")


@pytest.mark.slow
def test_examples_are_those_of_the_verb(small_run, run, tmp_path):
    made = multigate.examples(small_run.config, small_run.root / "logs", tmp_path / "examples")
    manifest = json.loads((run / "examples/manifest.json").read_text())
    assert made.manifest["examples"] == manifest["examples"]
    assert made.manifest["rows"] == manifest["rows"]
    assert made.contract == small_run.config.contract
    with pytest.raises(multigate.MultigateError, match="already exists"):
        multigate.examples(small_run.config, small_run.root / "logs", tmp_path / "examples")
    with pytest.raises(multigate.MultigateError, match="expected a local folder"):
        multigate.examples(small_run.config, small_run.root / "logs", "s3://bucket/examples")


def test_a_split_is_columns(examples):
    rows = examples.count("test")
    table = examples.table("test")
    assert table.num_rows == rows == sum(part.num_rows for part in examples.batches("test"))
    assert examples.labels[0] == "label/click"
    columns = examples.arrays("test", ["item_id", "age", "label/rating", "recent_clicks"])
    assert list(columns) == ["item_id", "age", "label/rating", "recent_clicks"]
    assert columns["item_id"].tolist() == table["item_id"].to_pylist()
    masked = [value is None for value in table["label/rating"].to_pylist()]
    assert 0 < sum(masked) < rows
    np.testing.assert_array_equal(np.isnan(columns["label/rating"]), masked)
    assert list(columns["recent_clicks"][3]) == table["recent_clicks"][3].as_py()
    with pytest.raises(multigate.MultigateError, match=r"column 'ages': expected some of user_id"):
        examples.arrays("test", ["ages"])
    with pytest.raises(multigate.MultigateError, match="expected a folder of examples"):
        multigate.Examples(examples.folder / "test")


def test_a_configuration_is_a_name_a_file_its_values_or_itself(tmp_path):
    expected = read_config("demo")
    values = expected.model_dump(mode="json", exclude_unset=True)
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(values))
    for source in ("demo", tmp_path / "my.yaml", values, expected):
        assert multigate.configuration(source) == expected
    with pytest.raises(multigate.MultigateError, match="configuration: modle: unknown key"):
        multigate.configuration(values | {"modle": {}})


def test_a_word_that_is_none_of_the_known_is_refused(run, examples):
    """Each stood for another one: the clock for cut_off, the baseline for LightGBM."""
    version = run / "models/demo/1"
    for call, told in (
        (lambda: multigate.load(version, feature_clock="Now"), "feature_clock: .*received 'Now'"),
        (
            lambda: multigate.evaluate(version, examples, baseline="xgboost"),
            "baseline: expected one of None, 'lightgbm'; received 'xgboost'",
        ),
        (
            lambda: multigate.examples("demo", run, run / "new", shuffle="file"),
            "shuffle: expected one of None, 'files', 'beam'; received 'file'",
        ),
        (lambda: examples.count("tset"), "split: expected one of train, .*; received 'tset'"),
    ):
        with pytest.raises(multigate.MultigateError, match=told):
            call()


def test_a_report_without_a_folder_is_told_before_anything_is_measured(tmp_path):
    with pytest.raises(multigate.MultigateError, match="no: no such folder; make it, or choose"):
        multigate.evaluate(tmp_path, tmp_path, report=tmp_path / "no" / "report.html")


CALLS = """
import sys
import multigate
heavy = {"tensorflow", "keras", "pyarrow", "numpy", "pydantic", "polars", "yaml"}
print(sorted(heavy & set(sys.modules)))
assert set(multigate.__all__) <= set(dir(multigate))
multigate.Examples, multigate.configuration
print(sorted({"tensorflow", "keras", "apache_beam"} & set(sys.modules)))
try:
    multigate.exmaples
except AttributeError as error:
    print(error)
"""


def test_names_are_loaded_when_they_are_used():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        "[]",
        "module 'multigate' has no attribute 'exmaples'",
    ]
