"""Three routers on Fashion-MNIST: figures 2 to 4 of the paper on MOESART, which has SVHN there.

    python benchmarks/papers/fashion_routers.py --data FOLDER --seeds 3   # four hours on one core
    python benchmarks/papers/fashion_routers.py --table

FOLDER has the folder fashion-mnist/ with the publisher's idx files.  SVHN is not at hand, so the
question is the paper's and the set-up is ours: images of 28 x 28 in grey, 8 convolutional experts,
three dense layers and a softmax behind them (S6.2), no regulariser, Adam 1e-3, batch 512, at most
60 epochs with patience 8; `--rows` of the 60,000 training images train, 5,000 others validate, and
the publisher's 10,000 test.  (The paper: 73,257 images to train, Adam 1e-4, 250 epochs, patience
50.)  Each training is a row of docs/results/papers/fashion_routers.jsonl.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from inference_modes import OWN, K, routed_by
from multi_mnist import AT_ONCE, BATCH, MultiTask, fit, read_images
from rows import RESULTS, Row, Rows, cell, replace_table

EXPERTS, SIZE = 8, 28
EPOCHS, PATIENCE, RATE = 60, 8, 1e-3
VALIDATION = 5_000
QUANTILES = 100
"""Parts of equal size that a distribution of losses is kept as."""
KEY = ("gate", "k", "replacement", "seed", "rows")
FIRST: tuple[Row, ...] = (
    {"gate": "moesart", "k": 2, "replacement": False},
    {"gate": "topk", "k": 2, "replacement": False},
    {"gate": "moesart", "k": 2, "replacement": True},
    {"gate": "softmax", "k": None, "replacement": False},
)
"""The trainings of figures 2 and 3, which all seeds do first."""
OTHERS: tuple[Row, ...] = tuple(
    {"gate": gate, "k": k, "replacement": False} for k in (4, 6) for gate in ("topk", "moesart")
)
"""Figure 4's."""
PUBLISHED = {("softmax", None): 0.259, ("moesart", 2): 0.251, ("topk", 2): 0.282}
"""Figure 2f, on SVHN: the lowest loss on held-out images."""
PICTURE = RESULTS.parents[1] / "pictures" / "fashion_routers.png"

Images = tuple[np.ndarray, np.ndarray]
"""Images (N, 28, 28, 1) in [0, 1] and their classes (N,)."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of fashion-mnist/")
    arguments.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each")
    arguments.add_argument("--rows", type=int, default=10_000, help="training images")
    arguments.add_argument("--table", action="store_true", help="only write the page's tables")
    options = arguments.parse_args()
    rows = Rows("fashion_routers", KEY)
    if not options.table:
        if options.data is None:
            arguments.error("--data is needed to run; --table writes what there is")
        if options.rows < 1:
            arguments.error(f"--rows: expected at least 1, received {options.rows}")
        wanted = [
            run | {"seed": seed, "rows": options.rows}
            for runs in (FIRST, OTHERS)
            for seed in range(options.seeds)
            for run in runs
        ]
        rows.run(wanted, lambda run: measure(run, options.data))
    write_table(rows.read())
    draw(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def read(folder: Path, rows: int) -> dict[str, Images]:
    """Images to train, to validate and to test; the first two share none."""

    def images(name: str) -> Images:
        pixels, labels = read_images(folder, name)
        return (pixels.astype("float32") / 255)[..., None], labels.astype("int32")

    pixels, labels = images("train")
    order = np.random.default_rng(0).permutation(len(labels))
    kept, held = order[VALIDATION:][:rows], order[:VALIDATION]
    if len(kept) < rows:
        raise SystemExit(f"--rows: expected at most {len(kept)} training images, received {rows}")
    return {
        "train": (pixels[kept], labels[kept]),
        "validation": (pixels[held], labels[held]),
        "test": images("t10k"),
    }


def measure(run: Row, folder: Path) -> Row:
    """Train with early stopping, and measure dense and sparse inference on the test images."""
    started = time.perf_counter()
    splits = read(folder / "fashion-mnist", run["rows"])
    gate: dict[str, Any] = {"name": run["gate"]}
    if run["k"] is not None:
        gate["num_selected"] = run["k"]
    if run["replacement"]:
        gate["replacement"] = True
    keras.utils.set_random_seed(run["seed"])
    model = MultiTask(EXPERTS, gate, run["seed"], tasks="1", size=SIZE)
    model.compile(optimizer=keras.optimizers.Adam(RATE), loss=mean_loss)
    val_losses = fit(model, splits, BATCH, EPOCHS, PATIENCE)
    router = model.mixture.gates[0]
    found: Row = {}
    for mode in ("dense", "sparse"):
        # A softmax router has no sparse inference of its own: it is cut as Top-k is.
        cut = OWN[run["gate"]] if run["gate"] != "softmax" else OWN["topk"]
        router.route = routed_by(router, "dense" if mode == "dense" else cut, run["k"] or K)
        scores = np.concatenate(
            [
                keras.ops.convert_to_numpy(model(splits["test"][0][start : start + AT_ONCE]))
                for start in range(0, len(splits["test"][1]), AT_ONCE)
            ]
        )
        losses = keras.ops.convert_to_numpy(each_loss(splits["test"][1], scores))
        found[mode] = {
            "loss": float(losses.mean()),
            "accuracy": float((scores[:, 0].argmax(axis=1) == splits["test"][1]).mean()),
            "quantiles": [round(float(part), 5) for part in quantiles(losses)],
        }
    validation = [round(loss, 5) for loss in val_losses]
    return found | {
        "val_losses": validation,
        "best_epoch": int(np.argmin(validation)) + 1,
        "epochs": len(validation),
        "tuned": False,
        "seconds": round(time.perf_counter() - started),
    }


def each_loss(classes: Any, logits: Any) -> Any:
    """Cross-entropy (N,) of logits (N, 1, 10)."""
    return keras.losses.sparse_categorical_crossentropy(classes, logits[:, 0], from_logits=True)


def mean_loss(classes: Any, logits: Any) -> Any:
    """Its mean."""
    return keras.ops.mean(each_loss(keras.ops.reshape(classes, (-1,)), logits))


def quantiles(losses: np.ndarray) -> np.ndarray:
    """Means of the sorted losses' parts: (QUANTILES,) from (N,)."""
    return np.array([part.mean() for part in np.array_split(np.sort(losses), QUANTILES)])


