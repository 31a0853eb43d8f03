"""Multi-MNIST and Multi-Fashion: two images on top of each other, two tasks, experts that convolve.

    python benchmarks/papers/multi_mnist.py --data FOLDER           # seven hours on one core
    python benchmarks/papers/multi_mnist.py --data FOLDER --sets fashion --gates moesart --seeds 2
    python benchmarks/papers/multi_mnist.py --table

DSelect-k, table 2, and MOESART, tables 1 and S4.  FOLDER has the folders mnist/ and fashion-mnist/
with the publishers' idx files.  Task 1 names the image at the top left, task 2 the one at the
bottom right.  The budget is smaller than the papers': fewer examples and epochs, see `--rows` and
`--epochs`; one row per run goes to docs/results/papers/multi_mnist.jsonl.
"""

import argparse
import gzip
import json
import time
from itertools import starmap
from pathlib import Path
from typing import Any

import keras
import numpy as np
from book_crossing import only_file
from conv_pool import ConvPool
from rows import Row, Rows, cell, replace_table
from settings import meets_k
from two_tasks import k_cell

from multigate.model import gates
from multigate.model.data.ahead import prefetched
from multigate.model.gates.parts.base import derive_seed
from multigate.model.moe.mixture import Mixture
from multigate.model.ranker.loss import regularisation

SETS = {"mnist": ("mnist", 8, 4), "fashion": ("fashion-mnist", 5, 2)}  # folder, E, k of MOESART


def _dselect_k(
    form: str, gamma: float, entropy: float, xi: float | None = None, mass: float | None = None
) -> tuple[str, dict[str, Any]]:
    """A name that says what differs from the defaults, and the gate's options."""
    said = {"γ": gamma, "λ": entropy, "ξ": xi, "M": mass}
    parts = [form, *(f"{name} {value:g}" for name, value in said.items() if value is not None)]
    return ", ".join(parts), {
        "name": "dselect_k",
        "static": form == "dselect_k_static",
        "gamma": gamma,
        "entropy_weight": entropy,
        "reachability_weight": xi,
        "reachability_mass": mass,
    }


DSELECT = dict(
    starmap(
        _dselect_k,
        (
            ("dselect_k_static", 1.0, 0.1),
            ("dselect_k", 1.0, 0.001, 1.0, 1.0),
            ("dselect_k", 1.0, 0.01, 1.0, 1.0),
            ("dselect_k", 1.0, 0.1, 1.0, 1.0),
            ("dselect_k", 10.0, 0.1, 1.0, 1.0),
            ("dselect_k", 10.0, 0.1, 0.1, 1.0),
            ("dselect_k", 10.0, 0.01, 0.01, 1.0),
            ("dselect_k", 10.0, 0.001, 0.01, 1.0),
            ("dselect_k", 10.0, 0.1, 1.0, 0.5),
            ("dselect_k_static", 1.0, 0.1, 1.0, 1.0),
            ("dselect_k_static", 1.0, 0.1, 0.1, 1.0),
            ("dselect_k_static", 1.0, 0.1, 0.01, 1.0),
            ("dselect_k_static", 1.0, 0.1, 1.0, 0.5),
        ),
    )
)
"""DSelect-k's settings to try with seed 0; xi and M change nothing for Multi-MNIST's 8 experts."""
MOESART: dict[str, dict[str, Any]] = {
    f"moesart, Trimmed Lasso {weight:g}": {"name": "moesart", "trimmed_lasso_weight": weight}
    for weight in (0.1, 0.0, 0.01, 1.0)
}
"""MOESART's settings to try with seed 0."""
CHOSEN = {
    "dselect_k": "dselect_k_static, γ 1, λ 0.1",
    "moesart": "moesart, Trimmed Lasso 0.1",
}
"""The setting that a gate's name stands for: of those that met k on Multi-Fashion with seed 0, the
one with the lowest validation loss."""
GATES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "topk": {},
    **DSELECT,
    **MOESART,
    "vmoe": {},
    "switch": {},
    "expert_choice": {},
    "xmoe": {},
    "comet": {"entropy_weight": 0.1},
    "topk_static": {"name": "topk", "static": True},
    "gumbel_softmax": {"static": True, "sparsity_weight": 0.001},
}
WITHOUT_K = {"softmax", "gumbel_softmax"}
FIRST = ("moesart", "topk", "softmax", "dselect_k", "shared_bottom")
KEY = ("set", "model", "seed", "rows")
SIZE, SHIFT, CLASSES, BATCH = 36, 4, 10, 512
HELD_OUT = 20_000
"""Pairs of validation, and of test."""
AT_ONCE = 2000
"""Rows of a batch where nothing is trained."""

