"""What `benchmarks/pipeline.py` compares with: plain Beam over elements, and polars in memory.

Both compute the labels and histories of `pipeline_logs.config`, and write them as Parquet with the
columns of the examples.
"""

import csv
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pipeline_logs import LIKES

WEEK, CAP, LAST = 7 * 86_400, 1800, 20
SHORT = {name: name.split()[0].lower() for name in LIKES}

# ---- plain Beam: an element is a line, then a user


def per_element(log: str, files: list[Path], out: Path, options: list[str]) -> None:
    """A pipeline as Beam's guides write them: read text, key by user, group, compute, write."""
    from multigate.pipeline.core.runner import import_beam

    beam, pipeline_options = import_beam()
    parse, compute = (
        (_parse_event, _label_user) if log == "events" else (_parse_impression, _user_impressions)
    )
    with beam.Pipeline(options=pipeline_options(options)) as p:
        lines = [
            p | f"Read {path.name}" >> beam.io.ReadFromText(str(path), skip_header_lines=1)
            for path in files
        ]
        (
            lines
            | beam.Flatten()
            | beam.Map(parse)
            | beam.GroupByKey()
            | beam.FlatMap(compute)
            | beam.io.WriteToParquet(str(out / "part"), _schema(log), file_name_suffix=".parquet")
        )


def _schema(log: str) -> pa.Schema:
    if log == "events":
        names = ["label/view", "label/dwell", *(f"label/{name}" for name in SHORT.values())]
        lists, value = ["recent_views", "recent_likes"], pa.string()
    else:
        names, lists, value = ["label/click", "label/stars"], ["recent_clicks"], pa.int64()
    return pa.schema(
        [
            ("user_id", value),
            ("item_id", value),
            *((name, pa.list_(value)) for name in lists),
            *((name, pa.float32()) for name in names),
            ("meta/time", pa.timestamp("us", "UTC")),
        ]
    )


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _parse_event(line: str) -> tuple[str, tuple[Any, ...]]:
    row = next(csv.reader([line]))
    return row[3], (int(row[0]), row[1], row[2], row[4], line)


def _label_user(keyed: tuple[str, Iterable[tuple[Any, ...]]]) -> Iterator[dict[str, Any]]:
    user, group = keyed
    events = sorted(set(group))
    views = [event for event in events if event[1] == "VIEW"]
    shown = defaultdict(list)
    for time, _, item, _, _ in views:
        shown[item].append(time)
    followed: dict[tuple[str, int], set[str]] = defaultdict(set)
    sessions = defaultdict(list)
    for time, kind, item, session, _ in events:
        if session:
            sessions[session].append(time)
        at = bisect_right(shown[item], time) if kind in LIKES and item in shown else 0
        if at and time - shown[item][at - 1] <= WEEK:
            followed[item, shown[item][at - 1]].add(kind)
    pasts = [
        sorted((time, item) for time, kind, item, _, _ in events if kind in kinds)
        for kinds in (("VIEW",), LIKES)
    ]
    times = [[time for time, _ in past] for past in pasts]
    for time, _, item, session, _ in views:
        histories = []
        for past, at in zip(pasts, times, strict=True):
            stop = bisect_left(at, time)
            histories.append([item for _, item in past[max(stop - LAST, 0) : stop]])
        later = bisect_right(sessions[session], time) if session else 0
        follows = bool(session) and later < len(sessions[session])
        yield {
            "user_id": user,
            "item_id": item,
            "recent_views": histories[0],
            "recent_likes": histories[1],
            "label/view": 1.0,
            "label/dwell": min(sessions[session][later] - time, CAP) if follows else None,
            **{f"label/{SHORT[k]}": float(k in followed.get((item, time), ())) for k in LIKES},
            "meta/time": _instant(time),
        }


def _parse_impression(line: str) -> tuple[int, tuple[Any, ...]]:
    time, user, item, _, click, stars = line.split(",")
    return int(user), (int(time), int(item), int(click), float(stars), line)


def _user_impressions(keyed: tuple[int, Iterable[tuple[Any, ...]]]) -> Iterator[dict[str, Any]]:
    user, group = keyed
    rows = sorted(set(group))
    past = [(time, item) for time, item, click, _, _ in rows if click > 0]
    times = [time for time, _ in past]
    for time, item, click, stars, _ in rows:
        stop = bisect_left(times, time)
        yield {
            "user_id": user,
            "item_id": item,
            "recent_clicks": [item for _, item in past[max(stop - LAST, 0) : stop]],
            "label/click": float(click),
            "label/stars": stars if click else None,
            "meta/time": _instant(time),
        }