def distance(one: list[float], other: list[float]) -> float:
    """Wasserstein's distance of two distributions that are kept as `quantiles`.

    That of all losses is never less: means of parts hide what differs within a part.
    """
    return float(np.abs(np.array(one) - np.array(other)).mean())


def own(row: Row) -> Row:
    """How a training's gate infers by itself."""
    return row["dense" if row["gate"] == "softmax" else "sparse"]


def write_table(rows: list[Row]) -> None:
    """Distances of distributions (figure 2a to 2e), and losses (figures 2f, 3 and 4)."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["gate"], row["k"], row["replacement"], row["rows"]), []).append(row)
    softmax = {(row["seed"], row["rows"]): row for row in rows if row["gate"] == "softmax"}
    distances = [
        "| trained as | k | dense inference, test loss | sparse inference | distance of the two "
        "| distance of its own to dense softmax | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    losses = [
        "| trained as | k | held-out loss | test loss | accuracy, % | best epoch | rows | seeds "
        "| paper, SVHN: held-out loss |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (gate, k, replacement, size), found in sorted(
        groups.items(), key=lambda group: np.mean([min(row["val_losses"]) for row in group[1]])
    ):
        name = f"{gate}, with replacement" if replacement else gate
        losses.append(
            f"| {name} | {k or ''} | {cell([min(row['val_losses']) for row in found], 4)} "
            f"| {cell([own(row)['loss'] for row in found], 4)} "
            f"| {cell([100 * own(row)['accuracy'] for row in found], 2)} "
            f"| {np.mean([row['best_epoch'] for row in found]):.0f} | {size:,} | {len(found)} "
            f"| {'' if replacement else PUBLISHED.get((gate, k), '')} |"
        )
        if k not in (None, K) or replacement:
            continue
        dense, sparse = ([row[mode] for row in found] for mode in ("dense", "sparse"))
        between = [
            distance(one["quantiles"], other["quantiles"])
            for one, other in zip(dense, sparse, strict=True)
        ]
        to_softmax = [
            distance(own(row)["quantiles"], own(softmax[row["seed"], size])["quantiles"])
            for row in found
            if gate != "softmax" and (row["seed"], size) in softmax
        ]
        distances.append(
            f"| {name} | {k or K} | {cell([one['loss'] for one in dense], 4)} "
            f"| {cell([one['loss'] for one in sparse], 4)} | {cell(between, 4)} "
            f"| {cell(to_softmax, 4) if to_softmax else ''} | {len(found)} |"
        )
    replace_table("fashion_distances", distances)
    replace_table("fashion_losses", losses)


def draw(rows: list[Row]) -> None:
    """Held-out loss by epoch at k = 2 (figures 2f and 3), and the lowest by k (figure 4)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (curves, lowest) = plt.subplots(1, 2, figsize=(11, 4))
    for place, (gate, replacement) in enumerate(
        [("softmax", False), ("topk", False), ("moesart", False), ("moesart", True)]
    ):
        same = [row for row in rows if (row["gate"], row["replacement"]) == (gate, replacement)]
        name = f"{gate}, with replacement" if replacement else gate
        for row in same:
            if row["k"] in (None, K):
                label = name if row["seed"] == 0 else None
                curves.plot(
                    range(1, row["epochs"] + 1), row["val_losses"], color=f"C{place}", label=label
                )
        by_k: dict[int, list[float]] = {}
        for row in same:
            by_k.setdefault(row["k"] or EXPERTS, []).append(min(row["val_losses"]))
        lowest.plot(sorted(by_k), [np.mean(by_k[k]) for k in sorted(by_k)], "o-", color=f"C{place}")
    curves.set(xlabel="epoch", ylabel="loss on held-out images", ylim=(None, 0.7))
    curves.legend()
    lowest.set(xlabel="k (softmax: all 8)", ylabel="lowest loss on held-out images")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
