"""Cost of a training step against the number of experts, sparse against dense.

A step is forward, backward and optimiser update of: a dense layer (D -> D, so that gradients flow
on to what lies below, as they do to embeddings) -> mixture -> one linear head per task -> MSE.

    ours        Mixture with per-example Top-k gates and the fused Adam
    moesart     the same with MOESART gates
    dense       (a) stacked weights and einsum, Top-k gates, Keras's Adam
    reference   (b) every expert evaluated on every row, DSelect-k gates, Keras's Adam, as in the
                public DSelect-k code

Contenders take turns, a few steps each, over fresh batches; medians are reported.  A second table
shows DSelect-k's step as its bits saturate.  Takes about five minutes on two cores; --quick one.

    python benchmarks/train_step.py [--quick] [--write]
"""

import argparse
import datetime
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

from multigate.model import gates
from multigate.model.moe.experts import make_experts
from multigate.model.moe.mixture import Mixture
from multigate.model.training.optimizers import Adam

D = U = 256
T = K = 2
DOCS = Path(__file__).parent.parent / "docs"
CONTENDERS = ("ours", "moesart", "dense", "reference")


def make_gates(name: str, E: int) -> list[gates.Gate]:
    return [gates.make(name, E, K, seed=task) for task in range(T)]


class DenseMixture(keras.layers.Layer):
    """Contender (a): all experts in one einsum."""

    def __init__(self, E: int) -> None:
        super().__init__()
        self.gates = make_gates("topk", E)
        self.kernel = self.add_weight(shape=(E, D, U), initializer="glorot_uniform")
        self.bias = self.add_weight(shape=(E, U), initializer="zeros")

    def call(self, x: tf.Tensor, training: bool = False) -> list[tf.Tensor]:
        """T tensors: representations (B, U) from a mixture, predictions (B, 1) from the model."""
        y = keras.ops.relu(keras.ops.einsum("bd,edu->beu", x, self.kernel) + self.bias)
        weights = [gate(x, training=training).weights for gate in self.gates]
        return [keras.ops.einsum("be,beu->bu", w, y) for w in weights]


class ReferenceMixture(keras.layers.Layer):
    """Contender (b): separate experts, all of them on all rows, weighted by DSelect-k."""

    def __init__(self, E: int) -> None:
        super().__init__()
        self.gates = make_gates("dselect_k", E)
        self.experts = make_experts(E, [U], seed=0)

    def call(self, x: tf.Tensor, training: bool = False) -> list[tf.Tensor]:
        """T tensors: representations (B, U) from a mixture, predictions (B, 1) from the model."""
        y = keras.ops.stack([expert(x) for expert in self.experts], axis=2)  # (B, U, E)
        weights = [gate(x, training=training).weights for gate in self.gates]
        return [keras.ops.sum(w[:, None, :] * y, axis=2) for w in weights]


class Model(keras.Model):
    """Dense layer, mixture, one head per task."""

    def __init__(self, mixture: keras.layers.Layer) -> None:
        super().__init__()
        self.bottom = keras.layers.Dense(D, "relu")
        self.mixture = mixture
        self.heads = [keras.layers.Dense(1) for _ in range(T)]

    def call(self, x: tf.Tensor, training: bool = False) -> list[tf.Tensor]:
        """T tensors: representations (B, U) from a mixture, predictions (B, 1) from the model."""
        outputs = self.mixture(self.bottom(x), training=training)
        outputs = getattr(outputs, "outputs", outputs)
        return [head(output) for head, output in zip(self.heads, outputs, strict=True)]


def make_mixture(name: str, E: int) -> keras.layers.Layer:
    if name == "dense":
        return DenseMixture(E)
    if name == "reference":
        return ReferenceMixture(E)
    gate = {"ours": "topk"}.get(name, name)
    return Mixture(make_experts(E, [U], seed=0), make_gates(gate, E))


def make_step(model: Model, optimizer: keras.optimizers.Optimizer, B: int) -> Callable[[], None]:
    """One training step, on the next of several batches."""
    batches = itertools.cycle([tf.random.stateless_normal((B, D), (seed, B)) for seed in range(16)])
    y = tf.random.stateless_normal((B, 1), (0, 1))
    model(next(batches))
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_mean((o - y) ** 2) for o in model(x, training=True))
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return loss

    return lambda: step(next(batches)).numpy()


def measure(steps: dict, rounds: int, burst: int = 4) -> dict:
    """Median milliseconds of each step; a burst's first refills the caches and is left out."""
    times = {key: [] for key in steps}
    for count in range(rounds + 1):
        for key, step in steps.items():
            for number in range(burst):
                start = time.perf_counter()
                step()
                if count and number:  # the first round traces and warms up
                    times[key].append(1e3 * (time.perf_counter() - start))
    return {key: float(np.median(values)) for key, values in times.items()}


