"""The published folder: complete, checked and independent of our code."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow_serving.apis import prediction_log_pb2

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import DataError, ExportError, ModelError
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.raw import raw_values
from multigate.model.data.rows import read_rows
from multigate.model.export import export as exporting
from multigate.model.export import parity
from multigate.model.export.export import export

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def version(case, tmp_path_factory) -> Path:
    """One exported version that tests only read."""
    return export(case.checkpoint(), case.examples, tmp_path_factory.mktemp("models") / "case")


def read(version: Path, name: str) -> Any:
    return json.loads((version / "assets.extra" / name).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_versions_count_up_from_the_highest(case, tmp_path) -> None:
    checkpoint = case.checkpoint()
    epochs = [{"epoch": 1, "loss": 0.5}]
    (checkpoint / checkpoints.HISTORY).write_text(json.dumps({"epochs": epochs}))
    for folder in ("2", "9", "10", "notes"):
        (tmp_path / folder).mkdir()
    assert export(checkpoint, case.examples, tmp_path) == tmp_path / "11"
    assert read(tmp_path / "11", "metrics.json")["training"] == epochs
    assert {p.name for p in tmp_path.iterdir()} == {"2", "9", "10", "11", "notes"}
    with pytest.raises(ExportError, match=r"9: this version exists.* choose another, such as 12"):
        export(checkpoint, case.examples, tmp_path, version=9)
    with pytest.raises(ExportError, match="version: expected a number of at least 0, received -1"):
        export(checkpoint, case.examples, tmp_path, version=-1)


def test_the_contract_and_the_reports(case, version) -> None:
    frozen = FrozenContract.read(version / "assets.extra" / "contract.json")
    assert frozen == FrozenContract.read(case.examples / "contract.json")
    assert read(version, "metrics.json")["tasks"].keys() == frozen.contract.tasks.keys()
    sparsity = read(version, "sparsity.json")
    assert sparsity["mode"] == "dispatch"
    assert sparsity["parity"]["rows"] == 1200
    assert sparsity["parity"]["largest_difference"] <= 1e-5
    assert 2 <= sparsity["experts_per_row"] <= 6
    assert sparsity["reason"] == "export.dispatch is selected"
    flops = sparsity["flops_per_candidate"]
    assert flops["minimum"] < flops["rank"] < flops["sparse"] < flops["dense"]
    card = (version / "assets.extra" / "README.md").read_text(encoding="utf-8")
    assert frozen.schema_fingerprint in card
    assert "`position` was used in training only" in card
    assert "An expert runs on the rows that select it (export.dispatch is selected)." in card


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["topk", "noisy_topk"])  # which reads its noise in training only
def test_flops_by_hand(case, tmp_path, gate) -> None:
    model = {"experts": {"count": 6, "units": [10, 7]}, "gate": {"name": gate}}
    version = export(case.checkpoint(model=model), case.examples, tmp_path)
    sparsity = read(version, "sparsity.json")
    # D = 6 + 6 + 6 + 2 + (6 + 1 + 1) + 6 = 34, the user's 25 among them: a list has a length and a
    # match.  An expert 2 * (34 * 10 + 10 * 7) = 820; three gates 3 * 2 * 34 * 6 = 1224, the users'
    # part 900; three towers 3 * 2 * (7 * 5 + 5) = 240.
    flops = sparsity["flops_per_candidate"]
    assert flops["dense"] == 6 * 820 + 1224 + 240
    assert flops["sparse"] == round(sparsity["experts_per_row"] * 820) + 1224 + 240
    assert flops["rank"] == round(sparsity["experts_per_row"] * (820 - 500)) + 324 + 240
    assert flops["minimum"] == flops["rank"] - 324
    assert sparsity["flops_per_user"] == {"rank": 6 * 500 + 900}


CLIENT = """
import json, sys
sys.modules["keras"] = None
import numpy as np
import tensorflow as tf
folder = sys.argv[1]
golden = json.load(open(folder + "/assets.extra/golden.json", encoding="utf-8"))
def tensor(x):
    return tf.reshape(tf.constant(x["values"], getattr(tf, x["dtype"])), x["shape"])
