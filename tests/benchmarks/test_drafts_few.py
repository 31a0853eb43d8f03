"""Drafts of logs with few positives: each variant stands beside the draft of the same sample."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/drafts_few.py"


def test_differences_are_of_the_same_log_and_sample(tmp_path):
    """All rows are there: nothing is trained."""
    auc = {("films", 0): (0.6, 0.65), ("films", 1): (0.7, 0.75), ("feed", 0): (0.5, 0.4)}
    auc[("feed", 1)] = (0.8, 0.9)
    rows = [
        {"log": log, "positives": 200, "sample": sample, "variant": variant, "auc": value}
        for (log, sample), values in auc.items()
        for variant, value in zip(("draft", "steps"), values, strict=True)
    ]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- few -->\nearlier\n<!-- end few -->\nafter\n")
    command = [sys.executable, str(SCRIPT), "--data", str(tmp_path), "--work", str(tmp_path)]
    command += ["--logs", "films", "feed", "--variants", "draft", "steps", "--page", str(page)]
    subprocess.run(command, check=True, timeout=300)
    lines = page.read_text().splitlines()
    assert lines[2] == "| positives | variant | films | feed | all |"
    assert lines[4] == "| 200 | draft | 0.650 ± 0.050 | 0.650 ± 0.150 | 0.650 ± 0.065 |"
    assert lines[5] == "| 200 | steps | +0.050 ± 0.000 | +0.000 ± 0.100 | +0.025 ± 0.043 |"
    assert lines[6:] == ["<!-- end few -->", "after"]
