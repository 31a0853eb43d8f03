"""Prints results as tables in a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from multigate.candidates.verdict import CandidateVerdict
from multigate.configs.console import Results

if TYPE_CHECKING:  # these modules import TensorFlow or NumPy
    from multigate.candidates.evaluation import RecallReport
    from multigate.jobs.multistage import MultistageReport
    from multigate.model.evaluation.results import BaselineComparison, Comparison

_CONSOLE = Results()


def say(text: str) -> None:
    """Print a line of progress."""
    _CONSOLE.print(text, highlight=False)


def show_table(table: Table) -> None:
    """Print a table."""
    _CONSOLE.print(table)


def show_manifest(manifest: dict[str, Any], out: Path) -> None:
    """Print where the rows of the log went."""
    table = Table(title=f"examples in {out}", title_justify="left")
    table.add_column("rows of the log")
    table.add_column("count", justify="right")
    for name, count in manifest["rows"].items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    table.add_section()
    examples = dict(manifest["examples"])
    for name, count in (examples | examples.pop("splits")).items():
        if name != "splits":
            table.add_row(f"examples: {name}".replace("_", " "), f"{count:,}")
    _CONSOLE.print(table)


def show_evaluation(result: Mapping[str, Any], best: dict[str, float | None] | None = None) -> None:
    """Print the table of tasks, with the best possible values where they are known."""
    from multigate.model.evaluation.evaluate import table

    known = {task: value for task, value in (best or {}).items() if value is not None}
    _CONSOLE.print(table(result, known))


def show_baseline(found: "BaselineComparison") -> None:
    """Print both models' measures, losses and wins."""
    from multigate.model.evaluation.against_baseline import table

    _CONSOLE.print(table(found))


def show_comparison(result: "Comparison") -> None:
    """Print a verdict with its reasons, and each task's difference."""
    from multigate.model.evaluation.comparison import table

    _CONSOLE.print(table(result))
    if "baseline" in result:
        show_baseline(result["baseline"])
    _CONSOLE.print("blessed" if result["verdict"] == "bless" else "refused", highlight=False)
    for reason in result["reasons"]:
        _CONSOLE.print(f"  {reason}", highlight=False)


def show_multistage(result: "MultistageReport") -> None:
    """Print what the first stage finds and costs, by the number of retrieved items."""
    table = Table(
        title=f"{result['questions']:,} questions of the test split about {result['items']:,} "
        f"items; {100 * result['unknown_answers']:.1f} % of the answers are not among them",
        title_justify="left",
    )
    for name in ("ranked", "recall of the first stage", "NDCG@10", "loss", "95 % interval"):
        table.add_column(name, justify="right")
    for count, found in result["retrieved"].items():
        ends = found["interval"]
        values = (f"{value:.4f}" for value in (found["recall"], found["ndcg"], found["loss"]))
        within = "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"
        table.add_row(f"{count} retrieved", *values, within)
    table.add_row("all", "", f"{result['ndcg_all']:.4f}", "", "")
    _CONSOLE.print(table)


def show_recall(result: "RecallReport") -> None:
    """Print the share of right answers that each method finds, by k."""
    from multigate.candidates.evaluation import no_question

    for kind, found in result["questions"].items():
        if not found["recall"]:
            _CONSOLE.print(f"{kind.replace('_', ' ')}: {no_question(result['split'])}")
            continue
        table = Table(
            title=f"{kind.replace('_', ' ')}: {found['questions']:,} questions of the "
            f"{result['split']} split, {found['cold']:,} of users without a history; "
            f"{result['items']:,} items; {100 * found['unknown_answers']:.1f} % of the answers are "
            "not among them",
            title_justify="left",
        )
        table.add_column("method")
        for k in next(iter(found["recall"].values())):
            table.add_column(f"recall@{k}", justify="right")
        for name, values in found["recall"].items():
            table.add_row(name.replace("_", " "), *(f"{value:.4f}" for value in values.values()))
        _CONSOLE.print(table)


def show_candidates_verdict(result: CandidateVerdict) -> None:
    """Print the verdict on a candidate model, with its reasons and the recalls."""
    title = f"{result['questions']:,} questions of the test split"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column(f"recall@{result['k']}", justify="right")
    for name, value in result.get("recall", {}).items():
        if value is not None:
            table.add_row(name, f"{value:.4f}")
    _CONSOLE.print(table)
    _CONSOLE.print("blessed" if result["verdict"] == "bless" else "refused", highlight=False)
    for reason in result["reasons"]:
        _CONSOLE.print(f"  {reason}", highlight=False)
