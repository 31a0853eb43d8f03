"""A ranker with every expert on every row as an ONNX graph, written by hand.

It takes encoded features (codes in place of raw ids), so it needs no vocabulary look-ups.  It
supports top-k gates and ReLU only: the benchmarks of inference use nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from multigate.configs.contract import PRESENT, IdListFeature
from multigate.model.data.encoding import Encoded

OPSET = 17


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

    def dense(self, layer: Any, x: str) -> str:
        """Add a product with a kernel plus a bias; the output's name."""
        kernel, bias = layer.kernel.value.numpy(), layer.bias.value.numpy()
        return self.node("Gemm", x, self.constant(kernel), self.constant(bias))


def dense_onnx(ranker: Any, encoded: Encoded, folder: Path) -> Callable[[], Any] | None:
    """A call without arguments of the dense model on encoded rows; None without ONNX Runtime.

    Args:
        ranker: with per-example or static Top-k gates.
        encoded: N rows.
        folder: where the graph is written.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    graph = Graph(onnx)
    x = _embed(graph, ranker.embedder)
    mixed = graph.node(
        "MatMul", _weights(graph, ranker.mixture.gates, x), _experts(graph, ranker, x)
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
    names = [name for name in encoded if name.removesuffix(PRESENT) in ranker.embedder.features]
    inputs = [
        onnx.helper.make_tensor_value_info(
            name,
            onnx.helper.np_dtype_to_tensor_dtype(encoded[name].dtype),
            [None, *encoded[name].shape[1:]],
        )
        for name in names
    ]
    made = onnx.helper.make_graph(graph.nodes, "dense", inputs, outputs, graph.constants)
    model = onnx.helper.make_model(
        made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=8
    )
    path = folder / "dense.onnx"
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {name: encoded[name] for name in names}
    tasks = list(ranker.towers)
    return lambda: dict(zip(tasks, session.run(tasks, feed), strict=True))


def _embed(graph: Graph, embedder: Any) -> str:
    """Embedded, pooled and concatenated features (N, D)."""
    parts = []
    last = np.array([1])
    for name, feature in embedder.features.items():
        if name not in embedder.owners:
            parts.append(graph.node("Unsqueeze", name, graph.constant(last)))
            if feature.missing == "indicator":
                parts.append(graph.node("Unsqueeze", name + PRESENT, graph.constant(last)))
            continue
        table = embedder.tables[embedder.owners[name]].embeddings.value.numpy()
        rows = graph.node("Gather", graph.constant(table), name)
        if isinstance(feature, IdListFeature):
            empty = graph.node("Equal", name, graph.constant(np.int32(0)))
            real = graph.node("Cast", graph.node("Not", empty), to=1)  # (N, L) float
            weights = graph.node("Unsqueeze", real, graph.constant(last))  # (N, 1, L)
            total = graph.node("Squeeze", graph.node("MatMul", weights, rows), graph.constant(last))
            if feature.pooling not in ("mean", "sum"):
                raise ValueError(
                    f"feature {name!r}: expected pooling mean or sum, received {feature.pooling}"
                )
            if feature.pooling == "mean":
                count = graph.node("ReduceSum", real, graph.constant(last), keepdims=1)
                one = graph.constant(np.float32(1))
                total = graph.node("Div", total, graph.node("Max", count, one))
            rows = total
        parts.append(rows)
    return graph.node("Concat", *parts, axis=1)


def _weights(graph: Graph, gates: Any, x: str) -> str:
    """Weights of all gates, (N, T, E), or (1, T, E) of static ones."""
    parts = []
    for gate in gates:
        if gate.static:
            weights = np.asarray(gate(np.zeros((1, 1), np.float32)).weights)
            parts.append(graph.constant(weights[None, None]))
            continue
        logits = graph.dense(gate, x)
        k = graph.constant(np.array([gate.num_selected]))
        values, places = graph.node("TopK", logits, k, outputs=2, axis=1)
        chosen = graph.node("Softmax", values, axis=1)
        zeros = graph.node("Mul", logits, graph.constant(np.float32(0)))
        weights = graph.node("ScatterElements", zeros, places, chosen, axis=1)
        parts.append(graph.node("Unsqueeze", weights, graph.constant(np.array([1]))))
    return graph.node("Concat", *parts, axis=1)


def _experts(graph: Graph, ranker: Any, x: str) -> str:
    """Results of all experts, (N, E, U); the first layers are one product."""
    stacks = [expert.dense_layers for expert in ranker.mixture.experts]
    E, width = len(stacks), stacks[0][0].units
    kernel = np.concatenate([stack[0].kernel.value.numpy() for stack in stacks], axis=1)
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
