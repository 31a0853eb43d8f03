"""Recall of the candidate model beside popularity, item-to-item cosine and implicit ALS.

    python benchmarks/recall.py --movielens FOLDER --work FOLDER [--seeds 3]
    python benchmarks/recall.py --deskdrop FOLDER --work FOLDER

MovieLens 1M is the preset `movielens_time`, Deskdrop the preset of its name; both are split by
time.  What users touched before is known to all methods alike, see `candidates.evaluation`; the
towers read the preset's other features too, ALS, cosine and popularity ids alone.  ALS is the
`implicit` package's, with the best of a small grid on the *test* questions themselves, which
favours it.  Prints tables and, last, one JSON line.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from papers.rows import cell

from multigate.candidates.evaluation import KINDS, Questions, evaluate, make_questions, recall
from multigate.candidates.pairs import catalogue_of_splits, positive_task, read_pairs
from multigate.candidates.training import train
from multigate.configs import load as load_config
from multigate.configs.files import SPLITS
from multigate.model.data.encoding import Encoder
from multigate.pipeline import job

FACTORS, ALPHAS = (16, 32, 64, 128), (1.0, 10.0)
QUESTIONS = 10_000


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


def measure(name: str, preset: str, data: Path, work: Path, seeds: int) -> dict[str, Any]:
    """Train and evaluate; recall@100 of every method, by kind of question."""
    config = load_config(preset)
    work.mkdir(parents=True, exist_ok=True)
    examples = work / "examples"
    if not examples.exists():
        job.run(config, data, examples)
    reports = []
    for seed in range(seeds):
        checkpoint = work / f"checkpoint-{seed}"
        if not checkpoint.exists():
            options = config.candidates.model_copy(update={"seed": seed})
            train(config.model_copy(update={"candidates": options}), examples, checkpoint)
        reports.append(evaluate(checkpoint, examples))
    encoder, task = Encoder.read(examples), positive_task(config)
    items = catalogue_of_splits(examples, encoder, SPLITS[:2])
    earlier = [read_pairs(examples, split, encoder, task) for split in SPLITS[:2]]
    pairs = read_pairs(examples, SPLITS[2], encoder, task)
    result = {}
    for kind in KINDS:
        questions = make_questions(earlier, pairs, items, kind, QUESTIONS)
        measured = reports[0]["questions"][kind]
        rows = {method: [values[100]] for method, values in measured["recall"].items()}
        rows["two_towers"] = [r["questions"][kind]["recall"]["two_towers"][100] for r in reports]
        best = als(questions, (100,))
        rows[f"als ({best['factors']} factors, alpha {best['alpha']:g})"] = [best["recall"][100]]
        print(
            f"\n{name}, {kind.replace('_', ' ')}: {measured['questions']:,} questions, "
            f"{measured['cold']:,} without a past, {len(items):,} items, "
            f"{100 * measured['unknown_answers']:.1f} % of the answers not among them"
        )
        print("| method | recall@100 |\n| --- | --- |")
        for method, values in sorted(rows.items(), key=lambda row: -np.mean(row[1])):
            print(f"| {method.replace('_', ' ')} | {cell(values, 4)} |")
        towers = float(np.mean(rows.pop("two_towers")))
        result[kind] = {"two_towers": towers, "best_other": max(map(np.mean, rows.values()))}
    return result


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--movielens", type=Path, help="folder of MovieLens 1M")
    arguments.add_argument("--deskdrop", type=Path, help="folder of users_interactions.csv")
    arguments.add_argument("--work", type=Path, required=True, help="for examples and checkpoints")
    arguments.add_argument("--seeds", type=int, default=1, help="of the two towers")
    options = arguments.parse_args()
    found = {}
    for name, preset in (("movielens", "movielens_time"), ("deskdrop", "deskdrop")):
        data = getattr(options, name)
        if data is not None:
            found[name] = measure(name, preset, data, options.work / name, options.seeds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
