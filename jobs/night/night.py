"""One night's run: what it is of, what it starts from, what its stages depend on."""

from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from multigate.configs.config import Config
from multigate.configs.contract import FrozenContract, fingerprint
from multigate.configs.errors import RunError
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.run import CANDIDATE_STAGES
from multigate.jobs.night.folder import RunFolder, content
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.pair import Pair
from multigate.serving.versions.folders import EXTRA

Values = dict[str, Any]


@dataclass(frozen=True)
class Night:
    """One run: its configuration, its date, where everything is."""

    config: Config
    day: date
    data: Path | str
    runs: Path
    base: Base

    @cached_property
    def folder(self) -> RunFolder:
        """Where the run is written."""
        return RunFolder(self.runs, self.day)

    @cached_property
    def pair(self) -> Pair:
        """Where both models are published."""
        return Pair(self.base)

    @property
    def builds_candidates(self) -> bool:
        """Whether the candidate model is built as well."""
        return CANDIDATE_STAGES[0] in self.config.stages

    @cached_property
    def plan(self) -> Values:
        """What was fixed when the run began; fixed now where it begins.

        Returns:
            `parent`: the version that was in production, None where there was none; `full_since`:
            the date of the last training from scratch that it goes back to, None where unknown.
        """
        plan = self.folder.plan()
        if plan is None:
            parent = self.base.production()
            lineage = self.base.lineage(parent) if parent is not None else None
            plan = {"parent": parent, "full_since": lineage["full_since"] if lineage else None}
            self.folder.set_plan(plan)
        return plan

    @property
    def candidate(self) -> str:
        """Identity of the run's export among all versions: its date, and what it answers.

        The graph's own bytes differ from export to export; contract, metrics and the golden
        request's answers do not.
        """
        return self.identity_of(self.folder.export)

    def identity_of(self, export: Path) -> str:
        """Identity of one of the run's exports."""
        return f"{self.day}-{content(export / EXTRA)}"

    def output(self, stage: str) -> str:
        """Fingerprint of what a finished stage left."""
        record = self.folder.record(stage)
        if record is None:
            raise RunError(f"{self.folder.root}: stage {stage} has not finished; start the run")
        return str(record["output"])

    def read_by(self, stage: str) -> str:
        """Fingerprint of the parts of the configuration that make a stage's output."""
        parts: dict[str, Any] = {
            "pipeline": {"contract": True, "pipeline": True},
            "training": {"contract": True, "model": True, "train": True},
            "export": {"export": True},
            "candidates_training": {"contract": True, "candidates": True},
            "candidates_report": {"candidates": {"report_questions"}},
        }
        if stage == "decision" and self.builds_candidates:
            return "with candidates"
        if stage not in parts:
            return ""
        values = self.config.model_dump(mode="json", include=parts[stage], exclude_defaults=True)
        if stage == "candidates_training":
            values.get("candidates", {}).pop("rules", None)
            values.get("candidates", {}).pop("report_questions", None)
        if stage == "pipeline":
            values["days"] = self.config.run.days
        return fingerprint(values)

    def identity(self) -> str:
        """Fingerprint of all that an unfinished training may depend on."""
        return fingerprint(self.config.model_dump(mode="json", exclude={"run", "candidates"}))

    def start(self) -> tuple[Path | None, str]:
        """Whose weights training starts from, and why.

        Returns:
            The parent's checkpoint, or None to train from scratch; the reason in words.
        """
        parent, since = self.plan["parent"], self.plan["full_since"]
        every = self.config.run.full_retrain_days
        if every == 1:
            return None, "from scratch every night"
        if parent is None or since is None:
            return None, "from scratch: no version of an earlier run was in production"
        if (self.day - date.fromisoformat(since)).days >= every:
            return None, f"from scratch: the last time was {since}"
        checkpoint = self.base.checkpoint(parent)
        if checkpoint is None:
            return None, f"from scratch: the checkpoint of version {parent} is gone"
        frozen = FrozenContract.read(ExamplesFolder(checkpoint).contract)
        if frozen.schema_fingerprint != self.config.contract.schema_fingerprint():
            return None, f"from scratch: version {parent} has another schema"
        return checkpoint, f"from version {parent}"
