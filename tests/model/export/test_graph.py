"""What the exported graph computes: the Keras model's scores, on the selected experts only."""

import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tests.tf_examples import tf_example

from multigate.configs.contract import Combine, Contract
from multigate.configs.errors import ExportError
from multigate.configs.sections.base import parse
from multigate.configs.sections.gates import GateConfig
from multigate.configs.statistics import Statistics
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import raw_values, take
from multigate.model.export.frozen.mixture import Dispatch, choose_mode
from multigate.model.export.frozen.trained import DenseLayer
from multigate.model.export.graph import ServingGraph, combine
from multigate.model.export.parity import check_parity, expected_scores, relative_differences
from multigate.model.ranker.ranker import Ranker
from multigate.runtime.signature import load_signatures

GATES: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "softmax_static": {"name": "softmax", "static": True},
    "topk": {"name": "topk", "num_selected": 2},
    "topk_static": {"name": "topk", "num_selected": 2, "static": True},
    "topk_static_single": {"name": "topk", "num_selected": 1, "static": True},
    "dselect_k": {"name": "dselect_k", "num_selected": 2},
    "dselect_k_static": {"name": "dselect_k", "num_selected": 2, "static": True},
    "moesart": {"name": "moesart", "num_selected": 2},
    "hash": {"name": "hash"},
}

MORE_GATES: dict[str, dict[str, Any]] = {
    "switch": {"name": "switch", "num_selected": 1},
    "xmoe": {"name": "xmoe", "num_selected": 2},
    "expert_choice": {"name": "expert_choice", "num_selected": 2},
    "comet": {"name": "comet", "num_selected": 2},
    "hierarchical": {
        "name": "hierarchical",
        "num_groups": 3,
        "primary": {"name": "topk", "num_selected": 2},
        "secondary": {"name": "topk", "num_selected": 1},
    },
}

# Without noise they route as one of the others.
LIKE_ANOTHER: dict[str, dict[str, Any]] = {
    "noisy_topk": {"name": "noisy_topk", "num_selected": 2},
    "vmoe": {"name": "vmoe", "num_selected": 2},
    "gumbel_softmax": {"name": "gumbel_softmax"},
    "softmax_selector": {"name": "softmax_selector", "num_selected": 2},
    "sampled": {"name": "sampled"},
}

ALL_GATES = GATES | MORE_GATES | LIKE_ANOTHER

FAMILIES = {"topk", "dselect_k_static", "moesart", "hash", "expert_choice", "hierarchical"}
"""One gate of each way to route."""


def later(*names: str) -> list[Any]:
    """These gates among the slow tests, or the long ones."""
    return [
        pytest.param(n, marks=pytest.mark.long if n in LIKE_ANOTHER else pytest.mark.slow)
        for n in names
    ]


EVERY_GATE = [*GATES, *later(*MORE_GATES, *LIKE_ANOTHER)]
DISPATCHED = [
    *("topk", "moesart", "dselect_k", "hash"),
    *later(*MORE_GATES, "noisy_topk", "vmoe", "sampled"),
]


