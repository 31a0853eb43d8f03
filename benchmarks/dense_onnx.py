"""A ranker with every expert on every row as an ONNX graph, written by hand.

It takes what signature `rank` takes of one user: raw ids, the user's features once, the items' N
times.  Ids are looked up in the graph (`LabelEncoder` of ai.onnx.ml, one for each feature, because
ONNX cannot join texts), and the user is looked up, embedded and pooled once.  With `encoded`, it
takes codes in place of raw values instead, and looks up nothing.

It supports top-k gates and ReLU only: the benchmarks of inference use nothing else.  ONNX Runtime
has one thread, which does not spin after a call.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from multigate.configs.contract import LENGTH, PRESENT, IdListFeature, NumberFeature
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import Raw

OPSET, ML_OPSET = 17, 3
_LAST = np.array([1])


class Graph:
    """Nodes and constants of a graph under construction."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._count = 0

    def constant(self, value: Any) -> str:
        """Add a constant; its name."""
        self._count += 1
        name = f"c{self._count}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; the name of its output, or a list of names."""
        names = [f"v{self._count}_{i}" for i in range(outputs)]
        self._count += 1
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def dense(self, layer: Any, x: str, order: np.ndarray | None = None) -> str:
        """Add a product with a kernel (its rows in this order) plus a bias; the output's name."""
        kernel, bias = layer.kernel.value.numpy(), layer.bias.value.numpy()
        kernel = kernel if order is None else kernel[order]
        return self.node("Gemm", x, self.constant(kernel), self.constant(bias))