rank = tf.saved_model.load(folder).signatures[golden["signature"]]
answers = [rank(**{k: tensor(v) for k, v in golden["inputs"].items()}) for _ in range(2)]
assert golden["outputs"].keys() == answers[0].keys()
for name, value in golden["outputs"].items():
    np.testing.assert_allclose(answers[0][name], tensor(value), rtol=1e-6)
    np.testing.assert_array_equal(answers[0][name], answers[1][name])
assert not [m for m in sys.modules if m.split(".")[0] == "multigate"]
print(sorted(answers[0]))
"""


@pytest.mark.slow
def test_it_loads_without_our_code_and_without_keras(version, tmp_path) -> None:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    ran = subprocess.run(
        [sys.executable, "-I", "-c", CLIENT, str(version)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[-2] == "['click', 'dwell', 'like', 'score']"


def test_the_server_makes_constants_of_its_variables(version, served_operations) -> None:
    assert "VarHandleOp" not in served_operations(version)


@pytest.mark.slow
def test_warm_up_requests_fit_the_signatures(version) -> None:
    signatures = tf.saved_model.load(str(version)).signatures
    path = version / "assets.extra" / "tf_serving_warmup_requests"
    sizes = []
    for record in tf.data.TFRecordDataset([str(path)]):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        kind = log.WhichOneof("log_type")
        request = getattr(log, kind).request
        assert request.model_spec.name == "case"
        signature = request.model_spec.signature_name
        if kind == "predict_log":
            inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            answer = signatures[signature](**{n: tf.constant(v) for n, v in inputs.items()})
            sizes.append((kind, signature, len(answer["score"])))
        else:
            examples = [e.SerializeToString() for e in request.input.example_list.examples]
            answer = signatures[signature](inputs=tf.constant(examples))
            output = answer["scores" if kind == "classify_log" else "outputs"]
            assert np.isfinite(output).all()
            sizes.append((kind, signature, len(output)))
    assert sizes == [
        *(("predict_log", "rank", n) for n in (1, 16, 128, 512)),
        *(("predict_log", "serving_default", n) for n in (1, 32)),
        *(("classify_log", "classify", n) for n in (1, 32)),
        *(("regress_log", "regress/dwell", n) for n in (1, 32)),
    ]


def test_the_folder_is_what_tensorflow_serving_documents(version) -> None:
    """What its SavedModel loader, its name check and its warm-up ask of a version."""
    assert str(int(version.name)) == version.name
    assert (version / "saved_model.pb").is_file()
    assert not (version / "variables").exists()  # its weights are constants of the graph
    saved = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    (graph,) = saved.meta_graphs
    assert list(graph.meta_info_def.tags) == ["serve"]
    methods = {name: s.method_name for name, s in graph.signature_def.items() if name[0] != "_"}
    assert methods["serving_default"] == methods["rank"] == "tensorflow/serving/predict"
    assert methods["classify"] == "tensorflow/serving/classify"
    assert methods["regress/dwell"] == "tensorflow/serving/regress"
    classify = graph.signature_def["classify"]
    assert [(k, i.dtype) for k, i in classify.inputs.items()] == [("inputs", tf.string)]
    assert {k: i.dtype for k, i in classify.outputs.items()} == {
        "classes": tf.string,
        "scores": tf.float32,
    }
    regress = graph.signature_def["regress/dwell"]
    assert {k: i.dtype for k, i in regress.outputs.items()} == {"outputs": tf.float32}

    # No operations but TensorFlow's own, neither of other libraries nor Python's.
    nodes = [
        *graph.graph_def.node,
        *(n for f in graph.graph_def.library.function for n in f.node_def),
    ]
    functions = {f.signature.name for f in graph.graph_def.library.function}
    used = {node.op for node in nodes} - functions
    assert [name for name in used if op_def_registry.get(name) is None] == []
    assert not [name for name in used if "PyFunc" in name]

    path = version / "assets.extra" / "tf_serving_warmup_requests"
    records = list(tf.data.TFRecordDataset([str(path)]))  # its default limit is 1000
    assert 0 < len(records) <= 1000


@pytest.mark.slow
def test_unused_experts_take_no_room(case, tmp_path, graph_of) -> None:
    gate = {"name": "topk", "num_selected": 1, "static": True}

    def export_with(count: int, name: str) -> Path:
        experts = {"count": count, "units": [128]}
        checkpoint = case.checkpoint(model={"experts": experts, "gate": gate})
        return export(checkpoint, case.examples, tmp_path / name)

    def size(version: Path) -> int:
        constants = [node for node in graph_of(version).node if node.op == "Const"]
        return sum(node.attr["value"].tensor.ByteSize() for node in constants)

    many = export_with(64, "many")
    kept = read(many, "sparsity.json")["experts_in_file"]
    assert kept == len(read(many, "sparsity.json")["kept"]) == 3
    few = export_with(3, "few")
    # Three tasks select three of 64 experts: the file is that of a three-expert model, all used,
    # but for some bytes (and for experts that the smaller model's tasks might share).
    unused = 3 - read(few, "sparsity.json")["experts_in_file"]
    weights_of_one = 4 * (34 * 128 + 128)
    assert abs(size(many) - size(few) - unused * weights_of_one) < 500
    assert size(many) < 20 * weights_of_one


@pytest.mark.slow
def test_a_failed_parity_check_publishes_nothing(case, tmp_path, monkeypatch) -> None:
    checkpoint = case.checkpoint()

    class Another(exporting.ServingGraph):
        def __init__(self, ranker, *arguments, **options) -> None:
            ranker.towers["like"].head.bias.assign_add([0.01])
            super().__init__(ranker, *arguments, **options)
            ranker.towers["like"].head.bias.assign_add([-0.01])

    monkeypatch.setattr(exporting, "ServingGraph", Another)
    with pytest.raises(ExportError, match=r"parity: test row \d+ differs by .*like"):
        export(checkpoint, case.examples, tmp_path / "models")
    assert not (tmp_path / "models").exists()


EXPORT = """
import os, signal, sys
from pathlib import Path
from multigate.model.export import export

