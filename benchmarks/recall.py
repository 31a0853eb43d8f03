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

A data set and a kind of question are a row of docs/results/candidates.jsonl, which is not measured
again while it stands there; the tables stand in docs/results/candidates.md.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from papers.rows import Row, Rows, cell, replace_table

from multigate.candidates.evaluation import (
    KINDS,
    Questions,
    Scorer,
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
KEY = ("data", "kind")
PRESETS = {"movielens": "movielens_time", "deskdrop": "deskdrop"}
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


def measure(run: Row, data: Path, work: Path, seeds: int) -> Row:
    """The recall of every method on one kind of question; the towers are trained where absent."""
    config = load_config(PRESETS[run["data"]])
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
    questions = make_questions(earlier, pairs, items, run["kind"], QUESTIONS)

    def each(scorer: Scorer) -> np.ndarray:
        return recall_of_each(scorer, questions, (K,))[K]

    towers = [each(two_towers(model, pairs, items, questions)) for model in models]
    settings, by_als = als(questions, K)
    others = {
        "implicit ALS": by_als,
        "item-to-item cosine": each(item_cosine(questions)),
        "popularity": each(popularity(questions)),
    }
    users = pairs.users[questions.rows]
    ahead = np.mean(towers, axis=0)
    answers = questions.answers.nnz + int(questions.missed.sum())
    return {
        "questions": len(questions),
        "users": len(np.unique(users)),
        "items": len(items),
        "two towers": [float(one.mean()) for one in towers],
        **{method: float(found.mean()) for method, found in others.items()},
        "als": settings,
        "lead": {m: interval_by_user(ahead - found, users) for m, found in others.items()},
        "unknown_answers": float(questions.missed.sum() / answers),
    }


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
                lead = found[kind]["lead"][method]
                between = " to ".join(f"{limit:+.4f}" for limit in lead or ())
                cells += [f"{found[kind][method]:.4f}", between]
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
    table = Rows("candidates", KEY, RESULTS)
    if not options.table and options.work is None:
        arguments.error("--work is needed to run; --table writes what there is")
    for name in PRESETS:
        data = getattr(options, name)
        if data is not None and not options.table:
            table.run(
                [{"data": name, "kind": kind} for kind in KINDS],
                partial(measure, data=data, work=options.work / name, seeds=options.seeds),
            )
    write_tables(table.read())
    print(json.dumps(table.read()))


if __name__ == "__main__":
    main()
