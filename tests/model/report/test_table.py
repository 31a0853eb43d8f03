"""The flat table of metrics, and the shape of `report.json` as it is documented."""

import csv
import json
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from multigate.model.assessment.results import AssessedTask, Assessment
from multigate.model.report.table import COLUMNS, as_csv

PAGE = (Path(__file__).parents[3] / "docs/evaluation.md").read_text()
SECTION = PAGE.partition("## report.json and report.csv")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def report(small_run):
    return json.loads((small_run.root / "run/report.json").read_text())


def test_every_measure_is_a_line(small_run, report):
    text = (small_run.root / "run/report.csv").read_text()
    assert text == as_csv(report)
    lines = list(csv.DictReader(text.splitlines()))
    assert tuple(lines[0]) == COLUMNS
    found = {(line["scope"], line["name"], line["slice"], line["measure"]): line for line in lines}
    assert len(found) == len(lines)
    for name, task in report["tasks"].items():
        line = found["task", name, "", task["metric"]]
        assert float(line["value"]) == pytest.approx(task["value"], rel=1e-12)
        assert float(line["low"]) == task["measures"][task["metric"]]["low"]
        assert int(line["rows"]) == task["rows"]
    for name, group in report["groups"].items():
        assert float(found["group", name, "", "auc"]["value"]) == pytest.approx(group["auc"])
    ndcg = report["ranking"]["measures"]["ndcg@10"]
    assert float(found["lists", "", "", "ndcg@10"]["high"]) == ndcg["high"]
    assert float(found["model", "", "", "loss"]["value"]) == report["loss"]
    assert sum(line["scope"] == "slice" for line in lines) == len(report["slices"]["rows"])


def test_every_key_is_documented_and_no_other():
    first = [row.split("|")[1] for row in SECTION.splitlines() if row.startswith("| `")]
    documented = {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}
    assert documented == {*get_type_hints(Assessment), "best", *COLUMNS}
    for key in get_type_hints(AssessedTask):
        assert f"`{key}`" in SECTION, key
