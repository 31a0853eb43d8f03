"""Whether a candidate version may replace the one in production: by recall, as both are served.

Both files answer the same questions (`evaluation.make_questions`, `next_item`) of the night's test
split, each with its own index: an item that is not in production's index counts as a miss of
production.

    recall@k = share of questions whose answer is among the first k
    loss = recall of production - recall of the candidate, over the same questions
"""

from pathlib import Path

import numpy as np

from multigate.candidates.evaluation import (
    Questions,
    interval_by_user,
    next_item_questions,
    no_question,
    popularity,
    recall,
)
from multigate.candidates.exported import Exported, contract_of
from multigate.candidates.pairs import Catalogue, Pairs
from multigate.candidates.verdict import BLESS, REFUSE, CandidateVerdict
from multigate.configs.contract import Contract
from multigate.configs.files import SPLITS
from multigate.configs.lineage import check_schema
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.model.data.encoding import Encoder


def compare(
    candidate: Path, production: Path | None, examples: Path, config: CandidatesConfig
) -> CandidateVerdict:
    """Judge a candidate version.

    Args:
        candidate: its folder.
        production: the version to be replaced; None where there is none.
        examples: folder whose test split gives the questions, of the candidate's schema.
        config: k and the rules.

    Raises:
        ModelError: not a candidate version, or of another schema than the examples.
        DataError: the examples cannot be read.
    """
    new = Exported(candidate)
    made = check_schema(candidate, contract_of(candidate), examples)
    encoder, k, positives = Encoder.read(examples), config.recall_at, new.positives()
    pairs, items, questions = next_item_questions(examples, encoder, positives)
    verdict: CandidateVerdict = {
        "verdict": REFUSE,
        "reasons": [],
        "positives": positives,
        "questions": len(questions),
        "k": k,
    }
    if not len(questions):
        verdict["reasons"] = [no_question(SPLITS[-1])]
        return verdict
    hits = _hits(new, encoder.contract, pairs, questions, items, k)
    recalls: dict[str, float | None] = {
        "candidate": float(hits.mean()),
        "production": None,
        "popularity": recall(popularity(questions), questions, (k,))[k],
    }
    verdict |= {"recall": recalls, "loss": None, "interval": None}
    # A production of another schema has other inputs than these examples.
    if (
        production is not None
        and contract_of(production).schema_fingerprint == made.schema_fingerprint
    ):
        before = _hits(Exported(production), encoder.contract, pairs, questions, items, k)
        loss = before.astype(float) - hits
        recalls["production"] = float(before.mean())
        verdict["loss"] = float(loss.mean())
        verdict["interval"] = interval_by_user(loss, pairs.users[questions.rows])
    verdict["reasons"] = _reasons(recalls, config)
    verdict["verdict"] = REFUSE if verdict["reasons"] else BLESS
    return verdict


def _hits(
    version: Exported,
    contract: Contract,
    pairs: Pairs,
    questions: Questions,
    items: Catalogue,
    k: int,
) -> np.ndarray:
    """Whether each question's answer is among the first k, (Q,)."""
    hits = np.zeros(len(questions), bool)
    for row, _, found in version.retrieved(contract, pairs, questions, items, k):
        unseen = found[~np.isin(found, questions.seen[row].indices)]
        hits[row] = bool(np.isin(questions.answers[row].indices, unseen[:k]).any())
    return hits


def _reasons(recalls: dict[str, float | None], config: CandidatesConfig) -> list[str]:
    """Reasons to refuse the candidate. A recall of None is not compared with."""
    limits = (
        ("production", "that of production", "largest_loss"),
        ("popularity", "that of the most popular items", "largest_below_popularity"),
    )
    ours, reasons = recalls["candidate"], []
    assert ours is not None
    for name, text, key in limits:
        other, limit = recalls[name], getattr(config.rules, key)
        if other is not None and other - ours > limit:
            reasons.append(
                f"recall@{config.recall_at} of {ours:.4f} is {other - ours:.4f} below {text}, "
                f"{other:.4f}; the limit is {limit:g} (candidates.rules.{key})"
            )
    return reasons
