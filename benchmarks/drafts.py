"""Drafts of `multigate init`, unedited, beside the hand-written configurations of the same logs.

    python benchmarks/drafts.py --data FOLDER --work FOLDER [--logs deskdrop ...] [--runs draft ...]
        [--before "nice -n 15"] [--page PAGE]

FOLDER holds the public logs, each in a folder of its own (`LOGS`).  Each log runs three times
through the command, from `examples` to `evaluate` of the exported version: with the hand-written
configuration (preset); with the draft of the log's files as published (draft); and with the draft
of the same rows in files, and columns in an order, under names that say nothing (hidden).  The
measure is the mean AUC of the binary tasks on the test split; a draft's share is its distance from
0.5 over the preset's.  A second table sets what `check` foretells of a training's time and memory
beside what the training took.  Each run is one line of WORK/drafts.jsonl, and each of its verbs one
file: started again, the benchmark goes on where it was stopped.  Prints the tables, writes them
into the page between their marks, and prints one JSON line last.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from papers.rows import Row, Rows, replace_table

HERE = Path(__file__).parent
RUNS = ("preset", "draft", "hidden")


@dataclass(frozen=True)
class Log:
    """A public log.

    Attributes:
        files: the published file, below the data folder -> the name that it gets.
        preset: the hand-written configuration.
        convert: makes the log that the preset reads, where it does not read the published files.
    """

    files: dict[str, str]
    preset: str
    convert: Any = None


def ml_100k(log: Path, out: Path) -> None:
    """MovieLens 100k in the files of MovieLens 1M, which the preset reads."""
    text = (log / "u.data").read_text().replace("\t", "::")
    (out / "ratings.dat").write_text(text)
    people = [line.split("|") for line in (log / "u.user").read_text().splitlines()]
    jobs = sorted({person[3] for person in people})
    (out / "users.dat").write_text(
        "".join(
            f"{one}::{sex}::{age}::{jobs.index(job)}::{zip_}\n"
            for one, age, sex, job, zip_ in people
        )
    )
    lines = (log / "u.item").read_text(encoding="latin-1").splitlines()
    films = [line.split("|") for line in lines]
    kept = [
        f"{film[0]}::{film[1]}::{'|'.join(str(at) for at in range(19) if film[5 + at] == '1')}"
        for film in films
    ]
    (out / "movies.dat").write_text("\n".join(kept) + "\n", encoding="latin-1")


def open_bandit(log: Path, out: Path) -> None:
    """As the bake-off reads it: with the affinity of the shown item as a column of its own."""
    script = HERE / "data_sets/open_bandit.py"
    subprocess.run([sys.executable, script, "--data", log, "--out", out], check=True)


LOGS = {
    "deskdrop": Log(
        {"deskdrop/users_interactions.csv.zip": "users_interactions.csv.zip"}, "deskdrop"
    ),
    "open-bandit-men": Log(
        {f"open-bandit-men/{n}": n for n in ("bts.csv.xz", "random.csv.xz", "item_context.csv")},
        str(HERE / "data_sets/open_bandit.yaml"),
        open_bandit,
    ),
    "ml-100k": Log(
        {f"ml-100k/{name}": name for name in ("u.data", "u.user", "u.item")},
        "movielens_time",
        ml_100k,
    ),
    # Where a time may be unknown, the split is random and no feature is over time.
    "ml-1m": Log(
        {f"ml-1m/{name}": name for name in ("ratings.dat.xz", "users.dat", "movies.dat")},
        "movielens",
    ),
    "ml-1m, users 1 to 2999": Log(
        {
            "ml-1m/ratings_users_1_2999.dat.xz": "ratings.dat.xz",
            "ml-1m/users.dat": "users.dat",
            "ml-1m/movies.dat": "movies.dat",
        },
        "movielens_time",
    ),
}


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs' folders")
    parser.add_argument("--work", type=Path, required=True, help="folder for what runs write")
    parser.add_argument("--logs", nargs="+", choices=list(LOGS), default=list(LOGS))
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each run")
    parser.add_argument("--before", default="", help="words before each command: nice -n 15")
    parser.add_argument("--page", type=Path, help="Markdown page to write the table into")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = Rows("drafts", ("log", "run", "seed"), options.work)
    wanted = [
        {"log": log, "run": run, "seed": seed}
        for log in options.logs
        for seed in range(options.seeds)
        for run in options.runs
    ]
    rows.run(wanted, lambda key: measure(options, key["log"], key["run"], key["seed"]))
    for name, lines in (("drafts", draw(rows.read())), ("estimates", estimates(rows.read()))):
        print("\n".join(lines))
        if options.page is not None:
            replace_table(name, lines, options.page)
    print(json.dumps({"rows": len(rows.read())}))


def measure(options: argparse.Namespace, name: str, run: str, seed: int) -> dict[str, Any]:
    """One run through the command."""
    log, work = LOGS[name], options.work / f"{name}-{run}-{seed}".replace(" ", "_")
    folder = work / "log"
    if not folder.exists():
        folder.mkdir(parents=True)
        for file, new in log.files.items():
            (folder / new).symlink_to((options.data / file).resolve())
    if run == "preset" and log.convert is not None:
        folder = once(work / "converted", lambda out: log.convert(work / "log", out))
    if run == "hidden":
        folder = once(work / "hidden", lambda out: hide(work / "log", out))
    verbs = Verbs(work, shlex.split(options.before))
    config = log.preset
    if run != "preset":
        config = str(work / "my.yaml")
        verbs.call("init", "--data", folder, "--out", config)
    checked = verbs.call("check", "--config", config, "--data", folder)
    examples, checkpoint, models = work / "examples", work / "checkpoint", work / "models"
    verbs.call("examples", "--config", config, "--data", folder, "--out", examples)
    seeded = work / f"seed{seed}.yaml"
    with_seed(config, seed, seeded)
    given = ("--examples", examples)
    trained = verbs.call("train", "--config", seeded, *given, "--out", checkpoint)
    verbs.call("export", "--checkpoint", checkpoint, *given, "--out", models)
    found = verbs.call("evaluate", "--version", models / "1", *given)
    auc = {task: one["value"] for task, one in found["tasks"].items() if one["metric"] == "auc"}
    row = {
        "mean_auc": statistics.fmean(auc.values()),
        "auc": auc,
        "rmse": {t: one["value"] for t, one in found["tasks"].items() if one["metric"] == "rmse"},
        "best_epoch": trained["best_epoch"],
        "epochs": trained["epochs"],
        "estimated": checked["cost"],
        "took": verbs.took,
        "seconds": round(sum(one["seconds"] for one in verbs.took.values())),
    }
    shutil.rmtree(work)
    return row


def once(out: Path, make: Callable[[Path], None]) -> Path:
    """A folder that is made under another name, so that it is whole or absent."""
    if not out.exists():
        partial = out.with_name(out.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        make(partial)
        partial.rename(out)
    return out


class Verbs:
    """Runs each verb once in a folder, and keeps its result and what it took.

    Args:
        work: the folder.
        before: words before each command.
    """

    def __init__(self, work: Path, before: list[str]) -> None:
        self.work, self.before = work, before
        self.took: dict[str, dict[str, float]] = {}

    def call(self, verb: str, *arguments: object) -> dict[str, Any]:
        """Run a verb, unless it has run; its result."""
        kept = self.work / f"{verb}.json"
        if not kept.exists():
            command = [sys.executable, "-m", "multigate", verb, *map(str, arguments), "--json"]
            began = time.perf_counter()
            process = subprocess.Popen([*self.before, *command], stdout=subprocess.PIPE)
            assert process.stdout is not None
            printed = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode > (verb == "check"):  # its status 1 is a result
                raise SystemExit(f"{verb}: exit status {process.returncode}")
            took = {
                "seconds": time.perf_counter() - began,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "gib": usage.ru_maxrss / 2**20,
            }
            partial = kept.with_suffix(".partial")
            partial.write_text(json.dumps({"result": json.loads(printed), "took": took}))
            partial.rename(kept)
        read = json.loads(kept.read_text())
        self.took[verb] = read["took"]
        return dict(read["result"])


def with_seed(config: str, seed: int, out: Path) -> None:
    """The configuration with another seed; with seed 0 unedited."""
    from multigate.configs import load

    values = load(config).model_dump(mode="json", exclude_unset=True)
    if seed:
        values.setdefault("train", {})["seed"] = seed
    out.write_text(json.dumps(values))


def hide(folder: Path, out: Path) -> None:
    """Write the tables as CSV under other names, their columns shuffled and renamed."""
    from multigate.configs.storage import place
    from multigate.jobs.onboarding.tables.raw import find_tables, parse_format
    from multigate.pipeline.read.sources import expand, read

    draw = random.Random(7)
    out.mkdir(exist_ok=True)
    names = [f"f{at}.csv" for at in range(20)]
    draw.shuffle(names)
    for number, table in enumerate(find_tables(place(str(folder)), 1000)):
        columns = list(table.columns)
        draw.shuffle(columns)
        new = {name: f"x{number}{at:02d}" for at, name in enumerate(columns)}
        for shard in expand(place(str(folder)), table.files):
            chunks = read(shard, parse_format(table.form), [name for name in columns if name])
            frame = pl.concat([chunk.frame for chunk in chunks], how="diagonal")
            frame.select(one for one in columns if one).rename(
                {old: to for old, to in new.items() if old}
            ).write_csv(out / names.pop())


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown."""
    lines = [
        "| log | run | AUC by task | mean AUC | share of the preset's distance | CPU minutes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for log in dict.fromkeys(row["log"] for row in rows):
        found: dict[str, list[Row]] = {
            run: [row for row in rows if (row["log"], row["run"]) == (log, run)] for run in RUNS
        }
        means = {
            run: statistics.fmean(row["mean_auc"] for row in some)
            for run, some in found.items()
            if some
        }
        for run, some in found.items():
            if not some:
                continue
            tasks = ", ".join(
                f"{task} {statistics.fmean(row['auc'][task] for row in some):.3f}"
                for task in some[0]["auc"]
            )
            share = ""
            if run != "preset" and "preset" in means:
                share = f"{(means[run] - 0.5) / (means['preset'] - 0.5):.0%}"
            used = [sum(one["cpu_seconds"] for one in row["took"].values()) for row in some]
            minutes = statistics.fmean(used) / 60
            lines.append(
                f"| {log} | {run} | {tasks} | {means[run]:.3f} | {share} | {minutes:.1f} |"
            )
    return lines


def estimates(rows: list[Row]) -> list[str]:
    """What `check` foretold of the trainings, and what they took, in Markdown."""
    lines = [
        "| log | run | check | training: estimated | took | CPU time | memory: estimated | took |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        said, took = row["estimated"]["training"], row["took"]["train"]
        lines.append(
            f"| {row['log']} | {row['run']} | {row['took']['check']['seconds']:.0f} s "
            f"| {said['seconds']:.0f} s | {took['seconds']:.0f} s "
            f"| {took['cpu_seconds']:.0f} s | {said['gib']:.1f} GiB | {took['gib']:.1f} GiB |"
        )
    return lines


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
