"""A ranker and the candidate model that finds what it ranks: published and taken back as a pair.

    MODELS/NAME/                the ranker's base folder
    MODELS/NAME-candidates/     the candidate model's

Both count their versions together: candidate version 7 was published with ranker 7, and ranker 8,
published without one, goes on with it. So a ranker's candidate version is the highest that is not
above it, and a rollback needs no record beside the folders.

The candidate version is renamed to its number first, and the ranker's at once after it. Whatever
moment a server looks at, there is a candidate version of its ranker's schema; one of another schema
is never served with it (`serving.manager`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.contract import FrozenContract
from configs.errors import RunError
from jobs.publication import Base
from serving.versions import CONTRACT


@dataclass(frozen=True)
class Candidate:
    """A candidate version that is to be published.

    Attributes:
        export: its folder.
        checkpoint: what it was exported from.
        identity: among all versions.
        over: the candidate version in production that it was compared with.
    """

    export: Path
    checkpoint: Path
    identity: str
    over: int | None


class Pair:
    """Base folders of a ranker and its candidate model, which may not be there."""

    def __init__(self, ranker: Base) -> None:
        self.ranker = ranker
        self.candidates = Base(ranker.root.with_name(f"{ranker.root.name}-candidates"))

    def candidates_of(self, version: int) -> int | None:
        """The candidate version that a ranker's version goes with, withdrawn or not."""
        known = (*self.candidates.versions(), *self.candidates.withdrawn())
        return max((number for number in known if number <= version), default=None)

    def candidates_schema(self) -> str | None:
        """Schema of the candidate version in production."""
        production = self.candidates.production()
        if production is None:
            return None
        folder = self.candidates.versions()[production]
        return FrozenContract.read(folder / CONTRACT).schema_fingerprint

    def publish(
        self,
        export: Path,
        checkpoint: Path,
        lineage: dict[str, Any],
        over: int | None,
        candidate: Candidate,
    ) -> tuple[int, int]:
        """Make both exports the ones in production; what was published already stays.

        Args:
            export: the ranker's version folder; it is copied.
            checkpoint: the ranker's.
            lineage: written into both, the candidate's with its own identity.
            over: the ranker in production that this one was compared with.
            candidate: the other one.

        Returns:
            The numbers of the ranker and of the candidate version.

        Raises:
            RunError: as `Base.publish`. Production is as it was.
        """
        earlier = self.candidates.number_of(candidate.identity)  # of a run that was killed here
        own = lineage | {"candidate": candidate.identity}
        least = earlier or max(self.ranker.following(), self.candidates.following())

        def first() -> int:
            return self.candidates.publish(
                candidate.export, candidate.checkpoint, own, candidate.over, least=least
            )

        try:
            number = self.ranker.publish(export, checkpoint, lineage, over, least=least, last=first)
        except BaseException:
            published = self.candidates.number_of(candidate.identity)
            if earlier is None and published is not None:
                self.candidates.unpublish(published)
            raise
        return number, first()  # a ranker that had been published gets its candidates only here

    def rollback(self) -> int:
        """Withdraw the ranker in production, and the candidate version that came with it.

        Returns:
            The ranker's version that is in production now.

        Raises:
            RunError: there is no version to return to.
        """
        target = self.ranker.rollback_target()
        return self.ranker.rollback() if target is None else self.choose(target, "rollback")

    def choose(self, version: int, reason: str = "chosen") -> int:
        """Make a ranker's version and its candidate version the ones in production.

        Where no candidate version is as old as the ranker's, they stay as they are.

        Returns:
            The ranker's version.

        Raises:
            RunError: there is no such version.
        """
        candidates = self.candidates_of(version)
        self.ranker.choose(version, reason)
        if candidates is not None and candidates != self.candidates.production():
            try:
                self.candidates.choose(candidates, reason)
            except (OSError, RunError) as error:
                raise RunError(
                    f"{self.ranker.root}: version {version} is in production; its candidate model "
                    f"is not: {error}; multigate publish --base {self.candidates.root} --version "
                    f"{candidates} puts it there"
                ) from error
        return version

    def tidy(self, keep: int) -> tuple[list[int], list[int]]:
        """Remove all but the newest versions of both; the kept rankers' candidates are among them.

        Returns:
            The numbers that were removed of both.
        """
        found = self.candidates.root.is_dir()
        return self.ranker.tidy(keep), self.candidates.tidy(keep) if found else []
