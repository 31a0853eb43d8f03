"""An explanation as short tables in the terminal."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from multigate.configs.console import Results
from multigate.explanation.document import SCORE, Explanation, FeatureGroup, SelectedExpert

_MOST_TASKS = 4
"""Of which the table of features has columns; with more, the two that differ most."""
_MOST_EXPERTS = 4
_LONGEST = 40
"""Characters of a value."""


def show(found: Explanation, top: int = 12) -> None:
    """Print an explanation; its `top` groups of features that change the score most."""
    console = Results(highlight=False)
    console.print(headline(found))
    console.print(_features(found, top))
    console.print(_tasks(found))
    for note in notes(found, top):
        console.print(note, style="dim")


def headline(found: Explanation) -> str:
    """Item, user, score and place in a sentence."""
    place = ""
    if "place" in found:
        place = f", place {found['place']} of {found['candidates']}"
    model = f"{found['model']}, version {found['version']}: " if "model" in found else ""
    mean = found["background"]["scores"][SCORE]
    return (
        f"{model}item {found['item']} for user {found['user']}: score {found['score']:.4g}{place}; "
        f"the mean of {found['background']['rows']} {found['background']['of']} is {mean:.4g}"
    )


def notes(found: Explanation, top: int) -> list[str]:
    """What a reader of the `top` groups must know besides, a sentence each."""
    said = []
    if len(found["features"]) > top:
        rest = sum(group["contributions"][SCORE] for group in found["features"][top:])
        said.append(
            f"{len(found['features']) - top} more groups of features add {rest:+.3g} together."
        )
    if not found["exact"]:
        worst = max(group["errors"][SCORE] for group in found["features"])
        said.append(
            "Orders of the features were drawn, which leaves standard errors of up to "
            f"{worst:.2g} in what they add to the score."
        )
    reasons = Counter(group["together"] for group in found["features"][:top] if group["together"])
    if reasons:
        why = "; ".join(
            f"{reason} ({count} line{'s' if count > 1 else ''})"
            for reason, count in reasons.items()
        )
        said.append(f"Features of one line of the table move together: {why}.")
    if found.get("unseen"):
        said.append(
            f"Not in the vocabulary, so scored as an unseen value: {', '.join(found['unseen'])}."
        )
    return said + list(found.get("warnings", []))


def name_of(group: FeatureGroup) -> str:
    """A group by its first feature, and how many others it has."""
    first, *others = group["features"]
    if not others:
        return first
    return f"{first} and {others[0] if len(others) == 1 else f'{len(others)} others'}"


def value_of(group: FeatureGroup) -> str:
    """The value of a group's first feature, cut where it is long."""
    return text_of(group["values"][group["features"][0]])


def text_of(value: Any) -> str:
    """A feature's value as short text."""
    if value is None:
        return "missing"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        if not value:
            return "none"
        shown = ", ".join(text_of(one) for one in value[-3:])  # histories: the newest are last
        return f"{len(value)}: {'... ' if len(value) > 3 else ''}{shown}"[: 2 * _LONGEST]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def shown_tasks(found: Explanation) -> list[str]:
    """The tasks that a table of features has columns for."""
    tasks = list(found["terms"])
    if len(tasks) <= _MOST_TASKS:
        return tasks
    return sorted(tasks, key=lambda task: -_moved(found, task))[: _MOST_TASKS - 1]


def experts_of(chosen: list[SelectedExpert], names: Sequence[str] = ()) -> str:
    """A task's experts with their weights; by number where they have no names."""
    said = ", ".join(
        f"{names[one['expert'] - 1] if names else one['expert']} ({one['weight']:.2f})"
        for one in chosen[:_MOST_EXPERTS]
    )
    more = len(chosen) - _MOST_EXPERTS
    return said + (f" and {more} more" if more > 0 else "") or "none"


def _moved(found: Explanation, task: str) -> float:
    """How far a task moves the combined score: weight times distance from the background."""
    term = found["terms"][task]
    return abs(term["weight"] * (term["score"] - found["background"]["scores"][task]))


def _features(found: Explanation, top: int) -> Table:
    tasks = shown_tasks(found)
    table = Table(title="What each feature adds", title_justify="left")
    table.add_column("feature")
    table.add_column("value")
    table.add_column("to the score", justify="right")
    for task in tasks:
        table.add_column(task, justify="right")
    for group in found["features"][:top]:
        each = group["contributions"]
        cells = (f"{each[task]:+.3g}" for task in (SCORE, *tasks))
        table.add_row(name_of(group), value_of(group), *cells)
    return table


def _tasks(found: Explanation) -> Table:
    what = "addend" if found["rule"] == "sum" else "factor"
    table = Table(title="What each task gives to the score", title_justify="left")
    table.add_column("task")
    for name in ("score", "weight", what):
        table.add_column(name, justify="right")
    if found["experts"] is not None:
        table.add_column("experts (weight)")
    for task, term in found["terms"].items():
        numbers = (f"{term['score']:.4g}", f"{term['weight']:g}", f"{term['term']:.4g}")
        own = [] if found["experts"] is None else [experts_of(found["experts"][task])]
        table.add_row(task, *numbers, *own)
    return table
