"""What labels and histories cost: ours, plain Beam over elements, and polars in memory.

    python benchmarks/pipeline.py [--events N] [--growth [TIMES ...]] [--work FOLDER]
        [--data FOLDER]

Two logs of N rows each (10 million): Deskdrop's events, replicated with other users, sessions and
times (of a stand-in where the data are absent), as CSV files of half a million rows; and synthetic
impressions in one large file. For each, in a process of its own:

    ours         the job as shipped, which also deduplicates, judges, splits, counts vocabularies
                 and statistics, and writes snapshots
    per_element  the same labels and histories by Beam's guides, on the same runner with the same
                 options: an element is a line, then a user; on fewer rows, scaled
    polars       the same in one polars script, all in memory

Times are without imports. All three must have computed the same: the benchmark compares the
rows' hashes, for per_element those of its rows. Memory is the sum of what the processes of the tree
hold in proportion (PSS), at its highest. `--growth` runs ours on N and on 2 N rows of events alone,
`--growth 1 5` on N and on 5 N.

Prints a line per run and, last, one JSON line: `events_per_s` and `peak_gib` of ours on the events,
and how many times faster ours is than the others, at its worst of the two logs.
"""

import argparse
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pipeline_logs
import pipeline_peers
import polars as pl
import psutil

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.pipeline import job
from multigate.pipeline.core.runner import BEAMS_RUNNER, import_beam

DATA = Path(__file__).parents[2] / "shared" / "data" / "deskdrop"
ENGINES = ("ours", "per_element", "polars")


def child(engine: str, log: str, files: list[Path], out: Path) -> None:
    """Run one engine; prints its seconds."""
    if engine != "polars":
        import_beam()
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
    config = parse(Config, pipeline_logs.config(log), log)
    started = time.perf_counter()
    if engine == "ours":
        job.run(config, files[0].parent, out)
    else:
        out.mkdir()
        if engine == "polars":
            pipeline_peers.in_memory(log, files, out)
        else:
            workers = f"--direct_num_workers={len(os.sched_getaffinity(0))}"
            pipeline_peers.per_element(log, files, out, [f"--runner={BEAMS_RUNNER}", workers])
    print(json.dumps(time.perf_counter() - started))


