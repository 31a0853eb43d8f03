"""Rows of a table that grows run by run: one JSON line each, kept in the repository.

A run is told by its key.  A key that has its row is not run again, so that a table of many hours
is made in pieces, and a run that was cut off costs itself alone.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from scipy.stats import t

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "papers"
PAGE = RESULTS.parent / "papers.md"
"""The page that the tables stand on."""

Row = dict[str, Any]


class Rows:
    """The rows of one table.

    Args:
        name: of the table; the file is `<folder>/<name>.jsonl`.
        key: names of the values that tell a run from the others.
        folder: `docs/results/papers` by default.
    """

    def __init__(self, name: str, key: tuple[str, ...], folder: Path = RESULTS) -> None:
        self.path = folder / f"{name}.jsonl"
        self.key = key

    def read(self) -> list[Row]:
        """All rows, in the order in which they were made; of equal keys the last."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        found = {self._of(row): row for row in map(json.loads, lines)}
        return list(found.values())

    def run(self, wanted: Iterable[Mapping[str, Any]], measure: Callable[[Row], Row]) -> None:
        """Measure the runs that have no row yet.

        Args:
            wanted: keys' values, in the order in which to run them.
            measure: called with a run's key values; gives its measured values.
        """
        for values in wanted:
            if self._of(values) in {self._of(row) for row in self.read()}:
                continue
            row = dict(values) | measure(dict(values))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)

    def _of(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(values[name] for name in self.key)


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """Mean and its standard error; no error of one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def cell(values: list[float], digits: int, sign: str = "") -> str:
    """Mean, with its standard error where there are several values; with `sign` + as a change."""
    mean, error = mean_and_error(values)
    text = f"{mean:{sign}.{digits}f}"
    return text if error is None else f"{text} ± {error:.{digits}f}"


def paired(ones: Mapping[Any, Row], others: Mapping[Any, Row]) -> list[tuple[Row, Row]]:
    """The rows of two models for each key of both, such as a seed, in its order."""
    return [(ones[key], others[key]) for key in sorted(ones.keys() & others.keys())]


def of_same_seeds(rows: list[Row], others: list[Row]) -> list[tuple[Row, Row]]:
    """Two versions' rows, for each seed that both have."""
    return paired(*({row["seed"]: row for row in each} for each in (rows, others)))


def is_beyond_chance(values: list[float]) -> bool:
    """Whether the 95 % interval of their mean (Student's t) leaves out 0; no, of one value."""
    mean, error = mean_and_error(values)
    return error is not None and abs(mean) > float(t.ppf(0.975, len(values) - 1)) * error


def marked(text: str, pairs: list[tuple[Row, Row]], less: list[float]) -> str:
    """The text of a difference, marked by what it proves.

    Args:
        text: to mark.
        pairs: the runs of two models.
        less: the differences of their values.

    Returns:
        It with a dagger where some pair was trained on different backends or kinds of device; else
        in bold where the differences are beyond chance.
    """
    if on_different_machines(pairs):
        return f"{text} †"
    return f"**{text}**" if is_beyond_chance(less) else text


def on_different_machines(pairs: list[tuple[Row, Row]]) -> bool:
    """Whether some pair was trained on different backends or kinds of device."""
    return any(one.get("trained_on") != other.get("trained_on") for one, other in pairs)


def replace_table(name: str, lines: list[str], page: Path | None = None) -> None:
    """Put a table in the place that a page, by default `PAGE`, marks for it.

    The page has `<!-- NAME -->` before and `<!-- end NAME -->` after the table.
    """
    page = page or PAGE
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(f"<!-- {name} -->\n")
    _, after = rest.split(f"<!-- end {name} -->\n")
    table = "\n".join(lines) + "\n"
    page.write_text(
        f"{before}<!-- {name} -->\n{table}<!-- end {name} -->\n{after}", encoding="utf-8"
    )
