"""The data report as an HTML page of its own."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from multigate.configs.files import write_text
from multigate.model.report.data import report_section
from multigate.model.report.elements import document


def write_page(path: Path, report: Mapping[str, Any]) -> None:
    """Write a data report as one HTML file without network access.

    Args:
        path: the file; its folder exists.
        report: what `pipeline.data_report.report` returned.
    """
    title = f"{report['name']}: data"
    write_text(path, document(title, f"<h1>{escape(title)}</h1>{report_section(report)}"))
