"""One night's run: its configuration, what it starts from, what its stages depend on."""

from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from multigate.configs.config import Config
from multigate.configs.contract import FrozenContract, fingerprint
from multigate.configs.difference import difference
from multigate.configs.errors import RunError
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.run import CANDIDATE_STAGES
from multigate.configs.storage import Place
from multigate.jobs.night.day_examples import DayExamples
from multigate.jobs.night.folder import RunFolder, fingerprint_of
from multigate.jobs.night.records import Plan
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.pair import Pair
from multigate.serving.versions.folders import EXTRA

_MADE_BY: dict[str, dict[str, Any]] = {
    "pipeline": {"contract": True, "pipeline": True},
    "training": {"contract": True, "model": True, "train": True},
    "export": {"export": True},
    "candidates_training": {"contract": True, "candidates": True},
    "candidates_report": {"candidates": {"report_questions"}},
}
"""Stage -> the sections of the configuration that its output depends on."""


@dataclass(frozen=True)
class Night:
    """One run.

    Attributes:
        config: the data set's configuration.
        day: the run's date, the last day of the log to learn from.
        data: folder of the log's files, or its address.
        runs: folder of all runs.
        base: the ranker's base folder, which servers follow.
        accepted: guards that do not stop this run, see `configs.sections.run.GUARDS`.
    """

    config: Config
    day: date
    data: Place | str
    runs: Path
    base: Base
    accepted: tuple[str, ...] = ()

    @cached_property
    def folder(self) -> RunFolder:
        """Folder of this run."""
        return RunFolder(self.runs, self.day)

    @cached_property
    def pair(self) -> Pair:
        """Base folders of the ranker and of the candidate model."""
        return Pair(self.base)

    @cached_property
    def day_examples(self) -> DayExamples:
        """Examples of single days, where the configuration asks for them."""
        return DayExamples(self.config, self.data, self.runs)

    @property
    def builds_candidates(self) -> bool:
        """Whether the run builds the candidate model as well."""
        return CANDIDATE_STAGES[0] in self.config.stages

    @cached_property
    def plan(self) -> Plan:
        """What was fixed when the run first began; the first call of the first start fixes it."""
        plan = self.folder.plan()
        if plan is None:
            parent = self.base.production()
            lineage = self.base.lineage(parent) if parent is not None else None
            plan = {"parent": parent, "full_since": lineage["full_since"] if lineage else None}
            self.folder.set_plan(plan)
        return plan

    @property
    def identity(self) -> str:
        """Identity of the run's ranker among all versions, see `export_identity`."""
        return self.export_identity(self.folder.export)

    def export_identity(self, export: Path) -> str:
        """Identity of one of the run's exports: the date, and a fingerprint of what it answers.

        The graph's bytes differ from export to export; contract, metrics and the golden request's
        answers do not.
        """
        return f"{self.day}-{fingerprint_of(export / EXTRA)}"

    def output(self, stage: str) -> str:
        """Fingerprint of what a finished stage wrote."""
        record = self.folder.record(stage)
        if record is None:
            raise RunError(f"{self.folder.root}: stage {stage} has not finished; start the run")
        return record["output"]

    def configuration_of(self, stage: str) -> str:
        """Fingerprint of the sections of the configuration that a stage's output depends on."""
        if stage == "decision" and self.builds_candidates:
            return "with candidates"
        if stage not in _MADE_BY:
            return ""
        values = self.config.model_dump(mode="json", include=_MADE_BY[stage], exclude_defaults=True)
        if stage == "candidates_training":
            values.get("candidates", {}).pop("rules", None)
            values.get("candidates", {}).pop("report_questions", None)
        if stage == "pipeline":
            values["days"] = self.config.run.days
            if self.config.run.daily:
                values["daily"] = True
        return fingerprint(values)

    def training_identity(self) -> str:
        """Fingerprint of all that an unfinished training may depend on."""
        values = self.config.model_dump(mode="json", exclude={"run", "candidates"})
        contract = self.config.contract
        # A fingerprint does not depend on the order of keys.
        return fingerprint([values, [*contract.features], [*contract.tasks]])

    def begin_from_scratch(self, reason: str) -> None:
        """Start from no checkpoint under this configuration, also if the run is cut off."""
        self.plan["unfit"] = {self.training_identity(): reason}
        self.folder.set_plan(self.plan)

    def starting_point(self) -> tuple[Path | None, str]:
        """The checkpoint from whose weights training starts, and why.

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
        if (reason := self.plan.get("unfit", {}).get(self.training_identity())) is not None:
            return None, f"from scratch: {reason}"
        checkpoint = self.base.checkpoint(parent)
        if checkpoint is None:
            return None, f"from scratch: the checkpoint of version {parent} is gone"
        frozen = FrozenContract.read(ExamplesFolder(checkpoint).contract)
        if frozen.schema_fingerprint != self.config.contract.schema_fingerprint():
            changed = difference(self.config.contract, frozen.contract)
            return None, f"from scratch: version {parent} has another schema: {changed}"
        return checkpoint, f"from version {parent}"
