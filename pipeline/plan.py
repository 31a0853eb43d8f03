"""What every stage knows, and where the stages leave their files."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from configs import Config
from configs.files import ExamplesFolder


@dataclass(frozen=True)
class Plan:
    """What every stage knows: the configuration, the folder being made and the final one's name.

    `work` holds spilled files; it must be reachable from all workers.
    """

    config: Config
    folder: Path
    work: Path
    out: Path

    @property
    def examples(self) -> ExamplesFolder:
        """The folder being made."""
        return ExamplesFolder(self.folder)

    def table(self, source: str) -> Path:
        """A side table, once read."""
        return self.work / f"{source}.arrow"

    def side_tables(self) -> dict[str, pl.DataFrame]:
        """The side tables that there are."""
        paths = {source: self.table(source) for source in ("users", "items")}
        return {s: pl.read_ipc(p) for s, p in paths.items() if p.exists()}
