"""Three rows of a split, and why the model gives them their scores; see `explanation`.

Axes: N rows of the split, T tasks, B background rows.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from multigate.configs.contract import Contract
from multigate.explanation.arrays import differing, values_of
from multigate.explanation.document import BACKGROUND, explain, places_of
from multigate.explanation.shapley import Sources
from multigate.model.assessment.results import ExplainedRow
from multigate.model.data.raw import raw_values
from multigate.model.data.rows import Rows
from multigate.model.evaluation.combine import gains
from multigate.model.evaluation.scored import Scored, Scorer

POSITIVE = "the highest score among rows whose labels make a gain"
NEGATIVE = "the highest score among rows whose labels make none"
MIDDLE = "the median score"


def explain_rows(
    scorer: Scorer, rows: Rows, scored: Scored, labels: np.ndarray
) -> list[ExplainedRow]:
    """Explain the rows of `choose`, against rows that are evenly spread over the split.

    Args:
        scorer: the model.
        rows: N of them.
        scored: the model's scores of these rows.
        labels: (N, T) in own units, NaN where masked.
    """
    contract = scorer.contract
    background = rows.spread(BACKGROUND).table
    found: list[ExplainedRow] = []
    for chosen, row in choose(contract, _order(contract, scored), labels).items():
        own = rows.take(np.array([row]))
        table = pa.concat_tables([background, own.table])
        raw = raw_values(contract, table, places_of(contract))

        def score(sources: Sources, table: pa.Table = table) -> Mapping[str, np.ndarray]:
            return scorer(Rows(rows.source, mixed(contract, table, sources))).scores

        found.append(
            {
                "chosen": chosen,
                "row": row,
                "labels": {
                    task: None if np.isnan(label) else float(label)
                    for task, label in zip(contract.tasks, labels[row], strict=True)
                },
                "explanation": explain(
                    contract,
                    score,
                    differing(contract, raw),
                    values_of(contract, raw, -1),
                    background="rows, evenly spread over the split",
                    experts=scorer.experts(own),
                ),
            }
        )
    return found


def _order(contract: Contract, scored: Scored) -> np.ndarray:
    """Scores (N,) to choose by: combined; of the first task where no task has a weight."""
    weighted = any(task.score_weight for task in contract.tasks.values())
    return scored.combined if weighted else scored.scores[next(iter(contract.tasks))]


def choose(contract: Contract, combined: np.ndarray, labels: np.ndarray) -> dict[str, int]:
    """Three rows worth a look, or fewer where there are no such: how chosen, and which.

    Rows without any known label are left out.  Where no task has a score weight, a gain is that of
    the first task.

    Args:
        contract: says what a gain is, see `gains`.
        combined: (N,) scores.
        labels: (N, T), NaN where masked.
    """
    weights = {name: task.score_weight for name, task in contract.tasks.items()}
    if not any(weights.values()):
        weights[next(iter(weights))] = 1.0
    gain, known = gains(contract, labels, weights), ~np.isnan(labels).all(axis=1)
    found: dict[str, int] = {}
    for chosen, among in ((POSITIVE, known & (gain > 0)), (NEGATIVE, known & (gain == 0))):
        if among.any():
            found[chosen] = int(np.argmax(np.where(among, combined, -np.inf)))
    order = np.argsort(combined, kind="stable")
    middle = [int(row) for row in order[known[order]] if row not in found.values()]
    if middle:
        found[MIDDLE] = middle[len(middle) // 2]
    return found


def mixed(contract: Contract, table: pa.Table, sources: Sources) -> pa.Table:
    """Rows (n) whose groups of features come from the rows of a table that `sources` names.

    Features that are in no group, such as a position, are those of the table's last row.
    """
    places = places_of(contract)
    last = np.full(len(sources), table.num_rows - 1)
    columns = {
        name: table[name].take(pa.array(sources[:, places[name]] if name in places else last))
        for name in contract.features
        if name in table.column_names
    }
    return pa.table(columns)
