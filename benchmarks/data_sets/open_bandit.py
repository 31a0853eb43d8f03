"""Open Bandit's men's campaign as a log of impressions, for the bake-off.

    python benchmarks/data_sets/open_bandit.py --data FOLDER --out LOG
    multigate examples --config benchmarks/data_sets/open_bandit.yaml --data LOG --out EXAMPLES

FOLDER holds bts.csv[.xz], random.csv[.xz] and item_context.csv.  The log names no user: people with
the same four user features count as one.  Of the 34 affinities of a row only the candidate's is
kept, and their sum.
"""

import argparse
import lzma
from pathlib import Path

import polars as pl

_FEATURES = [f"user_feature_{n}" for n in range(4)]


def impressions(file: Path, items: pl.DataFrame) -> pl.DataFrame:
    """One row per exposure of one policy's file."""
    text = file.read_bytes()
    if file.suffix == ".xz":
        text = lzma.decompress(text)
    log = pl.read_csv(text, schema_overrides={"timestamp": pl.String})
    affinities = [name for name in log.columns if name.startswith("user-item_affinity_")]
    places = {name: int(name.rpartition("_")[2]) for name in affinities}
    own = pl.coalesce(
        *(pl.when(pl.col("item_id") == place).then(pl.col(name)) for name, place in places.items())
    )
    return log.select(
        pl.col("timestamp").alias("time"),
        pl.concat_str(_FEATURES, separator="|").alias("user"),
        *_FEATURES,
        pl.col("item_id").alias("item"),
        "position",
        "click",
        own.alias("affinity"),
        pl.sum_horizontal(affinities).alias("affinities"),
        pl.lit(file.name.partition(".")[0]).alias("policy"),
    ).join(items, left_on="item", right_on="item_id", how="left")


def find(data: Path, name: str) -> Path:
    """A file of the data folder, packed or not."""
    for path in (data / f"{name}.csv", data / f"{name}.csv.xz"):
        if path.exists():
            return path
    raise SystemExit(f"{data}: no {name}.csv or {name}.csv.xz; expected files of Open Bandit")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True, help="folder of Open Bandit's men")
    arguments.add_argument("--out", type=Path, required=True, help="folder to write the log into")
    given = arguments.parse_args()
    context = pl.read_csv(find(given.data, "item_context"))
    items = context.select("item_id", *(f"item_feature_{n}" for n in range(4)))
    given.out.mkdir(parents=True, exist_ok=True)
    for policy in ("bts", "random"):
        impressions(find(given.data, policy), items).write_parquet(given.out / f"{policy}.parquet")


if __name__ == "__main__":
    main()
