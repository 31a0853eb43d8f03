"""What a first stage costs: retrieving N items and ranking them, against ranking all items.

Both models are exported files, called as they are served: signature `retrieve` of the candidate
model, `rank` of the ranker. Both answer the same questions of the test split
(`candidates.evaluation.make_questions`, `next_item`): which item does this user turn to next, of
all items that the earlier splits name, without those that the user touched before? Item features
are those of the item's latest row in the earlier splits; the candidate model's index has the
vectors of the snapshot, as when it is served.

The ranker scores every item by itself. Its list over the retrieved items is therefore its list over
all items, with the others left out.

A question has one answer. At place r of a list, counted from 1, NDCG@10 = 1 / log2(1 + r); beyond
the tenth place, or where the answer is not in the list, it is 0 (Järvelin and Kekäläinen, 2002).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import polars as pl

from multigate.candidates.evaluation import next_item_questions
from multigate.candidates.exported import Exported, contract_of, load_version
from multigate.candidates.keras2 import tf
from multigate.candidates.pairs import Catalogue
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError
from multigate.configs.files import SPLITS, TIME, ExamplesFolder
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import Raw, raw_values
from multigate.model.data.rows import read_rows

RETRIEVED = (50, 100, 200, 500)
"""Numbers of items that the first stage retrieves, by default."""
_AT = 10  # of NDCG@10


class FirstStage(TypedDict):
    """What retrieving N items finds and costs."""

    recall: float
    """Share of the answers that are among the retrieved items."""
    ndcg: float
    loss: float
    """NDCG@10 over all items - `ndcg`."""
    interval: list[float]
    """95 % interval of the loss (normal, over questions)."""


class MultistageReport(TypedDict):
    """Both stages together."""

    questions: int
    items: int
    unknown_answers: float
    """Share of the answers that no method can find: the earlier splits do not name them."""
    ndcg_all: float
    """NDCG@10 of ranking all items."""
    retrieved: dict[int, FirstStage]
    """By the number of retrieved items."""


@dataclass(frozen=True)
class _Ranker:
    """A ranker's version, loaded."""

    model: Any
    contract: Contract

    def scores(self, user: Raw, items: Raw, count: int) -> np.ndarray:
        """Combined scores (I,) of items for one user, by the contract's weights."""
        weights = [[task.score_weight for task in self.contract.tasks.values()]]
        given = user | items
        given |= {"user_index": np.zeros(count, np.int32)}
        given |= {"task_weights": np.array(weights, np.float32)}
        inputs = {name: tf.constant(value) for name, value in given.items()}
        found: np.ndarray = self.model.signatures["rank"](**inputs)["score"].numpy()
        return found


def report(
    candidates: Path,
    ranker: Path,
    examples: Path,
    *,
    retrieved: tuple[int, ...] = RETRIEVED,
    limit: int = 1000,
) -> MultistageReport:
    """Measure both stages together.

    Args:
        candidates: version folder of the candidate model.
        ranker: version folder of the ranker.
        examples: folder of examples, of the same contract.
        retrieved: numbers of items that the first stage retrieves.
        limit: largest number of questions; a sample with a fixed seed where there are more.

    Raises:
        ModelError: a version cannot be loaded, the contracts differ, or they have rates by
            category.
        DataError: the examples cannot be read.
    """
    encoder = Encoder.read(examples)
    _refuse_crosses(encoder.contract)
    first, second = _load(candidates, ranker, examples)
    contract = encoder.contract
    pairs, items, questions = next_item_questions(examples, encoder, first.positives(), limit)
    largest = max(retrieved)
    reached = np.zeros((len(questions), len(retrieved)), bool)
    gains = np.zeros((len(questions), len(retrieved) + 1))
    raw_items = _latest(examples, contract, items)
    for row, user, found in first.retrieved(contract, pairs, questions, items, largest):
        answers = questions.answers[row].indices
        if not len(answers):
            continue
        answer = int(answers[0])
        seen = questions.seen[row].indices
        scores = second.scores(user, raw_items, len(items)).astype(np.float64)
        scores[seen] = -np.inf
        better = scores > scores[answer]
        better[:answer] |= scores[:answer] == scores[answer]  # ties keep the catalogue's order
        gains[row, -1] = _gain(int(better.sum()) + 1)
        kept = found[~np.isin(found, seen)]
        for column, count in enumerate(retrieved):
            first_items = kept[:count]
            reached[row, column] = answer in first_items
            if reached[row, column]:
                gains[row, column] = _gain(int(better[first_items].sum()) + 1)
    total = float(gains[:, -1].mean())
    loss = gains[:, -1:] - gains[:, :-1]
    spread = 1.96 * loss.std(axis=0, ddof=1) / np.sqrt(len(loss)) if len(loss) > 1 else loss[0]
    return {
        "questions": len(questions),
        "items": len(items),
        "unknown_answers": float(questions.missed.sum() / len(questions)),
        "ndcg_all": total,
        "retrieved": {
            count: {
                "recall": float(reached[:, column].mean()),
                "ndcg": float(gains[:, column].mean()),
                "loss": float(loss[:, column].mean()),
                "interval": [
                    float(loss[:, column].mean() - spread[column]),
                    float(loss[:, column].mean() + spread[column]),
                ],
            }
            for column, count in enumerate(retrieved)
        },
    }


def _gain(place: int) -> float:
    return float(1 / np.log2(1 + place)) if place <= _AT else 0.0


def _load(candidates: Path, ranker: Path, examples: Path) -> tuple[Exported, _Ranker]:
    frozen = [contract_of(folder) for folder in (candidates, ranker)]
    frozen.append(FrozenContract.read(ExamplesFolder(examples).contract))
    schemas = {one.schema_fingerprint for one in frozen}
    if len(schemas) > 1:
        received = ", ".join(
            f"{folder}: {one.schema_fingerprint}"
            for folder, one in zip((candidates, ranker, examples), frozen, strict=True)
        )
        raise ModelError(
            "schema: expected the same of both versions and the examples, received "
            f"{received}; use what was built from one configuration"
        )
    return Exported(candidates), _Ranker(load_version(ranker, "rank"), frozen[1].contract)


def _refuse_crosses(contract: Contract) -> None:
    """Refuse features of a user and an item together: examples hold few of these pairs.

    Raises:
        ModelError: there is one.
    """
    for name, rule in contract.crosses().items():
        raise ModelError(
            f"feature {name!r}: a rate of the user by {rule.category!r} is not known of every user "
            "and item, and this report ranks all items for each user; measure a ranker without "
            "rates by category (of: [user, ...])"
        )


def _latest(examples: Path, contract: Contract, items: Catalogue) -> Raw:
    """Raw features of the items, each from its latest row in the earlier splits."""
    names = [name for name, _ in contract.of_side("item")]
    parts = [
        pl.DataFrame(read_rows(examples, split, [*names, TIME]).table) for split in SPLITS[:-1]
    ]
    table = (
        pl.concat(parts)
        .sort(TIME, nulls_last=False, maintain_order=True)
        .unique(contract.item, keep="last")
        .filter(pl.col(contract.item).is_not_null())
        .sort(contract.item)
    )
    assert table[contract.item].to_list() == items.ids.tolist()
    return raw_values(contract, table.to_arrow(), names)
