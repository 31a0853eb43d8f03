"""DSelect-k on the paper's grid of lambda and gamma, in its own unit, on a tenth of MovieLens 1M.

    python benchmarks/papers/dselect_grid.py --data FOLDER --work FOLDER       # half an hour
    python benchmarks/papers/dselect_grid.py --table

FOLDER of the data holds the publisher's ratings.dat; data and model are those of `reduced.py` (8
experts, as in the paper on DSelect-k), task weights 0.1 and 0.9, Adam 1e-3, patience 2 in at most
8 epochs. Static and per example, lambda of 0.001 (what our tables used) and 0.1, 1 and 10 (the
paper's, at its batch of 128: 12.8, 128 and 1280 in our unit where the gate reads the example; 0.1
and 1 beside them there), gamma of 1 and 10, k = 2; and Top-k in both forms. A run counts where no
task uses more than k experts a row in the mean, as in the paper. Each run is a row of
docs/results/papers/dselect_grid.jsonl.
"""

import argparse
import json
import shutil
from pathlib import Path

import reduced
from rows import Row, Rows, cell, replace_table
from settings import DSELECT_ENTROPY, DSELECT_GAMMA, entropy_weight, meets_k
from two_tasks import configuration, hardened_loss, measure_checkpoint

from multigate.configs.files import ExamplesFolder
from multigate.configs.statistics import Statistics

K = 2
LEARNING_RATE = 1e-3
OURS = (0.001,)
"""The entropy weight of our tables, in our unit."""
OURS_PER_EXAMPLE = (0.001, 0.1, 1.0)
"""And two between it and the paper's weakest."""
KEY = ("gate", "static", "entropy_weight", "gamma", "seed")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("dselect_grid", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        examples = reduced.make_examples(options.data, options.work)
        rows.run(wanted(options.seeds), lambda run: measure(run, examples, options.work))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def wanted(seeds: int) -> list[Row]:
    """Keys of the runs: Top-k first, then the grid."""
    found: list[Row] = []
    for seed in range(seeds):
        forms = (False, True)
        found += [
            {"gate": "topk", "static": s, "entropy_weight": None, "gamma": None, "seed": seed}
            for s in forms
        ]
        found += [
            {
                "gate": "dselect_k",
                "static": static,
                "entropy_weight": weight,
                "gamma": gamma,
                "seed": seed,
            }
            for static in forms
            for weight in (
                *(OURS if static else OURS_PER_EXAMPLE),
                *(entropy_weight(s, static=static) for s in DSELECT_ENTROPY),
            )
            for gamma in DSELECT_GAMMA
        ]
    return found


def measure(run: Row, examples: Path, work: Path) -> Row:
    """Train, or go on where a run was cut off, and measure on the test split."""
    from multigate.configs.config import Config
    from multigate.configs.sections.base import parse
    from multigate.model.training import train

    base = {"model": run["gate"], "weight": reduced.WEIGHT, "seed": run["seed"]}
    values = configuration(base, reduced.make_values(), examples).model_dump(mode="json")
    gate = {"name": run["gate"], "num_selected": K, "static": run["static"]}
    if run["gate"] == "dselect_k":
        gate |= {"entropy_weight": run["entropy_weight"], "gamma": run["gamma"]}
    values["model"]["gate"] = gate
    values["train"]["learning_rate"] = LEARNING_RATE
    name = "-".join(f"{value}" for value in run.values())
    checkpoint = work / f"grid-{name}"
    if not checkpoint.exists():
        config = parse(Config, values, "grid")
        train.train(config, examples, checkpoint, progress=False, resume=True)
    found = measure_checkpoint(checkpoint, examples, reduced.WEIGHT)
    found["hardened_loss"] = hardened_loss(checkpoint, examples, reduced.WEIGHT)
    shutil.rmtree(checkpoint)
    return found | {
        "meets_k": meets_k(found["experts"], K),
        "users": "tenth",
        "rows": Statistics.read(ExamplesFolder(examples).statistics).rows["train"],
        "tuned": False,
        "learning_rate": LEARNING_RATE,
    }


def write_table(rows: list[Row]) -> None:
    """The runs that meet k, best first, then those that the paper would discard."""
    lines = [
        "| gate | form | lambda, ours | lambda, paper's at 128 | gamma | test loss x 100 "
        "| hardened | AUC x 100 | MSE | experts of watch, rating | meets k | best epoch | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    settings: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        settings.setdefault(tuple(row[name] for name in KEY[:-1]), []).append(row)

    def order(found: list[Row]) -> tuple[bool, float]:
        return not met(found), sum(row["loss"] for row in found) / len(found)

    for (gate, static, weight, gamma), found in sorted(
        settings.items(), key=lambda item: order(item[1])
    ):
        theirs = "" if weight is None else f"{weight if static else weight / 128:.3g}"
        # As it is served; older rows do not say it.
        hardened = [100 * r["hardened_loss"] for r in found if "hardened_loss" in r]
        used = [sum(r["experts"][t] for r in found) / len(found) for t in found[0]["experts"]]
        lines.append(
            f"| {gate} | {'static' if static else 'per example'} "
            f"| {'' if weight is None else f'{weight:g}'} | {theirs} "
            f"| {'' if gamma is None else f'{gamma:g}'} "
            f"| {cell([100 * row['loss'] for row in found], 2)} "
            f"| {cell(hardened, 2) if hardened else ''} "
            f"| {cell([100 * row['auc'] for row in found], 2)} "
            f"| {cell([row['mse'] for row in found], 4)} "
            f"| {', '.join(f'{count:.2f}' for count in used)} "
            f"| {'yes' if met(found) else 'no'} "
            f"| {sum(row['best_epoch'] for row in found) / len(found):.0f} | {len(found)} |"
        )
    replace_table("dselect_grid", lines)


def met(rows: list[Row]) -> bool:
    """Whether every seed met k."""
    return all(row["meets_k"] for row in rows)


if __name__ == "__main__":
    main()
