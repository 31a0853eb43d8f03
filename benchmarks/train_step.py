"""Cost of a training step against the number of experts, sparse against dense.

A step is forward, backward and optimiser update of: a dense layer (D -> D, so that gradients flow
on to what lies below, as they do to embeddings) -> mixture -> one linear head per task -> MSE.

    ours        Mixture with per-example Top-k gates and `model.optimizer.optimizers.Adam`
    moesart     the same with MOESART gates
    dense       (a) stacked weights and einsum, Top-k gates, Keras's Adam
    reference   (b) every expert evaluated on every row, DSelect-k gates, Keras's Adam, as in the
                public DSelect-k code

Contenders take turns, a few steps each, over fresh batches; medians are reported, of wall time and
of the process's CPU time.  A second table shows DSelect-k's step as its bits saturate.  A process
has one Keras backend, so each backend runs in a process of its own, one after another.  Takes about
five minutes per backend on two cores; --quick one.

    python benchmarks/train_step.py [--backend tensorflow jax] [--quick] [--write]
    python benchmarks/train_step.py --backend jax --batches 8192 --sizes 8 16 32 64    # on a GPU
"""

import argparse
import datetime
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

from multigate.model import backend, gates
from multigate.model.moe.experts import make_experts
from multigate.model.moe.mixture import Mixture
from multigate.model.optimizer.optimizers import Adam

D = U = 256
T = K = 2
DOCS = Path(__file__).parent.parent / "docs"
CONTENDERS = ("ours", "moesart", "dense", "reference")
BATCHES = [512, 2048]
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def make_gates(name: str, E: int) -> list[gates.Gate]:
    return [gates.make(name, E, K, seed=task) for task in range(T)]


class DenseMixture(keras.layers.Layer):
    """Contender (a): all experts in one einsum."""

    def __init__(self, E: int) -> None:
        super().__init__()
        self.gates = make_gates("topk", E)
        self.kernel = self.add_weight(shape=(E, D, U), initializer="glorot_uniform")
        self.bias = self.add_weight(shape=(E, U), initializer="zeros")

    def call(self, x: Any, training: bool = False) -> list[Any]:
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

    def call(self, x: Any, training: bool = False) -> list[Any]:
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

    def call(self, x: Any, training: bool = False) -> list[Any]:
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


def make_model(name: str, E: int, B: int) -> Model:
    """A contender's model, built."""
    keras.utils.set_random_seed(0)
    model = Model(make_mixture(name, E))
    model(next(make_batches(B)))
    return model


def make_batches(B: int) -> Any:
    """Several batches (B, D), over and over."""
    rng = np.random.default_rng(B)
    batches = [rng.normal(size=(B, D)).astype(np.float32) for _ in range(16)]
    return itertools.cycle([keras.ops.convert_to_tensor(batch) for batch in batches])


def make_step(model: Model, optimizer: keras.optimizers.Optimizer, B: int) -> Callable[[], None]:
    """One training step, on the next of several batches."""
    optimizer.build(model.trainable_variables)
    labels = np.random.default_rng(0).normal(size=(B, 1)).astype(np.float32)
    make = make_tensorflow_step if backend.name() == "tensorflow" else make_jax_step
    return make(model, optimizer, make_batches(B), keras.ops.convert_to_tensor(labels))


def make_tensorflow_step(model: Model, optimizer: Any, batches: Any, y: Any) -> Callable[[], None]:
    import tensorflow as tf

    variables = model.trainable_variables

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_mean((o - y) ** 2) for o in model(x, training=True))
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return loss

    return lambda: step(next(batches)).numpy()


def make_jax_step(model: Model, optimizer: Any, batches: Any, y: Any) -> Callable[[], None]:
    import jax

    def loss_of(trained: Any, rest: Any, x: Any) -> Any:
        outputs, rest = model.stateless_call(trained, rest, x, training=True)
        return sum(keras.ops.mean((o - y) ** 2) for o in outputs), rest

    def step(trained: Any, rest: Any, moments: Any, x: Any) -> Any:
        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained, rest, x)
        trained, moments = optimizer.stateless_apply(moments, gradients, trained)
        return loss, trained, rest, moments

    lists = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state = [[keras.ops.copy(v.value) for v in variables] for variables in lists]
    x = next(batches)
    start = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*state, x).compile()
    seconds = time.perf_counter() - start

    def run() -> None:
        loss, *state[:] = compiled(*state, next(batches))
        loss.block_until_ready()

    run.compile_seconds = seconds
    return run


