"""Tasks in groups (DSelect-k, C.1 and D.4): test error, and whether related tasks share experts.

    python benchmarks/papers/tasks_in_groups.py              # two hours on one core
    python benchmarks/papers/tasks_in_groups.py --tasks 16 --gates Top-k DSelect-k
    python benchmarks/papers/tasks_in_groups.py --gates DSelect-k --trials 36   # its whole grid
    python benchmarks/papers/tasks_in_groups.py --table

Data: groups of 16 regression tasks.  Each group has 4 experts of its own (a sum of 4 ReLU units,
all weights standard normal); a task is a convex combination of them, the softmax of a normal
vector whose correlation between two tasks of the group is 0.8.  The paper speaks of four groups
of 16 and of 128 tasks; here 128 tasks are eight groups, so that T/4 experts made the data, as the
paper says too.  100,000 rows train, 20,000 validate and 20,000 test.

Model: T/4 trainable experts of the same form, shared by T static gates that each choose 4; mean
squared error, Adam, batch 256, 100 epochs (39,000 steps).  Compared are Top-k, DSelect-k, and
DSelect-k with softmax selectors (annealed, or with an entropy penalty).  The Jaccard index of two
tasks is the share of experts that both chose among those that either chose: high is right within a
group, low across.

Tuning: trials draw from the paper's grid (`SPACES`), at random and without a repetition; each is
trained on two problems.  The trial with the lowest validation error of epochs 25, 50, 75 or 100 is
taken, as in the paper.  Its settings are then trained on other problems, with the epoch taken in
the same way for each.  (The paper: some 5 trials a grid point, 100 repetitions.)  Gates are
hardened before they are measured, so that no task has more than 4 experts; a row says the error
and the experts before that, too.

Each training is a row of docs/results/papers/tasks_in_groups.jsonl.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from rows import Row, Rows, cell, paired, replace_table

from multigate.model import gates
from multigate.model.gates.parts.selection import keep_largest

GROUP, TRUE, UNITS, FEATURES, BATCH = 16, 4, 4, 10, 256
ROWS, HELD_OUT = 100_000, 20_000
STEPS = ROWS // BATCH
EPOCHS = (25, 50, 75, 100)
"""Where a training is measured; it ends at the last."""
TASKS = (16, 32, 64, 128)
TRIALS = 8
"""By default; Top-k's grid has three points."""
CHOSEN = 1e-3
"""A task has chosen the experts above this weight; a softmax is never 0."""
TUNED_ON = (100, 101)
"""Problems of the trials; the table's are 0, 1, ...."""
KEY = ("tasks", "gate", "kind", "trial", "seed")
_RATES = [0.001, 0.01, 0.1]
# No penalty at first and a strong one at last: every selector has decided while the experts can
# still adapt.  Bits that hardening has to round cost accuracy.
_LATE = [[0, 0], [0.25, 0], [0.5, 1], [0.75, 30]]
SPACES: dict[str, tuple[str, dict[str, list[Any]]]] = {
    "Top-k": ("topk", {"learning_rate": _RATES}),
    "DSelect-k": (
        "dselect_k",
        {
            "learning_rate": _RATES,
            "gamma": [5.0, 10.0, 15.0],
            "entropy_weight": [0.001, 0.005, 0.01, 0.1],
        },
    ),
    "DSelect-k, late penalty": (
        "dselect_k",
        {
            "learning_rate": [0.01, 0.03, 0.1],
            "gamma": [1.0, 5.0, 10.0],
            "entropy_weight": [0.01, 0.1],
            "entropy_schedule": [_LATE],
        },
    ),
    "DSelect-k, annealed": (
        "dselect_k",
        {
            "learning_rate": _RATES,
            "gamma": [5.0, 10.0, 15.0],
            "gamma_end": [1e-3],
            "entropy_weight": [0.0, 0.01],
        },
    ),
    "softmax, annealed": (
        "softmax_selector",
        {
            "learning_rate": _RATES,
            # The paper's range, and two larger ones.
            "temperature": [1e-6, 1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 0.1, 1.0],
            "temperature_end": [1e-16],
        },
    ),
    "softmax, entropy": (
        "softmax_selector",
        {
            "learning_rate": _RATES,
            "entropy_weight": [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 100.0],
        },
    ),
}
"""By the name of the comparison: the gate, and the choices of its settings."""