# Test loss x 100, accuracies of the two tasks in percent: MOESART, tables 1 and S4.
PUBLISHED = {
    ("mnist", "softmax"): (7.16, 98.16, 97.57),
    ("mnist", "topk"): (7.15, 98.12, 97.58),
    ("mnist", "vmoe"): (6.98, 98.16, 97.68),
    ("mnist", "switch"): (6.90, 98.18, 97.69),
    ("mnist", "expert_choice"): (8.57, 97.80, 97.22),
    ("mnist", "xmoe"): (7.02, 98.21, 97.63),
    ("mnist", "dselect_k"): (6.93, 98.14, 97.68),
    ("mnist", "comet"): (6.83, 98.21, 97.63),
    ("mnist", "moesart"): (5.86, 98.40, 97.92),
    ("fashion", "softmax"): (35.01, 88.10, 87.46),
    ("fashion", "topk"): (34.96, 88.06, 87.45),
    ("fashion", "vmoe"): (34.43, 88.04, 87.53),
    ("fashion", "switch"): (34.68, 88.06, 87.52),
    ("fashion", "expert_choice"): (36.41, 87.50, 87.03),
    ("fashion", "xmoe"): (33.84, 88.05, 87.84),
    ("fashion", "dselect_k"): (36.88, 87.37, 86.61),
    ("fashion", "comet"): (34.88, 87.97, 87.42),
    ("fashion", "moesart"): (32.85, 88.56, 88.02),
}


class MultiTask(keras.Model):
    """Convolutional experts, one gate and one stack of dense layers per task.

    Args:
        experts: E of the mixture; 1 is the shared bottom.
        gate: name and options for `gates.make`.
        seed: of all weights, noise and draws.
        tasks: a letter for each task.
        size: pixels of an image's side.
    """

    def __init__(
        self, experts: int, gate: dict[str, Any], seed: int, tasks: str = "12", size: int = SIZE
    ) -> None:
        super().__init__(name="multi_task")
        self.size = size
        self.mixture = Mixture(
            [expert(derive_seed(seed, f"expert {number}"), size) for number in range(experts)],
            [
                gates.make(num_experts=experts, seed=derive_seed(seed, "gate", task), **gate)
                for task in tasks
            ],
        )
        self.towers = [
            keras.Sequential(
                [
                    keras.layers.Dense(
                        units,
                        activation=activation,
                        kernel_initializer=keras.initializers.GlorotUniform(
                            seed=derive_seed(seed, f"tower {task} {index}")
                        ),
                    )
                    for index, (units, activation) in enumerate(
                        [(50, "relu"), (50, "relu"), (CLASSES, None)]
                    )
                ]
            )
            for task in tasks
        ]

    def call(self, images: Any, training: bool = False) -> Any:
        """Logits (B, T, 10) of images (B, size, size, 1)."""
        flat = keras.ops.reshape(images, (-1, self.size * self.size))
        mixed = self.mixture(images, gate_input=flat, training=training)
        if training:
            self.add_loss(regularisation(mixed.routings))
        logits = [tower(x) for tower, x in zip(self.towers, mixed.outputs, strict=True)]
        return keras.ops.stack(logits, axis=1)

    def experts_used(self, images: Any) -> tuple[Any, list[Any], Any]:
        """Logits, the mean number of experts per row of each task, and of their union."""
        flat = keras.ops.reshape(images, (-1, self.size * self.size))
        mixed = self.mixture(images, gate_input=flat, training=False)
        logits = [tower(x) for tower, x in zip(self.towers, mixed.outputs, strict=True)]
        used = [routing.diagnostics["experts_per_example"] for routing in mixed.routings]
        return keras.ops.stack(logits, axis=1), used, mixed.experts_per_row


