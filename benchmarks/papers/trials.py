"""The trials of `tuned.py`: of which models, which is best, and the page's tables by data set."""

import json
from collections.abc import Mapping

import numpy as np
from rows import Row, cell, marked, paired, replace_table
from tuning import expected
from two_tasks import WEIGHTS, learnt_loss

FIRST = ("softmax", "topk", "dselect_k", "comet", "moesart")
REST = ("vmoe", "switch", "xmoe", "expert_choice", "hash", "shared_bottom")
COMPARED = (*FIRST, *REST)
"""Models whose loss is one of both tasks."""
TRIAL_KEY = ("model", "weight", "trial")

Published = Mapping[tuple[str, float], tuple[float, float, float]]
"""The paper's test loss x 100, AUC x 100 and MSE, by model and weight of the first task."""


def best_trial(trials: list[Row], model: str, weight: float) -> Row:
    """The trial with the lowest validation loss, of those that met k where one did.

    Raises:
        LookupError: no trial of this model and weight yet.
    """
    found = [row for row in trials if (row["model"], row["weight"]) == (model, weight)]
    if not found:
        raise LookupError(f"{model} at {weight:g}: expected trials before the seeds; received none")
    kept = [row for row in found if row["meets_k"] is not False]
    best: Row = min(kept or found, key=lambda row: row["val_loss"])
    return best


def trial_of(trials: list[Row], run: Row) -> Row:
    """The trial of a run's model, weight and number.

    Raises:
        LookupError: it has not been run.
    """
    for row in trials:
        if all(row[name] == run[name] for name in TRIAL_KEY):
            return row
    raise LookupError(
        f"trial {run['trial']} of {run['model']} at {run['weight']:g}: expected its row before "
        "other seeds; received none"
    )