class Exported:
    """A servable on disk, called as a server calls it, beside the Keras model that it came from."""

    def __init__(
        self, checkpoint: Path, folder: Path, examples: Path, dispatch: Dispatch = "selected"
    ) -> None:
        loaded = checkpoints.load(checkpoint)
        table = pq.read_table(examples / "test")
        self._start(loaded.ranker, loaded.encoder, folder, table, dispatch)

    @classmethod
    def of(
        cls, ranker: Ranker, encoder: Encoder, folder: Path, table: pa.Table, dispatch: Dispatch
    ) -> "Exported":
        """The export of a ranker that is in no checkpoint; `table` has its features."""
        made = cls.__new__(cls)
        made._start(ranker, encoder, folder, table, dispatch)
        return made

    def _start(
        self, ranker: Ranker, encoder: Encoder, folder: Path, table: pa.Table, dispatch: Dispatch
    ) -> None:
        self.ranker, self.encoder, self.table = ranker, encoder, table
        for gate in self.ranker.mixture.gates:
            gate.harden()
        self.contract = self.encoder.contract
        gates = self.ranker.mixture.gates
        if not all(gate.static or gate.properties.sparse_at_inference for gate in gates):
            dispatch = "auto"
        self.servable = ServingGraph(self.ranker, self.encoder, dispatch=dispatch)
        self.folder = folder
        self.servable.save(folder)
        self.graph = tf.Graph()
        self.session = tf.compat.v1.Session(graph=self.graph)
        with self.graph.as_default():
            meta = tf.compat.v1.saved_model.load(self.session, ["serve"], str(folder))
        self.signature_def = meta.signature_def

    def call(self, signature: str, raw: dict[str, Any], **options: Any) -> dict[str, np.ndarray]:
        definition = self.signature_def[signature]
        assert set(raw) == set(definition.inputs)
        feed = {definition.inputs[name].name: value for name, value in raw.items()}
        fetch = {name: info.name for name, info in definition.outputs.items()}
        return self.session.run(fetch, feed, **options)

    def raw(self, *sides: str) -> dict[str, np.ndarray]:
        names = [name for name, _ in self.contract.of_side(*sides)]
        return raw_values(self.contract, self.table, names)

    def request(self, users: np.ndarray, items: np.ndarray, index: np.ndarray) -> Any:
        """Raw inputs of `rank` for some rows' users and others' items, and the table of pairs."""
        weights = [task.score_weight for task in self.contract.tasks.values()]
        raw = take(self.raw("user", "context"), users) | take(self.raw("item"), items)
        raw["user_index"] = index.astype(np.int32)
        raw["task_weights"] = np.tile(np.float32(weights), (len(users), 1))
        items_side = {name for name, _ in self.contract.of_side("item")}
        pairs = {
            name: self.table[name].take(items if name in items_side else users[index])
            for name in self.contract.features
        }
        return raw, pa.table(pairs)

    def rank(self, users: np.ndarray, items: np.ndarray, index: np.ndarray) -> Any:
        return self.call("rank", self.request(users, items, index)[0])

    def expected(self, table: pa.Table) -> dict[str, np.ndarray]:
        return expected_scores(self.ranker, self.encoder, self.encoder(table))

    def selected(self, table: pa.Table) -> int:
        """Distinct (row, expert) pairs that some task of the Keras model weights."""
        encoded = self.encoder(table)
        routings = self.ranker.forward(encoded).mixed.routings
        shape = (table.num_rows, len(self.ranker.mixture.experts))
        weights = [np.broadcast_to(r.weights, shape) for r in routings]
        return int((np.stack(weights) != 0).any(axis=0).sum())


def assert_scores_equal(exported: Exported, received: dict[str, Any], expected: Any) -> None:
    """Equal to 1e-5, or to four units in the last place of the logarithm of a row's largest score.

    Random weights make a dwell of e^49.  A unit in the last place of 49 is 4e-6 of it, and kernels
    of processors with and without AVX-512 add in other orders: three such units were seen.
    """
    assert received.keys() == expected.keys()
    largest = np.max([np.abs(values) for values in expected.values()], axis=0)  # (N,)
    units = np.spacing(np.log(np.maximum(largest, 1)).astype(np.float32))
    different = relative_differences(exported.contract, expected, received)
    assert (different < np.maximum(1e-5, 4 * units)).all(), different.max()


@pytest.fixture(scope="module")
def exported(case, tmp_path_factory) -> Callable[[str], Exported]:
    """One export per gate, made when first asked for."""
    made: dict[str, Exported] = {}

    def get(gate: str) -> Exported:
        if gate not in made:
            folder, options = tmp_path_factory.mktemp(gate) / "model", ALL_GATES[gate]
            made[gate] = Exported(case.checkpoint(model={"gate": options}), folder, case.examples)
        return made[gate]

    return get


def test_every_gate_is_among_them() -> None:
    named = {options["name"] for options in ALL_GATES.values()}
    (union, _) = typing.get_args(GateConfig)
    assert named == {gate.model_fields["name"].default for gate in typing.get_args(union)}


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param(name, marks=pytest.mark.slow if name in FAMILIES else pytest.mark.long)
        for name in ALL_GATES
    ],
)
def test_thousands_of_rows_score_like_the_keras_model(case, exported, gate) -> None:
    model = exported(gate)
    signatures = load_signatures(model.folder)
    table = pa.concat_tables(
        pq.read_table(case.examples / split) for split in ("train", "validation", "test")
    )
    found = check_parity(signatures, model.ranker, model.encoder, table, 1e-5)
    assert found["rows"] == 3600
    assert found["undecided"] <= 2  # counted apart, and rare
    assert found["largest_difference"] <= 1e-5


