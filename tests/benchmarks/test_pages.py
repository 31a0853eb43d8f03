"""Tables of result pages are what the rows beside them say."""

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


PAGES = {
    "drafts_gates": ("drafts_gates", "gates.md"),
    "gates_page": ("gates_at_cost", "gates.md"),
    "recall": ("candidates", "candidates.md"),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_pages_tables_are_what_the_rows_say(
    name: str, benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, page = PAGES[name]
    made = benchmark(name)
    kept = ROOT / "docs/results" / page
    shutil.copy(kept, tmp_path / page)
    monkeypatch.setattr(made, "RESULTS", tmp_path)
    made.write_tables(benchmark("papers.rows").Rows(rows, made.KEY, kept.parent).read())
    assert (tmp_path / page).read_text() == kept.read_text()
