"""Whether a candidate version may replace the one in production: by recall, as both are served.

Both files are asked the same questions (`evaluation.ask`, `next_item`) of the night's test split,
each with the index that it has: what is not in production's index, production does not find.

    recall@k = share of questions whose answer is among the first k
    loss = recall of production - recall of the candidate, over the same questions
"""

from pathlib import Path
from typing import Any

import numpy as np

from multigate.candidates.evaluation import Questions, next_items, popularity, recall
from multigate.candidates.exported import Exported, contract_of
from multigate.candidates.pairs import Catalogue, Pairs
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.model.data.encoding import Encoder

BLESS, REFUSE = "bless", "refuse"


def compare(
    candidate: Path, production: Path | None, examples: Path, config: CandidatesConfig
) -> dict[str, Any]:
    """Judge a candidate version.

    Args:
        candidate: its folder.
        production: the version to be replaced; None where there is none.
        examples: whose test split asks, of the candidate's schema.
        config: k and the rules.

    Returns:
        `verdict` (bless or refuse), `reasons`, `positives`, `questions`, `k`, `recall`
        (`candidate`, `production`, `popularity`; None where there is none to compare with), `loss`
        and `interval` (95 %, normal, paired over questions; None without production).

    Raises:
        ModelError: not a candidate version, or of another schema than the examples.
        DataError: the examples cannot be read.
    """
    new = Exported(candidate)
    schema = FrozenContract.read(ExamplesFolder(examples).contract).schema_fingerprint
    if contract_of(candidate).schema_fingerprint != schema:
        raise ModelError(
            f"{candidate}: schema {contract_of(candidate).schema_fingerprint}, the examples in "
            f"{examples} have {schema}; use examples of the candidate's own contract"
        )
    encoder, k = Encoder.read(examples), config.recall_at
    pairs, items, asked = next_items(examples, encoder, new.positives())
    found: dict[str, Any] = {"positives": new.positives(), "questions": len(asked), "k": k}
    if not len(asked):
        reason = "the test split asks no question: all its positives are known from earlier splits"
        return {"verdict": REFUSE, "reasons": [reason]} | found
    hits = _hits(new, encoder.contract, pairs, asked, items, k)
    reached: dict[str, float | None] = {
        "candidate": float(hits.mean()),
        "production": None,
        "popularity": recall(popularity(asked), asked, (k,))[k],
    }
    found |= {"recall": reached, "loss": None, "interval": None}
    # Another schema's inputs cannot be asked of these examples.
    if production is not None and contract_of(production).schema_fingerprint == schema:
        before = _hits(Exported(production), encoder.contract, pairs, asked, items, k)
        loss = before.astype(float) - hits
        spread = 1.96 * loss.std(ddof=1) / np.sqrt(len(asked)) if len(asked) > 1 else 1.0
        reached["production"] = float(before.mean())
        found["loss"] = float(loss.mean())
        found["interval"] = [float(loss.mean() - spread), float(loss.mean() + spread)]
    reasons = _reasons(reached, config)
    return {"verdict": REFUSE if reasons else BLESS, "reasons": reasons} | found


def _hits(
    version: Exported, contract: Contract, pairs: Pairs, asked: Questions, items: Catalogue, k: int
) -> np.ndarray:
    """Whether each question's answer is among the first k, (Q,)."""
    hits = np.zeros(len(asked), bool)
    for row, _, found in version.answers(contract, pairs, asked, items, k):
        unseen = found[~np.isin(found, asked.seen[row].indices)]
        hits[row] = bool(np.isin(asked.right[row].indices, unseen[:k]).any())
    return hits


def _reasons(reached: dict[str, float | None], config: CandidatesConfig) -> list[str]:
    """What speaks against the candidate; a recall that is not there is not compared with."""
    limits = (
        ("production", "that of production", config.rules.largest_loss),
        ("popularity", "that of the most popular items", config.rules.largest_below_popularity),
    )
    ours, reasons = reached["candidate"], []
    assert ours is not None
    for name, words, limit in limits:
        other = reached[name]
        if other is not None and other - ours > limit:
            reasons.append(
                f"recall@{config.recall_at} of {ours:.4f} is {other - ours:.4f} below {words}, "
                f"{other:.4f}; the limit is {limit:g}"
            )
    return reasons
