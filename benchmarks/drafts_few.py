"""How large the draft of a log with few positives should be: logs whose positives are thinned.

    python benchmarks/drafts_few.py --data FOLDER --work WORK [--positives 200] [--samples 2]
        [--variants ...] [--page PAGE]

FOLDER holds the public logs.  Each log is one of impressions with one flag: films that were liked
(MovieLens 100k), a feed's clicks (`multigate.jobs.simulate`), and readers' likes, bookmarks,
follows and comments (Deskdrop).  A sample keeps a number of positives, drawn at random: of films
and feed with 60 other rows each, of Deskdrop with all rows of some users.  The draft of `init`
trains on the first 40 % of it; 15 % validate and 45 % test, so that training has few positives and
the test has as many as can be.  Variants of the draft are trained on the same rows.  Each training
is one line of WORK/few.jsonl: started again, the benchmark goes on.  Prints a table of differences
from the draft with errors over samples, writes it into the page, and prints one JSON line last.
"""

import argparse
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from drafts import once
from papers.rows import Row, Rows, cell, replace_table

KINDS = ("LIKE", "BOOKMARK", "FOLLOW")
OTHERS = 60  # rows for each positive
SPLIT: dict[str, Any] = {"by": "time", "validation": 0.15, "test": 0.45}


def films(data: Path, out: Path, positives: int, sample: int) -> None:
    """Films rated 4 or 5 of MovieLens 100k are liked; the stars are left out."""
    names = ["user", "film", "stars", "time"]
    rated = pl.read_csv(
        data / "ml-100k/u.data", separator="\t", has_header=False, new_columns=names
    )
    rows = rated.select("user", "film", "time", liked=(pl.col("stars") >= 4).cast(pl.Int64))
    thinned(rows, "liked", positives, sample).write_csv(out / "log.csv")
    people = (data / "ml-100k/u.user").read_text()
    (out / "people.csv").write_text("user,age,sex,job,zip\n" + people.replace("|", ","))
    films = (data / "ml-100k/u.item").read_text(encoding="latin-1").splitlines()
    genres = "\t".join(f"g{at}" for at in range(19))
    lines = ["\t".join([one.split("|")[0], *one.split("|")[5:]]) for one in films]
    (out / "films.tsv").write_text("\n".join([f"film\t{genres}", *lines]) + "\n")


def feed(data: Path, out: Path, positives: int, sample: int) -> None:
    """Clicks of a simulated feed, each sample of a world of its own."""
    del data
    from multigate.jobs.simulate import simulate

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "feed"
        simulate(made, sample, users=400, items=150, exposures=120_000)
        rows = pl.concat(pl.read_ndjson(one) for one in sorted(made.glob("*.jsonl")))
    feedback = ("dwell", "share", "like", "dislike", "follow", "rating")
    thinned(rows.drop(feedback), "click", positives, sample).write_ndjson(out / "log.jsonl")


def deskdrop(kind: str, some_users: bool) -> Callable[[Path, Path, int, int], None]:
    """Views of Deskdrop, and whether the reader did something afterwards.

    Args:
        kind: of event.
        some_users: whether a sample is of all views of some users, or of views of all users.
    """

    def write(data: Path, out: Path, positives: int, sample: int) -> None:
        with zipfile.ZipFile(data / "deskdrop/users_interactions.csv.zip") as archive:
            text = io.BytesIO(archive.read(archive.namelist()[0]))
        events = pl.read_csv(text, schema_overrides={"userRegion": pl.String}).unique(
            maintain_order=True
        )
        pair = ["personId", "contentId"]
        done = events.filter(pl.col("eventType") == kind)
        done = done.group_by(pair).agg(pl.col("timestamp").max().alias("done"))
        views = events.filter(pl.col("eventType") == "VIEW").drop("eventType")
        views = views.join(done, on=pair, how="left", maintain_order="left")
        flag = pl.col("timestamp") <= pl.col("done")
        views = views.with_columns(flag.fill_null(False).cast(pl.Int64).alias("did")).drop("done")
        if not some_users:
            views = views.with_columns(time=pl.col("timestamp"))
            rows = thinned(views, "did", positives, sample).drop("time")
            rows.write_csv(out / "log.csv")
            return
        of = views.group_by("personId").agg(pl.col("did").sum()).sort("personId")
        of = of.sample(fraction=1.0, shuffle=True, seed=sample)
        some = of.filter(pl.col("did").cum_sum() <= positives)
        views.join(some.select("personId"), on="personId", how="semi").write_csv(out / "log.csv")

    return write