def expert(seed: int | None, size: int = SIZE) -> keras.Model:
    """Two convolutions with pooling and two dense layers (both papers' architecture)."""

    def start(layer: str) -> keras.initializers.Initializer:
        return keras.initializers.GlorotUniform(seed=derive_seed(seed, layer))

    return keras.Sequential(
        [
            keras.Input((size, size, 1)),
            ConvPool(10, 5, start("conv 1")),
            ConvPool(20, 5, start("conv 2")),
            keras.layers.Flatten(),
            keras.layers.Dense(50, activation="relu", kernel_initializer=start("dense 1")),
            keras.layers.Dense(50, activation="relu", kernel_initializer=start("dense 2")),
        ]
    )


def read_idx(path: Path) -> np.ndarray:
    """An idx file of bytes: images (N, 28, 28) or labels (N,)."""
    with gzip.open(path) as file:
        content = file.read()
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", dimensions, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_images(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of one of a publisher's sets, `train` or `t10k`."""
    images, labels = (
        read_idx(only_file(folder, f"{name}-{kind}-ubyte.gz"))
        for kind in ("images-idx3", "labels-idx1")
    )
    return images, labels


def overlay(
    images: np.ndarray, labels: np.ndarray, rows: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs of images, one shifted to the top left, one to the bottom right.

    Returns:
        Images (rows, 36, 36, 1) in [0, 1], with the brighter pixel where both have one; labels
        (rows, 2).
    """
    first, second = rng.integers(len(images), size=(2, rows))
    canvas = np.zeros((rows, SIZE, SIZE), np.uint8)
    side = images.shape[1]
    canvas[:, :side, :side] = images[first]
    end = slice(2 * SHIFT, 2 * SHIFT + side)
    canvas[:, end, end] = np.maximum(canvas[:, end, end], images[second])
    both = np.stack([labels[first], labels[second]], axis=1).astype("int32")
    return (canvas.astype("float32") / 255)[..., None], both


def data(folder: Path, rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs for training, validation and test; the splits share no image.

    Args:
        folder: of a publisher's idx files.
        rows: of training; validation and test are the same for every number.
    """
    pixels, labels = read_images(folder, "train")
    cut = len(pixels) * 5 // 6
    sources = {
        "train": (pixels[:cut], labels[:cut], rows),
        "validation": (pixels[cut:], labels[cut:], HELD_OUT),
        "test": (*read_images(folder, "t10k"), HELD_OUT),
    }
    return {
        split: overlay(*source, np.random.default_rng(number))
        for number, (split, source) in enumerate(sources.items())
    }


def fit(
    model: keras.Model,
    splits: dict[str, tuple[np.ndarray, np.ndarray]],
    size: int,
    epochs: int,
    patience: int,
) -> list[float]:
    """Train with early stopping, and keep the weights of the lowest validation loss.

    Args:
        model: compiled.
        splits: images and labels, `train` and `validation`.
        size: of a batch.
        epochs: at most.
        patience: epochs without a lower loss.

    Returns:
        The validation loss of each epoch.
    """
    train, held_out = splits["train"], splits["validation"]
    given: dict[str, Any] = {"x": train[0], "y": train[1], "batch_size": size}
    given |= {"validation_data": held_out, "validation_batch_size": AT_ONCE}
    if keras.backend.backend() == "tensorflow":
        # Not the dataset that Keras makes of arrays: each epoch's end would wait for its tuning.
        given = {"x": batches(*train, size, shuffled=True), "shuffle": False}
        given |= {"validation_data": batches(*held_out, AT_ONCE)}
    stopping = keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True)
    fitted = model.fit(**given, epochs=epochs, callbacks=[stopping], verbose=0)
    return [float(loss) for loss in fitted.history["val_loss"]]


def batches(x: np.ndarray, y: np.ndarray, size: int, shuffled: bool = False) -> Any:
    """A `tf.data.Dataset` of batches; shuffled anew for each epoch, by Keras's seed."""
    import tensorflow as tf

    held = tf.constant(x), tf.constant(y)
    rows = tf.data.Dataset.range(len(x))
    rows = rows.shuffle(len(x)) if shuffled else rows
    return prefetched(rows.batch(size).map(lambda i: tuple(tf.gather(each, i) for each in held)))


