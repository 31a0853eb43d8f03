"""Every benchmark starts as its docstring says: `python benchmarks/NAME.py`."""

import json
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
    assert len(SCRIPTS) == 61


ALL = """
import contextlib, io, json, runpy, sys
found, path = {}, list(sys.path)
for script in sys.argv[1:]:
    sys.argv, sys.path = [script, "--help"], [script.rpartition("/")[0], *path]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    found[script] = said.getvalue()
print(json.dumps(found))
"""
"""Asks every script in one process, so that what they import is imported once."""


@pytest.mark.slow
def test_they_say_what_they_take(tmp_path):
    command = [sys.executable, "-c", ALL, *map(str, SCRIPTS)]
    said = subprocess.check_output(command, cwd=tmp_path, text=True, timeout=800)
    found = json.loads(said.splitlines()[-1])
    for script in SCRIPTS:
        assert found[str(script)].startswith(f"usage: {script.name}"), script