def compare(sizes: list[int], B: int, rounds: int) -> dict[tuple[str, int], float]:
    """Milliseconds by (contender, E)."""
    steps = {}
    for E, name in itertools.product(sizes, CONTENDERS):
        keras.utils.set_random_seed(0)
        theirs = name in ("dense", "reference")
        optimizer = keras.optimizers.Adam() if theirs else Adam()
        steps[name, E] = make_step(Model(make_mixture(name, E)), optimizer, B)
    return measure(steps, rounds)


def saturate(E: int, B: int, rounds: int) -> list[tuple[float, float, float]]:
    """(share of saturated bits, experts per row, milliseconds) as DSelect-k's bits grow.

    The per-example bits are scaled, and the learning rate is zero, so that each level stays.
    """
    steps, levels = {}, {}
    for scale in (0.0, 0.3, 1.0, 3.0, 30.0, 3000.0):
        keras.utils.set_random_seed(0)
        model = Model(make_mixture("dselect_k", E))
        steps[scale] = make_step(model, Adam(0.0), B)
        for seed, gate in enumerate(model.mixture.gates):
            kernel = tf.random.stateless_normal(gate.bit_kernel.shape, (seed, 7))
            gate.bit_kernel.assign(scale * kernel / D**0.5)
        x = model.bottom(tf.random.stateless_normal((B, D), (0, B)))
        mixed = model.mixture(x)
        bits = np.mean([r.diagnostics["convergence"] for r in mixed.routings])
        levels[scale] = float(bits), float(mixed.experts_per_row)
    times = measure(steps, rounds)
    return [(*levels[scale], times[scale]) for scale in steps]


def format_costs(costs: dict[int, dict[tuple[str, int], float]], sizes: list[int]) -> str:
    lines = [
        "| batch | E | "
        + " | ".join(f"{name}, ms" for name in CONTENDERS)
        + " | dense / ours | reference / ours |",
        "|---:|---:|" + "---:|" * (len(CONTENDERS) + 2),
    ]
    for B, table in costs.items():
        for E in sizes:
            row = [table[name, E] for name in CONTENDERS]
            cells = [f"{ms:.1f}" for ms in row]
            cells += [f"{table[name, E] / row[0]:.1f}" for name in ("dense", "reference")]
            lines.append(f"| {B} | {E} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_saturation(levels: list[tuple[float, float, float]]) -> str:
    lines = ["| bits saturated | experts per row | step, ms |", "|---:|---:|---:|"]
    lines += [f"| {bits:.0%} | {experts:.1f} | {ms:.1f} |" for bits, experts, ms in levels]
    return "\n".join(lines)


def summarise(costs: dict[int, dict[tuple[str, int], float]]) -> dict[str, float]:
    large, small = costs[2048], costs[512]
    ratios = {
        "speedup_dense_E64_B2048": large["dense", 64] / large["ours", 64],
        "speedup_reference_E64_B2048": large["reference", 64] / large["ours", 64],
        "cost_E64_over_E8_B2048": large["ours", 64] / large["ours", 8],
        "cost_E64_over_E8_B512": small["ours", 64] / small["ours", 8],
        "speedup_dense_E8_B2048": large["dense", 8] / large["ours", 8],
    }
    return {name: round(ratio, 2) for name, ratio in ratios.items()}


def draw(costs: dict[int, dict[tuple[str, int], float]], sizes: list[int], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(costs), figsize=(10, 4), sharey=True)
    for axis, (B, table) in zip(axes, costs.items(), strict=True):
        for name in CONTENDERS:
            axis.plot(sizes, [table[name, E] for E in sizes], marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel="experts E", title=f"batch {B}")
        axis.set_xticks(sizes, [str(E) for E in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("training step, ms")
    axes[0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="E = 8 and 64 only, fewer rounds")
    parser.add_argument("--write", action="store_true", help="write docs/results and the picture")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--write: expected a full run, received --quick")
    sizes = [8, 64] if arguments.quick else [8, 16, 32, 64, 128]
    rounds = 3 if arguments.quick else 8
    costs = {B: compare(sizes, B, rounds) for B in (512, 2048)}
    levels = saturate(32, 2048, rounds)
    ratios = summarise(costs)
    report = [
        format_costs(costs, sizes),
        "DSelect-k while its bits saturate, E = 32, batch 2048:",
        format_saturation(levels),
    ]
    print("\n\n".join(report))
    if arguments.write:
        draw(costs, sizes, DOCS / "pictures" / "train_step.png")
        path = DOCS / "results" / "train_step.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        measured = f"Measured {datetime.date.today()} on a {os.cpu_count()}-core CPU machine"
        # What the numbers mean is written by hand below this mark, and stays.
        mark = "<!-- end of the measured part -->"
        rest = path.read_text().partition(mark)[2] if path.exists() else "\n"
        head = [
            "# Cost of a training step",
            f"{measured} with `python benchmarks/train_step.py --write`; k = {K}, T = {T}, "
            f"D = U = {D}. Times are medians in milliseconds.",
            *report,
            f"```json\n{json.dumps(ratios)}\n```",
            "![cost against experts](../pictures/train_step.png)",
            mark,
        ]
        path.write_text("\n\n".join(head) + rest)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
