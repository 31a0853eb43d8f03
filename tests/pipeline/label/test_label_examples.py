"""Every example of docs/labels.md, run through the job: the page says what the job does."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from multigate.configs import Config
from multigate.configs.files import LABEL
from multigate.configs.sections.base import parse
from multigate.pipeline.job import run
from multigate.pipeline.window import parse_instant

PAGE = Path(__file__).parents[3] / "docs/labels.md"
START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
ROLES = ("event", "value", "session", "request", "event_id")
IDS = ("time", "user", "item", "split")


def examples_of_page() -> list[Any]:
    """The page's blocks, each under the heading that it stands below."""
    found, heading = [], ""
    pattern = r"^(#+ [^\n]*)$|^```yaml example\n(.*?)^```$"
    for match in re.finditer(pattern, PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if match[1]:
            heading = re.sub(r"\W+", "-", match[1]).strip("-")
        else:
            found.append(pytest.param(match[2], id=f"{len(found)}-{heading}"))
    return found


def test_the_page_has_examples():
    assert len(examples_of_page()) >= 14


def table(text: str) -> list[dict[str, str]]:
    names, *rows = [line.split() for line in text.strip().splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows]


def seconds(text: str) -> float:
    """`1d+5m` or `2d-1h` as seconds."""
    parts = re.findall(r"([+-]?)([\d.]+)([smhd])", text)
    assert "".join(map("".join, parts)) == text
    return sum((-1 if s == "-" else 1) * float(n) * SECONDS[u] for s, n, u in parts)


def write_log(rows: list[dict[str, str]], folder: Path) -> None:
    times = {name for name in rows[0] if name.split("_")[-1] == "time"}
    lines = [",".join(rows[0])]
    for row in rows:
        values = [
            ""
            if value == "-"
            else f"{START.timestamp() + seconds(value)}"
            if name in times
            else value
            for name, value in row.items()
        ]
        lines.append(",".join(values))
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join(lines) + "\n")


def config_of(block: dict[str, Any], names: list[str]) -> Config:
    events = "event" in names
    roles = [name for name in ROLES if name in names]
    log: dict[str, Any] = {
        "shape": "events" if events else "impressions",
        "files": ["log.csv"],
        "columns": {name: name for name in ("time", "user", "item", *roles)},
        **({"impression": "VIEW"} if events else {}),
    }
    given = dict(block.get("pipeline", {}))
    log |= given.pop("log", {})
    ids = {side: {"kind": "id", "side": side, "column": side} for side in ("user", "item")}
    values = {
        "name": "example",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": ids["user"],
                "item_id": ids["item"],
                **block.get("features", {}),
            },
            "tasks": {n: {"group": "engagement", **task} for n, task in block["tasks"].items()},
        },
        "pipeline": {
            "log": log,
            "split": {
                "by": "time",
                "validation": "2028-01-01T00:00:00Z",
                "test": "2029-01-01T00:00:00Z",
            },
            "cut_off": "2027-01-01T00:00:00Z",
            "max_reject_rate": 0,
            "buckets": 2,
            **given,
        },
    }
    return parse(Config, plain(values), "docs/labels.md")


def plain(value: Any) -> Any:
    """YAML's own times as the text that configurations hold."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [float(v) if isinstance(v, int) else plain(v) for v in value]
    return value.isoformat() if isinstance(value, datetime) else value


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ",".join(value) or "[]"
    return value if isinstance(value, str) else f"{value:g}"


def check(expected: str, examples: pl.DataFrame, tasks: dict[str, Any]) -> None:
    wanted = table(expected)
    names = [name for name in wanted[0] if name not in IDS]
    logged = examples.filter(~pl.col("meta/sampled"))
    found = []
    for row in logged.to_dicts():
        at = {
            "time": (row["meta/time"].replace(tzinfo=UTC) - START) / timedelta(seconds=1),
            "user": row["user_id"],
            "item": row["item_id"],
            "split": row["split"],
        }
        values = {n: shown(row[LABEL + n if n in tasks else n]) for n in names}
        found.append({n: (at | values)[n] for n in wanted[0]})
    right = [{**row, "time": seconds(row["time"])} for row in wanted]
    assert sorted(found, key=str) == sorted(right, key=str)


@pytest.mark.parametrize("text", examples_of_page())
def test_example(text, read_examples, tmp_path):
    block = yaml.safe_load(text)
    known = {"log", "pipeline", "features", "tasks", "labels", "runs", "counts", "open"}
    assert set(block) <= {*known, "embargoed"}
    rows = table(block["log"])
    write_log(rows, tmp_path / "log")
    config = config_of(block, list(rows[0]))
    for at, days in enumerate(block.get("runs", [])):
        span = tuple(parse_instant(str(days[key]), "UTC") for key in ("from", "to"))
        out = tmp_path / f"run-{at}"
        run(config, tmp_path / "log", out, span=span)
        check(days["labels"], read_examples(out), block["tasks"])
    if "labels" not in block:
        return
    manifest = run(config, tmp_path / "log", tmp_path / "out")
    check(block["labels"], read_examples(tmp_path / "out"), block["tasks"])
    for name, count in block.get("counts", {}).items():
        assert (name, manifest["rows"][name]) == (name, count)
    for name in ("open", "embargoed"):
        if name in block:
            assert nonzero(manifest["labels"][name]) == block[name]


def nonzero(counts: dict[str, Any]) -> dict[str, Any]:
    inner = {n: nonzero(v) if isinstance(v, dict) else v for n, v in counts.items()}
    return {name: value for name, value in inner.items() if value}
