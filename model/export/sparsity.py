"""Sparsity report: the experts that a version evaluates per task, and arithmetic per candidate."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np

from multigate.model.export.acceptance import Changes
from multigate.model.export.frozen.gates import maps_that_are_read
from multigate.model.export.frozen.mixture import FrozenMixture
from multigate.model.export.parity import Parity
from multigate.model.ranker.ranker import Ranker


class TaskSparsity(TypedDict):
    """One task's gate, and the experts that it uses on test rows."""

    gate: str
    static: bool
    hardened: bool
    experts: list[int]
    experts_per_row: float


class Flops(TypedDict):
    """Floating-point operations per candidate.

    Products of matrices count 2 per multiplication; look-ups, sums over lists and activations do
    not count.  Poolings with layers count: target attention for each candidate, a sequence encoder
    for each user, both for a list of `max_length`.  Cross layers count for each candidate, apart
    from the user half of their first product.

    Attributes:
        dense: every expert on every row, as the same weights would run without selection.
        sparse: the experts that the rows select, through `serving_default`.
        rank: the same through `rank`, where the user half of the experts' first layer and of the
            gates is computed once per user (`flops_per_user`).
        minimum: the item half and later layers of the selected experts, the towers, and what
            target attention and cross layers compute for each candidate, with the routing and the
            user given.
    """

    dense: int
    sparse: int
    rank: int
    minimum: int


class Items(TypedDict):
    """The item table in the file; `as_of_the_cut_off` names features that keep changing."""

    known: int
    precomputed: bool
    bytes: int
    as_of_the_cut_off: list[str]


class SparsityReport(TypedDict):
    """What `sparsity.json` holds; see `FrozenMixture` for `mode`, `reason` and `kept`.

    `dense` is true in mode `fused`.  `selected_per_row` is the mean number of experts that a test
    row selects, `experts_per_row` that of experts that evaluate it, `ceiling` the number of experts
    over the latter.
    """

    mode: str
    reason: str
    dense: bool
    experts: int
    experts_in_file: int
    kept: list[int]
    tasks: dict[str, TaskSparsity]
    rows: int
    selected_per_row: float
    experts_per_row: float
    ceiling: float
    flops_per_candidate: Flops
    flops_per_user: dict[str, int]
    hardening: Changes
    parity: Parity
    items: NotRequired[Items]


def report(
    ranker: Ranker,
    mixture: FrozenMixture,
    rows: int,
    experts_per_row: float,
    load: Mapping[str, Any],
    hardening: Changes,
    parity: Parity,
) -> SparsityReport:
    """The sparsity report of a version.

    Args:
        ranker: as exported, hardened.
        mixture: made from it.
        rows: number of test rows on which the next two were measured.
        experts_per_row: mean number of distinct experts that a row selects.
        load: by task, (E,) share of the rows that use each expert.
        hardening: what hardening the gates changed.
        parity: result of the comparison with the Keras model.
    """
    E = len(ranker.mixture.experts)
    per_row = {"constant": len(mixture.kept), "fused": E, "dispatch": experts_per_row}[mixture.mode]
    kernels = [layer.kernel.shape for layer in ranker.mixture.experts[0].dense_layers]
    U1 = kernels[0][1]
    expert = sum(2 * rows_ * columns for rows_, columns in kernels)
    user_half = 2 * mixture.user_width * U1
    gates, of_users = 0, 0
    for gate in ranker.mixture.gates:
        # Not the kernel of noise, which training alone reads.
        maps = maps_that_are_read(gate) if gate.reads_products else gate.linear_maps()
        for kernel, _ in maps:
            gates += 2 * int(np.prod(kernel.shape))
            if gate.reads_products:
                of_users += 2 * mixture.user_width * kernel.shape[1]
    towers = sum(
        2 * int(np.prod(variable.shape))
        for tower in ranker.towers.values()
        for variable in tower.trainable_weights
        if len(variable.shape) == 2
    )
    of_user, of_pair = _before_mixture(ranker)
    return {
        "mode": mixture.mode,
        "reason": mixture.reason,
        "dense": mixture.mode == "fused",
        "experts": E,
        "experts_in_file": len(mixture.kept),
        "kept": mixture.kept,
        "tasks": {
            task: {
                "gate": type(gate := ranker.mixture.gates[number]).__name__,
                "static": gate.static,
                "hardened": gate.hardened,
                "experts": [e for e in range(E) if load[task][e] > 0],
                "experts_per_row": float(np.sum(load[task])),
            }
            for task, number in ranker.gate_of.items()
        },
        "rows": rows,
        "selected_per_row": experts_per_row,
        "experts_per_row": per_row,
        "ceiling": E / per_row,
        "flops_per_candidate": {
            "dense": E * expert + gates + towers + of_user + of_pair,
            "sparse": round(per_row * expert) + gates + towers + of_user + of_pair,
            "rank": round(per_row * (expert - user_half)) + gates - of_users + towers + of_pair,
            "minimum": round(per_row * (expert - user_half)) + towers + of_pair,
        },
        "flops_per_user": {"rank": len(mixture.kept) * user_half + of_users + of_user},
        "hardening": hardening,
        "parity": parity,
    }


def _before_mixture(ranker: Ranker) -> tuple[int, int]:
    """Operations of poolings and cross layers: for each user, and for each candidate."""
    embedder = ranker.embedder
    of_user, of_pair = 0, 0
    if ranker.cross is not None:
        parts = embedder.parts_of("user")
        of_user, of_pair = ranker.cross.operations(sum(embedder.widths[name] for name in parts))
    for name, attention in embedder.attentions.items():
        once, each = attention.operations(_length(ranker, name))
        of_user, of_pair = of_user + once, of_pair + each
    for name, sequence in embedder.sequences.items():
        of_user += sequence.operations(_length(ranker, name))
    return of_user, of_pair


def _length(ranker: Ranker, name: str) -> int:
    feature: Any = ranker.contract.features[name]
    return int(feature.max_length)
