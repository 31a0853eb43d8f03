"""Which gate has the lowest loss where, and how far behind the others are: papers.md's first table.

Runs of two models with the same seed share their batches (of tasks in groups: the problem), so that
they are compared pair by pair.  A data set of which most models have one seed is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import book_crossing
import fashion_routers
import movielens
import multi_mnist
import tasks_in_groups
import tuned
import two_tasks
from rows import (
    Row,
    Rows,
    cell,
    is_beyond_chance,
    marked,
    mean_and_error,
    on_different_machines,
    paired,
    replace_table,
)

NAMES = {
    "softmax": "softmax",
    "topk": "Top-k",
    "dselect_k": "DSelect-k",
    "comet": "COMET",
    "moesart": "MOESART",
    "vmoe": "V-MoE",
    "switch": "Switch",
    "xmoe": "X-MoE",
    "expert_choice": "expert choice",
    "hash": "hash",
    "shared_bottom": "shared bottom",
    "single_task": "single task",
}
PROBLEMS = (32, 64, 128)
"""Numbers of tasks in groups.  With 16 there are four experts, and each task has them all."""


@dataclass(frozen=True)
class Comparison:
    """Models that learnt the same data.

    Args:
        data: what it was, as the page says it.
        unit: of the losses, as the page says it.
        digits: of a loss, behind the point.
        runs: rows with `loss`, in that unit, by model and seed.
        published: the paper's losses, by model; None where it only says the order.
        why: what is said where the paper's first is not ours.
    """

    data: str
    unit: str
    digits: int
    runs: Mapping[str, Mapping[int, Row]]
    published: Mapping[str, float | None]
    why: str = ""

    @cached_property
    def means(self) -> dict[str, float]:
        """By model, lowest first; models with fewer seeds than others come last."""
        most = max(map(len, self.runs.values()))
        order = {
            model: (len(by_seed) < most, mean_and_error([r["loss"] for r in by_seed.values()])[0])
            for model, by_seed in self.runs.items()
        }
        return {model: order[model][1] for model in sorted(order, key=lambda m: order[m])}

    @property
    def first(self) -> str:
        """The model with the lowest mean loss."""
        return next(iter(self.means))

    @property
    def seeds(self) -> int:
        """How many the first one has."""
        return len(self.runs[self.first])

    @property
    def is_told(self) -> bool:
        """Whether most models have as many seeds as the first one, and that more than one."""
        if not self.runs:
            return False
        as_many = [model for model in self.runs if len(self.runs[model]) >= self.seeds]
        return self.seeds > 1 and 2 * len(as_many) > len(self.runs)

    def line(self) -> str:
        """The table's line; a model that has no seed of the first one's is left out."""
        values = [row["loss"] for row in self.runs[self.first].values()]
        others = [self.other(model) for model in self.means if model != self.first]
        theirs = [
            model if loss is None else f"{model} {loss:g}"
            for model, loss in self.in_order().items()
        ]
        return (
            f"| {self.data} "
            f"| {self.first} {cell(values, self.digits)} ({self.unit}){self.off_k(self.first)} "
            f"| {', '.join(filter(None, others))} | {self.seeds} | {', '.join(theirs)} "
            f"| {self.as_there()} |"
        )

    def other(self, model: str) -> str:
        """A model's loss less the first one's, marked by what it proves."""
        less = self.differences(model)
        if not less:
            return ""
        text = f"{model} {cell(less, self.digits, '+')}{self.off_k(model)}"
        if len(less) < self.seeds:
            text += f" ({len(less)} of {self.seeds} seeds)"
        return marked(text, self.pairs(model), less)

    def off_k(self, model: str) -> str:
        """A mark where some run of a model used more than k experts."""
        return " ‡" if any(r.get("meets_k") is False for r in self.runs[model].values()) else ""

    def differences(self, model: str, base: str | None = None) -> list[float]:
        """The losses less those of another model, by default the first, for each seed of both."""
        return [one["loss"] - other["loss"] for one, other in self.pairs(model, base)]

    def pairs(self, model: str, base: str | None = None) -> list[tuple[Row, Row]]:
        """The rows of a model and of another, by default the first, for each seed of both."""
        return paired(self.runs[model], self.runs[base or self.first])

    def in_order(self) -> dict[str, float | None]:
        """The paper's losses of the models that were run here, lowest first."""
        shown = {m: loss for m, loss in self.published.items() if m in self.means}
        return dict(sorted(shown.items(), key=lambda item: item[1] or 0.0))

    def as_there(self) -> str:
        """Whether the paper's first is the first here, of the models that both have.

        A yes is held against the second one here, a no against the first.
        """
        theirs = next(iter(self.in_order()))
        both = [model for model in self.means if model in self.published]
        first, *others = both if len(both) > 1 else list(self.means)
        is_first = theirs == first
        other = others[0] if is_first else theirs
        said = "yes" if is_first else "no"
        if not is_beyond_chance(self.differences(other, first)):
            said += ", within chance"
        if on_different_machines(self.pairs(other, first)):
            said += " †"
        return said if is_first else f"{said}{self.why}"


def by_model(rows: list[Row], name: str, loss: Callable[[Row], float]) -> dict[str, dict[int, Row]]:
    """Rows by model and seed, with this loss of theirs.

    Args:
        rows: of one data set.
        name: of the value that tells the model.
        loss: of a row, in the table's unit.
    """
    runs: dict[str, dict[int, Row]] = {}
    for row in rows:
        model = NAMES.get(row[name], row[name])
        runs.setdefault(model, {})[row["seed"]] = row | {"loss": loss(row)}
    return runs


