"""The folder of one night's run: its stages' records, its state, its outputs.

    RUNS/.lock                      held while a run is under way
    RUNS/days/                      examples of single days, see `jobs.night.day_examples`
    RUNS/models/NAME/               the base folder that servers follow (unless --base names one)
    RUNS/2026-01-31/run.json        what was fixed when the run began: the version it starts from
                    state.json      how far it is, or how it ended, and with which configuration
                    stages/*.json   one record per finished stage, written last and whole
                    examples/ checkpoint/ export/1/ report.html report.json
                    config.yaml candidates/ candidates_export/1/ multistage.json
                                    if the run builds the candidate model as well

A stage is finished when its record exists. Outputs without a record are removed and made again.
`jobs.night.records` has the shapes of the JSON files.
"""

import hashlib
import json
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

from multigate.configs.errors import RunError
from multigate.configs.files import sync, sync_folder, write_json
from multigate.configs.sections.run import ALL_STAGES
from multigate.jobs.night.records import Plan, RunState, StageRecord

_OUTPUTS = {
    "pipeline": ("examples",),
    "training": ("checkpoint",),
    "export": ("export",),
    "evaluation": ("report.html", "report.json"),
    "candidates_training": ("candidates",),
    "candidates_export": ("candidates_export",),
    "candidates_report": ("multistage.json",),
}

LOCK = ".lock"


class RunFolder:
    """Paths and records of one run."""

    def __init__(self, runs: Path, day: date) -> None:
        self.day = day
        self.root = runs / day.isoformat()
        self.examples = self.root / "examples"
        self.checkpoint = self.root / "checkpoint"
        self.exports = self.root / "export"
        self.export = self.exports / "1"
        self.report = self.root / "report.html"
        self.config = self.root / "config.yaml"
        self.candidates = self.root / "candidates"
        self.candidates_exports = self.root / "candidates_export"
        self.candidates_export = self.candidates_exports / "1"
        self.multistage = self.root / "multistage.json"
        self._state = self.root / "state.json"
        self._plan = self.root / "run.json"

    def record(self, stage: str) -> StageRecord | None:
        """The record of a stage; None where it has not finished."""
        return cast(StageRecord | None, _read(self._record_path(stage)))

    def result(self, stage: str) -> dict[str, Any]:
        """The result of a finished stage.

        Raises:
            RunError: it has not finished.
        """
        record = self.record(stage)
        if record is None:
            raise RunError(f"{self.root}: stage {stage} has not finished; start the run")
        return record["result"]

    def write_record(self, record: StageRecord) -> None:
        """Record that a stage is finished, once the disk holds what it wrote."""
        path = self._record_path(record["stage"])
        path.parent.mkdir(parents=True, exist_ok=True)
        for name in _OUTPUTS.get(record["stage"], ()):
            sync_folder(self.root / name)
        sync(self.root)
        write_json(path, record, durable=True)

    def invalidate(self, stage: str) -> None:
        """Remove the records of a stage and of all stages after it, the last one first."""
        for later in reversed(ALL_STAGES[ALL_STAGES.index(stage) :]):
            self._record_path(later).unlink(missing_ok=True)

    def remove_output(self, stage: str) -> None:
        """Remove what an unfinished stage may have written."""
        for name in _OUTPUTS.get(stage, ()):
            remove(self.root / name)
            if stage == "pipeline":  # it goes on in what a killed one left, or removes it
                continue
            for leftover in self.root.glob(f".{name}.*.partial"):  # of a stage that was killed
                remove(leftover)

    def remove_training(self) -> None:
        """Remove an unfinished training, which the next start would go on with."""
        for leftover in self.root.glob(".*.training"):
            remove(leftover)

    def state(self) -> RunState:
        """How far the run is, or how it ended."""
        return cast(RunState, _read(self._state) or {"state": "absent"})

    def set_state(self, state: str, **values: Any) -> None:
        """Write the run's state."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_json(self._state, {"state": state} | values | {"at": now()}, durable=True)

    def plan(self) -> Plan | None:
        """What was fixed when the run first began; None before that."""
        return cast(Plan | None, _read(self._plan))

    def set_plan(self, plan: Plan) -> None:
        """Fix what the run starts from."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_json(self._plan, plan, durable=True)

    def remove_outputs(self) -> None:
        """Remove the large outputs of an old run; its records stay."""
        outputs = (self.examples, self.checkpoint, self.exports)
        for path in (*outputs, self.candidates, self.candidates_exports):
            remove(path)
        self.remove_training()

    def _record_path(self, stage: str) -> Path:
        return self.root / "stages" / f"{stage}.json"


def all_runs(runs: Path) -> list[RunFolder]:
    """The runs of a folder, oldest first."""
    if not runs.is_dir():
        return []
    found = []
    for path in runs.iterdir():
        try:
            found.append(RunFolder(runs, date.fromisoformat(path.name)))
        except ValueError:  # models, the lock
            continue
    return sorted(found, key=lambda run: run.day)


def fingerprint_of(*paths: Path) -> str:
    """Fingerprint of the names and bytes of files, and of all files in folders.

    Raises:
        RunError: a path does not exist.
    """
    digest = hashlib.sha256()
    for path in paths:
        if not path.exists():
            raise RunError(
                f"{path}: no such file; it was removed after its stage finished; repeat the stage "
                "that makes it with --force"
            )
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(str(file.relative_to(path.parent)).encode() + b"\0")
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def now() -> str:
    """The current time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise RunError(
            f"{path}: not valid JSON: {error}; remove it to repeat what it records"
        ) from None
    return values


def remove(path: Path) -> None:
    """Remove a file or a folder; a folder is renamed first, so that nobody sees half of it."""
    if path.is_dir():
        doomed = path if path.name.startswith(".") else path.with_name(f".{path.name}.0.partial")
        if doomed != path:
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
        shutil.rmtree(doomed)
    else:
        path.unlink(missing_ok=True)