LOGS = {
    "films": films,
    "feed": feed,
    **{name.lower(): deskdrop(name, False) for name in KINDS},
    **{f"{name.lower()}, some users": deskdrop(name, True) for name in KINDS},
}


def thinned(rows: pl.DataFrame, flag: str, positives: int, sample: int) -> pl.DataFrame:
    """Some positives, and `OTHERS` times as many other rows, in the order of time."""
    parts = [
        some.sample(min(count, len(some)), seed=sample)
        for some, count in (
            (rows.filter(pl.col(flag) == 1), positives),
            (rows.filter(pl.col(flag) == 0), positives * OTHERS),
        )
    ]
    return pl.concat(parts).sort("time", maintain_order=True)


def few_features(values: dict[str, Any]) -> None:
    """No counters, histories, hours and crossed rates."""
    contract = values["contract"]
    features = contract["features"]
    for name in list(features):
        if {"history", "count", "since"} & features[name].keys() or name in ("hour", "weekday"):
            del features[name]
    contract["rates"]["of"] = ["user", "item"]


def no_counters(values: dict[str, Any]) -> None:
    """No counters."""
    features = values["contract"]["features"]
    for name in list(features):
        if {"count", "since"} & features[name].keys():
            del features[name]


def small_model(values: dict[str, Any]) -> None:
    """Two experts of 16 units, embeddings of width 8."""
    values["model"]["embedding_dim"] = 8
    values["model"]["experts"] |= {"count": 2, "units": [16]}
    values["model"]["towers"] = {"units": [16]}


def no_pairs(values: dict[str, Any]) -> None:
    """No weights for pairs of values."""
    values["model"]["wide"]["crosses"] = 0


def no_teacher(values: dict[str, Any]) -> None:
    """The labels alone."""
    values["train"].pop("teacher", None)


def by_loss(values: dict[str, Any]) -> None:
    """The epoch with the least loss is kept, not that with the highest AUC."""
    values["train"]["monitor"] = "loss"


def smaller_batches(values: dict[str, Any], rows: float, least: int) -> None:
    """Batches so small that an epoch of so many rows has at least so many steps."""
    train = values["train"]
    size = min(2 ** max(int(math.log2(max(rows / least, 1))), 4), train["batch_size"])
    train["weight_decay"] *= size / train["batch_size"]
    train["batch_size"] = size


def strong_wide(values: dict[str, Any]) -> None:
    """Weights of ids and pairs pay four times as much, embeddings as well."""
    values["model"]["wide"] |= {"penalty": 4.0, "embeddings": 40.0}


PARTS = {
    "few": few_features,
    "nocounters": no_counters,
    "small": small_model,
    "nopairs": no_pairs,
    "noteacher": no_teacher,
    "loss": by_loss,
    "strong": strong_wide,
}
STEPS = {"steps": 30, "steps60": 60, "steps120": 120}  # of an epoch
OF_FEATURES = ("few", "nocounters")
VARIANTS = (
    *("draft", "few", "nocounters", "steps", "steps60", "steps120", "steps+few"),
    *("steps+nocounters", "steps+small", "steps+noteacher", "steps+loss", "steps+few+loss"),
)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs' folders")
    parser.add_argument("--work", type=Path, required=True, help="folder for what runs write")
    parser.add_argument("--logs", nargs="+", choices=list(LOGS), default=list(LOGS))
    parser.add_argument("--positives", type=int, nargs="+", default=[200], help="of a sample")
    parser.add_argument("--samples", type=int, default=2, help="samples 0, 1, ... of each log")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help="parts joined by +")
    parser.add_argument("--page", type=Path, help="Markdown page to write the table into")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = Rows("few", ("log", "positives", "sample", "variant"), options.work)
    wanted = [
        {"log": log, "positives": positives, "sample": sample, "variant": variant}
        for sample in range(options.samples)
        for positives in options.positives
        for log in options.logs
        for variant in options.variants
    ]
    rows.run(wanted, lambda key: measure(options, **key))
    lines = draw(rows.read())
    print("\n".join(lines))
    if options.page is not None:
        replace_table("few", lines, options.page)
    print(json.dumps({"rows": len(rows.read())}))


