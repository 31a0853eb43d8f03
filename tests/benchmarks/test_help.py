"""Every benchmark starts as its docstring says: `python benchmarks/NAME.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = [
    path
    for path in sorted(FOLDER.rglob("*.py"))
    if "add_argument(" in path.read_text() and "__main__" in path.read_text()
]


def test_there_are_benchmarks():
    assert len(SCRIPTS) == 24


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_says_what_it_takes(script, tmp_path):
    command = [sys.executable, script, "--help"]
    found = subprocess.check_output(command, cwd=tmp_path, text=True, timeout=200)
    assert found.startswith(f"usage: {script.name}")
