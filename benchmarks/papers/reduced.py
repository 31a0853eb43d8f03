"""A tenth of MovieLens 1M and a small model: what the studies run on that need many trainings.

Every tenth user (number divisible by 10), with all of their ratings; 8 experts of 64 units, k = 2,
embeddings of 32, towers of 64, batch 512, at most 8 epochs with patience 2.  The paper: all users,
16 experts of 256, embeddings of 128, towers of 256, at most 100 epochs with patience 25.  Losses
therefore do not compare with the paper's.
"""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from book_crossing import only_file, plain
from settings import without_additions

from multigate.configs import load

EVERY = 10
WEIGHT = 0.1
"""Of watching; rating has the rest, as the losses of the paper's table S2 have it."""


def make_examples(data: Path, work: Path) -> Path:
    """The preset's examples of the users kept; made once.

    Args:
        data: folder that holds the publisher's ratings.dat, plain or compressed.
        work: folder for the examples.
    """
    from multigate.pipeline import job

    examples = work / "examples"
    if examples.exists():
        return examples
    work.mkdir(parents=True, exist_ok=True)
    found = only_file(data, "ratings.dat*")
    lines = pl.Series(plain(found).decode("ascii").splitlines())
    users = lines.str.split("::").list.first().cast(pl.Int64)
    kept = lines.filter(users % EVERY == 0)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        (Path(folder) / "ratings.dat").write_text("\n".join(kept) + "\n", encoding="ascii")
        print(f"{len(kept):,} ratings of {users.filter(users % EVERY == 0).n_unique():,} users")
        job.run(load("movielens"), Path(folder), examples)
    return examples


def make_values() -> dict[str, Any]:
    """The preset, made small; gate, task weights and seed are put into it.

    Without the wide term and the dropped ids, which the preset takes from the defaults.
    """
    values = without_additions(load("movielens").model_dump(mode="json"))
    values["model"]["embedding_dim"] = 32
    values["model"]["experts"] |= {"count": 8, "units": [64]}
    values["model"]["towers"] = {"units": [64]}
    values["train"] |= {"epochs": 8, "patience": 2, "batch_size": 512}
    return values
