"""An assessment's metrics as one flat table, for spreadsheets and scripts: the report's CSV."""

import csv
import io
from collections.abc import Iterator

from multigate.model.assessment.results import Assessment
from multigate.model.evaluation.measures.bootstrap import Interval

COLUMNS = ("model", "split", "scope", "name", "slice", "measure", "value", "low", "high", "rows")
"""What each line says; docs/evaluation.md describes them."""

Number = float | int | None
Line = tuple[str, str, str, str, Number, Number, Number, Number]


def as_csv(found: Assessment) -> str:
    """One line per measure: of each task, group and slice, of the ranked lists and of the model."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for line in _lines(found):
        table.writerow([found["name"], found["split"], *line])
    return text.getvalue()


def _lines(found: Assessment) -> Iterator[Line]:
    for name, task in found["tasks"].items():
        for measure, interval in task["measures"].items():
            yield _line("task", name, "", measure, interval)
        yield "task", name, "", "mean_score", task["mean_score"], None, None, task["rows"]
    for name, group in found["groups"].items():
        for measure, value, of_mean in (
            ("auc", group["auc"], group["auc_interval"]),
            ("relative_rmse", group["relative_rmse"], group["relative_rmse_interval"]),
        ):
            if of_mean is not None:
                yield _line("group", name, "", measure, of_mean)
            elif value is not None:
                yield "group", name, "", measure, value, None, None, found["rows"]
    for measure, interval in found["ranking"]["measures"].items():
        yield _line("lists", "", "", measure, interval)
    yield "model", "", "", "loss", found["loss"], None, None, found["rows"]
    yield "model", "", "", "experts_per_row", found["experts_per_row"], None, None, found["rows"]
    for look in found["slices"]["rows"]:
        part = f"{look['slice']}: {look['value']}"
        yield _line("slice", look["task"], part, look["measure"], look["found"])


def _line(scope: str, name: str, part: str, measure: str, found: Interval) -> Line:
    return scope, name, part, measure, found["value"], found["low"], found["high"], found["rows"]
