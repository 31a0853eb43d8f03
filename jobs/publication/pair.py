"""A ranker and the candidate model that finds what it ranks: published and taken back as a pair.

    MODELS/NAME/                the ranker's base folder
    MODELS/NAME-candidates/     the candidate model's

Both count their versions together: candidate version 7 was published with ranker 7, and ranker 8,
published without one, goes on with it. Each says so in its lineage: the candidate version which
ranker it came with (`ranker`), a ranker that came without one which it went on with (`candidates`).
The numbers alone would not do: candidate versions are withdrawn on their own, and a night whose
candidate stages are repeated has two. They decide for versions without a lineage, made by hand: the
highest that is not above the ranker's.

The candidate version is renamed to its number first, and the ranker's at once after it. Whatever
moment a server looks at, there is a candidate version of its ranker's schema; one of another schema
is never served with it (`serving.versions.manager`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import RunError
from multigate.jobs.publication.base_folder import Base
from multigate.serving.versions.folders import CONTRACT


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
        root = ranker.root
        if root.name in ("", ".."):  # somebody is inside the folder
            root = root.resolve()
        self.candidates = Base(root.with_name(f"{root.name}-candidates"))

    def candidates_of(self, version: int, *, offered: bool = False) -> int | None:
        """The candidate version that a ranker's version goes with.

        Args:
            version: of the ranker.
            offered: leave out what was withdrawn, for the next older one that was not.
        """
        known = set(self.candidates.versions())
        if not offered:
            known |= set(self.candidates.withdrawn())
        came = [n for n in known if _lineage(self.candidates, n).get("ranker") == version]
        limit = _lineage(self.ranker, version).get("candidates", version)
        return max(came or (number for number in known if number <= limit), default=None)

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
        candidate: Candidate | None,
    ) -> tuple[int, int | None]:
        """Make both exports the ones in production; what was published already stays.

        Args:
            export: the ranker's version folder; it is copied.
            checkpoint: the ranker's.
            lineage: written into the ranker, with the candidate version that it goes on with.
            over: the ranker in production that this one was compared with.
            candidate: the other one; None where the ranker goes on with the one in production.

        Returns:
            The numbers of the ranker and of the candidate version.

        Raises:
            RunError: as `Base.publish`. Production is as it was.
        """
        if candidate is None:
            lineage = lineage | _going_on_with(self.candidates.production())
            return self.ranker.publish(export, checkpoint, lineage, over), None
        # Published already by a run that was killed here, or with another ranker of the night.
        earlier = self.candidates.number_of(candidate.identity)
        lineage = lineage | _going_on_with(earlier)
        least = earlier or max(self.ranker.following(), self.candidates.following())

        def beside(ranker: int) -> int:
            own = {
                "run": lineage["run"],
                "candidate": candidate.identity,
                "parent": None,
                "compared_with": candidate.over,
                "start": "full",
                "full_since": lineage["run"],
                "ranker": ranker,
            }
            return self.candidates.publish(
                candidate.export, candidate.checkpoint, own, candidate.over, least=ranker
            )

        try:
            number = self.ranker.publish(
                export, checkpoint, lineage, over, least=least, last=beside
            )
        except BaseException:
            # An interruption may come when the ranker has its number already.
            if earlier is None and self.ranker.number_of(lineage["candidate"]) is None:
                published = self.candidates.number_of(candidate.identity)
                if published is not None:
                    self.candidates.unpublish(published)
            raise
        # What is published already is not again; a ranker that was gets its candidates here.
        return number, beside(number)

    def rollback(self) -> int:
        """Withdraw the ranker in production, and the candidate version that came with it.

        A candidate version that was withdrawn on its own stays withdrawn.

        Returns:
            The ranker's version that is in production now.

        Raises:
            RunError: there is no version to return to.
        """
        target = self.ranker.rollback_target()
        if target is None:
            return self.ranker.rollback()
        return self._choose(target, self.candidates_of(target, offered=True), "rollback")

    def choose(self, version: int) -> int:
        """Make a ranker's version and its candidate version the ones in production.

        Where no candidate version is as old as the ranker's, they stay as they are.

        Returns:
            The ranker's version.

        Raises:
            RunError: there is no such version.
        """
        return self._choose(version, self.candidates_of(version), "chosen")

    def _choose(self, version: int, candidates: int | None, reason: str) -> int:
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
        """Remove all but the newest versions of both, and the candidates of rankers that stay.

        Returns:
            The numbers that were removed of both.
        """
        removed = self.ranker.tidy(keep)
        if not self.candidates.root.is_dir():
            return removed, []
        stay = (*self.ranker.versions(), *self.ranker.withdrawn())
        needed = [self.candidates_of(number) for number in stay]
        kept = {number for number in needed if number is not None}
        return removed, self.candidates.tidy(keep, kept)


def _lineage(base: Base, version: int) -> dict[str, Any]:
    """A version's lineage; nothing where there is none, or no such version.

    A damaged one must not be in a rollback's way.
    """
    try:
        return base.lineage(version) or {}
    except (KeyError, RunError):
        return {}


def _going_on_with(version: int | None) -> dict[str, int]:
    return {} if version is None else {"candidates": version}