def dense_onnx(
    ranker: Any, encoder: Encoder, given: Raw, folder: Path, encoded: bool = False
) -> Callable[[], Any] | None:
    """A call without arguments of the dense model; None without ONNX Runtime.

    Args:
        ranker: with per-example or static Top-k gates.
        encoder: of the ranker.
        given: raw values, the user's with one row; with `encoded` N rows that the encoder gave.
        folder: where the graph is written.
        encoded: whether the graph takes codes.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    graph = Graph(onnx)
    names = [name for name in given if _feature(name) in ranker.embedder.features]
    sides = [list(ranker.embedder.features)]
    if not encoded:
        of_item = [n for n in sides[0] if encoder.contract.features[n].side == "item"]
        sides = [[name for name in sides[0] if name not in of_item], of_item]
    inputs = _Inputs(graph, ranker.embedder, None if encoded else encoder, given)
    found = [inputs.embed(side) for side in sides]
    x, columns = found[0]
    if not encoded:  # the user beside every item
        of_items, more = found[1]
        rows = graph.node("Shape", of_items, start=0, end=1)
        shape = graph.node("Concat", rows, graph.constant(np.array([len(columns)])), axis=0)
        x = graph.node("Concat", graph.node("Expand", x, shape), of_items, axis=1)
        columns = columns + more
    order = np.array(columns)
    mixed = graph.node(
        "MatMul",
        _weights(graph, ranker.mixture.gates, x, order),
        _experts(graph, ranker, x, order),
    )
    parts = graph.node(  # (N, T, U) to T of (N, 1, U)
        "Split", mixed, outputs=len(ranker.towers), axis=1
    )
    parts = [parts] if isinstance(parts, str) else parts
    outputs = []
    for part, (task, tower) in zip(parts, ranker.towers.items(), strict=True):
        y = graph.node("Squeeze", part, graph.constant(np.array([1])))
        for layer in tower.hidden.stack if tower.hidden is not None else []:
            y = graph.node("Relu", graph.dense(layer, y))
        y = graph.node("Squeeze", graph.dense(tower.head, y), graph.constant(np.array([1])))
        graph.nodes.append(onnx.helper.make_node("Sigmoid", [y], [task]))
        outputs.append(onnx.helper.make_tensor_value_info(task, onnx.TensorProto.FLOAT, [None]))
    declared = [
        onnx.helper.make_tensor_value_info(
            name,
            onnx.TensorProto.STRING
            if given[name].dtype == object
            else onnx.helper.np_dtype_to_tensor_dtype(given[name].dtype),
            [None, *given[name].shape[1:]],
        )
        for name in names
    ]
    made = onnx.helper.make_graph(graph.nodes, "dense", declared, outputs, graph.constants)
    opsets = [
        onnx.helper.make_opsetid("", OPSET),
        onnx.helper.make_opsetid("ai.onnx.ml", ML_OPSET),
    ]
    model = onnx.helper.make_model(made, opset_imports=opsets, ir_version=8)
    path = folder / "dense.onnx"
    path.write_bytes(model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    for kind in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{kind}.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {name: given[name] for name in names}
    tasks = list(ranker.towers)
    return lambda: dict(zip(tasks, session.run(tasks, feed), strict=True))


def _feature(name: str) -> str:
    return name.removesuffix(PRESENT).removesuffix(LENGTH)


class _Inputs:
    """What the graph makes of its inputs before the mixture.

    Args:
        graph: under construction.
        embedder: of the ranker.
        encoder: looks up raw values in the graph; None where it is given codes.
        given: the inputs.
    """

    def __init__(self, graph: Graph, embedder: Any, encoder: Encoder | None, given: Raw) -> None:
        self._graph, self._embedder, self._encoder = graph, embedder, encoder
        self._given = given
        ends = np.cumsum([*embedder.widths.values()])
        self._span = {
            part: range(int(end) - width, int(end))
            for (part, width), end in zip(embedder.widths.items(), ends, strict=True)
        }

    def embed(self, names: list[str]) -> tuple[str, list[int]]:
        """Embedded, pooled and concatenated features (N, d), and the embedder's columns of them."""
        graph, parts, columns = self._graph, [], []
        numbers = [name for name in names if name not in self._embedder.owners]
        for may_be_missing in (True, False):
            group = [name for name in numbers if (name + PRESENT in self._given) == may_be_missing]
            if group:
                parts.append(self._numbers(group, may_be_missing))
                columns += [self._span[name][0] for name in group]
        for name in numbers:
            if self._embedder.features[name].missing == "indicator":
                parts.append(self._indicator(name))
                columns.append(self._span[name][1])
        for name in names:
            if name in numbers:
                continue
            owner = self._embedder.owners[name]
            table = self._embedder.tables[owner].embeddings.value.numpy()
            codes = name if self._encoder is None else self._codes(name)
            rows = graph.node("Gather", graph.constant(table), codes)
            feature = self._embedder.features[name]
            if isinstance(feature, IdListFeature):
                rows = self._pooled(name, codes, rows)
            parts.append(rows)
            columns += self._span[name]
            if isinstance(feature, NumberFeature) and feature.missing == "indicator":
                parts.append(self._indicator(name))
        return graph.node("Concat", *parts, axis=1), columns

    def _indicator(self, name: str) -> str:
        """Whether a number has a value, as a column (N, 1)."""
        present = name + PRESENT
        if self._encoder is not None:
            present = self._graph.node("Cast", present, to=1)
        return self._graph.node("Unsqueeze", present, self._graph.constant(_LAST))

    def _numbers(self, names: list[str], may_be_missing: bool) -> str:
        """Standardised numbers (N, F); missing ones are 0."""
        graph = self._graph
        stacked = [graph.node("Unsqueeze", name, graph.constant(_LAST)) for name in names]
        values = graph.node("Concat", *stacked, axis=1)
        if self._encoder is None:
            return values
        features = [self._embedder.features[name] for name in names]
        assert all(isinstance(feature, NumberFeature) for feature in features)
        logarithm = np.array([feature.transform == "log1p" for feature in features])
        zero, one = graph.constant(np.float32(0)), graph.constant(np.float32(1))
        if logarithm.any():
            logs = graph.node("Log", graph.node("Add", graph.node("Max", values, zero), one))
            values = graph.node("Where", graph.constant(logarithm), logs, values)
        mean, std = np.array([self._encoder.moments(name) for name in names], np.float32).T
        values = graph.node("Sub", values, graph.constant(mean))
        values = graph.node("Mul", values, graph.constant(1 / std))
        if not may_be_missing:
            return values
        present = [graph.node("Unsqueeze", n + PRESENT, graph.constant(_LAST)) for n in names]
        return graph.node("Where", graph.node("Concat", *present, axis=1), values, zero)

    def _codes(self, name: str) -> str:
        """Codes of raw ids, looked up in the graph; unseen ones get the first code for them."""
        graph, encoder = self._graph, self._encoder
        assert encoder is not None
        feature: Any = encoder.contract.features[name]
        owner = encoder.contract.vocabulary_of(name)
        if owner not in encoder.vocabularies:  # a number in buckets
            edges = encoder.boundaries(name).astype(np.float32)
            value = graph.node("Unsqueeze", name, graph.constant(_LAST))
            above = graph.node("GreaterOrEqual", value, graph.constant(edges))
            count = graph.node(
                "ReduceSum", graph.node("Cast", above, to=7), graph.constant(_LAST), keepdims=0
            )
            codes = graph.node("Add", count, graph.constant(np.int64(1)))
        else:
            known = encoder.vocabularies[owner].to_pylist()
            first = 1 + encoder.contract.features[owner].oov_buckets
            kind = "strings" if feature.dtype == "string" else "int64s"
            codes = graph.node(
                "LabelEncoder",
                name,
                domain="ai.onnx.ml",
                default_int64=1,
                values_int64s=list(range(first, first + len(known))),
                **{f"keys_{kind}": known},
            )
        zero = graph.constant(np.int64(0))
        if name + PRESENT in self._given:
            return graph.node("Where", name + PRESENT, codes, zero)
        if name + LENGTH in self._given:
            places = graph.constant(np.arange(self._given[name].shape[1]))
            length = graph.node("Unsqueeze", name + LENGTH, graph.constant(_LAST))
            return graph.node("Where", graph.node("Less", places, length), codes, zero)
        return codes

    def _pooled(self, name: str, codes: str, rows: str) -> str:
        """The sum or mean (N, d) of a list's rows (N, L, d)."""
        graph, feature = self._graph, self._embedder.features[name]
        if feature.pooling not in ("mean", "sum"):
            raise ValueError(
                f"feature {name!r}: expected pooling mean or sum, received {feature.pooling}"
            )
        zero = graph.constant(np.int32(0) if self._encoder is None else np.int64(0))
        empty = graph.node("Equal", codes, zero)
        real = graph.node("Cast", graph.node("Not", empty), to=1)  # (N, L) float
        weights = graph.node("Unsqueeze", real, graph.constant(_LAST))  # (N, 1, L)
        total = graph.node("Squeeze", graph.node("MatMul", weights, rows), graph.constant(_LAST))
        if feature.pooling == "sum":
            return total
        count = graph.node("ReduceSum", real, graph.constant(_LAST), keepdims=1)
        return graph.node("Div", total, graph.node("Max", count, graph.constant(np.float32(1))))


