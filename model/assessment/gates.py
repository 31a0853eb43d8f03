"""What the gates do, in sentences, and how much of it other seeds repeat."""

from collections.abc import Mapping, Sequence

import numpy as np

from multigate.configs.config import Config
from multigate.model.assessment.results import Stability, TaskStability
from multigate.model.evaluation.results import GateSummary, Summary

_RARE = 0.001  # share of the rows below which a selected expert is as good as dead
_ALONE = 0.95  # share of a task's rows above which an expert serves nearly all of them
_ALIKE = 0.9  # Jaccard overlap above which two tasks' experts are as good as the same


def findings(gates: Mapping[str, GateSummary], union: Sequence[float] | None) -> list[str]:
    """What the gates do, a sentence each; experts are counted from 1, see `expert_names`.

    Args:
        gates: by task.
        union: (E,) share of the rows on which some task uses each expert; None where unknown.
    """
    if not gates:
        return []
    load = {task: np.asarray(gate["load"], np.float64) for task, gate in gates.items()}
    E = len(next(iter(load.values())))
    names = expert_names(gates, E)
    most = np.max(list(load.values()), axis=0)
    total = most if union is None else np.asarray(union, np.float64)
    sentences = []
    dead = np.flatnonzero(most == 0)
    rare = np.flatnonzero((most > 0) & (total < _RARE))
    if len(dead):
        verb = "is" if len(dead) == 1 else "are"
        sentences.append(f"{_experts(dead, names)} {verb} never used.")
    else:
        sentences.append("Every expert is used by some task.")
    if len(rare):
        verb = "is" if len(rare) == 1 else "are"
        sentences.append(f"{_experts(rare, names)} {verb} used on fewer than 1 row in 1,000.")
    if E > 1:
        shared = np.flatnonzero(np.min(list(load.values()), axis=0) > _ALONE)
        if len(shared) == E:
            sentences.append(f"Every task uses all {E} experts on nearly every row: it is dense.")
        elif len(shared) and len(load) > 1:
            verb = "serves" if len(shared) == 1 else "serve"
            sentences.append(
                f"{_experts(shared, names)} {verb} every task on more than 95 % of its rows."
            )
    sentences.extend(
        _constant({task: shares[choosable(gates, task, E)] for task, shares in load.items()})
    )
    sentences.extend(_alike(gates))
    return sentences


def expert_names(gates: Mapping[str, GateSummary], experts: int) -> list[str]:
    """Names (E,) of all experts: "3" for the third shared one, "like 1" for the first of a task."""
    names = [str(number + 1) for number in range(experts)]
    for task, gate in gates.items():
        for place, number in enumerate(gate.get("own", [])):
            names[number] = f"{task} {place + 1}"
    return names


def choosable(gates: Mapping[str, GateSummary], task: str, experts: int) -> list[int]:
    """Numbers of the experts that a task's gate chooses among: all but other tasks' own."""
    others = {e for name, gate in gates.items() if name != task for e in gate.get("own", [])}
    return [number for number in range(experts) if number not in others]


def _constant(load: Mapping[str, np.ndarray]) -> list[str]:
    """Tasks that choose among experts, but the same ones on every row."""
    fixed = [
        task
        for task, shares in load.items()
        if 0 < (shares > 0).sum() < len(shares) and np.all((shares < 1e-9) | (shares > 1 - 1e-6))
    ]
    if not fixed:
        return []
    verb = "uses" if len(fixed) == 1 else "use"
    return [f"{_join(fixed)} {verb} the same experts on every row."]


def _alike(gates: Mapping[str, GateSummary]) -> list[str]:
    """Which tasks share most and fewest experts, of those that do not share a gate."""
    of = {task: gate.get("shared", task) for task, gate in gates.items()}
    pairs = [
        (overlap, a, b)
        for i, (a, gate) in enumerate(gates.items())
        for b, overlap in gate.get("overlap", {}).items()
        if b in list(gates)[i + 1 :] and of[a] != of[b]
    ]
    if not pairs:
        return []
    alike = [(a, b) for overlap, a, b in pairs if overlap > _ALIKE]
    if len(alike) == len(pairs) > 1:
        return ["All tasks use nearly the same experts: the gates do not separate them."]
    highest, lowest = max(pairs), min(pairs)
    sentences = [
        f"{highest[1]} and {highest[2]} share most experts (overlap {highest[0]:.2f}), "
        f"{lowest[1]} and {lowest[2]} fewest ({lowest[0]:.2f})."
    ]
    return sentences if len(pairs) > 1 else []


def stability(runs: Sequence[Summary], differences: Sequence[str] = ()) -> Stability:
    """How much runs agree that differ in their seed alone.

    Expert 1 of one seed has nothing to do with expert 1 of another.  So this compares what does not
    depend on the experts' order: each task's metric, its experts per row, and which tasks share
    experts.

    Args:
        runs: at least two.
        differences: what differs besides the seed.
    """
    found: dict[str, TaskStability] = {}
    for name, task in runs[0]["tasks"].items():
        every = [run["tasks"][name]["value"] for run in runs if name in run["tasks"]]
        values = [value for value in every if value is not None]
        used = [run["gates"][name]["experts_per_row"] for run in runs if name in run["gates"]]
        if len(values) < len(runs):
            continue
        found[name] = {
            "metric": task["metric"],
            "mean": float(np.mean(values)),
            "deviation": float(np.std(values, ddof=1)),
            "experts_per_row": float(np.mean(used)) if used else None,
        }
    deviations = []
    names = list(runs[0]["gates"])
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            overlaps = [
                run["gates"][a]["overlap"][b]
                for run in runs
                if a in run["gates"] and b in run["gates"][a].get("overlap", {})
            ]
            if len(overlaps) == len(runs):
                deviations.append(float(np.std(overlaps, ddof=1)))
    return {
        "runs": len(runs),
        "tasks": found,
        "overlap": float(np.mean(deviations)) if deviations else None,
        "differences": list(differences),
    }


def differences(configs: Sequence[Config]) -> list[str]:
    """What differs between runs besides their seed, a sentence each."""
    sections = [config.model_dump(mode="json") for config in configs]
    seeds = [values["train"].pop("seed") for values in sections]
    said = [
        f"The runs differ in {section}.{key}, not in their seed alone."
        for section in ("model", "train")
        for key in sections[0][section]
        if any(values[section][key] != sections[0][section][key] for values in sections)
    ]
    if len(set(seeds)) < len(seeds):
        said.append("Some runs have the same seed: that they agree says nothing.")
    return said


def _experts(indices: np.ndarray, every: Sequence[str]) -> str:
    names = [every[index] for index in indices]
    return f"{'Expert' if len(names) == 1 else 'Experts'} {_join(names)}"


def _join(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
