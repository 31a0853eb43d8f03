"""What the tables of two tasks share: the gates' options, a run, and the table.

Every gate's options are fixed beforehand and the same in every table; nothing is tuned. `--setting
averaged` evaluates moving averages of the weights (`train.ema: 0.999`). `--setting paper` takes the
papers' instead, see `settings.py`: raw labels, towers that start at 0, 100 epochs with patience 25,
and the options of `PAPER_GATES`.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rows import Row, Rows, cell, replace_table
from settings import DSELECT_ENTROPY, SETTINGS, entropy_weight, meets_k, raw_examples

from multigate.configs.baselines import SHARED_BOTTOM, SINGLE_TASK, baseline
from multigate.configs.config import Config
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.base import parse
from multigate.configs.statistics import Statistics

GATES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "topk": {"num_selected": 2},
    "dselect_k": {"num_selected": 2, "entropy_weight": 0.001},
    "moesart": {"num_selected": 2, "trimmed_lasso_weight": 0.1},
    "vmoe": {"num_selected": 2},
    "switch": {"num_selected": 2},
    "expert_choice": {"num_selected": 2},
    "xmoe": {"num_selected": 2},
    "comet": {"num_selected": 2, "entropy_weight": 0.001},
    "noisy_topk": {"num_selected": 2},
    "softmax_selector": {"num_selected": 2, "entropy_weight": 0.001},
    "hash": {},
    "sampled": {},
    "gumbel_softmax": {"sparsity_weight": 0.001},
    "hierarchical": {
        "primary": {"name": "switch", "num_selected": 1},
        "secondary": {"name": "topk", "num_selected": 2},
        "num_groups": 4,
    },
    "softmax_static": {"name": "softmax", "static": True},
    "topk_static": {"name": "topk", "num_selected": 2, "static": True},
    "dselect_k_static": {
        "name": "dselect_k",
        "num_selected": 2,
        "static": True,
        "entropy_weight": 0.001,
    },
}
_WEAKEST = DSELECT_ENTROPY[0]
PAPER_GATES: dict[str, dict[str, Any]] = {
    **{
        name: {
            "entropy_weight": entropy_weight(_WEAKEST, static=static),
            # 1 in the authors' code, which sums this over the batch, too.
            "reachability_weight": entropy_weight(1.0, static=static),
            "reachability_mass": 1.0,
        }
        for name, static in (("dselect_k", False), ("dselect_k_static", True))
    },
    "switch": {"noise": "logits", "balance_weight": 0.0},
}
"""What a paper's setting changes in `GATES`."""
TRAINING = {"averaged": {"ema": 0.999}, "paper": {"epochs": 100, "patience": 25}}
"""What a setting changes in the training."""
FIRST = ("moesart", "topk", "softmax", "dselect_k", "shared_bottom")
WEIGHTS = (0.9, 0.1)
KEY = ("model", "weight", "seed", "setting")


