"""The logs of `benchmarks/pipeline.py`, and what is computed of them."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

_FILE = "users_interactions.csv.zip"
ROWS = 500_000  # of a file, at least
LIKES = ("LIKE", "BOOKMARK", "FOLLOW", "COMMENT CREATED")
KINDS = ("VIEW", *LIKES)


def deskdrop(data: Path) -> pl.DataFrame:
    """Deskdrop's events, or a stand-in of the same size where they are absent.

    Of several views of an item by a user in one second, one stays: which of them a like belongs to
    would be a matter of taste.
    """
    if (data / _FILE).exists():
        with zipfile.ZipFile(data / _FILE) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".csv") and "__" not in n)
            events = pl.read_csv(archive.read(name), infer_schema=False)
    else:
        events = _stand_in()
    view = pl.col("eventType") == "VIEW"
    first = pl.struct("timestamp", "eventType", "contentId", "personId").is_first_distinct()
    return events.filter(~view | first)


def _stand_in(rows: int = 72_312, users: int = 1_895, items: int = 2_987) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    user, item = (rng.zipf(1.3, rows) * 7919 % count for count in (users, items))
    at = 1_457_964_000 + np.sort(rng.integers(0, 365 * 86_400, rows))
    kinds = rng.choice(KINDS, rows, p=[0.845, 0.08, 0.035, 0.02, 0.02])
    return pl.DataFrame(
        {
            "timestamp": at.astype(str),
            "eventType": kinds,
            "contentId": (item - 4_000_000_000_000_000_000).astype(str),
            "personId": (user - 9_000_000_000_000_000_000).astype(str),
            "sessionId": (user * 1_000_003 + at // 3600).astype(str),
            "userAgent": ["Mozilla/5.0 (X11; Linux x86_64)"] * rows,
            "userRegion": ["SP"] * rows,
            "userCountry": ["BR"] * rows,
        }
    )


def write_events(data: Path, folder: Path, rows: int) -> int:
    """Replicate the events with other users, sessions and times; returns how many a replica has."""
    folder.mkdir(parents=True)
    base = deskdrop(data)
    held: list[pl.DataFrame] = []
    files = 0
    for replica in range(-(-rows // len(base))):
        suffix, later = f"-{replica}", 61 * replica
        held.append(
            base.head(rows - replica * len(base)).with_columns(
                pl.col("personId", "sessionId") + suffix,
                timestamp=(pl.col("timestamp").cast(pl.Int64) + later).cast(pl.String),
            )
        )
        if sum(map(len, held)) >= ROWS or (replica + 1) * len(base) >= rows:
            pl.concat(held).write_csv(folder / f"events-{files:03d}.csv")
            held, files = [], files + 1
    return len(base)


def write_impressions(folder: Path, rows: int) -> None:
    """Impressions in one file of plain lines: skewed users and items, one in ten clicked."""
    folder.mkdir(parents=True)
    with (folder / "impressions.csv").open("wb") as file:
        for first in range(0, rows, ROWS):
            rng = np.random.default_rng(first)
            count = min(ROWS, rows - first)
            click = (rng.random(count) < 0.1).astype(int)
            part = pl.DataFrame(
                {
                    "time": 1_700_000_000 + (first + np.arange(count)) // 20,
                    "user": (rng.pareto(1.2, count) * 3000).astype(int) % (rows // 40 + 1),
                    "item": (rng.pareto(1.0, count) * 50).astype(int) % 20_000,
                    "request": first + np.arange(count) // 10,
                    "click": click,
                    "stars": np.where(click, rng.integers(1, 6, count), 0),
                }
            )
            part.write_csv(file, include_header=first == 0)


def config(log: str) -> dict[str, Any]:
    """Labels and histories of the log `events` or `impressions`."""
    return _events() if log == "events" else _impressions()


def _history(events: tuple[str, ...]) -> dict[str, Any]:
    history = {"events": list(events), "last": 20}
    return {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "history": history,
        "max_length": 20,
    }


def _events() -> dict[str, Any]:
    def task(group: str, **rule: Any) -> dict[str, Any]:
        return {"group": group, "type": "binary", "label": rule}

    liked = {name: task("satisfaction", rule="event", events=[name], within="7d") for name in LIKES}
    return {
        "name": "events",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user", "column": "personId"},
                "item_id": {"kind": "id", "side": "item", "column": "contentId"},
                "recent_views": _history(("VIEW",)),
                "recent_likes": _history(LIKES),
            },
            "tasks": {
                "view": task("engagement", rule="impression"),
                "dwell": {
                    "group": "engagement",
                    "type": "regression",
                    # As the peers compute it: until any event.
                    "label": {"rule": "dwell", "cap": "30m", "within": "9999d", "ends": "any"},
                },
                **{name.split()[0].lower(): rule for name, rule in liked.items()},
            },
        },
        "pipeline": {
            "log": {
                "shape": "events",
                "files": ["events-*.csv"],
                "format": {"type": "csv"},
                "impression": "VIEW",
                "columns": {
                    "time": "timestamp",
                    "user": "personId",
                    "item": "contentId",
                    "event": "eventType",
                    "session": "sessionId",
                },
            },
            "hold_back": False,
            "split": {"by": "time", "validation": 0.1, "test": 0.1, "embargo": False},
        },
    }


def _impressions() -> dict[str, Any]:
    return {
        "name": "impressions",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user", "column": "user", "dtype": "int"},
                "item_id": {"kind": "id", "side": "item", "column": "item", "dtype": "int"},
                "recent_clicks": {**_history(("click",)), "dtype": "int"},
            },
            "tasks": {
                "click": {
                    "group": "engagement",
                    "type": "binary",
                    "label": {"rule": "column", "column": "click"},
                },
                "stars": {
                    "group": "satisfaction",
                    "type": "regression",
                    "label": {"rule": "column", "column": "stars"},
                    "when": "click",
                },
            },
        },
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["impressions.csv"],
                "format": {"type": "csv", "quoted": False},
                "columns": {
                    "time": "time",
                    "user": "user",
                    "item": "item",
                    "request": "request",
                },
                "known_after": "0.5s",  # times are whole seconds: as the peers, at once
            },
            "hold_back": False,
            "split": {"by": "time", "validation": 0.1, "test": 0.1, "embargo": False},
        },
    }
