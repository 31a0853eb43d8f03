"""Explains one item's scores by running the version that serves it; see `explanation`.

The background is the version's own example rows, which its export took from the test split, or the
request's other candidates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from multigate.configs.errors import one_line
from multigate.explanation import arrays
from multigate.explanation.document import BACKGROUND, PAIRS, SCORE, Explanation, explain
from multigate.explanation.shapley import MOST_EXACT, Sources, rows_needed
from multigate.runtime.tensorflow_messages import prediction_log_pb2
from multigate.serving.core.layout import (
    DEFAULT,
    RANK,
    TASK_WEIGHTS,
    USER_INDEX,
    Arrays,
    default_layout,
    rank_layout,
)
from multigate.serving.core.status import InvalidRequestError, WrongStateError
from multigate.serving.core.tensors import decode
from multigate.serving.request.rank_request import ParsedRequest
from multigate.serving.versions.batching import split_call
from multigate.serving.versions.folders import WARMUP
from multigate.serving.versions.records import read_records
from multigate.serving.versions.saved_model import SavedModel

GATES, WATCH, UNSEEN = "gates", "watch", "unseen/"
MOST_ROWS = 100_000
"""Rows that one explanation may score."""
_RUN_ROWS = 800
"""Of one run of the model; other calls' runs come in between."""

Against = Literal["examples", "candidates"]


@dataclass(frozen=True)
class Background:
    """Rows to compare with: inputs of `serving_default` with B rows, and what they are."""

    rows: Arrays
    of: str


@dataclass(frozen=True)
class Drawing:
    """How orders of the features are drawn; `pairs` None takes all, see `explanation.shapley`."""

    pairs: int | None = PAIRS
    seed: int = 0


_DRAWING = Drawing()


def example_rows(
    saved_model: SavedModel, folder: Path | None, most: int = BACKGROUND
) -> Background:
    """The rows of the version's largest recorded `serving_default` request, evenly thinned.

    Args:
        saved_model: the version.
        folder: of the version; None where it has none.
        most: rows.

    Raises:
        WrongStateError: the version's folder holds no such request.
    """
    if folder is None:
        raise WrongStateError("the version has no folder with example rows to compare with")
    path = folder / WARMUP
    signature = saved_model.signatures[DEFAULT]
    largest: Arrays = {}
    try:
        for record in read_records(path):
            log = prediction_log_pb2.PredictionLog.FromString(record)
            request = log.predict_log.request
            if request.model_spec.signature_name != DEFAULT:
                continue
            rows = {
                name: decode(name, tensor, signature.inputs[name])
                for name, tensor in request.inputs.items()
            }
            if not largest or _count(rows) > _count(largest):
                largest = rows
    except Exception as error:
        reason = one_line(error)
        raise WrongStateError(
            f"{path}: cannot be read for example rows to compare with: {reason}; export the "
            "version again, or compare with the other candidates"
        ) from None
    if not largest:
        raise WrongStateError(
            f"{path}: expected a request of {DEFAULT!r} with example rows to compare with, found "
            "none; export the version again, or compare with the other candidates"
        )
    return Background(thinned(largest, most), "example rows of the version")


def thinned(rows: Arrays, most: int) -> Arrays:
    """At most so many of the rows, evenly spread."""
    count = _count(rows)
    kept = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
    return {name: values[kept] for name, values in rows.items()}