def _weights(graph: Graph, gates: Any, x: str, order: np.ndarray) -> str:
    """Weights of all gates, (N, T, E), or (1, T, E) of static ones."""
    parts = []
    for gate in gates:
        if gate.static:
            weights = np.asarray(gate(np.zeros((1, 1), np.float32)).weights)
            parts.append(graph.constant(weights[None, None]))
            continue
        logits = graph.dense(gate, x, order)
        k = graph.constant(np.array([gate.num_selected]))
        values, places = graph.node("TopK", logits, k, outputs=2, axis=1)
        chosen = graph.node("Softmax", values, axis=1)
        zeros = graph.node("Mul", logits, graph.constant(np.float32(0)))
        weights = graph.node("ScatterElements", zeros, places, chosen, axis=1)
        parts.append(graph.node("Unsqueeze", weights, graph.constant(np.array([1]))))
    return graph.node("Concat", *parts, axis=1)


def _experts(graph: Graph, ranker: Any, x: str, order: np.ndarray) -> str:
    """Results of all experts, (N, E, U); the first layers are one product."""
    stacks = [expert.dense_layers for expert in ranker.mixture.experts]
    E, width = len(stacks), stacks[0][0].units
    kernel = np.concatenate([stack[0].kernel.value.numpy()[order] for stack in stacks], axis=1)
    bias = np.concatenate([stack[0].bias.value.numpy() for stack in stacks])
    y = graph.node("Relu", graph.node("Gemm", x, graph.constant(kernel), graph.constant(bias)))
    y = graph.node("Reshape", y, graph.constant(np.array([-1, E, width])))
    for depth in range(1, len(stacks[0])):
        kernels = np.stack([stack[depth].kernel.value.numpy() for stack in stacks])
        biases = np.stack([stack[depth].bias.value.numpy() for stack in stacks])[:, None]
        y = graph.node("Transpose", y, perm=[1, 0, 2])  # (E, N, U)
        y = graph.node(
            "Add", graph.node("MatMul", y, graph.constant(kernels)), graph.constant(biases)
        )
        y = graph.node("Transpose", graph.node("Relu", y), perm=[1, 0, 2])
    return y