def percent(row: Row) -> float:
    """100 times the loss."""
    return float(100 * row["loss"])


def of_movielens(rows: list[Row], weight: float) -> Comparison:
    """Tuned models on MovieLens, at one setting of the tasks' weights, beside MOESART's paper."""
    data = f"[MovieLens 1M](#movielens-1m-two-tasks), {shares(weight)}"
    return of_two_tasks(rows, weight, data, movielens.PUBLISHED, why=" ([why](#equal-tuning))")


def of_dselects_movielens(rows: list[Row], weight: float) -> Comparison:
    """The same models in the unit of DSelect-k's paper, beside it."""
    data = f"the same, [rating's error halved](#beside-the-paper-on-dselect-k), {shares(weight)}"
    return of_two_tasks(
        rows, weight, data, movielens.DSELECT_PAPER, lambda r: 100 * movielens.in_dselects_unit(r)
    )


def of_books(rows: list[Row], weight: float) -> Comparison:
    """Tuned models on Book-Crossing's sample, beside MOESART's paper."""
    data = f"[Book-Crossing](#book-crossing-a-20--sample), a fifth, {shares(weight, 'reading')}"
    return of_two_tasks(rows, weight, data, book_crossing.PUBLISHED)


def of_two_tasks(
    rows: list[Row],
    weight: float,
    data: str,
    table: Mapping[tuple[str, float], Sequence[Any]],
    loss: Callable[[Row], float] = percent,
    why: str = "",
) -> Comparison:
    """Tuned models at one setting of the tasks' weights beside the paper's table.

    Args:
        rows: of all settings.
        weight: of the first task.
        data: see `Comparison`.
        table: the paper's test loss x 100, first of its values, by model and weight.
        loss: of a row, in the paper's unit.
        why: see `Comparison`.
    """
    published = {NAMES[g]: v[0] for (g, w), v in table.items() if w == weight and g in NAMES}
    here = [row for row in rows if row["weight"] == weight]
    return Comparison(data, "x 100", 2, by_model(here, "model", loss), published, why)


def shares(weight: float, first: str = "watching") -> str:
    """The tasks' weights, as the page says them."""
    return f"{first} {weight:g}, rating {round(1 - weight, 1):g}"


def of_images(rows: list[Row], name: str, data: str) -> Comparison:
    """Multi-MNIST or Multi-Fashion, with the most training rows that were run."""
    named = [row | {"model": multi_mnist.published_as(row["model"])} for row in rows]
    here = [
        row | {"meets_k": multi_mnist.met_k(row)}
        for row in named
        if row["set"] == name and row["model"] in NAMES
    ]
    published = {NAMES[g]: v[0] for (s, g), v in multi_mnist.PUBLISHED.items() if s == name}
    return Comparison(data, "x 100", 2, by_model(largest(here), "model", percent), published)


def of_routers(rows: list[Row]) -> Comparison:
    """One task on Fashion-MNIST; as in the paper, the lowest loss on held-out images."""
    here = [r for r in rows if r["k"] in (None, fashion_routers.K) and not r["replacement"]]
    runs = by_model(largest(here), "gate", lambda row: min(row["val_losses"]))
    published = {NAMES[gate]: loss for (gate, _), loss in fashion_routers.PUBLISHED.items()}
    data = "[Fashion-MNIST](#routers-of-images-figures-2-to-4-of-moesart), k = 2; paper: SVHN"
    return Comparison(data, "held-out", 3, runs, published)


def largest(rows: list[Row]) -> list[Row]:
    """Those with the most training rows."""
    most = max(row["rows"] for row in rows)
    return [row for row in rows if row["rows"] == most]


def of_groups(rows: list[Row], tasks: int) -> Comparison:
    """Static gates of tasks in groups, each rounded to the experts that it serves."""
    published = {"DSelect-k": None, "Top-k": None}
    found = [row for gate in tasks_in_groups.finals(rows, tasks) for row in gate]
    here = [row for row in found if row["gate"] in published]
    data = f"[tasks in groups](#tasks-in-groups-c1-of-dselect-k), {tasks} tasks"
    runs = by_model(here, "gate", lambda row: float(row["mse"]))
    return Comparison(data, "MSE", 4, runs, published)


def tuned_rows(data_set: tuned.Study) -> list[Row]:
    """Final runs of tuned models."""
    rows = two_tasks.with_single_task(data_set.tables["final"].read())
    return [row for row in rows if row["setting"] == "tuned"]


def write_table() -> None:
    """A line for each comparison, into docs/results/papers.md."""
    finals, books = (tuned_rows(data_set) for data_set in tuned.STUDIES.values())
    images, routers, groups = (
        Rows(study.__name__, study.KEY).read()
        for study in (multi_mnist, fashion_routers, tasks_in_groups)
    )
    comparisons = (
        *(of_movielens(finals, weight) for weight in two_tasks.WEIGHTS),
        *(of_dselects_movielens(finals, weight) for weight in two_tasks.WEIGHTS),
        *(of_books(books, weight) for weight in two_tasks.WEIGHTS),
        of_images(images, "mnist", "[Multi-MNIST](#multi-mnist)"),
        of_images(images, "fashion", "[Multi-Fashion](#multi-fashion)"),
        of_routers(routers),
        *(of_groups(groups, tasks) for tasks in PROBLEMS),
    )
    lines = [
        "| data | lowest test loss | the others: loss above it | seeds "
        "| the paper, of the models run here | its first is first here? |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [comparison.line() for comparison in comparisons if comparison.is_told]
    replace_table("summary", lines)