save = export.ServingGraph.save

def last(self, folder):
    save(self, folder)
    os.kill(os.getpid(), signal.SIGKILL)

export.ServingGraph.save = last
export.export(*map(Path, sys.argv[1:]))
"""
"""Exports, and kills itself when the graph is written, before what goes with it."""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_writing(case, tmp_path) -> None:
    checkpoint, base = case.checkpoint(), tmp_path / "models"
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, checkpoint, case.examples, base],
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = base.iterdir()
    assert (left / "saved_model.pb").exists()
    assert not left.name.isdecimal()  # servers load folders whose name is a number
    assert export(checkpoint, case.examples, base) == base / "1"
    assert (base / "1" / "saved_model.pb").exists()
    assert not left.exists()


@pytest.mark.slow
def test_a_disk_that_is_full(case, tmp_path, full_disk) -> None:
    checkpoint, base = case.checkpoint(), tmp_path / "models"
    message = r"could not be written: .*too large.*export again"
    for room in (2_000, 20_000):  # full at the weights, and at the graph
        with full_disk(room), pytest.raises(ExportError, match=message):
            export(checkpoint, case.examples, base)
        assert not base.exists()
    assert export(checkpoint, case.examples, base, version=4) == base / "4"


def test_a_test_split_without_rows(case, tmp_path) -> None:
    examples = tmp_path / "examples"
    shutil.copytree(case.examples, examples)
    for path in (examples / "test").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"test: no examples in 0 Parquet files"):
        export(case.checkpoint(), examples, tmp_path / "models")


def test_what_is_not_a_checkpoint_or_not_its_examples(case, tmp_path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        export(tmp_path, case.examples, tmp_path / "models")
    checkpoint = case.checkpoint()
    contract = json.loads((checkpoint / "contract.json").read_text())
    contract["data_fingerprint"] = "another"
    (checkpoint / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(ModelError, match="data fingerprint another"):
        export(checkpoint, case.examples, tmp_path / "models")
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="expected a folder of versions, found a file"):
        export(checkpoint, case.examples, tmp_path / "file")


@pytest.mark.slow
def test_an_impression_with_labels_in_several_rows_counts_once(
    case, labels_apart, tmp_path
) -> None:
    pipeline = case.config().pipeline.model_dump(mode="json") | {"downsample": {"keep": 0.25}}
    checkpoint = case.checkpoint(pipeline=pipeline, export={"smearing": True})
    path = checkpoint / "statistics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"negatives_kept": 0.25}))
    days = labels_apart(case.examples, tmp_path / "days", ["click"], ["validation", "test"])
    found, expected = (
        export(checkpoint, examples, tmp_path / "models") for examples in (days, case.examples)
    )
    for name in ("metrics.json", "reference.json", "sparsity.json", "golden.json"):
        assert read(found, name) == read(expected, name)


@pytest.mark.slow
def test_only_undecided_rows_are_excused(case) -> None:
    loaded = checkpoints.load(case.checkpoint())
    encoded = loaded.encoder(read_rows(case.examples, "test").spread(50).table)
    assert not parity.changes_experts(loaded.ranker, encoded).any()
    for gate in loaded.ranker.mixture.gates:  # two logits that are equal but for rounding
        kernel = np.array(gate.kernel.value)
        kernel[:, 1] = kernel[:, 0] * (1 + 1e-6)
        kernel[:, 2] = kernel[:, 0] * (1 - 1e-6)
        gate.kernel.assign(kernel)
        gate.bias.assign(np.zeros(6))
    assert parity.changes_experts(loaded.ranker, encoded).any()


ON_JAX = """
import json, sys
from pathlib import Path
import numpy as np
import pyarrow.parquet as pq
from multigate.configs.sections.base import parse
from multigate.configs.config import Config
from multigate.model.checkpoints import checkpoint
from multigate.model.export import parity
from multigate.model.training.train import train
examples, folder, answers = map(Path, sys.argv[1:4])
train(parse(Config, json.loads(sys.argv[4]), "case"), examples, folder, progress=False)
loaded = checkpoint.load(folder)
for gate in loaded.ranker.mixture.gates:
    gate.harden()