def measure(
    options: argparse.Namespace, log: str, positives: int, sample: int, variant: str
) -> dict[str, Any]:
    """One training; its AUC on the test split."""
    from sklearn.metrics import roc_auc_score

    import multigate
    from multigate.jobs.interface import configuration
    from multigate.model.data.rows import read_rows
    from multigate.model.evaluation.scored import score

    work = options.work / f"{log}-{positives}-{sample}".replace(" ", "_")
    work.mkdir(exist_ok=True)
    folder = once(work / "log", lambda out: LOGS[log](options.data, out, positives, sample))
    config = work / "draft.yaml"
    if not config.exists():
        command = ["init", "--data", folder, "--out", config]
        subprocess.run([sys.executable, "-m", "multigate", *command, "--json"], check=True)
    values = yaml.safe_load(config.read_text())
    training = rows_of(folder) * (1 - SPLIT["validation"] - SPLIT["test"])
    parts = [] if variant == "draft" else variant.split("+")
    for part in parts:
        if part in STEPS:
            smaller_batches(values, training, STEPS[part])
        else:
            PARTS[part](values)
    values["pipeline"]["split"] = SPLIT
    values["train"]["seed"] = sample
    of_features = "-".join(part for part in parts if part in OF_FEATURES) or "all"
    examples = once(
        work / f"examples-{of_features}",
        lambda out: multigate.examples(values, str(folder), out / "examples"),
    )
    with tempfile.TemporaryDirectory() as out:
        checkpoint = Path(out) / "checkpoint"
        multigate.train(values, examples / "examples", checkpoint, progress=False)
        found = read_rows(examples / "examples", "test")
        task = next(iter(values["contract"]["tasks"]))
        contract = configuration(values).contract
        scores = score(checkpoint, found).scores[task]
    at = list(contract.tasks).index(task)
    labels = found.labels(contract)[:, at]
    known = ~np.isnan(labels)
    trained = read_rows(examples / "examples", "train").labels(contract)[:, at]
    return {
        "training": int(np.nansum(trained)),
        "test": int(np.nansum(labels)),
        "auc": float(roc_auc_score(labels[known], scores[known])),
        "features": len(contract.features),
    }


def rows_of(folder: Path) -> int:
    """Lines of the log."""
    (log,) = folder.glob("log.*")
    return log.read_text().count("\n")


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown: differences from the draft, of the same log and sample."""
    cells = {(r["log"], r["positives"], r["sample"], r["variant"]): r["auc"] for r in rows}
    logs = list(dict.fromkeys(row["log"] for row in rows))
    lines = [
        "| positives | variant | " + " | ".join(logs) + " | all |",
        "| --- | --- |" + " --- |" * (len(logs) + 1),
    ]
    for positives in sorted({row["positives"] for row in rows}):
        for variant in dict.fromkeys(row["variant"] for row in rows):
            sign = "" if variant == "draft" else "+"
            found = {
                log: [
                    value - (cells[*key[:3], "draft"] if sign else 0)
                    for key, value in cells.items()
                    if (*key[:2], key[3]) == (log, positives, variant)
                    and (*key[:3], "draft") in cells
                ]
                for log in logs
            }
            every = [value for values in found.values() for value in values]
            if every:
                texts = [cell(values, 3, sign) if values else "" for values in found.values()]
                texts.append(cell(every, 3, sign))
                lines.append(f"| {positives} | {variant} | {' | '.join(texts)} |")
    return lines


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