def main(
    description: str,
    name: str,
    make_examples: Callable[[Path, Path], Path],
    make_values: Callable[[], dict[str, Any]],
    published: dict[tuple[str, float], tuple[float, float, float]],
) -> None:
    """The command of one table.

    Args:
        description: of the command.
        name: of the table and its rows' file.
        make_examples: data folder and work folder to the examples' folder.
        make_values: the configuration, as in a file. Its first task is binary, its second one a
            regression; gate, weights and seed are put into it.
        published: test loss x 100, AUC x 100 and MSE by model and weight of the first task.
    """
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--data", type=Path, help="folder of the publisher's files")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--gates", nargs="+", default=list(FIRST), help="models, in order")
    arguments.add_argument(
        "--weights", nargs="+", type=float, choices=WEIGHTS, default=list(WEIGHTS)
    )
    arguments.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each")
    arguments.add_argument("--setting", default="ours", choices=SETTINGS)
    arguments.add_argument("--table", action="store_true", help="only write the page's tables")
    options = arguments.parse_args()
    rows = Rows(name, KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        values = make_values()
        check_models(arguments, "--gates", options.gates, [*GATES, *baselines(values)])
        wanted = [
            {"model": model, "weight": weight, "seed": seed, "setting": options.setting}
            for weight in options.weights
            for seed in range(options.seeds)
            for model in options.gates
        ]
        examples = make_examples(options.data, options.work)
        values["train"] |= TRAINING.get(options.setting, {})
        if options.setting == "paper":
            examples = raw_examples(examples)
        rows.run(
            wanted,
            lambda run: measure(run, configuration(run, values, examples), examples, options.work),
        )
    write_tables(name, rows.read(), published)
    print(json.dumps({"rows": len(rows.read()), "best": best(rows.read())}))


def baselines(values: dict[str, Any]) -> list[str]:
    """The models without a gate, of a configuration's tasks."""
    return [SHARED_BOTTOM, *(f"{SINGLE_TASK}:{task}" for task in values["contract"]["tasks"])]


def check_models(
    arguments: argparse.ArgumentParser, option: str, models: list[str], known: list[str]
) -> None:
    """End with an error if a model is unknown, before any work is done."""
    if unknown := [model for model in models if model not in known]:
        arguments.error(f"{option}: expected some of {', '.join(known)}; received {unknown[0]!r}")


def configuration(run: Row, values: dict[str, Any], examples: Path) -> Config:
    """One model, and one setting of the task weights (w, 1 - w).

    The papers weigh the error of raw labels; labels are standardised here, which divides their
    squared error by the variance, so the second weight is multiplied by it.
    """
    values = json.loads(json.dumps(values))
    first, second = values["contract"]["tasks"]
    statistics = Statistics.read(ExamplesFolder(examples).statistics)
    values["contract"]["tasks"][first]["weight"] = run["weight"]
    values["contract"]["tasks"][second]["weight"] = (1 - run["weight"]) * (
        statistics.tasks[second].std ** 2
    )
    if run["model"] in GATES:
        k = values["model"]["gate"]["num_selected"]
        gate = {"name": run["model"]} | GATES[run["model"]]
        if run.get("setting") == "paper":
            gate |= PAPER_GATES.get(run["model"], {})
        if "num_selected" in gate:
            gate["num_selected"] = k
        values["model"]["gate"] = gate
    values["train"]["seed"] = run["seed"]
    config = parse(Config, values, "table")
    if run["model"] in GATES:
        return config
    return baseline(config, run["model"])


def measure(run: Row, config: Config, examples: Path, work: Path) -> Row:
    """Train, and measure on the test split."""
    from multigate.model.training import train

    # A run that was cut off goes on where it was.
    name = f"{run['model']}-{run['weight']:g}-{run['seed']}".replace(":", "-")
    checkpoint = work / (name if run["setting"] == "ours" else f"{name}-{run['setting']}")
    if not checkpoint.exists():
        train.train(config, examples, checkpoint, progress=False, resume=True)
    return described(measure_checkpoint(checkpoint, examples, run["weight"]), config, examples)


def described(found: Row, config: Config, examples: Path) -> Row:
    """What `measure_checkpoint` found, with the training that it is of."""
    return found | {
        "meets_k": met_k(found, config),
        "rows": Statistics.read(ExamplesFolder(examples).statistics).rows["train"],
        "patience": config.train.patience,
        "learning_rate": config.train.learning_rate,
        "tuned": False,
        "trained_on": trained_on(),
    }


def met_k(found: Row, config: Config) -> bool | None:
    """Whether no task used more experts a row than its gate's k; None of a gate without k."""
    return meets_k(found["experts"], getattr(config.model.gate, "num_selected", None))


def trained_on() -> str:
    """Backend and kind of device."""
    from multigate.model import backend

    return f"{backend.name()}, {'GPU' if backend.has_accelerator() else 'CPU'}"


def measure_checkpoint(checkpoint: Path, examples: Path, weight: float) -> Row:
    """Measure on the test split; the loss is the papers', of raw labels.

    Args:
        checkpoint: a trained model.
        examples: folder of its examples.
        weight: of the first task; the second has the rest.
    """
    from multigate.model.checkpoints.checkpoint import read_history
    from multigate.model.evaluation.evaluate import evaluate

    history = read_history(checkpoint)
    best = min(history, key=lambda epoch: epoch["val_loss"])
    found = evaluate(checkpoint, examples)
    first, second = found["tasks"].values()
    return {
        "loss": loss_of(found["tasks"], weight),
        "auc": first["value"],
        "mse": second["mse"],
        "log_loss": first["log_loss"],
        "experts_per_row": found["experts_per_row"],
        "experts": {task: gate["experts_per_row"] for task, gate in found["gates"].items()},
        "best_epoch": best["epoch"],
        "epochs": len(history),
        "seconds": round(sum(epoch["seconds"] for epoch in history)),
        "val_loss": best["val_loss"],
    }


def hardened_loss(checkpoint: Path, examples: Path, weight: float) -> float:
    """The test loss of `measure_checkpoint` with gates as they are served (`Gate.harden`)."""
    from multigate.model.checkpoints import checkpoint as checkpoints
    from multigate.model.data.examples import read_split
    from multigate.model.evaluation.evaluate import Predictions, summary

    ranker, encoder, config, _ = checkpoints.load(checkpoint)
    ranker.mixture.harden()
    rows = read_split(examples, "test", encoder)
    predictions = Predictions(ranker, config.contract, encoder.statistics, rows)
    return loss_of(summary(config, "test", rows, predictions)["tasks"], weight)


def loss_of(tasks: dict[str, Any], weight: float) -> float:
    """The papers' loss of two tasks' measures: a binary one, then a regression of raw labels."""
    first, second = tasks.values()
    return float(weight * first["log_loss"] + (1 - weight) * second["mse"])


def random_trial(
    config: Config, space: dict[str, Any], trial: int, examples: Path, out: Path, weight: float
) -> Row:
    """One random draw of `multigate tune`, whose seed is the trial's number.

    Args:
        config: what is tuned.
        space: to draw from.
        trial: the number.
        examples: folder of examples.
        out: folder of the search; nothing is left of it. A search that was cut off is begun anew:
            its one trial is all that it has.
        weight: of the first task; see `measure_checkpoint`.

    Returns:
        `settings` and what `measure_checkpoint` returns.
    """
    from multigate.jobs.tune import tune

    values = config.model_dump(mode="json")
    values["tune"] = {
        "space": space,
        "trials": 1,
        "sampler": "random",
        "prune": False,
        "seed": trial,
    }
    measured: Row = {}

    def finish(checkpoint: Path) -> Row:
        measured.update(measure_checkpoint(checkpoint, examples, weight))
        return measured

    shutil.rmtree(out, ignore_errors=True)
    found = tune(parse(Config, values, "study"), examples, out, finish)
    shutil.rmtree(out)
    return {"settings": found["best"]["settings"]} | measured


def write_tables(
    name: str, rows: list[Row], published: dict[tuple[str, float], tuple[float, float, float]]
) -> None:
    """One table per setting of the weights, best first, into docs/results/papers.md."""
    for weight in WEIGHTS:
        lines = [
            "| model | setting | test loss x 100 | AUC x 100 | MSE | experts a row | meets k "
            "| seeds | best epoch | paper: loss, AUC, MSE |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        by_model: dict[tuple[str, str], list[Row]] = {}
        for row in with_single_task(rows):
            if row["weight"] == weight:
                by_model.setdefault((row["model"], row["setting"]), []).append(row)
        for (model, setting), found in sorted(
            by_model.items(), key=lambda item: mean(item[1], "loss")
        ):
            theirs = published.get((model, weight))
            lines.append(
                f"| {model} | {setting} "
                f"| {cell([100 * row['loss'] for row in found], 2)} "
                f"| {cell([100 * row['auc'] for row in found], 2)} "
                f"| {cell([row['mse'] for row in found], 4)} "
                f"| {mean(found, 'experts_per_row'):.1f} | {k_cell(found)} | {len(found)} "
                f"| {mean(found, 'best_epoch'):.0f} "
                f"| {', '.join(f'{value:g}' for value in theirs) if theirs else ''} |"
            )
        replace_table(f"{name} {weight:g}", lines)


def with_single_task(rows: list[Row]) -> list[Row]:
    """The rows, with a row at each weight for the models of one task each of one seed and setting.

    Each of these has been measured on both tasks, of which it learnt one, at one weight: its task's
    weight is a factor of all that it minimises, and Adam's steps do not depend on it, but for an
    epsilon.  The row `single_task` takes the first task's log loss and AUC from the first and the
    second one's MSE from the second.  Without its partner a model is left out.
    """
    shared, single = list[Row](), dict[tuple[Any, ...], Row]()
    for row in rows:
        kind, _, task = row["model"].partition(":")
        if kind == SINGLE_TASK:
            single[task, row["seed"], row["setting"]] = row
        else:
            shared.append(row)
    for (task, *key), one in single.items():
        first, second = one["experts"]  # the tasks, in their order
        other = single.get((second, *key))
        if task != first or other is None:
            continue
        for weight in WEIGHTS:
            shared.append(
                one
                | {
                    "model": SINGLE_TASK,
                    "weight": weight,
                    "loss": weight * one["log_loss"] + (1 - weight) * other["mse"],
                    "mse": other["mse"],
                    "experts_per_row": one["experts_per_row"] + other["experts_per_row"],
                    "best_epoch": (one["best_epoch"] + other["best_epoch"]) / 2,
                    "epochs": max(one["epochs"], other["epochs"]),
                }
            )
    return shared


def learnt_loss(row: Row) -> float:
    """The row's loss; of a model of one task that task's weighted share, for it learnt no other."""
    kind, _, task = row["model"].partition(":")
    if kind != SINGLE_TASK:
        return float(row["loss"])
    weight = row["weight"]
    first, _ = row["experts"]  # the tasks, in their order
    return float(weight * row["log_loss"] if task == first else (1 - weight) * row["mse"])


def k_cell(rows: list[Row]) -> str:
    """Whether the routing of all runs met k, or in how many; empty for models without k."""
    met = [row["meets_k"] for row in rows]
    if None in met:
        return ""
    return "yes" if all(met) else f"**{sum(met)} of {len(met)}**" if any(met) else "**no**"


def mean(rows: list[Row], name: str) -> float:
    """Mean of one value over runs."""
    return sum(row[name] for row in rows) / len(rows)


def best(rows: list[Row]) -> dict[str, str]:
    """The model with the lowest mean test loss for each setting of the weights."""
    found = {}
    for weight in WEIGHTS:
        models = {row["model"] for row in rows if row["weight"] == weight}
        by_loss = {
            model: mean([r for r in rows if r["weight"] == weight and r["model"] == model], "loss")
            for model in models
        }
        if by_loss:
            found[f"{weight:g}"] = min(by_loss, key=lambda model: by_loss[model])
    return found