def measure(run: Row, folder: Path, epochs: int) -> Row:
    """Train with early stopping on the validation loss, and measure on the test split."""
    started = time.perf_counter()
    name, experts, k = SETS[run["set"]]
    splits = data(folder / name, run["rows"])
    gate = {"name": "softmax"}
    if run["model"] == "shared_bottom":
        experts = 1
    else:
        gate = {"name": run["model"]} | GATES[run["model"]]
        if run["model"] not in WITHOUT_K:
            gate["num_selected"] = k
    keras.utils.set_random_seed(run["seed"])
    model = MultiTask(experts, gate, run["seed"])

    def loss(y: Any, logits: Any) -> Any:
        parts = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        return keras.ops.mean(parts, axis=-1)  # the tasks weigh the same, 0.5 each

    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    val_losses = fit(model, splits, BATCH, epochs, patience=5)
    x, y = splits["test"]
    logits, used, union = [], [], []
    for start in range(0, len(x), AT_ONCE):
        z, per_task, all_tasks = model.experts_used(x[start : start + AT_ONCE])
        logits.append(keras.ops.convert_to_numpy(z))
        used.append([float(keras.ops.mean(value)) for value in per_task])
        union.append(float(all_tasks))
    scores = np.concatenate(logits)
    right = (scores.argmax(axis=2) == y).mean(axis=0)
    return {
        "loss": float(np.mean(keras.ops.convert_to_numpy(loss(y, scores)))),
        "accuracy": [float(value) for value in right],
        "experts": [float(value) for value in np.mean(used, axis=0)],
        "experts_per_row": float(np.mean(union)),
        "best_epoch": int(np.argmin(val_losses)) + 1,
        "epochs": len(val_losses),
        "val_loss": float(min(val_losses)),
        "seconds": round(time.perf_counter() - started),
    }


def named(model: str) -> str:
    """The model; of a gate with several settings, the chosen one."""
    return CHOSEN.get(model, model)


def published_as(model: str) -> str:
    """The paper's name of a model: a chosen setting has its gate's."""
    return {setting: gate for gate, setting in CHOSEN.items()}.get(model, model)


def met_k(row: Row) -> bool | None:
    """Whether no task of a run used more than k experts a row; None of a model without k."""
    if row["model"] in WITHOUT_K or row["model"] == "shared_bottom":
        return None
    _, _, k = SETS[row["set"]]
    return meets_k(dict(enumerate(row["experts"])), k)


def write_table(rows: list[Row]) -> None:
    """One table per data set, lowest loss first, into docs/results/papers.md."""
    for name in SETS:
        lines = [
            "| model | test loss x 100 | accuracy 1, % | accuracy 2, % | experts a task | meets k "
            "| union | rows | seeds | best epoch | paper: loss, accuracies |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        groups: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            if row["set"] == name:
                groups.setdefault((row["model"], row["rows"]), []).append(row)
        order = sorted(groups.items(), key=lambda item: np.mean([row["loss"] for row in item[1]]))
        for (model, size), found in order:
            published = PUBLISHED.get((name, published_as(model)))
            lines.append(
                f"| {model} | {cell([100 * row['loss'] for row in found], 2)} "
                f"| {cell([100 * row['accuracy'][0] for row in found], 2)} "
                f"| {cell([100 * row['accuracy'][1] for row in found], 2)} "
                f"| {np.mean([row['experts'] for row in found]):.1f} "
                f"| {k_cell([row | {'meets_k': met_k(row)} for row in found])} "
                f"| {np.mean([row['experts_per_row'] for row in found]):.1f} | {size:,} "
                f"| {len(found)} | {np.mean([row['best_epoch'] for row in found]):.0f} "
                f"| {', '.join(f'{value:g}' for value in published) if published else ''} |"
            )
        replace_table(f"multi-{name}", lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of mnist/ and fashion-mnist/")
    arguments.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    models = [*GATES, *CHOSEN, "shared_bottom"]
    arguments.add_argument(
        "--gates", nargs="+", choices=models, default=list(FIRST), metavar="MODEL", help="in order"
    )
    arguments.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each")
    arguments.add_argument("--rows", type=int, default=50_000, help="training examples")
    arguments.add_argument("--epochs", type=int, default=25, help="at most")
    arguments.add_argument("--table", action="store_true", help="only write the page's tables")
    options = arguments.parse_args()
    rows = Rows("multi_mnist", KEY)
    if not options.table:
        if options.data is None:
            arguments.error("--data is needed to run; --table writes what there is")
        wanted = [
            {"set": name, "model": named(model), "seed": seed, "rows": options.rows}
            for seed in range(options.seeds)
            for name in options.sets
            for model in options.gates
        ]
        rows.run(wanted, lambda run: measure(run, options.data, options.epochs))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


if __name__ == "__main__":
    main()
