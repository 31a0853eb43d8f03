"""Dense, renormalised and 1/k inference of one training: MOESART, section 3.1.1 and figure 2.

    python benchmarks/papers/inference_modes.py --data FOLDER --work FOLDER   # minutes
    python benchmarks/papers/inference_modes.py --table

The checkpoints are those of `raw_targets.py` on every tenth user with standardised stars: give the
same folders.  What is missing is trained first, as there.  With g = softmax(xA + b) of the trained
router, an example's weights at inference are

    dense         g
    renormalised  g / (sum of the k largest g) for the k largest g, 0 elsewhere: Top-k's own
    equal         1/k for the k largest g, 0 elsewhere: MOESART's own

Rows go to docs/results/papers/inference_modes.jsonl.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import raw_targets
from raw_targets import GATES, WEIGHT
from rows import Row, Rows, cell, mean_and_error, replace_table

MODES = ("dense", "renormalised", "equal")
OWN = {"softmax": "dense", "topk": "renormalised", "moesart": "equal"}
"""How each gate infers by itself."""
K = 2
KEY = ("gate", "seed", "mode")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--gates", nargs="+", default=list(GATES), choices=GATES)
    arguments.add_argument("--seeds", type=int, default=2, help="seeds 0, 1, ... of each")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("inference_modes", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        from multigate.model import backend

        # On JAX the experts run for k rows each, which dense weights are not.
        if backend.name() == "jax":
            raise SystemExit("KERAS_BACKEND: expected tensorflow, received jax; set tensorflow")
        work = options.work / "tenth"
        examples = raw_targets.make_examples("tenth", options.data, work)
        wanted = [
            {"gate": gate, "seed": seed, "mode": mode}
            for seed in range(options.seeds)
            for gate in options.gates
            for mode in MODES
        ]
        rows.run(wanted, lambda run: measure(run, examples, work))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def weights_of(logits: Any, mode: str, k: int) -> Any:
    """Weights (B, E) of one mode from a router's logits (B, E)."""
    import keras

    from multigate.model.gates.parts.selection import masked_softmax, softmax, top_k_mask

    if mode == "dense":
        return softmax(logits)
    kept = top_k_mask(logits, k)
    if mode == "renormalised":
        return masked_softmax(logits, kept)
    return keras.ops.cast(kept, logits.dtype) / k


def routed_by(gate: Any, mode: str, k: int) -> Callable[..., Any]:
    """What replaces a linear gate's `route`."""
    from multigate.model.gates.parts.base import Routing

    # MOESART's logits are divided by its temperature; the other gates have none.
    temperature = getattr(gate, "temperature", 1.0)

    def route(x: Any, training: bool, ids: Any) -> Any:
        return Routing(weights_of(gate.logits(x) / temperature, mode, k), {}, {})

    return route


def measure(run: Row, examples: Path, work: Path) -> Row:
    """Load a checkpoint, change how its gates infer, and measure on the test split."""
    from multigate.model.checkpoints import checkpoint as checkpoints
    from multigate.model.data.examples import read_split
    from multigate.model.evaluation.evaluate import Predictions, summary

    trained = {"gate": run["gate"], "targets": "standardised", "seed": run["seed"]}
    checkpoint = raw_targets.checkpoint_of(trained, work)
    if not checkpoint.exists():
        raw_targets.measure(trained | {"users": "tenth"}, examples, work)
    ranker, encoder, config, _ = checkpoints.load(checkpoint)
    for gate in ranker.mixture.gates:
        gate.route = routed_by(gate, run["mode"], K)
    rows = read_split(examples, "test", encoder)
    predictions = Predictions(ranker, config.contract, encoder.statistics, rows)
    found = summary(config, "test", rows, predictions)
    watch, rating = found["tasks"].values()
    return {
        "loss": WEIGHT * watch["log_loss"] + (1 - WEIGHT) * rating["mse"],
        "auc": watch["value"],
        "mse": rating["mse"],
        "log_loss": watch["log_loss"],
        "experts": {task: gate["experts_per_row"] for task, gate in found["gates"].items()},
        "own": OWN[run["gate"]] == run["mode"],
        "users": "tenth",
        "tuned": False,
    }


def write_table(rows: list[Row]) -> None:
    """A row per gate: the test loss of each mode, and the gaps that the paper speaks of."""
    lines = [
        "| trained as | dense | renormalised top 2 | equal top 2 | dense less own | seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for gate in GATES:
        found = {
            mode: {
                row["seed"]: 100 * row["loss"]
                for row in rows
                if (row["gate"], row["mode"]) == (gate, mode)
            }
            for mode in MODES
        }
        if not all(found.values()):
            continue
        cells = []
        for mode in MODES:
            text = cell(list(found[mode].values()), 2)
            cells.append(f"**{text}**" if mode == OWN[gate] else text)
        own, dense = found[OWN[gate]], found["dense"]
        gap, _ = mean_and_error([dense[seed] - own[seed] for seed in own if seed in dense])
        gaps = "" if OWN[gate] == "dense" else f"{gap:+.2f}"
        lines.append(f"| {gate} | {' | '.join(cells)} | {gaps} | {len(own)} |")
    replace_table("inference_modes", lines)


if __name__ == "__main__":
    main()
