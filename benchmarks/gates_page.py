"""The tables and the picture of `gates_at_cost.py`, from its rows.

Quality is compared with the same seed only: seeds move all versions of a log alike.
"""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from papers.rows import Row, cell, marked, mean_and_error, of_same_seeds, replace_table

from multigate.configs.baselines import SHARED_BOTTOM, SINGLE_TASK

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PICTURE = RESULTS.parent / "pictures" / "gates_at_cost.png"
KEY = ("data", "gate", "experts", "chosen", "seed")
BASELINES = (SHARED_BOTTOM, SINGLE_TASK)
WIDE_BOTTOM = "wide bottom"
WITHOUT_CHOICE = ("softmax", WIDE_BOTTOM)  # evaluate all that they have
BASE = 8
"""Experts of the softmax that the shared bottom and single models are compared with."""
BUDGETS = (1.1, 1.25, 1.5, 2.0, 4.0)
"""Costs that a user may allow, shared bottom = 1."""
MANY = 20
"""Versions of which a log has to be measured for a panel of the picture and an answer by budget."""
CHOSEN = "best on validation up to this cost"
MOST_SHOWN = 5.0
"""Cost up to which the picture shows versions."""
Key = tuple[Any, ...]
"""Data, gate, experts and chosen."""
Seeds = dict[Key, list[Row]]
"""Rows of one version, a row for each seed."""


def by_seeds(rows: list[Row]) -> Seeds:
    """Group the rows of runs that differ by their seed."""
    found: Seeds = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in KEY[:-1])].append(row)
    return dict(found)


def write_tables(rows: list[Row]) -> None:
    """All rows, and differences to softmax, into docs/results/gates.md."""
    found = by_seeds(rows)
    lines = [
        "| data | gate | E | k | experts a row | CPU a candidate, shared bottom = 1 | AUC, test "
        "| AUC, validation | seeds |",
        "|" + " --- |" * 9,
    ]
    for (data, gate, experts, chosen), same in sorted(found.items()):
        lines.append(
            f"| {data} | {gate} | {experts} | {chosen} "
            f"| {np.mean([row['evaluated'] for row in same]):.1f} "
            f"| {cost_of(same):.2f} "
            f"| {cell([row['test_auc'] for row in same], 4)} "
            f"| {cell([row['validation_auc'] for row in same], 4)} | {len(same)} |"
        )
    replace_table("gates at cost", lines, RESULTS / "gates.md")
    replace_table("gates less softmax", differences(found), RESULTS / "gates.md")
    replace_table("gates by budget", by_budget(found), RESULTS / "gates.md")


def differences(found: Seeds) -> list[str]:
    """The table of every gate less softmax over as many experts as it has, seed by seed.

    Softmax over E experts is the base of gates with E experts, and over `BASE` of the baselines.
    """
    lines = [
        "| data | gate | E | k | experts a row | test, less softmax | validation, less softmax "
        "| seeds |",
        "|" + " --- |" * 8,
    ]
    for (data, gate, experts, chosen), rows in sorted(found.items()):
        over = BASE if gate in BASELINES else experts
        pairs = of_same_seeds(rows, found.get((data, "softmax", over, over), []))
        if gate == "softmax" or len(pairs) < 2:
            continue
        cells = []
        for split in ("test_auc", "validation_auc"):
            less = [row[split] - other[split] for row, other in pairs]
            cells.append(marked(cell(less, 4, "+"), pairs, less))
        evaluated = np.mean([row["evaluated"] for row in rows])
        lines.append(
            f"| {data} | {gate} | {experts} | {chosen} | {evaluated:.1f} | {' | '.join(cells)} "
            f"| {len(pairs)} |"
        )
    return lines


def by_budget(found: Seeds) -> list[str]:
    """The table of what is best on validation, as a user has to choose, at each cost.

    With what it gains on test over the shared bottom.
    """
    lines = [
        f"| data | {' | '.join(f'up to {budget:g}' for budget in BUDGETS)} |",
        "|" + " --- |" * (1 + len(BUDGETS)),
    ]
    for log in broad(found):
        best = best_by_cost(found, log)
        cells = []
        for budget in BUDGETS:
            key = [key for price, key in best if price <= budget][-1]
            cells.append(f"{label(key)}: {cell(gains(found, key, 'test_auc'), 4, '+')}")
        lines.append(f"| {log} | {' | '.join(cells)} |")
    return lines