@pytest.mark.sweep(1)
@pytest.mark.parametrize("gate", EVERY_GATE)
def test_both_signatures_score_like_the_keras_model(exported, gate) -> None:
    model = exported(gate)
    received = model.call("serving_default", model.raw("user", "item", "context"))
    assert_scores_equal(model, received, model.expected(model.table))
    for M in (1, 5):
        users, items, index = np.arange(M), np.arange(40, 100), np.arange(60) * 7 % M
        _, table = model.request(users, items, index)
        assert_scores_equal(model, model.rank(users, items, index), model.expected(table))


def test_classify_and_regress_score_examples_like_rows(exported) -> None:
    model = exported("topk")
    names = [name for name, _ in model.contract.of_side("user", "item", "context")]
    table = model.table.slice(0, 80)
    assert any(table[name].null_count for name in names)
    serialised = np.array([tf_example(table, row, names) for row in range(80)], object)
    received = model.call("classify", {"inputs": serialised})
    rows = take(model.raw("user", "item", "context"), slice(80))
    expected = model.call("serving_default", rows)
    assert received["classes"].tolist() == [[b"click", b"like"]] * 80
    scores = np.stack([expected["click"], expected["like"]], axis=1)
    np.testing.assert_allclose(received["scores"], scores, rtol=1e-5)
    regressed = model.call("regress/dwell", {"inputs": serialised})
    np.testing.assert_allclose(regressed["outputs"], expected["dwell"], rtol=1e-5)

    methods = {name: d.method_name for name, d in model.signature_def.items() if name[0] != "_"}
    assert methods == {
        "serving_default": "tensorflow/serving/predict",
        "rank": "tensorflow/serving/predict",
        "watch": "tensorflow/serving/predict",
        "gates": "tensorflow/serving/predict",
        "classify": "tensorflow/serving/classify",
        "regress/dwell": "tensorflow/serving/regress",
    }


@pytest.mark.parametrize("gate", EVERY_GATE)
def test_gates_answer_with_the_weights_of_the_keras_model(exported, gate) -> None:
    """Of all experts, also of those that the graph leaves out."""
    model = exported(gate)
    received = model.call("gates", model.raw("user", "item", "context"))
    routings = model.ranker.infer(model.encoder(model.table)).mixed.routings
    for task, routing in zip(model.contract.tasks, routings, strict=True):
        expected = np.broadcast_to(np.asarray(routing.weights), received[task].shape)
        assert received[task].shape == (model.table.num_rows, 6)
        np.testing.assert_allclose(received[task], expected, atol=1e-5)


def test_examples_that_do_not_fit_the_contract_are_refused(exported) -> None:
    model = exported("topk")
    names = [name for name, _ in model.contract.of_side("user", "item", "context")]
    whole = tf.train.Example.FromString(tf_example(model.table, 0, names))
    absent, repeated, mistyped, empty, endless, no_number = (
        tf.train.Example.FromString(whole.SerializeToString()) for _ in range(6)
    )
    empty.features.feature["user_id"].bytes_list.value[:] = [b""]
    endless.features.feature["price"].float_list.value[:] = [np.inf]
    no_number.features.feature["price"].float_list.value[:] = [np.nan]
    del absent.features.feature["item_id"]
    repeated.features.feature["price"].float_list.value[:] = [1.0, 2.0]
    mistyped.features.feature["user_id"].int64_list.value[:] = [1]
    for wrong, message in (
        (absent, "feature item_id: expected one value in each example"),
        (repeated, "feature price: expected one value or none in each example"),
        (mistyped, "user_id.*[Dd]ata type"),
        (empty, r"feature user_id: expected one value in each example, received\] \[1 0\]"),
        (endless, "feature price: expected finite numbers, received NaN or infinity"),
        (no_number, "feature price: expected finite numbers, received NaN or infinity"),
    ):
        both = [whole.SerializeToString(), wrong.SerializeToString()]
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            model.call("classify", {"inputs": np.array(both, object)})
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.call("classify", {"inputs": np.array([b"not an example"], object)})