def measure(steps: dict, rounds: int, burst: int = 4) -> dict:
    """Median milliseconds of each step, wall and CPU; a burst's first refills the caches."""
    times = {key: [] for key in steps}
    for count in range(rounds + 1):
        for key, step in steps.items():
            for number in range(burst):
                start = time.perf_counter(), time.process_time()
                step()
                taken = time.perf_counter() - start[0], time.process_time() - start[1]
                if count and number:  # the first round traces and warms up
                    times[key].append(1e3 * np.array(taken))
    return {key: np.median(values, axis=0).tolist() for key, values in times.items()}


def compare(sizes: list[int], B: int, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds, and seconds to compile, by contender and E."""
    steps = {}
    for E, name in itertools.product(sizes, CONTENDERS):
        theirs = name in ("dense", "reference")
        optimizer = keras.optimizers.Adam() if theirs else Adam()
        steps[name, E] = make_step(make_model(name, E, B), optimizer, B)
    times = measure(steps, rounds)
    return [
        {
            "B": B,
            "E": E,
            "name": name,
            "wall": times[name, E][0],
            "cpu": times[name, E][1],
            "compile": getattr(step, "compile_seconds", None),
        }
        for (name, E), step in steps.items()
    ]


def saturate(E: int, B: int, rounds: int) -> list[tuple[float, float, float]]:
    """(share of saturated bits, experts per row, milliseconds) as DSelect-k's bits grow.

    The per-example bits are scaled, and the learning rate is zero, so that each level stays.
    """
    steps, levels = {}, {}
    for scale in (0.0, 0.3, 1.0, 3.0, 30.0, 3000.0):
        model = make_model("dselect_k", E, B)
        for seed, gate in enumerate(model.mixture.gates):
            kernel = np.random.default_rng(seed).normal(size=gate.bit_kernel.shape)
            gate.bit_kernel.assign(scale * kernel / D**0.5)
        mixed = model.mixture(model.bottom(next(make_batches(B))))
        bits = np.mean([float(r.diagnostics["convergence"]) for r in mixed.routings])
        levels[scale] = float(bits), float(mixed.experts_per_row)
        steps[scale] = make_step(model, Adam(0.0), B)
    times = measure(steps, rounds)
    return [(*levels[scale], times[scale][0]) for scale in steps]


Costs = dict[tuple[int, int, str], dict[str, Any]]  # by B, E and contender


def format_costs(costs: Costs, sizes: list[int]) -> str:
    compiles = any(cell["compile"] is not None for cell in costs.values())
    columns = [*(f"{name}, ms" for name in CONTENDERS), "ours, CPU ms"]
    columns += ["dense / ours", "reference / ours", *(["compile ours, s"] if compiles else [])]
    lines = [
        "| batch | E | " + " | ".join(columns) + " |",
        "|---:|---:|" + "---:|" * len(columns),
    ]
    for B, E in itertools.product(sorted({B for B, _, _ in costs}), sizes):
        ours, *_ = row = [costs[B, E, name] for name in CONTENDERS]
        cells = [f"{cell['wall']:.1f}" for cell in row] + [f"{ours['cpu']:.1f}"]
        cells += [f"{costs[B, E, name]['wall'] / ours['wall']:.1f}" for name in CONTENDERS[2:]]
        cells += [f"{ours['compile']:.1f}"] if compiles else []
        lines.append(f"| {B} | {E} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_saturation(levels: list[tuple[float, float, float]]) -> str:
    lines = ["| bits saturated | experts per row | step, ms |", "|---:|---:|---:|"]
    lines += [f"| {bits:.0%} | {experts:.1f} | {ms:.1f} |" for bits, experts, ms in levels]
    return "\n".join(lines)


def summarise(costs: Costs) -> dict[str, float]:
    def ratio(one: tuple[int, int, str], other: tuple[int, int, str], time: str = "wall") -> float:
        return round(costs[one][time] / costs[other][time], 2)

    ours = {(B, E): (B, E, "ours") for B in BATCHES for E in (8, 64)}
    return {
        "speedup_dense_E64_B2048": ratio((2048, 64, "dense"), ours[2048, 64]),
        "speedup_reference_E64_B2048": ratio((2048, 64, "reference"), ours[2048, 64]),
        "speedup_dense_E8_B2048": ratio((2048, 8, "dense"), ours[2048, 8]),
        "cost_E64_over_E8_B2048": ratio(ours[2048, 64], ours[2048, 8]),
        "cost_E64_over_E8_B512": ratio(ours[512, 64], ours[512, 8]),
        "cpu_E64_over_E8_B2048": ratio(ours[2048, 64], ours[2048, 8], "cpu"),
        "cpu_E64_over_E8_B512": ratio(ours[512, 64], ours[512, 8], "cpu"),
    }


def draw(costs: Costs, sizes: list[int], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, B in zip(axes, BATCHES, strict=True):
        for name in CONTENDERS:
            times = [costs[B, E, name]["wall"] for E in sizes]
            axis.plot(sizes, times, marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel="experts E", title=f"batch {B}")
        axis.set_xticks(sizes, [str(E) for E in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("training step, ms")
    axes[0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def run_backend(name: str, sizes: list[int], batches: list[int], rounds: int) -> dict[str, Any]:
    """The measurements on one backend, from a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps([sizes, batches, rounds])],
        env=os.environ | {"KERAS_BACKEND": name},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend", nargs="+", choices=BACKENDS, default=["tensorflow"], help="Keras backends"
    )
    parser.add_argument("--quick", action="store_true", help="E = 8 and 64 only, fewer rounds")
    parser.add_argument("--write", action="store_true", help="write docs/results and the picture")
    parser.add_argument("--sizes", nargs="+", type=int, help="numbers of experts E")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, help="rows B")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # see `run_backend`
    arguments = parser.parse_args()
    if arguments.measure:
        sizes, batches, rounds = json.loads(arguments.measure)
        costs = [cell for B in batches for cell in compare(sizes, B, rounds)]
        levels = saturate(32, 2048, rounds) if 2048 in batches else []
        print(json.dumps({"costs": costs, "levels": levels}))
        return
    chosen = arguments.quick or arguments.sizes or arguments.batches != BATCHES
    if arguments.write and (chosen or set(arguments.backend) != set(BACKENDS)):
        parser.error("--write: expected a full run with --backend tensorflow jax")
    sizes = arguments.sizes or ([8, 64] if arguments.quick else [8, 16, 32, 64, 128])
    report, ratios = [], {}
    for name in arguments.backend:
        found = run_backend(name, sizes, arguments.batches, 3 if arguments.quick else 8)
        costs = {(cell["B"], cell["E"], cell["name"]): cell for cell in found["costs"]}
        report += [f"## {BACKENDS[name]}", format_costs(costs, sizes)]
        if found["levels"]:
            report += [
                "DSelect-k while its bits saturate, E = 32, batch 2048:",
                format_saturation(found["levels"]),
            ]
        if arguments.batches == BATCHES and {8, 64} <= set(sizes):
            ratios[name] = summarise(costs)
        if arguments.write and name == "tensorflow":
            draw(costs, sizes, DOCS / "pictures" / "train_step.png")
    print("\n\n".join(report))
    if arguments.write:
        path = DOCS / "results" / "train_step.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        measured = f"Measured {datetime.date.today()} on a {os.cpu_count()}-core CPU machine"
        # What the numbers mean is written by hand below this mark, and stays.
        mark = "<!-- end of the measured part -->"
        rest = path.read_text().partition(mark)[2] if path.exists() else "\n"
        head = [
            "# Cost of a training step",
            f"{measured} with `python benchmarks/train_step.py --backend tensorflow jax --write`; "
            f"k = {K}, T = {T}, D = U = {D}. Times are medians in milliseconds, wall time unless "
            "CPU time is named.",
            *report,
            f"```json\n{json.dumps(ratios)}\n```",
            "![cost against experts, on TensorFlow](../pictures/train_step.png)",
            mark,
        ]
        path.write_text("\n\n".join(head) + rest)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
