"""The notebook runs, and the page about Python shows what it does."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import multigate

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = json.loads((DOCS / "python.ipynb").read_text())
PAGE = (DOCS / "python.md").read_text()
CELLS = ["".join(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "code"]

CHECK = """
import json
print(json.dumps({
    "test": examples.count("test"),
    "masked": bool(0 < known.mean() < 1),
    "known": [float(known.mean()), float(np.nanmean(train["label/click"]))],
    "monitored": trained["monitored"],
    "report": {name: task["value"] for name, task in report["tasks"].items()},
    "exported": {name: task["value"] for name, task in version.metrics["tasks"].items()},
    "ranked": ranked,
    "clicks": [float(scores["click"].mean()), float(clicks.mean())],
}))
"""


def test_outputs_are_cleared():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile("".join(cell["source"]), cell["id"], "exec")
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    assert (DOCS / "python.ipynb").stat().st_size < 20_000


def test_the_page_shows_every_name_of_the_interface():
    first = re.findall(r"^\| `(\w+)\((.*?)\)`", PAGE, re.MULTILINE)
    assert {name for name, _ in first} == set(multigate.__all__) - {"MultigateError", "Version"}
    for name, arguments in first:
        wanted = list(inspect.signature(getattr(multigate, name)).parameters)
        assert arguments.split(", ") == wanted[: len(arguments.split(", "))]
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    lines = {line.split("(")[0] for line in "\n".join(CELLS).splitlines()}
    assert {line.split("(")[0] for line in block.splitlines() if line} <= lines


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    (tmp_path / "notebook.py").write_text("\n".join([*CELLS, CHECK]))
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["test"] == 600
    assert found["known"][0] == pytest.approx(found["known"][1], abs=0.02)
    # The report measures the version as it is served, the export measured it as a graph.
    for name, value in found["exported"].items():
        assert found["report"][name] == pytest.approx(value, rel=1e-3)
    assert len(found["ranked"]) == 5
    scores = [item["score"] for item in found["ranked"]]
    assert scores == sorted(scores, reverse=True)
    assert found["clicks"][0] == pytest.approx(found["clicks"][1], rel=0.3)