def test_an_empty_text_of_an_example_is_a_missing_value(exported) -> None:
    model = exported("topk")
    names = [name for name, _ in model.contract.of_side("user", "item", "context")]
    plain, blank = (tf.train.Example.FromString(tf_example(model.table, 0, names)) for _ in "12")
    plain.features.feature["region"].Clear()
    blank.features.feature["region"].bytes_list.value[:] = [b""]
    both = np.array([plain.SerializeToString(), blank.SerializeToString()], object)
    received = model.call("classify", {"inputs": both})["scores"]
    np.testing.assert_array_equal(received[1], received[0])


def products(exported: Exported, signature: str, raw: dict[str, Any]) -> list[tuple[str, Any]]:
    """Name and shape of each matrix product of a call, as the runtime recorded them."""
    trace = tf.compat.v1.RunMetadata()
    full = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    exported.call(signature, raw, options=full, run_metadata=trace)
    return [
        (node.node_name, tuple(axis.size for axis in node.output[0].tensor_description.shape.dim))
        for device in trace.step_stats.dev_stats
        for node in device.node_stats
        if re.search(r" = \w*MatMul\w*\(", node.timeline_label)
    ]


def evaluated_rows(
    exported: Exported, signature: str, raw: dict[str, Any], layers: int = 1
) -> dict[int, int]:
    """Rows of each expert's matrix products."""
    rows: dict[int, list[int]] = {}
    for name, shape in products(exported, signature, raw):
        if found := re.search(r"/expert_(\d+)/", name):
            rows.setdefault(int(found[1]), []).append(shape[0])
    for counts in rows.values():
        assert len(counts) == layers
        assert len(set(counts)) == 1
    return {expert: counts[0] for expert, counts in rows.items()}


@pytest.fixture(scope="module")
def fused(case, tmp_path_factory) -> Callable[[str], Exported]:
    """As `exported`, with all experts on all rows."""
    made: dict[str, Exported] = {}

    def get(gate: str) -> Exported:
        if gate not in made:
            folder, options = tmp_path_factory.mktemp(gate) / "model", ALL_GATES[gate]
            checkpoint = case.checkpoint(model={"gate": options})
            made[gate] = Exported(checkpoint, folder, case.examples, "fused")
        return made[gate]

    return get


WITHOUT_PRODUCTS = ("hash", "hierarchical")
"""Gates that read ids, or their input in another way than by linear maps."""


@pytest.mark.sweep(1, slow=2)
@pytest.mark.parametrize("gate", DISPATCHED)
def test_all_experts_in_one_product_score_like_the_keras_model(fused, gate) -> None:
    model = fused(gate)
    assert model.servable.mixture.mode == "fused"
    received = model.call("serving_default", model.raw("user", "item", "context"))
    assert_scores_equal(model, received, model.expected(model.table))
    for M, N in ((1, 60), (5, 60), (1, 0), (2, 0), (0, 0)):
        users, items, index = np.arange(M), np.arange(40, 40 + N), np.arange(N) * 7 % max(M, 1)
        raw, table = model.request(users, items, index)
        received = model.call("rank", raw)
        if N:
            assert_scores_equal(model, received, model.expected(table))
            found = [shape for n, shape in products(model, "rank", raw) if "/first_layers/" in n]
            # One product for all six experts of ten units, and one for all tasks' gates.
            of_gates = {columns for _, columns in found if columns != 60}
            assert len(of_gates) == (0 if gate in WITHOUT_PRODUCTS else 1)
            assert sorted(found) == sorted((n, c) for n in (M, N) for c in (60, *of_gates))
        assert received["score"].shape == (N,)


@pytest.mark.parametrize("gate", DISPATCHED)
def test_the_graph_evaluates_the_selected_experts_and_no_more(exported, gate) -> None:
    model = exported(gate)
    for signature, request, table in (
        ("serving_default", model.raw("user", "item", "context"), model.table),
        ("rank", *model.request(np.arange(1), np.arange(100, 400), np.zeros(300, int))),
        ("rank", *model.request(np.arange(5), np.arange(100, 400), np.arange(300) % 5)),
    ):
        rows = evaluated_rows(model, signature, request)
        assert len(rows) == 6
        assert sum(rows.values()) == model.selected(table)
        assert sum(rows.values()) < 6 * table.num_rows


