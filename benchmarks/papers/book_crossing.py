"""Book-Crossing, two tasks: table 1 and S4 of the paper on MOESART, on a sample of the data.

    python benchmarks/papers/book_crossing.py --data FOLDER --work FOLDER       # under an hour
    python benchmarks/papers/book_crossing.py --table

FOLDER of the data holds a CSV file of the ratings (user_id, book_id, rating; 0 is a book that was
read and not rated), plain or compressed.  Users and books with fewer than five records are left
out, as in the paper (S6.1).  Rows go to docs/results/papers/book_crossing.jsonl.
"""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import two_tasks

from multigate.configs.config import Config
from multigate.configs.sections.base import parse

MIN_RECORDS = 5

# Test loss x 100, AUC x 100, MSE: tables 1 and S4 of the paper, on the whole data set.
PUBLISHED = {
    ("softmax", 0.9): (74.69, 77.48, 2.697),
    ("topk", 0.9): (74.63, 77.42, 2.683),
    ("vmoe", 0.9): (75.96, 76.89, 2.768),
    ("switch", 0.9): (75.30, 77.13, 2.718),
    ("expert_choice", 0.9): (82.83, 76.75, 3.403),
    ("xmoe", 0.9): (78.25, 75.48, 2.890),
    ("dselect_k", 0.9): (74.22, 77.61, 2.632),
    ("comet", 0.9): (74.29, 77.30, 2.636),
    ("moesart", 0.9): (73.68, 78.03, 2.641),
    ("softmax", 0.1): (248.96, 55.31, 2.697),
    ("topk", 0.1): (246.97, 56.64, 2.675),
    ("vmoe", 0.1): (253.21, 55.11, 2.744),
    ("switch", 0.1): (249.88, 56.68, 2.707),
    ("expert_choice", 0.1): (314.54, 56.22, 3.426),
    ("xmoe", 0.1): (264.16, 56.18, 2.866),
    ("dselect_k", 0.1): (241.64, 59.05, 2.615),
    ("comet", 0.1): (241.13, 66.13, 2.612),
    ("moesart", 0.1): (242.47, 64.99, 2.626),
}


def make_examples(data: Path, work: Path) -> Path:
    """Filter the records, and make examples with one negative per record; made once."""
    from multigate.pipeline import job

    examples = work / "examples"
    if examples.exists():
        return examples
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        path = only_file(data, "*.csv*")
        records = pl.read_csv(plain(path)).with_columns(
            pl.col("rating").replace(0, None), time=pl.lit(0)
        )
        while True:  # leaving out a book can leave a user with too few
            kept = records.filter(
                pl.len().over("user_id") >= MIN_RECORDS, pl.len().over("book_id") >= MIN_RECORDS
            )
            if len(kept) == len(records):
                break
            records = kept
        records.write_csv(Path(folder) / "records.csv")
        print(
            f"{len(records):,} records of {records['user_id'].n_unique():,} users and "
            f"{records['book_id'].n_unique():,} books"
        )
        job.run(parse(Config, make_values(), "table"), Path(folder), examples)
    return examples


def only_file(folder: Path, pattern: str) -> Path:
    """The one file of a folder that has such a name."""
    found = sorted(path.name for path in folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(found) or "none"
        raise SystemExit(f"--data {folder}: expected one file {pattern}, found {names}")
    return folder / found[0]


def plain(path: Path) -> bytes:
    """Content of a file, uncompressed."""
    import bz2
    import gzip
    import lzma

    opened = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opened(path, "rb") as file:
        content: bytes = file.read()
    return content


def make_values() -> dict[str, Any]:
    """The paper's model (S6.2): 9 experts of 128 units, k = 4, embeddings of 64, towers of 256."""
    return {
        "name": "book_crossing",
        "contract": {
            "user": "user_id",
            "item": "book_id",
            "features": {
                "user_id": {"kind": "id", "side": "user", "dtype": "int"},
                "book_id": {"kind": "id", "side": "item", "dtype": "int"},
            },
            "tasks": {
                "read": {
                    "group": "engagement",
                    "type": "binary",
                    "label": {"rule": "impression"},
                    "score_weight": 1,
                },
                "rating": {
                    "group": "satisfaction",
                    "type": "regression",
                    "label": {"rule": "column", "column": "rating"},
                },
            },
        },
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["records.csv"],
                "format": {"type": "csv"},
                "time_unit": "s",
                "unknown_time": 0,
                "columns": {"time": "time", "user": "user_id", "item": "book_id"},
            },
            "negatives": {"per_positive": 1, "sampling": "uniform", "exclude": "ever"},
            "split": {"by": "random", "validation": 0.15, "test": 0.15},
        },
        "model": {
            "embedding_dim": 64,
            "wide": None,
            "id_dropout": 0.0,
            "experts": {"count": 9, "units": [128], "dropout": 0.5},
            "gate": {"name": "moesart", "num_selected": 4, "trimmed_lasso_weight": 0.1},
            "towers": {"units": [256]},
            "task_weighting": "fixed",
        },
        "train": {
            "epochs": 60,
            "batch_size": 2048,
            "learning_rate": 3e-4,
            "decay": "none",
            "ema": None,
            "weight_decay": 0.0,
            "clip_norm": None,
            "embeddings": "dense",
            "monitor": "loss",
            "patience": 4,
        },
    }


if __name__ == "__main__":
    two_tasks.main(__doc__.splitlines()[0], "book_crossing", make_examples, make_values, PUBLISHED)
