"""The folds of a draft: the table goes into the page that a caller names, between its marks."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/drafts_folds.py"


def test_the_table_stands_between_the_marks_of_the_page(tmp_path):
    # Of five folds all rows are there: nothing is trained.  A click that stands first wins all.
    rows = [
        {"seed": 0, "fold": fold, "run": run, "rows": list("abcde"), "users": [f"u{fold}"] * 5}
        | {"labels": [1, 0, 0, 0, 0], "scores": [0.9, 0.5 if run == "draft" else 1.0, 0.1, 0, 0]}
        for fold in range(5)
        for run in ("preset", "draft", "hidden")
    ]
    (tmp_path / "folds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- folds -->\nearlier\n<!-- end folds -->\nafter\n")

    command = [sys.executable, str(SCRIPT), "--data", str(tmp_path), "--work", str(tmp_path)]
    subprocess.run([*command, "--seeds", "1", "--page", str(page)], check=True, timeout=300)

    text = page.read_text()
    assert text.startswith("before\n<!-- folds -->\n| run | AUC over 5 clicks |")
    assert text.endswith("<!-- end folds -->\nafter\n")
    assert "earlier" not in text
    [preset, draft, _] = [line.split("|")[2].strip() for line in text.splitlines()[4:7]]
    assert (preset, draft) == ("0.750", "1.000")
