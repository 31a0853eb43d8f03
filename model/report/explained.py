"""The report's section about three rows: what their features, tasks and gates did."""

from collections.abc import Sequence
from html import escape

from multigate.explanation.document import SCORE, Explanation
from multigate.explanation.show import experts_of, name_of, notes, shown_tasks, value_of
from multigate.model.assessment.gates import expert_names
from multigate.model.assessment.results import Assessment, ExplainedRow
from multigate.model.report.elements import section, sentences, table

_TOP = 8


def explained(found: Assessment) -> str:
    """The rows that were explained."""
    owned = any("own" in gate for gate in found["gates"].values())
    names = expert_names(found["gates"], found["experts"]) if owned else []
    return section(
        "explained",
        "Rows explained",
        "What each feature adds to a row's scores: Shapley values against the mean of "
        f"{_background(found)}, so that a row's contributions add up to its score minus that mean. "
        "A row's labels make a gain where their combination is above that of labels of 0.",
        *(_row(row, names) for row in found["explained"]),
    )


def _background(found: Assessment) -> str:
    if not found["explained"]:
        return "other rows"
    background = found["explained"][0]["explanation"]["background"]
    return f"{background['rows']} {background['of']}"


def _row(row: ExplainedRow, names: Sequence[str]) -> str:
    found = row["explanation"]
    mean = found["background"]["scores"][SCORE]
    return (
        f'<h3 class="sub">{escape(row["chosen"].capitalize())}: item {escape(str(found["item"]))} '
        f"for user {escape(str(found['user']))}, score {found['score']:.4g}, the mean is "
        f"{mean:.4g}</h3>{_features(found)}{sentences(notes(found, _TOP))}"
        f"{_tasks(row, names)}"
    )


def _features(found: Explanation) -> str:
    tasks = shown_tasks(found)
    rows = [
        [
            escape(name_of(group)),
            escape(value_of(group)),
            *(_signed(group["contributions"][name]) for name in (SCORE, *tasks)),
        ]
        for group in found["features"][:_TOP]
    ]
    heads = ("feature", "value", "to the score", *(f"to {task}" for task in tasks))
    return table("What each feature adds", heads, rows)


def _tasks(row: ExplainedRow, names: Sequence[str]) -> str:
    found = row["explanation"]
    heads = ["task", "label", "score", "weight", "addend" if found["rule"] == "sum" else "factor"]
    if found["experts"] is not None:
        heads.append("experts (weight)")
    rows = []
    for task, term in found["terms"].items():
        label = row["labels"][task]
        cells = [
            escape(task),
            '<span class="soft">masked</span>' if label is None else f"{label:.4g}",
            f"{term['score']:.4g}",
            f"{term['weight']:g}",
            f"{term['term']:.4g}",
        ]
        if found["experts"] is not None:
            cells.append(escape(experts_of(found["experts"][task], names)))
        rows.append(cells)
    return table("What each task gives to the score", heads, rows)


def _signed(value: float) -> str:
    return f"{value:+.3g}" if value else "0"