# ---- polars: one script, all in memory


def in_memory(log: str, files: list[Path], out: Path) -> None:
    """Read, label, join and write with polars, whole tables at a time."""
    rows = _polars_events(files) if log == "events" else _polars_impressions(files)
    ordered = rows.sort("meta/time")
    bounds = [0, int(0.8 * len(rows)), int(0.9 * len(rows)), len(rows)]
    for name, start, stop in zip(("train", "validation", "test"), bounds, bounds[1:], strict=False):
        ordered[start:stop].write_parquet(out / f"{name}.parquet")


def _seconds(column: str) -> pl.Expr:
    return pl.from_epoch(pl.col(column).cast(pl.Int64)).dt.cast_time_unit("us")


def _histories(past: pl.DataFrame, queries: pl.DataFrame, name: str) -> pl.DataFrame:
    """The last items strictly before each query, by shifts within the user and a join as of."""
    past = past.select("user_id", "meta/time", "item_id").sort("user_id", "meta/time", "item_id")
    shifted = [pl.col("item_id").shift(by).over("user_id") for by in range(LAST - 1, -1, -1)]
    lists = past.select(
        "user_id", "meta/time", pl.concat_list(shifted).list.drop_nulls().alias(name)
    )
    last = lists.unique(["user_id", "meta/time"], keep="last", maintain_order=True)
    found = queries.sort("meta/time").join_asof(
        last.sort("meta/time"),
        on="meta/time",
        by="user_id",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    return found.select("row", pl.col(name).fill_null([]))


def _polars_events(files: list[Path]) -> pl.DataFrame:
    raw = pl.scan_csv(files, infer_schema=False).unique()
    events = raw.select(
        pl.col("personId").alias("user_id"),
        pl.col("contentId").alias("item_id"),
        _seconds("timestamp").alias("meta/time"),
        "eventType",
        "sessionId",
    ).collect()
    views = events.filter(pl.col("eventType") == "VIEW").with_row_index("row")
    likes = events.filter(pl.col("eventType").is_in(LIKES))
    given = likes.sort("meta/time").join_asof(
        views.select("row", "user_id", "item_id", "meta/time", at="meta/time").sort("meta/time"),
        on="meta/time",
        by=["user_id", "item_id"],
        check_sortedness=False,
    )
    given = given.filter(pl.col("meta/time") - pl.col("at") <= pl.duration(seconds=WEEK))
    labels = given.group_by("row").agg(
        (pl.col("eventType") == kind).any().cast(pl.Float32).alias(f"label/{short}")
        for kind, short in SHORT.items()
    )
    in_session = ["user_id", "sessionId", "meta/time"]
    times = events.drop_nulls("sessionId").select(in_session).unique().sort(in_session)
    times = times.with_columns(
        next=pl.col("meta/time").shift(-1).over("user_id", "sessionId")
    ).with_columns(
        (pl.col("next") - pl.col("meta/time"))
        .dt.total_seconds()
        .clip(upper_bound=CAP)
        .cast(pl.Float32)
        .alias("label/dwell")
    )
    rows = views.join(times.drop("next"), on=in_session, how="left")
    rows = rows.join(labels, on="row", how="left")
    queries = rows.select("row", "user_id", "meta/time")
    for name, past in (("recent_views", views), ("recent_likes", likes)):
        rows = rows.join(_histories(past, queries, name), on="row", how="left")
    zero = [pl.col(f"label/{short}").fill_null(0.0) for short in SHORT.values()]
    return rows.with_columns(*zero, pl.lit(1.0, pl.Float32).alias("label/view")).drop(
        "row", "eventType", "sessionId"
    )


def _polars_impressions(files: list[Path]) -> pl.DataFrame:
    rows = (
        pl.scan_csv(files)
        .unique()
        .select(
            pl.col("user").alias("user_id"),
            pl.col("item").alias("item_id"),
            _seconds("time").alias("meta/time"),
            pl.col("click").cast(pl.Float32).alias("label/click"),
            pl.when(pl.col("click") == 1).then("stars").cast(pl.Float32).alias("label/stars"),
        )
        .collect()
        .with_row_index("row")
    )
    clicks = rows.filter(pl.col("label/click") > 0)
    queries = rows.select("row", "user_id", "meta/time")
    return rows.join(_histories(clicks, queries, "recent_clicks"), on="row", how="left").drop("row")