def explain_row(
    saved_model: SavedModel,
    row: Arrays,
    background: Background,
    drawing: Drawing,
    weights: Mapping[str, float] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Explanation:
    """Explain one row of features.

    Args:
        saved_model: the version.
        row: inputs of `serving_default` with one row.
        background: rows to compare with.
        drawing: how orders are drawn.
        weights: of tasks, instead of the contract's.
        check: called between runs of the model; raises to stop.

    Raises:
        InvalidRequestError: too few or too many orders, or scores that are not finite.
        ModelRuntimeError: the graph refuses the row.
    """
    contract = saved_model.contract
    rows = arrays.stacked(background.rows, row)
    differs = arrays.differing(contract, rows)
    _check_drawing(drawing, differs)

    def score(sources: Sources) -> Mapping[str, np.ndarray]:
        parts: list[Arrays] = []
        for start in range(0, len(sources), _RUN_ROWS):
            check()
            inputs = arrays.mixed(contract, rows, sources[start : start + _RUN_ROWS])
            parts.append(saved_model.signatures[DEFAULT](inputs))
        found = {name: np.concatenate([part[name] for part in parts]) for name in contract.tasks}
        for name, values in found.items():
            if not np.isfinite(values).all():
                raise InvalidRequestError(
                    f"output {name!r}: expected finite scores, the model computes others: numbers "
                    "of the row are too large"
                )
        return found

    experts = None
    if GATES in saved_model.signatures:
        alone = {name: values[-1:] for name, values in rows.items()}
        of_row = saved_model.signatures[GATES](alone)
        experts = {task: of_row[task][0] for task in contract.tasks}
    return explain(
        contract,
        score,
        differs,
        arrays.values_of(contract, rows, -1),
        background=background.of,
        experts=experts,
        weights=weights,
        pairs=drawing.pairs,
        seed=drawing.seed,
    )


def explain_candidate(
    saved_model: SavedModel,
    folder: Path | None,
    parsed: ParsedRequest,
    candidate: int,
    against: Against = "examples",
    drawing: Drawing = _DRAWING,
    check: Callable[[], None] = lambda: None,
    background: Background | None = None,
) -> Explanation:
    """Explain one candidate of a Rank request, and say its place among all.

    Args:
        saved_model: the version.
        folder: of the version.
        parsed: the request with all features, for one user.
        candidate: its place in the request, from 0.
        against: what to compare with: the version's example rows, or the other candidates.
        drawing: how orders are drawn.
        check: called between runs of the model; raises to stop.
        background: other rows to compare with, whatever `against` says.

    Raises:
        InvalidRequestError: no such candidate, one without score, no others to compare with,
            or see `explain_row`.
        WrongStateError: see `example_rows`.
    """
    candidate = parsed.row(candidate)
    contract = saved_model.contract
    if background is None and against == "candidates":
        others = np.delete(np.arange(parsed.rows), candidate)
        if not len(others):
            raise InvalidRequestError(
                "candidates: expected others to compare with, received one only; compare with "
                "examples"
            )
        rows = thinned(_rows_of(saved_model, parsed.inputs, others), BACKGROUND)
        background = Background(rows, "other candidates of the request")
    elif background is None:
        background = example_rows(saved_model, folder)
    row = _rows_of(saved_model, parsed.inputs, np.array([candidate]))
    weights = dict(zip(contract.tasks, parsed.inputs[TASK_WEIGHTS][0].tolist(), strict=True))
    # The shortest decimals of these float32: 0.2 stays 0.2.
    weights = {task: float(f"{weight:.7g}") for task, weight in weights.items()}
    found = explain_row(saved_model, row, background, drawing, weights, check)
    scores = _scores(saved_model, parsed, check)
    found["place"] = 1 + int(np.flatnonzero(np.argsort(-scores, kind="stable") == candidate)[0])
    found["candidates"] = parsed.rows
    found["unseen"] = _unseen(saved_model, parsed.inputs, candidate)
    found["warnings"] = parsed.warnings()
    return found


def _check_drawing(drawing: Drawing, differs: np.ndarray) -> None:
    """Refuse orders that are too few or too many, by the names that callers use."""
    B, G = differs.shape
    if drawing.seed < 0:
        raise InvalidRequestError(f"seed: expected 0 or more, received {drawing.seed}")
    if drawing.pairs is None:
        most = int(differs.sum(axis=1).max())
        if most > MOST_EXACT:
            raise InvalidRequestError(
                f"exact: expected at most {MOST_EXACT} groups of features that differ from the "
                f"background, received {most}; draw orders with pairs"
            )
        return
    if drawing.pairs < 2:
        raise InvalidRequestError(f"pairs: expected 2 or more, received {drawing.pairs}")
    needed = rows_needed(B, G, drawing.pairs)
    if needed > MOST_ROWS:
        highest = (MOST_ROWS // B - 1) // (2 * max(G - 1, 1))
        raise InvalidRequestError(
            f"pairs: expected at most {highest} for {B} background rows and {G} groups of "
            f"features, received {drawing.pairs}: {needed:,} rows would be scored"
        )


def _rows_of(saved_model: SavedModel, inputs: Arrays, candidates: np.ndarray) -> Arrays:
    """Some candidates of a `rank` request for one user, as rows of `serving_default`."""
    layout = rank_layout(saved_model.contract)
    user = np.zeros(len(candidates), np.int64)
    return {
        name: inputs[name][user if layout.inputs[name].axis == "users" else candidates]
        for name in default_layout(saved_model.contract).inputs
    }


def _scores(
    saved_model: SavedModel, parsed: ParsedRequest, check: Callable[[], None]
) -> np.ndarray:
    """Combined scores of all candidates, as `rank` serves them, (N,)."""
    parts = []
    layout = rank_layout(saved_model.contract)
    for part, _ in split_call(parsed.inputs, parsed.rows, _RUN_ROWS, layout):
        check()
        parts.append(saved_model.signatures[RANK](part)[SCORE])
    found: np.ndarray = np.concatenate(parts)
    return found


def _unseen(saved_model: SavedModel, inputs: Arrays, candidate: int) -> list[str]:
    """Features of the user and the candidate with an id that is not in the vocabulary."""
    if WATCH not in saved_model.signatures:
        return []
    layout = rank_layout(saved_model.contract)
    alone = {
        name: inputs[name]
        if what.axis == "users"
        else inputs[name][[0] if name == USER_INDEX else [candidate]]
        for name, what in layout.inputs.items()
    }
    counts: Mapping[str, Any] = saved_model.signatures[WATCH](alone)
    return [
        name.removeprefix(UNSEEN)
        for name, count in counts.items()
        if name.startswith(UNSEEN) and int(count)
    ]


def _count(rows: Arrays) -> int:
    return len(next(iter(rows.values())))
