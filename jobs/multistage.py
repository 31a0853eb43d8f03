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

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from candidates.evaluation import Questions, ask
from candidates.keras2 import tf
from candidates.pairs import Catalogue, Pairs, catalogue_of_splits, read_pairs
from configs.contract import Contract, FrozenContract
from configs.errors import ModelError
from configs.files import SPLITS, TIME, ExamplesFolder
from model.encoding import Encoder
from model.raw import Raw, raw_values, take
from model.rows import read_rows

RETRIEVED = (50, 100, 200, 500)
"""How many items the first stage hands on, by default."""
_AT = 10
_USERS_AT_ONCE = 64  # of the retrieval
_CONTRACT, _METRICS = "assets.extra/contract.json", "assets.extra/metrics.json"


@dataclass(frozen=True)
class _Stages:
    """Both files."""

    models: list[Any]
    """Candidate model and ranker; their signatures need them alive."""
    contract: Contract

    def found(self, users: Raw, k: int) -> np.ndarray:
        """Raw ids (U, K) of the best k items of some users, best first."""
        signature = self.models[0].signatures["retrieve"]
        names = signature.structured_input_signature[1]
        given = {name: tf.constant(users[name]) for name in names if name != "k"}
        items: np.ndarray = signature(**given, k=tf.constant(k, tf.int32))["items"].numpy()
        return items

    def scores(self, user: Raw, items: Raw, count: int) -> np.ndarray:
        """Combined scores (I,) of items for one user, by the contract's weights."""
        weights = [[task.score_weight for task in self.contract.tasks.values()]]
        given = user | items
        given |= {"user_index": np.zeros(count, np.int32)}
        given |= {"task_weights": np.array(weights, np.float32)}
        inputs = {name: tf.constant(value) for name, value in given.items()}
        found: np.ndarray = self.models[1].signatures["rank"](**inputs)["score"].numpy()
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
    stages = _load(candidates, ranker, examples)
    encoder = Encoder.read(examples)
    contract = encoder.contract
    task = _positives(candidates)
    before = SPLITS[:-1]
    earlier = [read_pairs(examples, name, encoder, task) for name in before]
    pairs = read_pairs(examples, SPLITS[-1], encoder, task)
    items = catalogue_of_splits(examples, encoder, before)
    asked = ask(earlier, pairs, items, "next_item", questions)
    largest = max(retrieved)
    reached = np.zeros((len(asked), len(retrieved)), bool)
    gains = np.zeros((len(asked), len(retrieved) + 1))
    raw_items = _latest(examples, contract, items)
    for row, user, found in _retrieved(stages, pairs, asked, items, largest):
        answers = asked.right[row].indices
        if not len(answers):
            continue
        answer = int(answers[0])
        seen = asked.seen[row].indices
        scores = stages.scores(user, raw_items, len(items)).astype(np.float64)
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


def _load(candidates: Path, ranker: Path, examples: Path) -> _Stages:
    frozen = [FrozenContract.read(folder / _CONTRACT) for folder in (candidates, ranker)]
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
    found = []
    for folder, name in ((candidates, "retrieve"), (ranker, "rank")):
        try:
            model = tf.saved_model.load(str(folder))
        except (OSError, tf.errors.OpError) as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"{folder}: expected an exported version: {reason:.200}") from None
        if name not in model.signatures:
            raise ModelError(
                f"{folder}: expected a version with signature {name!r}, received "
                f"{', '.join(model.signatures) or 'none'}"
            )
        found.append(model)
    return _Stages(found, frozen[1].contract)


def _positives(candidates: Path) -> str:
    """The task whose positives the candidate model was trained to find."""
    path = candidates / _METRICS
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["positives"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: {error!r}; export the candidate model anew") from None


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


def _retrieved(
    stages: _Stages, pairs: Pairs, asked: Questions, items: Catalogue, k: int
) -> Iterator[tuple[int, Raw, np.ndarray]]:
    """Each question's number, raw user of one row, and retrieved items as numbers, best first."""
    names = [name for name, _ in stages.contract.of_side("user", "context")]
    users = raw_values(stages.contract, pairs.table[asked.rows].to_arrow(), names)
    numbers = {
        (item.encode() if isinstance(item, str) else item): number
        for number, item in enumerate(items.ids.tolist())
    }
    # Left out afterwards: what was seen, and what only the test split names.
    spare = int(np.diff(asked.seen.indptr).max(initial=0))
    everything = 2**31 - 1
    for start in range(0, len(asked), _USERS_AT_ONCE):
        part = slice(start, min(start + _USERS_AT_ONCE, len(asked)))
        count = k + spare
        while True:
            found = stages.found(take(users, part), min(count, everything))
            known = [[numbers[item] for item in row if item in numbers] for row in found.tolist()]
            if found.shape[1] < count or min(map(len, known)) >= k + spare:
                break
            count *= 2
        for row, row_found in zip(range(part.start, part.stop), known, strict=True):
            yield row, take(users, slice(row, row + 1)), np.array(row_found, np.int64)
