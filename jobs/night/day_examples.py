"""Examples day by day: each night makes those of its day, and joins the last days'.

    RUNS/days/CONFIGURATION/2026-01-30/   examples whose labels close on that day
    RUNS/2026-01-31/examples/             links to the parts of the last `run.days` days; see `days`

A day goes on from the totals of the day before, so that a counter without a window costs no second
reading of the log.  A change of what the examples are made of (contract, pipeline section, users to
forget) begins a new folder.
"""

import shutil
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from multigate.configs.config import Config
from multigate.configs.contract import fingerprint
from multigate.configs.files import ExamplesFolder
from multigate.configs.storage import Place, place
from multigate.jobs.days import Run, join
from multigate.jobs.night.folder import remove
from multigate.pipeline.window import parse_instant

_DAY = timedelta(days=1)


class DayExamples:
    """The folders of examples of single days, under a folder of runs."""

    def __init__(self, config: Config, data: Place | str, runs: Path) -> None:
        """Name the folder that fits a configuration.

        Args:
            config: of the nights.
            data: folder of the log's files, or its address.
            runs: folder of all runs.

        Raises:
            DataError: the list of users to forget cannot be read.
        """
        from multigate.pipeline.read import erasure

        forgotten = erasure.read_list(config, place(data), None)
        made_of: dict[str, Any] = config.model_dump(
            mode="json", include={"contract": True, "pipeline": True}, exclude_defaults=True
        )
        if forgotten is not None:
            made_of["forgotten"] = sorted(map(str, forgotten))
        self._config, self._data = config, data
        self._all = runs / "days"
        self.root = self._all / fingerprint(made_of)

    def folder(self, day: date) -> Path:
        """The examples of a day."""
        return self.root / day.isoformat()

    def days(self) -> list[date]:
        """The days that are there, oldest first."""
        if not self.root.is_dir():
            return []
        return sorted(
            date.fromisoformat(path.name)
            for path in self.root.iterdir()
            if ExamplesFolder(path).manifest.exists()
        )

    def make(self, day: date, days: int, out: Path) -> tuple[dict[str, Any], list[date]]:
        """Make the examples of a night: of its day, and of earlier ones that are not there yet.

        The night's own day is made anew, unless a later day went on from it: its log may have
        grown since a guard stopped the night.

        Args:
            day: of the night, the last one.
            days: how many are joined.
            out: the folder to make.

        Returns:
            The manifest of the joined examples, and the days that were made.

        Raises:
            MultigateError: as the pipeline raises it, or the days do not belong together.
        """
        from multigate.pipeline import job

        there = self.days()
        if there and there[-1] == day:
            self.remove([day])
        wanted = [day - _DAY * back for back in reversed(range(days))]
        made = []
        zone = self._config.pipeline.log.time_zone
        for one in wanted:
            folder, before = self.folder(one), self.folder(one - _DAY)
            if ExamplesFolder(folder).manifest.exists():
                continue
            folder.parent.mkdir(parents=True, exist_ok=True)
            span = (parse_instant(str(one), zone), parse_instant(str(one + _DAY), zone))
            previous = before if ExamplesFolder(before).manifest.exists() else None
            job.run(self._config, self._data, folder, span=span, previous=previous)
            made.append(one)
        partial = out.with_name(f".{out.name}.joined.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        manifest = join([Run.read(self.folder(one)) for one in wanted], partial)
        partial.rename(out)
        return manifest, made

    def remove(self, days: Sequence[date]) -> None:
        """Remove the examples of some days."""
        for day in days:
            remove(self.folder(day))

    def remove_old(self, before: date) -> None:
        """Remove what no night needs any longer: older days, and those of other configurations.

        Args:
            before: the first day that stays.
        """
        self.remove([day for day in self.days() if day < before])
        for path in self._all.iterdir() if self._all.is_dir() else ():
            kept = [one for one in path.iterdir() if one.name >= before.isoformat()]
            if path != self.root and not kept:
                remove(path)
