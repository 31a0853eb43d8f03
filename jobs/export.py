"""Exports a version together with the server's own data: feature store and popular items."""

from pathlib import Path

from multigate.configs.files import ExamplesFolder, write_json
from multigate.configs.sections.model import ExportConfig

_SOURCES = {"all": ("users", "items"), "items": ("items",)}


def export(checkpoint: Path, examples: Path, out: Path, *, version: int | None = None) -> Path:
    """Export a checkpoint as `model.export.export.export` does, and add what only the server reads.

    These are the snapshot (`export.snapshot`), and the report's popular items, the fallback where
    Recommend has no candidates.

    Returns:
        `out/<version>`, complete.
    """
    from multigate.model.export import export as exporter
    from multigate.pipeline.write import data_report
    from multigate.serving.feature_store.backends import SNAPSHOT_FOLDER
    from multigate.serving.feature_store.snapshot_writer import write_snapshot
    from multigate.serving.versions.folders import POPULAR

    def add_server_data(folder: Path, options: ExportConfig) -> None:
        if ExamplesFolder(examples).report.exists():
            popular = data_report.read(examples)["popular"]
            items, counts = ([row[key] for row in popular] for key in ("item", "positives"))
            write_json(folder / POPULAR, {"items": items, "counts": counts})
        if options.snapshot != "none":
            write_snapshot(examples, folder / SNAPSHOT_FOLDER, _SOURCES[options.snapshot])

    return exporter.export(checkpoint, examples, out, version=version, finish=add_server_data)
