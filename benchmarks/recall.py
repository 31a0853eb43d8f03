"""Recall of the candidate model beside popularity, item-to-item cosine and implicit ALS.

    python benchmarks/recall.py --movielens FOLDER --work FOLDER [--seeds 3]
    python benchmarks/recall.py --deskdrop FOLDER --work FOLDER
    python benchmarks/recall.py --table                   # the page's tables from the rows so far

MovieLens 1M is the preset `movielens_time`, Deskdrop the preset of its name; both are split by
time.  What users touched before is known to all methods alike, see `candidates.evaluation`; the
towers read the preset's other features too, ALS, cosine and popularity ids alone.  ALS is the
`implicit` package's, with the best of a small grid on the *test* questions themselves, which
favours it.  The towers' lead over each method is the mean over seeds, with a 95 % interval over
users: it says what other users of such a log would show.

A data set's run is a row of docs/results/candidates.jsonl for each kind of question, in place of
those before; the tables stand in docs/results/candidates.md.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from papers.rows import Row, Rows, cell, replace_table

from multigate.candidates.evaluation import (
    KINDS,
    Questions,
    interval_by_user,
    item_cosine,
    make_questions,
    popularity,
    recall_of_each,
    two_towers,
)
from multigate.candidates.pairs import catalogue_of_splits, positive_task, read_pairs
from multigate.candidates.training import load, train
from multigate.configs import load as load_config
from multigate.configs.files import SPLITS
from multigate.model.data.encoding import Encoder
from multigate.pipeline import job

FACTORS, ALPHAS = (16, 32, 64, 128), (1.0, 10.0)
QUESTIONS, K = 10_000, 100
METHODS = ("implicit ALS", "item-to-item cosine", "popularity")
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def als(questions: Questions, k: int) -> tuple[str, np.ndarray]:
    """Implicit ALS: item factors from the earlier splits, each user folded in by what was seen.

    Returns:
        The best settings, and each question's recall@k with them, (Q,).
    """
    from implicit.als import AlternatingLeastSquares

    best = ("", np.zeros(len(questions)))
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
            found = recall_of_each(_product(users, method.item_factors), questions, (k,))[k]
            if not best[0] or found.mean() > best[1].mean():
                best = (f"{factors} factors, alpha {alpha:g}", found)
    return best


def _product(users: np.ndarray, items: np.ndarray) -> Any:
    return lambda part: users[part] @ items.T


def measure(name: str, preset: str, data: Path, work: Path, seeds: int) -> list[Row]:
    """Train and evaluate: a row for each kind of question."""
    config = load_config(preset)
    work.mkdir(parents=True, exist_ok=True)
    examples = work / "examples"
    if not examples.exists():
        job.run(config, data, examples)
    models = []
    for seed in range(seeds):
        checkpoint = work / f"checkpoint-{seed}"
        if not checkpoint.exists():
            options = config.candidates.model_copy(update={"seed": seed})
            train(config.model_copy(update={"candidates": options}), examples, checkpoint)
        models.append(load(checkpoint)[0])
    encoder, task = Encoder.read(examples), positive_task(config)
    items = catalogue_of_splits(examples, encoder, SPLITS[:2])
    earlier = [read_pairs(examples, split, encoder, task) for split in SPLITS[:2]]
    pairs = read_pairs(examples, SPLITS[2], encoder, task)
    rows = []
    for kind in KINDS:
        questions = make_questions(earlier, pairs, items, kind, QUESTIONS)
        towers = [
            recall_of_each(two_towers(model, pairs, items, questions), questions, (K,))[K]
            for model in models
        ]
        settings, by_als = als(questions, K)
        others = {
            "implicit ALS": by_als,
            "item-to-item cosine": recall_of_each(item_cosine(questions), questions, (K,))[K],
            "popularity": recall_of_each(popularity(questions), questions, (K,))[K],
        }
        users = pairs.users[questions.rows]
        ahead = np.mean(towers, axis=0)
        rows.append(
            {
                "data": name,
                "kind": kind,
                "questions": len(questions),
                "users": len(np.unique(users)),
                "items": len(items),
                "two towers": [float(one.mean()) for one in towers],
                **{method: float(found.mean()) for method, found in others.items()},
                "als": settings,
                "lead": {m: interval_by_user(ahead - found, users) for m, found in others.items()},
                "unknown_answers": float(
                    questions.missed.sum() / (questions.answers.nnz + questions.missed.sum())
                ),
            }
        )
    return rows


def write_tables(rows: list[Row]) -> None:
    """One table for each data set, into docs/results/candidates.md."""
    for data in sorted({row["data"] for row in rows}):
        found = {row["kind"]: row for row in rows if row["data"] == data}
        asked = (
            f"{kind.replace('_', ' ')} ({found[kind]['questions']:,} questions, "
            f"{found[kind]['users']:,} users)"
            for kind in KINDS
        )
        heads = [cell for one in asked for cell in (one, "the towers' lead")]
        lines = [
            f"| recall@{K}, {found[KINDS[0]]['items']:,} items | {' | '.join(heads)} |",
            "|" + " --- |" * (1 + len(heads)),
        ]
        towers = [cell(found[kind]["two towers"], 4) for kind in KINDS]
        lines.append(f"| two towers | {' | '.join(f'**{one}** | ' for one in towers)} |")
        for method in sorted(METHODS, key=lambda m: -found[KINDS[0]][m]):
            cells = []
            for kind in KINDS:
                low, high = found[kind]["lead"][method] or (float("nan"),) * 2
                cells += [f"{found[kind][method]:.4f}", f"{low:+.4f} to {high:+.4f}"]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        replace_table(f"recall {data}", lines, RESULTS / "candidates.md")


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--movielens", type=Path, help="folder of MovieLens 1M")
    arguments.add_argument("--deskdrop", type=Path, help="folder of users_interactions.csv")
    arguments.add_argument("--work", type=Path, help="for examples and checkpoints")
    arguments.add_argument("--seeds", type=int, default=1, help="of the two towers")
    arguments.add_argument("--table", action="store_true", help="only write the page's tables")
    options = arguments.parse_args()
    table = Rows("candidates", ("data", "kind"), RESULTS)
    if not options.table and options.work is None:
        arguments.error("--work is needed to run; --table writes what there is")
    for name, preset in (("movielens", "movielens_time"), ("deskdrop", "deskdrop")):
        data = getattr(options, name)
        if data is not None and not options.table:
            kept = [row for row in table.read() if row["data"] != name]
            kept += measure(name, preset, data, options.work / name, options.seeds)
            table.path.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
    write_tables(table.read())
    print(json.dumps(table.read()))


if __name__ == "__main__":
    main()
