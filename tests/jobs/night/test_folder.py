"""A stage's record is on the disk only after what the stage wrote."""

import os
from datetime import date
from pathlib import Path

from multigate.jobs.night.folder import RunFolder


def test_the_disk_holds_a_stage_s_outputs_before_its_record(tmp_path, monkeypatch):
    """Else a power cut leaves the record of a stage with files that are empty."""
    folder = RunFolder(tmp_path, date(2026, 1, 31))
    parts = [folder.examples / "train" / "a.parquet", folder.examples / "manifest.json"]
    for part in parts:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text("content")
    synced, fsync = [], os.fsync

    def watch(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    folder.write_record(
        {
            "stage": "pipeline",
            "inputs": {},
            "output": "",
            "result": {},
            "started": "",
            "seconds": 0.0,
        }
    )
    record = next(at for at, path in enumerate(synced) if path.parent == folder.root / "stages")
    before = set(synced[:record])
    assert before >= {*parts, *(part.parent for part in parts), folder.examples, folder.root}
    assert synced[-1] == folder.root / "stages"