@pytest.mark.slow
def test_later_layers_run_on_the_same_rows(case, tmp_path) -> None:
    experts = {"count": 6, "units": [10, 7], "activation": "gelu"}
    checkpoint = case.checkpoint(model={"experts": experts})
    exported = Exported(checkpoint, tmp_path / "m", case.examples)
    rows = exported.raw("user", "item", "context")
    received = exported.call("serving_default", rows)
    assert_scores_equal(exported, received, exported.expected(exported.table))
    evaluated = evaluated_rows(exported, "serving_default", rows, layers=2)
    assert sum(evaluated.values()) == exported.selected(exported.table)


def test_experts_that_no_static_gate_selects_do_not_run(exported) -> None:
    model = exported("topk_static_single")
    kept = model.servable.mixture.kept
    assert 1 <= len(kept) <= 3
    found = products(model, "serving_default", model.raw("user", "item", "context"))
    others = ("/towers/", "/linear/")
    of_experts = [s for name, s in found if not any(o in name for o in others) and len(s) == 2]
    assert of_experts == [(600, 10 * len(kept))]


@pytest.mark.slow
def test_gates_of_different_kinds(case, tmp_path) -> None:
    gates = {"click": GATES["topk_static"], "dwell": GATES["moesart"], "like": GATES["dselect_k"]}
    exported = Exported(case.checkpoint(model={"gates": gates}), tmp_path / "a", case.examples)
    assert exported.servable.mixture.mode == "dispatch"
    rows = exported.raw("user", "item", "context")
    received = exported.call("serving_default", rows)
    assert_scores_equal(exported, received, exported.expected(exported.table))

    gates["dwell"] = GATES["softmax"]
    exported = Exported(case.checkpoint(model={"gates": gates}), tmp_path / "b", case.examples)
    assert exported.servable.mixture.mode == "fused"
    received = exported.call("serving_default", rows)
    assert_scores_equal(exported, received, exported.expected(exported.table))


@pytest.mark.parametrize(
    "gate",
    [
        *("topk", "dselect_k", "topk_static"),
        *later(*(name for name in ALL_GATES if name not in {"topk", "dselect_k", "topk_static"})),
    ],
)
def test_a_row_scores_the_same_in_any_company(exported, gate) -> None:
    model = exported(gate)
    raw = model.raw("user", "item", "context")
    together = model.call("serving_default", raw)
    order = np.random.default_rng(1).permutation(600)
    shuffled = model.call("serving_default", take(raw, order))
    once = {name: value[order] for name, value in together.items()}
    assert_scores_equal(model, shuffled, once)
    some = [0, 17, 599]
    alone = [model.call("serving_default", take(raw, [row])) for row in some]
    ranked = [model.rank(np.array([row]), np.array([row]), np.zeros(1, int)) for row in some]
    for calls in (alone, ranked):
        joined = {name: np.concatenate([call[name] for call in calls]) for name in together}
        assert_scores_equal(model, joined, {n: v[some] for n, v in together.items()})


@pytest.mark.parametrize(
    "gate",
    [
        *("topk", "topk_static", "hash"),
        *later(*(name for name in ALL_GATES if name not in {"topk", "topk_static", "hash"})),
    ],
)
def test_no_rows(exported, gate) -> None:
    """TensorFlow's product of a sparse matrix without rows would end the process."""
    model = exported(gate)
    nothing = take(model.raw("user", "item", "context"), slice(0))
    assert model.call("serving_default", nothing)["score"].shape == (0,)
    for users in (0, 1, 2):
        raw, _ = model.request(np.arange(users), np.arange(0), np.zeros(0, int))
        assert model.call("rank", raw)["score"].shape == (0,)


@pytest.mark.parametrize("gate", ["hash", "topk", "topk_static"])
def test_rows_that_all_select_the_same_experts(exported, gate) -> None:
    model = exported(gate)
    for copies in (1, 5000):
        raw, pairs = model.request(np.arange(1), np.zeros(copies, int), np.zeros(copies, int))
        assert_scores_equal(model, model.call("rank", raw), model.expected(pairs))


