"""Export with the feature store that a version carries: the model's part and the server's."""

from pathlib import Path

from configs.model import ExportConfig

_SOURCES = {"all": ("users", "items"), "items": ("items",)}


def export(checkpoint: Path, examples: Path, out: Path, *, version: int | None = None) -> Path:
    """Export a checkpoint as `model.export.export` does, with its snapshot (`export.snapshot`).

    Returns:
        `out/<version>`, complete.
    """
    from model import export as exporting
    from serving.snapshot_writer import write_snapshot
    from serving.stores import FOLDER

    def add_snapshot(folder: Path, options: ExportConfig) -> None:
        if options.snapshot != "none":
            write_snapshot(examples, folder / FOLDER, _SOURCES[options.snapshot])

    return exporting.export(checkpoint, examples, out, version=version, finish=add_snapshot)