def run(engine: str, log: str, files: list[Path], out: Path) -> tuple[float, float, float]:
    """Run one engine in a process of its own; returns seconds, CPU seconds and its peak in GiB.

    The CPU's time includes the imports; where others use the machine, it is the figure to look at.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, __file__, "--child", engine, log, str(out), *map(str, files)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.2)
        assert process.stdout is not None
        seconds = process.stdout.read().strip()
    if process.returncode:
        raise SystemExit(f"{engine} on {log}: failed with status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(seconds.splitlines()[-1]), cpu, peak / 2**30


def _memory(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.NoSuchProcess:
        pass
    return total


def results(engine: str, log: str, out: Path, users: Any = None) -> tuple[int, int]:
    """Number of rows, and the sum of their hashes, whatever their order."""
    config = parse(Config, pipeline_logs.config(log), log)
    names = [
        *config.contract.features,
        *(f"label/{name}" for name in config.contract.tasks),
    ]
    rows, hashes = 0, 0
    pattern = "*/part-*.parquet" if engine == "ours" else "*.parquet"
    for path in sorted(out.glob(pattern)):
        if path.parts[-2] in ("rejects", "vocabularies"):
            continue
        frame = pl.scan_parquet(path)
        if users is not None:
            frame = frame.filter(users)
        lists = [n for n, f in config.contract.features.items() if f.kind == "id_list"]
        texts = [pl.col(n).cast(pl.List(pl.String)).list.join(" ").fill_null("") for n in lists]
        plain = [pl.col(n).cast(pl.String).fill_null("") for n in names if n not in lists]
        time_ = pl.col("meta/time").dt.epoch("s").cast(pl.String)
        found = frame.select(
            pl.concat_str([*plain, *texts, time_], separator="|").hash(seed=1).alias("hash")
        ).collect()
        rows += len(found)
        hashes = (hashes + int(found["hash"].cast(pl.Int128).sum())) % 2**64
    return rows, hashes


def logs(work: Path, data: Path, rows: int) -> dict[str, Any]:
    """Write both logs; return by log: files, the tenth's files, filter and share of the rows."""
    replica = pipeline_logs.write_events(data, work / "events", rows)
    events = sorted((work / "events").iterdir())
    per_file = -(-pipeline_logs.ROWS // replica) * replica  # whole replicas: users are not torn
    few = max(1, min(len(events), round(rows / 10 / per_file)))
    share = min(1.0, few * per_file / rows)
    number = pl.col("user_id").str.extract(r"-(\d+)$").cast(pl.Int64)
    pipeline_logs.write_impressions(work / "impressions", rows)
    (impressions,) = (work / "impressions").iterdir()
    every = pl.scan_csv(impressions)
    tenth = work / "tenth" / "impressions.csv"
    tenth.parent.mkdir()
    some = every.filter(pl.col("user") % 10 == 3)
    some.sink_csv(tenth)
    count = int(some.select(pl.len()).collect().item())
    return {
        "events": (events, events[:few], number < few * (per_file // replica), share),
        "impressions": ([impressions], [tenth], pl.col("user_id") % 10 == 3, count / rows),
    }


def compare(work: Path, data: Path, rows: int) -> dict[str, float]:
    """Run all engines on both logs, and hold their results to one another."""
    speeds: dict[str, dict[str, float]] = {}
    peak = 0.0
    for log, (files, few, users, share) in logs(work, data, rows).items():
        speeds[log] = {}
        for engine in ENGINES:
            part = engine == "per_element"
            seconds, cpu, memory = run(engine, log, few if part else files, work / engine)
            speeds[log][engine] = rows * (share if part else 1) / seconds
            print(
                f"{log:12} {engine:12} {rows * (share if part else 1):12,.0f} rows {seconds:8.1f} s"
                f" ({cpu:.1f} s of CPU)"
                f" {speeds[log][engine]:10,.0f} rows/s, at most {memory:.2f} GiB",
                flush=True,
            )
            if engine == "ours" and log == "events":
                peak = memory
        for engine, whose in (("per_element", users), ("polars", None)):
            same = results("ours", log, work / "ours", whose)
            found = results(engine, log, work / engine)
            assert found[0], f"{log}: {engine} computed nothing"
            assert found == same, f"{log}: {engine} computed {found}, ours {same}"
    return {
        "events_per_s": round(speeds["events"]["ours"]),
        "over_per_element": round(min(s["ours"] / s["per_element"] for s in speeds.values()), 2),
        "over_polars": round(min(s["ours"] / s["polars"] for s in speeds.values()), 2),
        "peak_gib": round(peak, 2),
    }


def growth(work: Path, data: Path, rows: int, growing: Sequence[int]) -> dict[str, float]:
    """Peak memory of ours on so many times the events."""
    found = {}
    for times in growing:
        folder = work / f"events-{times}"
        pipeline_logs.write_events(data, folder, times * rows)
        files = sorted(folder.iterdir())
        seconds, cpu, memory = run("ours", "events", files, work / "ours")
        print(
            f"{times * rows:12,} events {seconds:8.1f} s ({cpu:.1f} s of CPU),"
            f" at most {memory:.2f} GiB",
            flush=True,
        )
        found[f"peak_gib_{times * rows}"] = round(memory, 2)
        shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000, help="rows of each log")
    parser.add_argument("--growth", type=int, nargs="*", help="peak memory of N and 2 N events")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Deskdrop's zip")
    parser.add_argument("--work", type=Path, help="folder for logs and outputs")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        engine, log, out, *files = options.child
        child(engine, log, [Path(file) for file in files], Path(out))
        return
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        given = Path(work), options.data, options.events
        growing = options.growth
        found = compare(*given) if growing is None else growth(*given, growing or (1, 2))
        print(json.dumps(found))


if __name__ == "__main__":
    main()