def read_plain_prices(checkpoint: Path) -> None:
    """Leave out the logarithm of prices, which keeps every number small."""
    for name in ("config.json", "contract.json"):
        values = json.loads((checkpoint / name).read_text())
        values["contract"]["features"]["price"]["transform"] = "identity"
        if name == "contract.json":
            contract = parse(Contract, values["contract"], name)
            values["schema_fingerprint"] = contract.schema_fingerprint()
        (checkpoint / name).write_text(json.dumps(values))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("gate", ["hash", "topk"])
def test_numbers_too_large_to_compute_with_are_refused(case, tmp_path, gate) -> None:
    """NaN in front of a relu would become 0, and the score a finite one of no input at all."""
    checkpoint = case.checkpoint(model={"gate": GATES[gate]})
    read_plain_prices(checkpoint)
    model = Exported(checkpoint, tmp_path / "m", case.examples)
    raw = take(model.raw("user", "item", "context"), slice(3))
    raw["price__present"] = np.ones(3, bool)
    raw["price"] = np.float32([5, -3, np.inf])  # what is not finite is missing
    table = model.table.slice(0, 3)
    prices = pa.array([5.0, -3.0, None])
    table = table.set_column(table.column_names.index("price"), "price", prices)
    assert_scores_equal(model, model.call("serving_default", raw), model.expected(table))
    for price in (3e38, -3e38, 1e30):
        raw["price"] = np.float32([5, price, 5])
        with pytest.raises(tf.errors.InvalidArgumentError, match="price: expected a number within"):
            model.call("serving_default", raw)


@pytest.mark.parametrize("gate", ["topk", "dselect_k", "moesart", "comet"])
def test_gates_of_one_kind_run_as_one(exported, gate) -> None:
    """Three tasks: one selection for all, and one product of all kernels."""
    model = exported(gate)
    raw, _ = model.request(np.arange(1), np.arange(40), np.zeros(40, int))
    trace = tf.compat.v1.RunMetadata()
    full = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    model.call("rank", raw, options=full, run_metadata=trace)
    ran = [n for device in trace.step_stats.dev_stats for n in device.node_stats]
    selections = [n for n in ran if "/gate_" in n.node_name and " = ArgMax(" in n.timeline_label]
    largest_alone = gate in ("dselect_k", "comet")  # of each selector or tree; else the second too
    assert len(selections) == (1 if largest_alone else 2)
    assert {n.output[0].tensor_description.shape.dim[0].size for n in selections} == {40 * 3}
    assert not [n for n in ran if "CheckNumerics" in n.timeline_label]


@pytest.mark.slow
def test_gates_of_other_settings_run_on_their_own(case, tmp_path) -> None:
    gates = {"click": GATES["topk"], "dwell": {"name": "topk", "num_selected": 3}}
    checkpoint = case.checkpoint(model={"gate": GATES["topk"], "gates": gates})
    for dispatch in ("selected", "fused"):
        model = Exported(checkpoint, tmp_path / dispatch, case.examples, dispatch)
        received = model.call("serving_default", model.raw("user", "item", "context"))
        assert_scores_equal(model, received, model.expected(model.table))


def test_auto_takes_the_cheaper_mode() -> None:
    """With the constants of the module, for 100 rows and two selected of E experts."""

    def layers(width: int, units: int) -> list[DenseLayer]:
        kernel, bias = np.zeros((width, units), np.float32), np.zeros(units, np.float32)
        return [DenseLayer(kernel, bias, tf.nn.relu)]

    assert choose_mode(layers(40, 10), 20, 8, 4.0)[0] == "fused"  # small: dispatch cannot pay
    assert choose_mode(layers(600, 512), 100, 8, 2.0)[0] == "dispatch"
    assert choose_mode(layers(600, 512), 100, 8, 8.0)[0] == "fused"  # nothing to skip
    mode, reason = choose_mode(layers(40, 10), 20, 16, 4.0)
    assert mode == "dispatch"
    assert reason.startswith("16 experts, at least 16; estimated microseconds of 100 candidates")
    assert choose_mode(layers(40, 10), 20, 16, 15.5)[0] == "fused"  # again nothing to skip


