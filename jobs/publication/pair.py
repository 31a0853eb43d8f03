"""A ranker and the candidate model that finds what it ranks: published and withdrawn as a pair.

    MODELS/NAME/                the ranker's base folder
    MODELS/NAME-candidates/     the candidate model's

Both folders count together: candidate version 7 was published with ranker 7, and ranker 8, which
was published without one, goes on with candidate version 7. The lineage of each says so: `ranker`
in a candidate version, `candidates` in a ranker that was published without one. The numbers alone
are not enough: candidate versions can be withdrawn on their own, and a night whose candidate stages
are repeated has two. Versions made by hand have no lineage; for them the numbers decide: the
highest candidate version that is not above the ranker's.

The candidate version gets its number first, and the ranker its own right after. At every moment
there is a candidate version of the ranker's schema; servers never serve one of another schema with
it (`serving.versions.manager`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import RunError
from multigate.jobs.publication.base_folder import Base, Lineage
from multigate.serving.versions.folders import CONTRACT


@dataclass(frozen=True)
class Candidate:
    """A candidate version that is to be published.

    Attributes:
        export: its folder.
        checkpoint: what it was exported from.
        identity: identity of the export among all versions.
        replaces: the candidate version in production that it was compared with.
    """

    export: Path
    checkpoint: Path
    identity: str
    replaces: int | None


class Pair:
    """Base folders of a ranker and of its candidate model; the latter may not exist."""

    def __init__(self, ranker: Base) -> None:
        self.ranker = ranker
        root = ranker.root
        if root.name in ("", ".."):  # given relative to a folder inside
            root = root.resolve()
        self.candidates = Base(root.with_name(f"{root.name}-candidates"))

    def candidates_of(self, version: int, *, offered: bool = False) -> int | None:
        """The candidate version that a ranker's version goes with.

        Args:
            version: of the ranker.
            offered: ignore withdrawn versions, and take the next older one that was not withdrawn.
        """
        known = set(self.candidates.versions())
        if not offered:
            known |= set(self.candidates.withdrawn())
        own = [n for n in known if _lineage(self.candidates, n).get("ranker") == version]
        limit = _lineage(self.ranker, version).get("candidates", version)
        return max(own or (number for number in known if number <= limit), default=None)

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
        lineage: Lineage,
        replaces: int | None,
        candidate: Candidate | None,
    ) -> tuple[int, int | None]:
        """Put both exports into production, unless they are there already.

        Args:
            export: the ranker's version folder; it is copied.
            checkpoint: the ranker's.
            lineage: written into the ranker, with the candidate version that it goes on with.
            replaces: the ranker in production that this one was compared with.
            candidate: None where the ranker goes on with the candidate version in production.

        Returns:
            The numbers of the ranker and of the candidate version.

        Raises:
            RunError: as `Base.publish`. Production has not changed.
        """
        if candidate is None:
            lineage = _goes_on_with(lineage, self.candidates.production())
            return self.ranker.publish(export, checkpoint, lineage, replaces), None
        # Published already by a run that was killed here, or with another ranker of the night.
        earlier = self.candidates.number_of(candidate.identity)
        lineage = _goes_on_with(lineage, earlier)
        lowest = earlier or max(self.ranker.next_number(), self.candidates.next_number())

        with self.candidates.copies(candidate.export, candidate.checkpoint) as copies:

            def publish_candidate(ranker: int) -> int:
                own: Lineage = {
                    "run": lineage["run"],
                    "candidate": candidate.identity,
                    "parent": None,
                    "compared_with": candidate.replaces,
                    "start": "full",
                    "full_since": lineage["run"],
                    "ranker": ranker,
                }
                return self.candidates.publish_copies(
                    copies, own, candidate.replaces, lowest=ranker
                )

            try:
                number = self.ranker.publish(
                    export,
                    checkpoint,
                    lineage,
                    replaces,
                    lowest=lowest,
                    before_rename=publish_candidate,
                )
            except BaseException:
                # The ranker may have its number already when an interruption comes.
                if earlier is None and self.ranker.number_of(lineage["candidate"]) is None:
                    published = self.candidates.number_of(candidate.identity)
                    if published is not None:
                        self.candidates.unpublish(published)
                raise
            # Where the ranker was published already, its candidate version is published here.
            return number, publish_candidate(number)

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
        """Put a ranker's version and its candidate version into production.

        Where no candidate version is as old as the ranker's, the candidate model does not change.

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

    def remove_old(self, keep: int) -> tuple[list[int], list[int]]:
        """Remove all but the newest versions of both; candidates of rankers that stay stay too.

        Returns:
            The numbers that were removed: of the ranker and of the candidate model.
        """
        removed = self.ranker.remove_old(keep)
        if not self.candidates.root.is_dir():
            return removed, []
        stay = (*self.ranker.versions(), *self.ranker.withdrawn())
        needed = [self.candidates_of(number) for number in stay]
        kept = {number for number in needed if number is not None}
        return removed, self.candidates.remove_old(keep, kept)


def _lineage(base: Base, version: int) -> Lineage:
    """A version's lineage; empty where there is none, or no such version.

    A damaged one must not prevent a rollback.
    """
    nothing = cast(Lineage, {})
    try:
        return base.lineage(version) or nothing
    except (KeyError, RunError):
        return nothing


def _goes_on_with(lineage: Lineage, version: int | None) -> Lineage:
    return lineage if version is None else {**lineage, "candidates": version}