def write_trials(data: str, trials: list[Row], published: Published) -> None:
    """The best trial of each model and weight of a data set, into docs/results/papers.md."""
    lines = [
        "| weight | model | trials | met k | best: val loss x 100 | test loss x 100 | best epoch "
        "| settings | paper: test loss |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for weight in WEIGHTS:
        models = {row["model"] for row in trials if row["weight"] == weight}
        best = {model: best_trial(trials, model, weight) for model in models}
        for model, row in sorted(best.items(), key=lambda item: item[1]["val_loss"]):
            found = [r for r in trials if (r["model"], r["weight"]) == (model, weight)]
            met = sum(r["meets_k"] is not False for r in found)
            theirs = published.get((model, weight))
            lines.append(
                f"| {weight:g} | {model} | {len(found)} | {met} | {100 * row['val_loss']:.2f} "
                f"| {100 * learnt_loss(row):.2f} | {row['best_epoch']} | {said(row['settings'])} "
                f"| {f'{theirs[0]:g}' if theirs else ''} |"
            )
    replace_table(f"{data} trials", lines)


def said(settings: Row) -> str:
    """Settings as a table says them: `learning_rate 0.000177, units [32]`."""
    values = {
        name.rpartition(".")[2]: f"{value:.3g}" if isinstance(value, float) else json.dumps(value)
        for name, value in settings.items()
    }
    return ", ".join(f"{name} {value}" for name, value in values.items())


def write_rates(
    data: str, trials: list[Row], again: list[Row], changed: list[Row], published: Published
) -> None:
    """The test loss of each trial, by learning rate, into docs/results/papers.md.

    Args:
        data: the data set's name.
        trials: of one seed each.
        again: the same settings with other seeds, where they were trained.
        changed: with some settings changed, which makes a line of the table.
        published: the paper's rows.
    """
    models = [model for model in COMPARED if any(row["model"] == model for row in trials)]
    lines = [
        f"| weight | learning rate | {' | '.join(models)} |",
        "| --- | --- |" + " --- |" * len(models),
    ]
    for weight in WEIGHTS:
        found = {
            (row["model"], row["settings"]["train.learning_rate"]): row
            for row in trials
            if row["weight"] == weight
        }
        for rate in sorted({rate for _, rate in found}):
            cells = []
            for model in models:
                row = found.get((model, rate))
                if row is None:
                    cells.append("")
                    continue
                seeds = [row, *(r for r in again if all(r[n] == row[n] for n in TRIAL_KEY))]
                text = cell([100 * r["loss"] for r in seeds], 2)
                cells.append(f"({text})" if any(r["meets_k"] is False for r in seeds) else text)
            lines.append(f"| {weight:g} | {rate:.3g} | {' | '.join(cells)} |")
            same = [
                row
                for row in changed
                if (row["weight"], row["settings"]["train.learning_rate"]) == (weight, rate)
            ]
            for change in sorted({row["change"] for row in same}):
                cells = []
                for model in models:
                    seeds = [
                        row for row in same if (row["model"], row["change"]) == (model, change)
                    ]
                    cells.append(cell([100 * row["loss"] for row in seeds], 2) if seeds else "")
                named = f"{rate:.3g}, {said(json.loads(change))}"
                lines.append(f"| {weight:g} | {named} | {' | '.join(cells)} |")
        if not found:
            continue
        theirs = [published.get((model, weight)) for model in models]
        cells = [f"{values[0]:g}" if values else "" for values in theirs]
        lines.append(f"| {weight:g} | the paper's rows | {' | '.join(cells)} |")
    replace_table(f"{data} rates", lines)


def write_pairs(data: str, trials: list[Row], finals: list[Row]) -> None:
    """Every two models' difference in test loss, into docs/results/papers.md.

    A model that has no pair with those before it has no line.

    Args:
        data: the data set's name.
        trials: paired by their number, of which both met k.
        finals: paired by their seed.
    """
    kinds = (
        ("trials", "trial", [row for row in trials if row["meets_k"] is not False]),
        ("seeds", "seed", [row for row in finals if row["setting"] == "tuned"]),
    )
    run = {row["model"] for _, _, rows in kinds for row in rows}
    models = [model for model in COMPARED if model in run]
    lines = [
        f"| weight | pairs of | model | {' | '.join(f'less {model}' for model in models[:-1])} |",
        "| --- | --- | --- |" + " --- |" * (len(models) - 1),
    ]
    for weight in WEIGHTS:
        for kind, name, rows in kinds:
            by_model = {
                model: {r[name]: r for r in rows if (r["model"], r["weight"]) == (model, weight)}
                for model in models
            }
            for place, model in enumerate(models[1:], 1):
                cells = []
                for base in models[:place]:
                    pairs = paired(by_model[model], by_model[base])
                    less = [100 * (a["loss"] - b["loss"]) for a, b in pairs]
                    text = f"{cell(less, 2, '+')} ({len(less)})" if less else ""
                    cells.append(marked(text, pairs, less) if less else "")
                if not any(cells):
                    continue
                cells += [""] * (len(models) - 1 - place)
                lines.append(f"| {weight:g} | {kind} | {model} | {' | '.join(cells)} |")
    replace_table(f"{data} pairs", lines)


def write_best_of(data: str, trials: list[Row]) -> None:
    """The expected test loss of the best of some trials, into docs/results/papers.md."""
    counts = (1, 2, 4, 8)
    lines = [
        f"| weight | model | {' | '.join(f'best of {count}' for count in counts)} | trials |",
        "| --- | --- |" + " --- |" * (len(counts) + 1),
    ]
    for weight in WEIGHTS:
        for model in COMPARED:
            found = [r for r in trials if (r["model"], r["weight"]) == (model, weight)]
            found = [row for row in found if row["meets_k"] is not False]
            if not found:
                continue
            validation, test = (
                np.array([row[name] for row in found]) for name in ("val_loss", "loss")
            )
            cells = [f"{100 * float(expected(validation, test, count)):.2f}" for count in counts]
            lines.append(f"| {weight:g} | {model} | {' | '.join(cells)} | {len(found)} |")
    replace_table(f"{data} best of", lines)
