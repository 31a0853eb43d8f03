"""What a first stage costs: retrieving N items and ranking them, against ranking all items.

Both models are exported files, called as they are served: signature `retrieve` of the candidate
model, `rank` of the ranker. Both answer the same questions of the test split
(`candidates.evaluation.make_questions`, `next_item`): which item does this user turn to next, of
all items that the earlier splits name, without those that the user touched before? Item features
are those of the item's latest row in the earlier splits; the candidate model's index has the
vectors of the snapshot, as when it is served. A user's rates by category (`of: [user, topic]`) are
those of the user's latest row of that category in the earlier splits, and those of no labels where
there is none.

The ranker scores every item by itself. Its list over the retrieved items is therefore its list over
all items, with the others left out.

A question has one answer. At place r of a list, counted from 1, NDCG@10 = 1 / log2(1 + r); beyond
the tenth place, or where the answer is not in the list, it is 0 (Järvelin and Kekäläinen, 2002).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import polars as pl

from multigate.candidates.evaluation import interval_by_user, next_item_questions, no_question
from multigate.candidates.exported import Exported, contract_of, load_signature
from multigate.candidates.pairs import Catalogue
from multigate.configs import progress
from multigate.configs.contract import Contract, FrozenContract, LabelCount
from multigate.configs.difference import difference
from multigate.configs.errors import DataError, ModelError
from multigate.configs.files import SPLITS, TIME, ExamplesFolder
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import Raw, raw_values
from multigate.model.data.rows import read_rows
from multigate.runtime.signature import Signature

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
    interval: list[float] | None
    """95 % interval of the loss (normal, over users); None below ten users."""


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

    signature: Signature
    contract: Contract

    def scores(self, user: Raw, items: Raw, count: int) -> np.ndarray:
        """Combined scores (I,) of items for one user, by the contract's weights."""
        weights = [[task.score_weight for task in self.contract.tasks.values()]]
        given = user | items
        given |= {"user_index": np.zeros(count, np.int32)}
        given |= {"task_weights": np.array(weights, np.float32)}
        return self.signature(given)["score"]


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
        ModelError: a version cannot be loaded, or the contracts differ.
        DataError: the examples cannot be read, or nothing can be asked of their test split.
    """
    encoder = Encoder.read(examples)
    first, second = _load(candidates, ranker, examples)
    contract = encoder.contract
    pairs, items, questions = next_item_questions(examples, encoder, first.positives(), limit)
    if not len(questions):
        raise DataError(f"{examples}: {no_question(SPLITS[-1])}; take more days as the test split")
    largest = max(retrieved)
    reached = np.zeros((len(questions), len(retrieved)), bool)
    gains = np.zeros((len(questions), len(retrieved) + 1))
    earlier = _earlier(examples, contract)
    table = _latest(earlier, contract, items)
    names = [name for name, _ in contract.of_side("item") if name not in contract.crosses()]
    raw_items = raw_values(contract, table.to_arrow(), names)
    rates = _CategoryRates(contract, earlier, encoder.statistics.priors)
    asked_all = first.retrieved(contract, pairs, questions, items, largest)
    for row, user, found in progress.track(asked_all, "report", len(questions), "questions"):
        answers = questions.answers[row].indices
        if not len(answers):
            continue
        answer = int(answers[0])
        seen = questions.seen[row].indices
        asked = pairs.table.row(int(questions.rows[row]), named=True)
        given = raw_items | rates.of(asked, table)
        scores = second.scores(user, given, len(items)).astype(np.float64)
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
    users = pairs.users[questions.rows]
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
                "interval": interval_by_user(loss[:, column], users),
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
        differ = next(
            found for one in frozen[1:] if (found := difference(frozen[0].contract, one.contract))
        )
        raise ModelError(
            "schema: expected the same of both versions and the examples, received "
            f"{received}: {differ}; use what was built from one configuration"
        )
    return Exported(candidates), _Ranker(load_signature(ranker, "rank"), frozen[1].contract)


def _earlier(examples: Path, contract: Contract) -> pl.DataFrame:
    """The rows of the splits before the test split, oldest first: the user and the item's side.

    Raises:
        DataError: a split cannot be read.
    """
    contexts = [name for name in _categories(contract) if contract.features[name].side == "context"]
    names = [contract.user, *contexts, *(name for name, _ in contract.of_side("item")), TIME]
    parts = [pl.DataFrame(read_rows(examples, split, names).table) for split in SPLITS[:-1]]
    return pl.concat(parts).sort(TIME, nulls_last=False, maintain_order=True)


def _categories(contract: Contract) -> list[str]:
    """The features that rates by category are looked up by."""
    return sorted({str(rule.category) for rule in contract.crosses().values()})


def _latest(earlier: pl.DataFrame, contract: Contract, items: Catalogue) -> pl.DataFrame:
    """The latest row of each item."""
    table = (
        earlier.unique(contract.item, keep="last")
        .filter(pl.col(contract.item).is_not_null())
        .sort(contract.item)
    )
    assert table[contract.item].to_list() == items.ids.tolist()
    return table


class _CategoryRates:
    """Each user's rates by category, from the user's latest row of the category.

    Args:
        contract: says which features are rates by category.
        earlier: rows, oldest first.
        priors: by feature, the rate without any label.
    """

    def __init__(
        self, contract: Contract, earlier: pl.DataFrame, priors: Mapping[str, float]
    ) -> None:
        self._contract = contract
        self._latest = {}
        for category in _categories(contract):
            rules = contract.crosses().items()
            names = [name for name, rule in rules if rule.category == category]
            latest = earlier.select(contract.user, category, *names).unique(
                [contract.user, category], keep="last", maintain_order=True
            )
            self._latest[category] = latest.partition_by(
                contract.user, as_dict=True, include_key=False
            )
        self._without_labels = {
            name: 0.0 if isinstance(rule, LabelCount) else priors[name]
            for name, rule in contract.crosses().items()
        }

    def of(self, asked: Mapping[str, Any], items: pl.DataFrame) -> Raw:
        """The rates of one user for all items, I rows each.

        Args:
            asked: the question's row, with the user and the context.
            items: I rows of the item's side.
        """
        rules, user = self._contract.crosses().items(), (asked[self._contract.user],)
        found: Raw = {}
        for category, latest in self._latest.items():
            of_item = self._contract.features[category].side == "item"
            dtype = items.schema[category]
            values = items[category] if of_item else [asked[category]] * len(items)
            table = pl.DataFrame({category: pl.Series(values, dtype=dtype)})
            names = [name for name, rule in rules if rule.category == category]
            absent = [pl.lit(self._without_labels[name]).alias(name) for name in names]
            if user in latest:
                table = table.join(latest[user], on=category, how="left", maintain_order="left")
                absent = [pl.col(name).fill_null(self._without_labels[name]) for name in names]
            table = table.with_columns(absent)
            found |= raw_values(self._contract, table.to_arrow(), names)
        return found