class Measured(NamedTuple):
    """S problems after one of `EPOCHS`, with hardened gates: errors (S,), weights (S, T, E).

    `soft` and `soft_weights` are the test errors and the weights before hardening.
    """

    validation: np.ndarray
    test: np.ndarray
    weights: np.ndarray
    soft: np.ndarray
    soft_weights: np.ndarray


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--tasks", type=int, nargs="+", default=list(TASKS))
    arguments.add_argument("--gates", nargs="+", choices=list(SPACES), default=list(SPACES))
    arguments.add_argument("--trials", type=int, default=TRIALS, help="of each gate, at most")
    arguments.add_argument("--seeds", type=int, default=5, help="problems 0, 1, ... of each")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("tasks_in_groups", KEY)
    if not options.table:
        for tasks, gate in itertools.product(options.tasks, options.gates):
            key: Row = {"tasks": tasks, "gate": gate, "kind": "trial", "seed": None}
            drawn = range(min(options.trials, len(draws(gate))))
            rows.run([key | {"trial": trial} for trial in drawn], measure_trial)
            key |= {"kind": "final", "trial": best_trial(rows.read(), tasks, gate)["trial"]}
            rows.run([key | {"seed": seed} for seed in range(options.seeds)], measure_final)
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def problem(seeds: Sequence[int], tasks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mixtures that make the data, one for each seed.

    Returns:
        Kernels (S, E, D, U) and biases (S, E, U) of the experts, weights (S, T, E) of the tasks.
        The first groups are the same whatever `tasks` is.
    """
    E = tasks // GROUP * TRUE
    kernels = np.zeros((len(seeds), E, FEATURES, UNITS), "float32")
    biases = np.zeros((len(seeds), E, UNITS), "float32")
    weights = np.zeros((len(seeds), tasks, E), "float32")
    for s, seed in enumerate(seeds):
        for g in range(tasks // GROUP):
            rng = np.random.default_rng([seed, g])
            mine = slice(g * TRUE, (g + 1) * TRUE)
            kernels[s, mine] = rng.normal(size=(TRUE, FEATURES, UNITS))
            biases[s, mine] = rng.normal(size=(TRUE, UNITS))
            common, own = rng.normal(size=TRUE), rng.normal(size=(GROUP, TRUE))
            alpha = np.exp(math.sqrt(0.8) * common + math.sqrt(0.2) * own)
            weights[s, g * GROUP : (g + 1) * GROUP, mine] = alpha / alpha.sum(1, keepdims=True)
    return kernels, biases, weights


def mixture(x: Any, kernels: Any, biases: Any, weights: Any) -> tf.Tensor:
    """Outputs (S, B, T) of all tasks on rows x (B, D)."""
    units = tf.nn.relu(tf.einsum("bd,sedu->sbeu", x, kernels) + biases[:, None])
    return tf.einsum("sbe,ste->sbt", tf.reduce_sum(units, -1), weights)


def static_gates(
    name: str, seeds: Sequence[int], experts: int, **options: Any
) -> tuple[Any, list[Any]]:
    """Static gates, one for each seed, as one layer: a per-example gate on the gate's one-hot.

    A row of each kernel is then one static gate's bias, and starts where that gate would; the
    layer's own biases stay zero.

    Returns:
        The gate, called on the identity matrix (N, N), and the kernels to train.
    """
    gate = gates.make(name, experts, TRUE, seed=0, **options)
    gate.build((None, len(seeds)))
    singles = [gates.make(name, experts, TRUE, static=True, seed=s, **options) for s in seeds]
    for single in singles:
        single.build((None, len(seeds)))
    kernels = []
    for variable in gate.trainable_variables:
        if not variable.name.endswith("kernel"):
            variable.assign(np.zeros(variable.shape))
            continue
        bias = variable.name.replace("kernel", "bias")
        rows = [v for single in singles for v in single.trainable_variables if v.name == bias]
        variable.assign(np.stack([row.numpy() for row in rows]))
        kernels.append(variable)
    return gate, kernels


def train(
    name: str,
    tasks: int,
    seeds: Sequence[int],
    learning_rate: float,
    epochs: Sequence[int] = EPOCHS,
    **options: Any,
) -> dict[int, Measured]:
    """Train one mixture for each problem, side by side.

    Args:
        name: of the gate.
        tasks: T.
        seeds: of the problems and of what the training draws.
        learning_rate: of Adam.
        epochs: where to measure, in order.
        **options: of the gate.
    """
    truth = problem(seeds, tasks)
    S, E = truth[0].shape[:2]
    starts = [seed * 1000 + task for seed in seeds for task in range(tasks)]
    gate, kernels = static_gates(name, starts, E, **options)
    one_hot = tf.eye(S * tasks)
    rng = np.random.default_rng([1, *seeds])
    limit = math.sqrt(6 / (FEATURES + UNITS))  # Glorot's
    expert_kernels = tf.Variable(rng.uniform(-limit, limit, truth[0].shape).astype("float32"))
    expert_biases = tf.Variable(tf.zeros(truth[1].shape))
    variables = [*kernels, expert_kernels, expert_biases]
    adam = keras.optimizers.Adam(learning_rate)
    adam.build(variables)
    rows = rng.normal(size=(ROWS + 2 * HELD_OUT, FEATURES)).astype("float32")
    x_train, x_validation, x_test = np.split(rows, [ROWS, ROWS + HELD_OUT])

    @tf.function(jit_compile=True)
    def run_epoch(x: tf.Tensor) -> None:
        """One step for each batch of x (N, B, D)."""
        for step in tf.range(len(x)):
            with tf.GradientTape() as tape:
                routing = gate(one_hot, training=True)
                weights = tf.reshape(routing.weights, (S, tasks, E))
                out = mixture(x[step], expert_kernels, expert_biases, weights)
                # The mean over tasks, summed over problems, which have nothing to do with each
                # other; a gate's own losses are means over all rows of its batch.
                loss = S * tf.reduce_mean(tf.square(out - mixture(x[step], *truth)))
                for term in routing.losses.values():
                    loss += S * term
            adam.apply(tape.gradient(loss, variables), variables)

    @tf.function(jit_compile=True)
    def errors(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        out = mixture(x, expert_kernels, expert_biases, weights)
        return tf.reduce_mean(tf.square(out - mixture(x, *truth)), (1, 2))

    def error_of(x: np.ndarray, weights: tf.Tensor) -> np.ndarray:
        return np.mean([errors(part, weights) for part in np.split(x, 10)], axis=0)

    found = {}
    for epoch in range(1, epochs[-1] + 1):
        order = rng.permutation(ROWS)[: STEPS * BATCH]
        run_epoch(tf.constant(x_train[order].reshape(STEPS, BATCH, FEATURES)))
        if epoch in epochs:
            soft_weights = tf.reshape(gate(one_hot).weights, (S, tasks, E))
            # As a static gate hardens; the layer is per example, and would harden otherwise.
            weights = keep_largest(soft_weights, TRUE)
            found[epoch] = Measured(
                error_of(x_validation, weights),
                error_of(x_test, weights),
                weights.numpy(),
                error_of(x_test, soft_weights),
                soft_weights.numpy(),
            )
    return found


def jaccard(weights: np.ndarray) -> tuple[float, float]:
    """Mean index of related and of unrelated pairs of tasks (nan without any); weights (T, E)."""
    chosen = (weights > CHOSEN).astype(float)
    both = chosen @ chosen.T
    size = chosen.sum(1)
    index = both / (size[:, None] + size - both)
    group = np.arange(len(weights)) // GROUP
    same = group[:, None] == group
    related = index[same & ~np.eye(len(weights), dtype=bool)].mean()
    return float(related), float(index[~same].mean()) if (~same).any() else math.nan


def random_jaccard(experts: int) -> float:
    """Expected index of two sets of 4 of the experts, drawn uniformly."""
    shares = [
        math.comb(TRUE, n) * math.comb(experts - TRUE, TRUE - n) * n / (2 * TRUE - n)
        for n in range(TRUE + 1)
    ]
    return sum(shares) / math.comb(experts, TRUE)


def draws(gate: str) -> list[Row]:
    """The settings of a gate's trials: the points of its grid, in a random order."""
    space = SPACES[gate][1]
    grid = [dict(zip(space, point, strict=True)) for point in itertools.product(*space.values())]
    return [grid[index] for index in np.random.default_rng(0).permutation(len(grid))]


def options_of(settings: Row) -> Row:
    """What `train` takes, with steps in place of shares of the training."""
    total = STEPS * EPOCHS[-1]
    options = dict(settings)
    if "temperature" in options:
        options["temperature_steps"] = total
    if "gamma_end" in options:  # every bit has settled in the last quarter
        options["gamma_steps"] = round(0.75 * total)
    if "entropy_schedule" in options:
        points = options["entropy_schedule"]
        options["entropy_schedule"] = [[round(share * total), factor] for share, factor in points]
    return options


def measure_trial(run: Row) -> Row:
    """The epoch with the lowest validation error over the problems to tune on."""
    began = time.perf_counter()
    settings = draws(run["gate"])[run["trial"]]
    name = SPACES[run["gate"]][0]
    found = train(name, run["tasks"], TUNED_ON, **options_of(settings))
    # An error that is no number never wins.
    errors = {
        epoch: float(np.nan_to_num(m.validation, nan=1e9).mean()) for epoch, m in found.items()
    }
    epoch = min(errors, key=lambda e: errors[e])
    return {
        "settings": settings,
        "epoch": epoch,
        "validation": round(errors[epoch], 6),
        "experts": mean_experts(found[epoch].weights),
        "soft_experts": mean_experts(found[epoch].soft_weights),
        "seconds": round(time.perf_counter() - began),
    }


def mean_experts(weights: np.ndarray) -> float:
    """Experts of a task in the mean, of weights (..., E)."""
    return round(float((weights > CHOSEN).sum(-1).mean()), 3)


def trials(rows: list[Row], tasks: int, gate: str) -> list[Row]:
    """A gate's trials."""
    key = (tasks, gate, "trial")
    return [row for row in rows if (row["tasks"], row["gate"], row["kind"]) == key]


def best_trial(rows: list[Row], tasks: int, gate: str) -> Row:
    """The trial with the lowest validation error."""
    best: Row = min(trials(rows, tasks, gate), key=lambda row: row["validation"])
    return best


def finals(rows: list[Row], tasks: int) -> list[list[Row]]:
    """The problems of each gate that has some, with the settings of its best trial."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if (row["tasks"], row["kind"]) != (tasks, "final"):
            continue
        # With more trials another one may be the best: its problems are then wanted.
        if row["trial"] == best_trial(rows, tasks, row["gate"])["trial"]:
            found.setdefault(row["gate"], []).append(row)
    return list(found.values())


def measure_final(run: Row) -> Row:
    """A trial's settings on one problem, at the epoch with the lowest validation error."""
    began = time.perf_counter()
    settings = draws(run["gate"])[run["trial"]]
    found = train(SPACES[run["gate"]][0], run["tasks"], [run["seed"]], **options_of(settings))
    epoch = min(found, key=lambda e: float(found[e].validation[0]))
    weights = found[epoch].weights[0]
    related, unrelated = jaccard(weights)
    return {
        "settings": settings,
        "epoch": epoch,
        "mse": round(float(found[epoch].test[0]), 6),
        "related": round(related, 4),
        "unrelated": None if math.isnan(unrelated) else round(unrelated, 4),
        "experts": mean_experts(weights),
        "soft_mse": round(float(found[epoch].soft[0]), 6),
        "soft_experts": mean_experts(found[epoch].soft_weights),
        "seconds": round(time.perf_counter() - began),
    }


def write_table(rows: list[Row]) -> None:
    """By number of tasks the lowest error first, and the paired differences, into the page."""
    lines = [
        "| tasks | gate | test MSE | before hardening | related | unrelated | experts a task "
        "| before hardening | problems | trials | settings |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for tasks in sorted({row["tasks"] for row in rows}):
        chance = f"{random_jaccard(tasks // GROUP * TRUE):.2f}"
        lines.append(
            f"| {tasks} | random choice |  |  | {chance} | {chance if tasks > GROUP else ''} "
            f"| {TRUE} |  |  |  |  |"
        )
        for found in sorted(finals(rows, tasks), key=lambda f: np.mean([r["mse"] for r in f])):
            gate, trial = found[0]["gate"], best_trial(rows, tasks, found[0]["gate"])
            settings = ", ".join(
                f"{name} {value:g}"
                for name, value in trial["settings"].items()
                if not isinstance(value, list)
            )
            unrelated = cell([r["unrelated"] for r in found], 3) if tasks > GROUP else ""
            lines.append(
                f"| {tasks} | {gate} | {cell([r['mse'] for r in found], 4)} "
                f"| {np.mean([r['soft_mse'] for r in found]):.4f} "
                f"| {cell([r['related'] for r in found], 2)} | {unrelated} "
                f"| {np.mean([r['experts'] for r in found]):.1f} "
                f"| {np.mean([r['soft_experts'] for r in found]):.1f} | {len(found)} "
                f"| {len(trials(rows, tasks, gate))} | {settings} |"
            )
    replace_table("tasks_in_groups", lines)
    replace_table("tasks_in_groups paired", differences(rows))


def differences(rows: list[Row]) -> list[str]:
    """The table of every gate's problems less Top-k's."""
    lines = [
        "| tasks | gate | test MSE | related | unrelated | problems |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for tasks in sorted({row["tasks"] for row in rows}):
        by_gate = {found[0]["gate"]: {r["seed"]: r for r in found} for found in finals(rows, tasks)}
        base = by_gate.pop("Top-k", {})
        for gate, found in by_gate.items():
            pairs = paired(found, base)
            if not pairs:
                continue
            less = {
                name: [one[name] - other[name] for one, other in pairs]
                for name in ("mse", "related", "unrelated")
                if tasks > GROUP or name != "unrelated"
            }
            unrelated = cell(less["unrelated"], 3, "+") if "unrelated" in less else ""
            lines.append(
                f"| {tasks} | {gate} | {cell(less['mse'], 4, '+')} "
                f"| {cell(less['related'], 2, '+')} | {unrelated} | {len(pairs)} |"
            )
    return lines


if __name__ == "__main__":
    main()
