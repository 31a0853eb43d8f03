"""Which gate has the lowest loss where, and how far behind the others are: papers.md's first table.

Runs of two gates with the same seed (of tasks in groups: problem) share their data, so that they
are compared pair by pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import fashion_routers
import movielens
import multi_mnist
import tasks_in_groups
import tuned
from rows import Row, Rows, cell, mean_and_error, replace_table
from scipy.stats import t

NAMES = {
    "softmax": "softmax",
    "topk": "Top-k",
    "dselect_k": "DSelect-k",
    "comet": "COMET",
    "moesart": "MOESART",
    "shared_bottom": "shared bottom",
}
PROBLEMS = (16, 128)
"""Numbers of tasks in groups: the fewest and the most of the paper."""
PAPERS = ("DSelect-k", "Top-k")
"""Gates of tasks in groups that are trained as in the paper, in its order."""


@dataclass(frozen=True)
class Comparison:
    """Gates that learnt the same data.

    Args:
        data: what it was, as the page says it.
        unit: of the losses, as the page says it.
        digits: of a loss, behind the point.
        losses: test loss by gate and seed.
        published: the paper's order, lowest loss first, as the page says it.
        verdict: whether ours is the same, and if not why: a sentence with a link.
    """

    data: str
    unit: str
    digits: int
    losses: Mapping[str, Mapping[int, float]]
    published: str
    verdict: str

    def line(self) -> str:
        """The table's line; with no pair of seeds in common a gate is left out."""
        means = {gate: mean_and_error(list(by.values()))[0] for gate, by in self.losses.items()}
        first, *others = sorted(means, key=lambda gate: means[gate])
        behind = []
        for gate in others:
            less = differences(self.losses[gate], self.losses[first])
            if less:
                text = f"{gate} {cell(less, self.digits, '+')}"
                behind.append(f"**{text}**" if is_beyond_chance(less) else text)
        values = list(self.losses[first].values())
        return (
            f"| {self.data} | {first} {cell(values, self.digits)} ({self.unit}) "
            f"| {', '.join(behind)} | {len(values)} | {self.published} | {self.verdict} |"
        )


def differences(losses: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """The losses less those of `base`, for each seed of both."""
    return [losses[seed] - base[seed] for seed in sorted(losses.keys() & base.keys())]


def is_beyond_chance(values: list[float]) -> bool:
    """Whether the 95 % interval of their mean (Student's t) leaves out 0; no, of one value."""
    mean, error = mean_and_error(values)
    return error is not None and abs(mean) > float(t.ppf(0.975, len(values) - 1)) * error


def of_movielens(weight: float, verdict: str) -> Comparison:
    """Tuned gates on MovieLens, at one setting of the tasks' weights."""
    rows = [r for r in tuned.TABLES["final"].read() if r["weight"] == weight]
    rows = [row for row in rows if row["setting"] == "tuned"]
    published = {g: loss for (g, w), (loss, *_) in movielens.PUBLISHED.items() if w == weight}
    data = f"[MovieLens 1M](#movielens-1m-two-tasks), {weight:g} and {round(1 - weight, 1):g}"
    losses = {
        name: {row["seed"]: 100 * row["loss"] for row in rows if row["model"] == gate}
        for gate, name in NAMES.items()
    }
    return Comparison(data, "x 100", 2, present(losses), order(published, losses), verdict)


def of_images(name: str, title: str, verdict: str) -> Comparison:
    """Multi-MNIST or Multi-Fashion, with the most training rows that were run."""
    rows = [r for r in Rows("multi_mnist", multi_mnist.KEY).read() if r["set"] == name]
    most = max(row["rows"] for row in rows)
    losses = {
        label: {r["seed"]: 100 * r["loss"] for r in rows if (r["model"], r["rows"]) == (gate, most)}
        for gate, label in NAMES.items()
    }
    published = {g: loss for (s, g), (loss, *_) in multi_mnist.PUBLISHED.items() if s == name}
    return Comparison(title, "x 100", 2, present(losses), order(published, losses), verdict)


def of_routers(verdict: str) -> Comparison:
    """One task on Fashion-MNIST, each router inferring in its own way."""
    rows = Rows("fashion_routers", fashion_routers.KEY).read()
    rows = [r for r in rows if r["k"] in (None, fashion_routers.K) and not r["replacement"]]
    losses = {
        name: {row["seed"]: fashion_routers.own(row)["loss"] for row in rows if row["gate"] == gate}
        for gate, name in NAMES.items()
    }
    published = {gate: loss for (gate, _), loss in fashion_routers.PUBLISHED.items()}
    data = "[Fashion-MNIST](#routers-of-images-figures-2-to-4-of-moesart), one task, k = 2"
    theirs = f"SVHN: {order(published, losses)}"
    return Comparison(data, "cross-entropy", 3, present(losses), theirs, verdict)


def of_groups(tasks: int, verdict: str) -> Comparison:
    """Static gates of tasks in groups, each rounded to the experts that it serves."""
    rows: list[Row] = Rows("tasks_in_groups", tasks_in_groups.KEY).read()
    found = {gate[0]["gate"]: gate for gate in tasks_in_groups.finals(rows, tasks)}
    losses = {gate: {row["seed"]: row["mse"] for row in found[gate]} for gate in PAPERS}
    data = f"[tasks in groups](#tasks-in-groups-c1-of-dselect-k), {tasks} tasks"
    return Comparison(data, "MSE", 4, losses, ", ".join(PAPERS), verdict)


def present(losses: Mapping[str, Mapping[int, float]]) -> dict[str, Mapping[int, float]]:
    """Those of gates that were run."""
    return {gate: by_seed for gate, by_seed in losses.items() if by_seed}


def order(published: Mapping[str, float], losses: Mapping[str, Mapping[int, float]]) -> str:
    """The paper's losses of the gates that were run here, lowest first."""
    shown = {name: published[gate] for gate, name in NAMES.items() if gate in published}
    names = sorted(present(losses).keys() & shown.keys(), key=lambda name: shown[name])
    return ", ".join(f"{name} {shown[name]:g}" for name in names)


def write_table() -> None:
    """A line for each comparison, into docs/results/papers.md."""
    rates = "[low learning rates](#equal-tuning)"
    comparisons = (
        of_movielens(0.9, f"MOESART first: only at {rates}"),
        of_movielens(0.1, f"MOESART first, Top-k far behind: only at {rates}"),
        of_images("mnist", "[Multi-MNIST](#multi-mnist)", "MOESART first: yes"),
        of_images("fashion", "[Multi-Fashion](#multi-fashion)", "MOESART first: yes"),
        of_routers("MOESART first: yes"),
        of_groups(PROBLEMS[0], "no difference found"),
        of_groups(PROBLEMS[1], "DSelect-k first: no, behind within chance"),
    )
    lines = [
        "| data | lowest test loss | the others, less that | seeds | the paper | as there? |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    replace_table("summary", lines + [comparison.line() for comparison in comparisons])
