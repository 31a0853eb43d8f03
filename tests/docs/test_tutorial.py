"""The tutorial runs as it is written: its shell blocks, in order, in an empty folder."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


def test_every_verb_of_a_first_use_is_shown():
    verbs = re.findall(r"^multigate +([a-z-]+)", "\n".join(BLOCKS), re.MULTILINE)
    assert list(dict.fromkeys(verbs)) == [
        *("init", "options", "print-config", "check", "examples", "train", "export", "evaluate"),
        *("score", "serve", "rank"),
    ]


@pytest.mark.slow
def test_the_tutorial_runs_as_written(free_port, tmp_path):
    script = "\n".join(BLOCKS)
    assert script.count("PORT=8500\n") == 1
    script = script.replace("PORT=8500\n", f"PORT={free_port()}\n")  # one that is free here
    activated = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": activated},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 130), done.stderr  # 130: of the server that was ended
    assert "Traceback" not in done.stderr
    assert "0 findings would fail a run" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert sorted(report["tasks"]) == ["clicked", "saved", "seconds", "seconds_long"]
    assert report["tasks"]["clicked"]["value"] > 0.65  # readers like two topics
    with (tmp_path / "scored.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["reader"] for row in rows] == ["reader1", "reader1", "reader2"]
    ranked = set(re.findall(r"article\d", done.stdout[-2000:]))
    assert ranked >= {"article1", "article2", "article3", "article4"}