encoded = loaded.encoder(pq.read_table(examples / "test").slice(0, 64))
np.savez(answers, **parity.expected_scores(loaded.ranker, loaded.encoder, encoded))
"""


@pytest.mark.slow
def test_what_jax_scores_and_trains_exports_to_the_same_scores(case, tmp_path) -> None:
    gates = {"dwell": {"name": "moesart"}, "like": {"name": "dselect_k", "num_selected": 2}}
    changes = {
        "model": {"gates": gates},
        "train": {"epochs": 1, "batch_size": 64},
        # The answers are the ranker's own, without calibration.
        "export": {
            "hardening_tolerance": 1e9,
            "log_loss_tolerance": 1e9,
            "calibration": "none",
        },
    }
    checkpoint, answers = tmp_path / "checkpoint", tmp_path / "scores.npz"
    config = case.config(**changes).model_dump_json()
    subprocess.run(
        [sys.executable, "-c", ON_JAX, case.examples, checkpoint, answers, config],
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "2"},
        check=True,
    )
    version = export(checkpoint, case.examples, tmp_path / "models")
    loaded = checkpoints.load(checkpoint)
    table = read_rows(case.examples, "test").table.slice(0, 64)
    contract = loaded.encoder.contract
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    received = signature(**raw_values(contract, table, names))
    expected = dict(np.load(answers))
    assert parity.relative_differences(contract, expected, received).max() < 1e-5
