"""What a first stage costs: retrieve N and rank, against ranking everything.

Both models are exported files, called as they are served: `retrieve` of the candidate model, `rank`
of the ranker, for the same questions of the test split (`candidates.evaluation.ask`, `next_item`:
which item will this user turn to, of all that the earlier splits name, without those touched
before?). Item features are those of the item's latest row in the earlier splits; the vectors of the
candidate model's index are of the snapshot, as they are when it is served.

The ranker scores every item by itself, so that its list over the retrieved items is its list over
all items without the others.

A question has one answer at place r of a list, from 1, so that NDCG@10 = 1 / log2(1 + r), and 0
beyond the tenth place or where the answer is not in the list (Järvelin and Kekäläinen, 2002).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from multigate.candidates.evaluation import next_items
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
"""How many items the first stage hands on, by default."""
_AT = 10


@dataclass(frozen=True)
class _Ranker:
    """The ranker's file."""

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
    questions: int = 1000,
) -> dict[str, Any]:
    """Measure both stages together.

    Args:
        candidates: version folder of the candidate model.
        ranker: version folder of the ranker.
        examples: folder of examples, of the same contract.
        retrieved: numbers of items that the first stage hands on.
        questions: ask at most so many, drawn with a fixed seed.

    Returns:
        `questions`, `items`, `unknown_answers` (share that no method can find), `ndcg_all`, and
        `retrieved`: by N `recall` (share of answers that the first stage hands on), `ndcg`, `loss`
        (`ndcg_all` - `ndcg`) and `interval` (of the loss, 95 %, normal, over questions).

    Raises:
        ModelError: a version cannot be loaded, or the contracts differ.
        DataError: the examples cannot be read.
    """
    first, second = _load(candidates, ranker, examples)
    encoder = Encoder.read(examples)
    contract = encoder.contract
    pairs, items, asked = next_items(examples, encoder, first.positives(), questions)
    largest = max(retrieved)
    reached = np.zeros((len(asked), len(retrieved)), bool)
    gains = np.zeros((len(asked), len(retrieved) + 1))
    raw_items = _latest(examples, contract, items)
    for row, user, found in first.answers(contract, pairs, asked, items, largest):
        answers = asked.right[row].indices
        if not len(answers):
            continue
        answer = int(answers[0])
        seen = asked.seen[row].indices
        scores = second.scores(user, raw_items, len(items)).astype(np.float64)
        scores[seen] = -np.inf
        better = scores > scores[answer]
        better[:answer] |= scores[:answer] == scores[answer]  # equals keep the catalogue's order
        gains[row, -1] = _gain(int(better.sum()) + 1)
        kept = found[~np.isin(found, seen)]
        for column, count in enumerate(retrieved):
            handed_on = kept[:count]
            reached[row, column] = answer in handed_on
            if reached[row, column]:
                gains[row, column] = _gain(int(better[handed_on].sum()) + 1)
    total = float(gains[:, -1].mean())
    loss = gains[:, -1:] - gains[:, :-1]
    spread = 1.96 * loss.std(axis=0, ddof=1) / np.sqrt(len(asked)) if len(asked) > 1 else loss[0]
    return {
        "questions": len(asked),
        "items": len(items),
        "unknown_answers": float(asked.missed.sum() / len(asked)),
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
        told = ", ".join(
            f"{folder}: {one.schema_fingerprint}"
            for folder, one in zip((candidates, ranker, examples), frozen, strict=True)
        )
        raise ModelError(
            f"schema: expected the same of both versions and the examples, received {told}; use "
            "what was built from one configuration"
        )
    return Exported(candidates), _Ranker(load_version(ranker, "rank"), frozen[1].contract)


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
