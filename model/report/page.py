"""The report: one HTML file about one model, without network access or JavaScript."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from multigate.configs.files import write_json, write_text
from multigate.model.assessment.results import Assessment
from multigate.model.checkpoints.history import kept
from multigate.model.report import checks, data, explained, gates, tasks
from multigate.model.report.elements import count, document, sentences
from multigate.model.report.table import as_csv

_SECTIONS = (
    ("verdict", "Verdict"),
    ("tasks", "Tasks"),
    ("baseline", "Baseline"),
    ("calibration", "Calibration"),
    ("ranking", "Lists"),
    ("trade-off", "Trade-off"),
    ("explained", "Explained"),
    ("gates", "Gates"),
    ("transfer", "Transfer"),
    ("slices", "Slices"),
    ("leaks", "Leaks"),
    ("training", "Training"),
    ("labels", "Labels"),
    ("data", "Data"),
)


def write_report(
    path: Path,
    found: Assessment,
    *,
    title: str | None = None,
    best: Mapping[str, float | None] | None = None,
) -> None:
    """Write the report, and beside it, under the same name, all that it shows.

    `.json` has everything, `.csv` the metrics as one flat table.

    Args:
        path: the HTML file; its folder exists.
        found: what `assessment.assess` returned.
        title: the model's name where None.
        best: best possible value by task, None where unknown.
    """
    known = {name: value for name, value in (best or {}).items() if value is not None}
    write_json(path.with_suffix(".json"), dict(found) | ({"best": known} if known else {}))
    write_text(path.with_suffix(".csv"), as_csv(found))
    write_text(path, page(found, title or found["name"], known))


def page(found: Assessment, title: str, best: Mapping[str, float]) -> str:
    """The whole HTML page."""
    body = "".join(
        [
            checks.verdict(found),
            tasks.tasks(found, best),
            checks.baseline(found),
            tasks.calibration(found),
            tasks.ranking(found),
            tasks.trade_off(found),
            explained.explained(found),
            gates.gates(found),
            checks.transfer(found),
            checks.slices(found),
            checks.leaks(found),
            tasks.training(found, found["history"]),
            tasks.labels(found),
            data.data(found),
        ]
    )
    links = "".join(
        f'<a href="#{key}">{text}</a>' for key, text in _SECTIONS if f'<section id="{key}">' in body
    )
    warned = checks.warnings(found)
    noticed = (
        f'<div class="card noticed"><h2>What stands out</h2>{sentences(warned)}</div>'
        if warned
        else ""
    )
    return document(
        f"{title}: evaluation",
        f"{_header(found, title)}{tasks.figures(found)}{noticed}"
        f'<nav aria-label="Sections">{links}</nav>{body}{_footer(found)}',
    )


def _header(found: Assessment, title: str) -> str:
    history = found["history"]
    trained = ""
    if history:
        best = kept(history)["epoch"]
        trained = f" Trained for {count(len(history), 'epoch')}; epoch {best} was kept."
    names = sorted({gate["gate"] for gate in found["gates"].values()})
    mixture = ""
    if names:
        own = [len(gate.get("own", [])) for gate in found["gates"].values()]
        mixture = f" {count(found['experts'] - sum(own), 'shared expert')}"
        mixture += f" and {own[0]} of each task" if own[0] else ""
        mixture += f" behind {', '.join(names)} gates."
    kind = "exported version" if found["kind"] == "version" else "checkpoint"
    return (
        f'<header><p class="eyebrow">Evaluation of a{"n" if kind[0] == "e" else ""} {kind}</p>'
        f"<h1>{escape(title)}</h1>"
        f'<p class="lead">{found["rows"]:,} rows of {count(found["users"], "user")} in the '
        f"{escape(found['split'])} split, {count(len(found['tasks']), 'task')}."
        f"{escape(mixture)}{trained}</p></header>"
    )


def _footer(found: Assessment) -> str:
    lines = {
        found["kind"]: found["source"],
        "intervals": f"{100 * found['confidence']:g} %, {found['replicates']:,} resamples of users",
        "weighted loss": f"{found['loss']:.4f}",
    }
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in lines.items())
    return f"<footer><dl>{items}</dl></footer>"
