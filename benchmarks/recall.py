"""Recall of the candidate model beside popularity, item-to-item cosine and implicit ALS.

    python benchmarks/recall.py --movielens FOLDER --work FOLDER
    python benchmarks/recall.py --deskdrop FOLDER --work FOLDER

MovieLens 1M (ratings.dat) is split by time at 2000-12-02 and 2000-12-30, into 80, 10 and 10 %;
Deskdrop (users_interactions.csv) by its preset. All methods know the same, see
`candidates.evaluation`. ALS is the `implicit` package's, with the best of a small grid on the
*test* questions themselves, which favours it. Prints tables and, last, one JSON line.
"""

import argparse
import bz2
import gzip
import json
import lzma
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from multigate.candidates.evaluation import KINDS, Questions, evaluate, make_questions, recall
from multigate.candidates.pairs import catalogue_of_splits, positive_task, read_pairs
from multigate.candidates.training import load, train
from multigate.configs import load as load_config
from multigate.configs.config import Config
from multigate.configs.files import SPLITS
from multigate.configs.sections.base import parse
from multigate.pipeline import job

FACTORS, ALPHAS = (16, 32, 64, 128), (1.0, 10.0)
QUESTIONS = 10_000
UNKNOWN = "0"


def movielens(data: Path, work: Path) -> tuple[Config, Path]:
    """The preset with a history, split by time.

    Some copies of the file have time 0 where the time is not known; those ratings are all older
    than the validation split. They are put at the start of the log: into training, and into
    nobody's history but as the oldest.
    """
    values = load_config("movielens").model_dump(mode="json")
    values["contract"]["features"]["recent"] = {
        "kind": "id_list",
        "side": "user",
        "dtype": "int",
        "share": "movie_id",
        "history": {"events": ["impression"], "last": 50},
        "max_length": 50,
    }
    values["pipeline"]["log"]["unknown_time"] = None
    values["pipeline"]["negatives"]["exclude"] = "past"
    values["pipeline"]["split"] = {
        "by": "time",
        "validation": "2000-12-02T14:52:18Z",
        "test": "2000-12-30T01:06:54Z",
    }
    config = parse(Config, values, "movielens")
    examples = work / "examples"
    if not examples.exists():
        with tempfile.TemporaryDirectory(dir=work) as folder:
            path = next(data.glob("ratings.dat*"))
            opened = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
            with opened(path, "rt", encoding="utf-8") as file:
                rows = [line.rstrip("\n").split("::") for line in file]
            first = min(int(row[3]) for row in rows if row[3] != UNKNOWN)
            with (Path(folder) / "ratings.dat").open("w", encoding="utf-8") as file:
                for row in rows:
                    time = str(first - 1) if row[3] == UNKNOWN else row[3]
                    file.write("::".join([*row[:3], time]) + "\n")
            job.run(config, Path(folder), examples)
    return config, examples


def deskdrop(data: Path, work: Path) -> tuple[Config, Path]:
    """The preset as it is."""
    config = load_config("deskdrop")
    examples = work / "examples"
    if not examples.exists():
        job.run(config, data, examples)
    return config, examples


def als(questions: Questions, ks: tuple[int, ...]) -> dict[str, Any]:
    """Implicit ALS: item factors from the earlier splits, each user folded in by what was seen."""
    from implicit.als import AlternatingLeastSquares

    best: dict[str, Any] = {}
    for factors in FACTORS:
        for alpha in ALPHAS:
            method = AlternatingLeastSquares(
                factors=factors,
                alpha=alpha,
                regularization=0.01,
                iterations=15,
                random_state=0,
                num_threads=2,
            )
            method.fit(questions.earlier, show_progress=False)
            users = method.recalculate_user(np.arange(len(questions)), questions.seen)
            vectors = method.item_factors
            found = recall(_product(users, vectors), questions, ks)
            if not best or found[ks[0]] > best["recall"][ks[0]]:
                best = {"factors": factors, "alpha": alpha, "recall": found}
    return best


def _product(users: np.ndarray, items: np.ndarray) -> Any:
    return lambda part: users[part] @ items.T


def measure(name: str, config: Config, examples: Path, work: Path) -> dict[str, Any]:
    """Train and evaluate; recall@100 of every method, by kind of question."""
    checkpoint = work / "checkpoint"
    if not checkpoint.exists():
        train(config, examples, checkpoint)
    found = evaluate(checkpoint, examples)
    model, config, _ = load(checkpoint)
    items = catalogue_of_splits(examples, model.encoder, SPLITS[:2])
    task = positive_task(config)
    earlier = [read_pairs(examples, split, model.encoder, task) for split in SPLITS[:2]]
    pairs = read_pairs(examples, SPLITS[2], model.encoder, task)
    result = {}
    for kind in KINDS:
        questions = make_questions(earlier, pairs, items, kind, QUESTIONS)
        measured = found["questions"][kind]
        rows = {method: values[100] for method, values in measured["recall"].items()}
        best = als(questions, (100,))
        rows[f"als ({best['factors']} factors, alpha {best['alpha']:g})"] = best["recall"][100]
        print(
            f"\n{name}, {kind.replace('_', ' ')}: {measured['questions']:,} questions, "
            f"{measured['cold']:,} without a past, {len(items):,} items, "
            f"{100 * measured['unknown_answers']:.1f} % of the answers not among them"
        )
        print("| method | recall@100 |\n| --- | --- |")
        for method, value in sorted(rows.items(), key=lambda row: -row[1]):
            print(f"| {method.replace('_', ' ')} | {value:.4f} |")
        towers = rows.pop("two_towers")
        result[kind] = {"two_towers": towers, "best_other": max(rows.values())}
    return result


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--movielens", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--deskdrop", type=Path, help="folder of users_interactions.csv")
    arguments.add_argument("--work", type=Path, required=True, help="for examples and checkpoints")
    options = arguments.parse_args()
    found = {}
    for name, make in (("movielens", movielens), ("deskdrop", deskdrop)):
        data = getattr(options, name)
        if data is not None:
            work = options.work / name
            work.mkdir(parents=True, exist_ok=True)
            found[name] = measure(name, *make(data, work), work)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