def best_by_cost(found: Seeds, log: str) -> list[tuple[float, Key]]:
    """Cost and version, the cheapest first, of what no cheaper one is above on validation."""
    best, chosen = -np.inf, list[tuple[float, Key]]()
    for price, key in sorted((cost_of(found[key]), key) for key in found if key[0] == log):
        gain = float(np.mean(gains(found, key, "validation_auc")))
        if gain > best:
            best = gain
            chosen.append((price, key))
    return chosen


def gains(found: Seeds, key: Key, split: str) -> list[float]:
    """What a version has more than the shared bottom with the same seed, seed by seed.

    Seeds move all versions alike, so that one with a lucky seed only must not be put beside the
    mean of three.
    """
    pairs = of_same_seeds(found[key], found[key[0], SHARED_BOTTOM, 1, 1])
    return [row[split] - other[split] for row, other in pairs]


def cost_of(rows: list[Row]) -> float:
    """CPU of a call over the shared bottom's, mean of the seeds."""
    return float(np.mean([row["ratio"] for row in rows]))


def broad(found: Seeds) -> list[str]:
    """The logs with at least `MANY` versions."""
    counts = Counter(key[0] for key in found)
    return sorted(log for log, count in counts.items() if count >= MANY)


def label(key: Key) -> str:
    """A version's gate, experts and chosen: `topk 8/2`; `softmax 8` where nothing is chosen."""
    _, gate, experts, chosen = key
    if gate in BASELINES:
        return str(gate)
    return f"{gate} {experts}" if gate in WITHOUT_CHOICE else f"{gate} {experts}/{chosen}"


def draw(rows: list[Row]) -> None:
    """The picture of quality against cost, a panel for each of the logs with many versions."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    found = by_seeds(rows)
    logs = broad(found)
    gates = sorted({key[1] for key in found if key[0] in logs})
    drawn = dict[str, Any]()
    figure, axes = plt.subplots(1, len(logs), figsize=(6 * len(logs), 7), squeeze=False)
    for axis, log in zip(axes.flat, logs, strict=True):
        for place, gate in enumerate(gates):
            same = {key: rows for key, rows in found.items() if key[:2] == (log, gate)}
            points = sorted(
                (
                    cost_of(rows),
                    *mean_and_error(gains(found, key, "test_auc")),
                    label(key).removeprefix(gate).strip(),
                )
                for key, rows in same.items()
            )
            if not points:
                continue
            style = {"fmt": "osD^vP"[place % 6], "color": mpl.colormaps["tab10"](place % 10)}
            x, y, error, names = zip(*points, strict=True)
            bars = [one or 0.0 for one in error]
            drawn[gate] = axis.errorbar(x, y, bars, **style, ms=5, lw=0.8)
            for one in zip(x, y, names, strict=True):
                axis.annotate(
                    one[2],
                    one[:2],
                    xytext=(3, 3),
                    textcoords="offset points",
                    size=6,
                    annotation_clip=True,
                )
        # A few that are far below all others, or cost many times as much, would squeeze the rest.
        tests = [np.mean(gains(found, key, "test_auc")) for key in found if key[0] == log]
        low, high = float(np.quantile(tests, 0.15)), max(tests)
        if high - min(tests) > 2 * (high - low):
            axis.set_ylim(low - 0.1 * (high - low), None)
        prices, keys = zip(*best_by_cost(found, log), strict=True)
        reached = [float(np.mean(gains(found, key, "test_auc"))) for key in keys]
        (drawn[CHOSEN],) = axis.step(prices, reached, where="post", color="0.6", lw=1, zorder=0)
        axis.set_title(log)
        axis.set_xscale("log", base=2)
        axis.set_xlim(None, min(axis.get_xlim()[1], MOST_SHOWN))
        axis.set_xlabel("CPU a candidate (of 100 in a call), shared bottom = 1")
        axis.set_ylabel("mean AUC of the binary tasks, test, less the shared bottom's")
    figure.tight_layout()
    figure.subplots_adjust(bottom=0.2)
    figure.legend(list(drawn.values()), list(drawn), loc="lower center", ncols=7, fontsize=10)
    figure.savefig(PICTURE, dpi=90)
    plt.close(figure)
