"""A test that lacks a program skips on a desk, and fails in continuous integration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = [  # a file, which of its tests (`-k`), and what it says
    ("pipeline/test_engines.py", "test_flink_makes", "java and mvn not installed"),
    ("verbs/test_completion.py", "test_other_shells and zsh", "zsh is not installed"),
    pytest.param(
        *("model/report/test_page.py", "test_in_a_browser", "Chromium is not installed"),
        marks=pytest.mark.long,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
@pytest.mark.parametrize(("file", "which", "says"), TESTS)
def test_a_missing_tool_fails_in_continuous_integration(file, which, says, ci, status, tmp_path):
    options = ["-q", "-p", "no:cacheprovider", "-m", "", "-rs", "-k", which]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / file)],
        cwd=ROOT,
        env=os.environ | {"CI": ci, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert says in done.stdout
    assert done.returncode == status, done.stdout
