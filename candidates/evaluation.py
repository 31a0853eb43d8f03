"""Recall of the first stage on a later split, compared with simple methods.

A question is asked at the time of a positive: which item is it, of all items that the earlier
splits name, without those that the user touched before? All methods know the same: what every user
touched in the earlier splits, and what this user touched up to the question. An answer that is not
among the items is a miss for every method.

There are two sets of questions:

- `next_item`: a sample of the split's positives; each is the one answer of its question. This is
  what a service is asked every day.
- `from_the_start`: one question per user, at the user's first positive of the split; the answers
  are all of the user's positives in the split. This measures a list that is made in advance.

`tfrs.metrics.FactorizedTopK` was considered: it has one answer per question, and cannot leave out
the items that the user has seen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import polars as pl
import scipy.sparse as sp

from multigate.candidates.pairs import (
    Catalogue,
    Pairs,
    catalogue_of_splits,
    positive_task,
    read_pairs,
    tower_features,
)
from multigate.candidates.retrieval import Retrieval
from multigate.candidates.training import load
from multigate.configs import progress
from multigate.configs.errors import DataError
from multigate.configs.files import SPLITS, TIME
from multigate.configs.lineage import check_examples
from multigate.model.data.encoding import Encoder

KINDS = ("next_item", "from_the_start")
QUESTIONS = 10_000
"""Largest number of questions in a set."""
_LEAST_USERS = 10  # of an interval, as of the ranker's measures
_BATCH = 512  # questions whose scores of all items are in memory together

Scorer = Callable[[slice], np.ndarray]
"""Scores (U', I) of all items for some of the questions."""


@dataclass(frozen=True)
class Questions:
    """Questions of one set, Q of them.

    Attributes:
        rows: the row of the split's pairs at which each question is asked, (Q,).
        seen: (Q, I) 1 for each item that the user touched before.
        answers: (Q, I) 1 for each right answer.
        missed: (Q,) number of right answers that are not in the catalogue.
        cold: (Q,) bool, whether the user had touched nothing, also of what is not in the catalogue.
        earlier: (V, I) 1 for each item that a user of the earlier splits touched, with a question
            or without.
    """

    rows: np.ndarray
    seen: sp.csr_matrix
    answers: sp.csr_matrix
    missed: np.ndarray
    cold: np.ndarray
    earlier: sp.csr_matrix

    def __len__(self) -> int:
        return len(self.rows)


class SetResult(TypedDict):
    """Recall on one set of questions."""

    questions: int
    cold: int
    """Questions of users who had touched nothing."""
    answers: int
    unknown_answers: float
    """Share of the answers that no method can find: they are not in the catalogue."""
    recall: dict[str, dict[int, float]]
    """Method -> k -> mean over questions of the share of answers among the best k; empty without
    questions."""


class RecallReport(TypedDict):
    """What `evaluate` returns and a version's `metrics.json` holds."""

    split: str
    positives: str
    """The task whose positives are the answers."""
    items: int
    questions: dict[str, SetResult]
    """By the set's name, of `KINDS`."""


def evaluate(checkpoint: Path, examples: Path, *, split: str = "test") -> RecallReport:
    """Evaluate a two-tower checkpoint on a split of the examples.

    Args:
        checkpoint: folder that `training.train` wrote.
        examples: the folder of examples that it was trained on.
        split: "validation" or "test".

    Raises:
        ModelError: not a checkpoint, or it was trained on other examples.
        DataError: the split cannot be read.
    """
    if split == SPLITS[0] or split not in SPLITS:
        raise DataError(f"split: expected one of {', '.join(SPLITS[1:])}; received {split!r}")
    model, config, frozen = load(checkpoint)
    check_examples(checkpoint, frozen, examples)
    task = positive_task(config)
    before = SPLITS[: SPLITS.index(split)]
    items = catalogue_of_splits(examples, model.encoder, before)
    earlier = [read_pairs(examples, name, model.encoder, task) for name in before]
    pairs = read_pairs(examples, split, model.encoder, task)
    k = config.candidates.recall_at
    ks = tuple(sorted({10, 50, k, 2 * k}))
    found = {
        kind: _measure(
            model, pairs, items, make_questions(earlier, pairs, items, kind, QUESTIONS), ks
        )
        for kind in KINDS
    }
    return {"split": split, "positives": task, "items": len(items), "questions": found}


def _measure(
    model: Retrieval, pairs: Pairs, items: Catalogue, questions: Questions, ks: tuple[int, ...]
) -> SetResult:
    """Recall of each method on one set of questions."""
    if not len(questions):
        return {"questions": 0, "cold": 0, "answers": 0, "unknown_answers": 0.0, "recall": {}}
    scorers = {
        "two_towers": two_towers(model, pairs, items, questions),
        "popularity": popularity(questions),
        "item_cosine": item_cosine(questions),
    }
    answers = questions.answers.nnz + int(questions.missed.sum())
    return {
        "questions": len(questions),
        "cold": int(questions.cold.sum()),
        "answers": answers,
        "unknown_answers": float(questions.missed.sum() / answers),
        "recall": {name: recall(scorer, questions, ks) for name, scorer in scorers.items()},
    }


def make_questions(
    earlier: list[Pairs], pairs: Pairs, items: Catalogue, kind: str, limit: int
) -> Questions:
    """Make the questions of a split.

    Args:
        earlier: pairs of the splits before.
        pairs: pairs of the split.
        items: the items that can be found.
        kind: `next_item` or `from_the_start`.
        limit: largest number of questions; a sample with a fixed seed where there are more.
    """
    before = pl.concat(
        pl.DataFrame({"user": part.users, "item": part.items}) for part in earlier
    ).unique(maintain_order=True)
    now = (
        pl.DataFrame({"user": pairs.users, "item": pairs.items, "time": pairs.table[TIME]})
        .with_row_index("row")
        .sort("time", "row", nulls_last=False)
        # An item that the user touched before is no answer: every method leaves it out.
        .join(before, on=["user", "item"], how="anti", maintain_order="left")
        .unique(["user", "item"], keep="first", maintain_order=True)
    )
    asked = now if kind == "next_item" else now.unique("user", keep="first", maintain_order=True)
    if len(asked) > limit:
        chosen = np.random.default_rng(0).choice(len(asked), limit, replace=False)
        asked = asked[np.sort(chosen)]
    asked = asked.drop("item" if kind == "from_the_start" else []).with_row_index("question")
    if kind == "next_item":
        meanwhile = asked.select("question", "user", pl.col("time").alias("at")).join(
            now, on="user"
        )
        meanwhile = meanwhile.filter(pl.col("time") < pl.col("at")).select("question", "item")
        answers = asked.select("question", "item")
    else:
        answers = now.join(asked.select("question", "user"), on="user").select("question", "item")
        meanwhile = answers.clear()
    seen = before.join(asked.select("question", "user"), on="user").select("question", "item")
    ids = pl.DataFrame({"item": items.ids}).with_row_index("column")

    def matrix(table: pl.DataFrame, rows: int) -> sp.csr_matrix:
        found = table.join(ids, on="item")
        ones = np.ones(len(found), np.float32)
        places = (found["question"].to_numpy(), found["column"].to_numpy())
        return sp.csr_matrix((ones, places), shape=(rows, len(items)))

    unknown = answers.join(ids, on="item", how="anti")["question"].to_numpy()
    touched = pl.concat([seen, meanwhile]).unique()
    people = before.select("user").unique(maintain_order=True).with_row_index("question")
    return Questions(
        asked["row"].to_numpy(),
        matrix(touched, len(asked)),
        matrix(answers, len(asked)),
        np.bincount(unknown, minlength=len(asked)),
        ~np.isin(np.arange(len(asked)), touched["question"]),
        matrix(before.join(people, on="user"), len(people)),
    )


def next_item_questions(
    examples: Path, encoder: Encoder, task: str, limit: int = QUESTIONS
) -> tuple[Pairs, Catalogue, Questions]:
    """The test split's pairs, the items of the earlier splits, and `next_item` questions.

    Raises:
        DataError: a split cannot be read, or has no positive of the task.
    """
    before = SPLITS[:-1]
    items = catalogue_of_splits(examples, encoder, before)
    earlier = [read_pairs(examples, name, encoder, task) for name in before]
    pairs = read_pairs(examples, SPLITS[-1], encoder, task)
    return pairs, items, make_questions(earlier, pairs, items, KINDS[0], limit)


def no_question(split: str) -> str:
    """Why nothing can be asked of a split."""
    return f"the {split} split has no question: all its positives are known from earlier splits"


def interval_by_user(losses: np.ndarray, users: np.ndarray) -> list[float] | None:
    """95 % interval of a mean over questions (normal), which counts users and not questions.

    A user's questions are not independent: with n questions, the variance of the mean is the sum
    over users of the squared sum of their deviations from it, over n^2.

    Args:
        losses: (Q,) one of each question.
        users: (Q,) who asks it.

    Returns:
        None below ten users, who say nothing about those that were not asked.
    """
    asked = pl.DataFrame({"user": users, "gap": losses - losses.mean()})
    gaps = asked.group_by("user", maintain_order=True).agg(pl.col("gap").sum())["gap"].to_numpy()
    if len(gaps) < _LEAST_USERS:
        return None
    error = np.sqrt(len(gaps) / (len(gaps) - 1) * np.sum(gaps**2)) / len(losses)
    return [float(losses.mean() - 1.96 * error), float(losses.mean() + 1.96 * error)]


def recall(scorer: Scorer, questions: Questions, ks: tuple[int, ...]) -> dict[int, float]:
    """Mean over questions of `recall_of_each`, by k."""
    return {k: float(found.mean()) for k, found in recall_of_each(scorer, questions, ks).items()}


def recall_of_each(
    scorer: Scorer, questions: Questions, ks: tuple[int, ...]
) -> dict[int, np.ndarray]:
    """Each question's share of right answers among the best k, (Q,), by k.

    The share is of min(k, number of right answers), so that 1 can be reached.
    """
    found = {k: np.zeros(len(questions)) for k in ks}
    for batch, best in best_items(scorer, questions, max(ks)):
        right = questions.answers[batch].toarray() > 0
        hits = np.take_along_axis(right, best, axis=1)
        count = right.sum(axis=1) + questions.missed[batch]
        for k in ks:
            found[k][batch] = hits[:, :k].sum(axis=1) / np.minimum(count, k)
    return found


def best_items(scorer: Scorer, questions: Questions, k: int) -> Iterator[tuple[slice, np.ndarray]]:
    """The best k unseen items of each question, in batches of questions.

    Yields:
        The batch, and (U', k) rows of the catalogue, best first. Ties go to the lower row.
    """
    items = questions.seen.shape[1]
    starts = range(0, len(questions), _BATCH)
    for start in progress.track(starts, "ask", len(starts), "batches of questions"):
        batch = slice(start, min(start + _BATCH, len(questions)))
        scores = np.array(scorer(batch), np.float64)
        scores[questions.seen[batch].toarray() > 0] = -np.inf
        yield batch, np.argsort(-scores, axis=1, kind="stable")[:, : min(k, items)]


def two_towers(model: Retrieval, pairs: Pairs, items: Catalogue, questions: Questions) -> Scorer:
    """The model's scores."""
    names = set(tower_features(model.encoder.contract)[0])
    features = {
        name: values[questions.rows]
        for name, values in pairs.features.items()
        if name.partition("__")[0] in names
    }
    vectors = model.item_vectors(items)

    def score(batch: slice) -> np.ndarray:
        users = model.user_tower({name: values[batch] for name, values in features.items()})
        return np.asarray(users) @ vectors.T

    return score


def popularity_of(earlier: list[Pairs], items: Catalogue) -> np.ndarray:
    """How many users touched each item in the earlier splits, (I,)."""
    before = pl.concat(
        pl.DataFrame({"user": part.users, "item": part.items}) for part in earlier
    ).unique()
    known = before.filter(pl.col("item").is_in(items.ids))
    return np.bincount(np.searchsorted(items.ids, known["item"].to_numpy()), minlength=len(items))


def popularity(questions: Questions) -> Scorer:
    """How many users touched an item in the earlier splits."""
    counts = np.asarray(questions.earlier.sum(axis=0)).ravel()
    return lambda batch: np.broadcast_to(counts, (batch.stop - batch.start, len(counts)))


def item_cosine(questions: Questions) -> Scorer:
    """Item-to-item cosine: an item's score is its summed similarity to the user's items.

    Two items are similar if the same users touched them: the cosine of their columns of `earlier`.
    Popular items come first for users who have touched nothing.
    """
    earlier = questions.earlier
    norms = np.sqrt(np.asarray(earlier.multiply(earlier).sum(axis=0)).ravel())
    scaled = earlier @ sp.diags(1 / np.maximum(norms, 1e-12))
    similarity = (scaled.T @ scaled).tocsr()
    similarity.setdiag(0)
    counts = np.asarray(earlier.sum(axis=0)).ravel()

    def score(batch: slice) -> np.ndarray:
        found: np.ndarray = (questions.seen[batch] @ similarity).toarray()
        # Far below any cosine: orders the items that are similar to none of the user's.
        return found + 1e-9 * counts

    return score