def test_the_configuration_overrides_the_mode(case) -> None:
    loaded = checkpoints.load(case.checkpoint())
    made = {
        dispatch: ServingGraph(loaded.ranker, loaded.encoder, dispatch=dispatch).mixture
        for dispatch in typing.get_args(Dispatch)
    }
    assert {d: mixture.mode for d, mixture in made.items()} == {
        "auto": "fused",
        "selected": "dispatch",
        "fused": "fused",
    }
    assert made["selected"].reason == "export.dispatch is selected"
    softmax = checkpoints.load(case.checkpoint(model={"gate": GATES["softmax"]}))
    with pytest.raises(ExportError, match=r"selected needs gates that select .* Softmax"):
        ServingGraph(softmax.ranker, softmax.encoder, dispatch="selected")


@pytest.mark.parametrize("dispatch", ["selected", "fused"])
def test_one_user_index_for_many_items_is_refused(case, dispatch) -> None:
    """It would serve every item with one user."""
    loaded = checkpoints.load(case.checkpoint())
    graph = ServingGraph(loaded.ranker, loaded.encoder, dispatch=dispatch)
    table = pq.read_table(case.examples / "test").slice(0, 5)
    names = [*graph.user_names, *graph.item_names]
    raw = {
        name: tf.constant(value)
        for name, value in raw_values(loaded.encoder.contract, table, names).items()
    }
    given = {"task_weights": tf.ones((5, 3))} | raw
    assert len(graph.rank(user_index=tf.range(5), **given)["score"]) == 5
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected as many users"):
        graph.rank(user_index=tf.constant([1]), **given)


def test_a_head_with_one_threshold_is_no_plain_logit(case) -> None:
    contract = case.config().contract
    dwell = contract.tasks["dwell"].model_dump(mode="json") | {
        "loss": {"kind": "ordinal", "thresholds": 1}
    }
    values = contract.model_dump(mode="json")
    values["tasks"]["dwell"] = dwell
    changed = parse(Contract, values, "contract")
    encoder = checkpoints.load(case.checkpoint()).encoder
    encoder = Encoder(changed, _with_quantiles(encoder.statistics), encoder.vocabularies)
    ranker = checkpoints.make_ranker(changed, case.config().model, encoder, 0)
    assert {len(head.start) for head in ranker.heads.values()} == {1}
    table = pq.read_table(case.examples / "test").slice(0, 8)
    expected = expected_scores(ranker, encoder, encoder(table))
    graph = ServingGraph(ranker, encoder)
    raw = raw_values(changed, table, [*graph.user_names, *graph.item_names])
    received = graph.score_rows(**{name: tf.constant(value) for name, value in raw.items()})
    np.testing.assert_allclose(received["dwell"], expected["dwell"], rtol=1e-5)


def _with_quantiles(statistics: Statistics) -> Statistics:
    """What an ordinal loss needs to know of its label."""
    dwell = statistics.tasks["dwell"].model_copy(update={"quantiles": (1.0, 2.0, 3.0, 4.0, 5.0)})
    return statistics.model_copy(update={"tasks": {**statistics.tasks, "dwell": dwell}})


def test_a_user_index_out_of_range_is_refused(exported) -> None:
    for gate in ("topk", "topk_static"):
        model = exported(gate)
        raw, _ = model.request(np.arange(2), np.arange(3), np.zeros(3, int))
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.call("rank", raw | {"user_index": np.array([0, 2, 1], np.int32)})


@pytest.mark.parametrize("kind", ["sum", "product"])
def test_the_combined_score_takes_each_users_weights(kind) -> None:
    task_scores = tf.constant([[0.5, 0.0], [0.5, 4.0]])
    weights = tf.constant([[2.0, -1.0], [1.0, 0.5]])
    # 2 * 0.5 - 0 and 0.5 + 0.5 * 4; 0.5^2 / 0.01 (0 counts as epsilon) and 0.5 * sqrt(4)
    expected = {"sum": [1.0, 2.5], "product": [25.0, 1.0]}[kind]
    rule = Combine(kind=kind, epsilon=0.01)
    np.testing.assert_allclose(combine(rule, task_scores, weights), expected, rtol=1e-6)


def test_a_gate_that_selects_nothing_is_refused(case) -> None:
    loaded = checkpoints.load(case.checkpoint(model={"gate": {"name": "gumbel_softmax"}}))
    for gate in loaded.ranker.mixture.gates:
        gate.switch.assign(np.full(6, -1.0))
    with pytest.raises(ExportError, match="gate of 'click': selects none of the 6 experts"):
        ServingGraph(loaded.ranker, loaded.encoder)
