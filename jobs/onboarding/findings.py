"""What `check` found, and how a terminal shows it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something that is wrong or odd."""

    fails: bool
    """Whether a run over this log would fail."""
    where: str
    """The key of the configuration, or the file."""
    message: str


@dataclass
class Checked:
    """What `check` found."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def fail(self, where: str, message: str) -> None:
        """Add a finding that fails a run."""
        self.findings.append(Finding(True, where, message))

    def warn(self, where: str, message: str) -> None:
        """Add a finding that fails nothing."""
        self.findings.append(Finding(False, where, message))

    @property
    def fails(self) -> bool:
        """Whether a run would fail."""
        return any(finding.fails for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "fails": self.fails,
            "findings": [asdict(finding) for finding in self.findings],
            **self.facts,
        }


def lines(found: Checked) -> Iterator[str]:
    """What was found, for a terminal."""
    facts = found.facts
    rows = facts.get("rows")
    if rows is not None:
        part = "all rows" if rows["whole"] else f"a sample; the log has about {rows['log']} rows"
        yield f"{rows['sample']} rows read ({part}), {rows['rejected']} rejected"
    for name, task in facts.get("tasks", {}).items():
        mean = "none" if task["mean"] is None else f"{task['mean']:.4g}"
        yield (
            f"task {name}: {task['labels']} labels, mean {mean}; by split "
            + ", ".join(
                f"{part} {count}"
                + (f" ({task['positives'][part]} positive)" if "positives" in task else "")
                for part, count in task["labels_by_split"].items()
            )
        )
    for stage, cost in facts.get("cost", {}).items():
        yield (
            f"{stage}: about {_duration(cost['seconds'])} and {cost['gib']:.1f} GiB, within a "
            f"factor of three ({cost['how']})"
        )
    for finding in sorted(found.findings, key=lambda one: not one.fails):
        yield f"{'FAILS' if finding.fails else 'note'}: {finding.where}: {finding.message}"
    fatal = sum(finding.fails for finding in found.findings)
    yield f"{fatal} findings would fail a run, {len(found.findings) - fatal} notes"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
