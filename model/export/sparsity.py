"""How much of the mixture a version evaluates: experts per task and arithmetic per candidate."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multigate.model.export.graph import Servable
from multigate.model.ranker.ranker import Ranker


def report(
    ranker: Ranker, servable: Servable, rows: int, experts_per_row: float, load: Mapping[str, Any]
) -> dict[str, Any]:
    """What `sparsity.json` holds.

    Floating-point operations count 2 per multiplication of a matrix product; look-ups, pooling
    and activations are left out.  Per candidate:

        dense       every expert on every row, as the same weights would run without selection
        sparse      the experts that the rows select, through `serving_default`
        rank        the same through `rank`, where the user half of the experts' first layer and
                    of the gates is computed once per user (`flops_per_user`)
        minimum     the item half and later layers of the selected experts, and the towers, with
                    the routing and the user given

    Args:
        ranker: as exported, hardened.
        servable: made from it.
        rows: how many test rows the numbers were measured on.
        experts_per_row: mean number of distinct experts that a row selects.
        load: by task, (E,) share of the rows that use each expert.
    """
    mixture = servable.mixture
    E = len(ranker.mixture.experts)
    per_row = {"constant": len(mixture.kept), "dense": E, "dispatch": experts_per_row}[mixture.mode]
    kernels = [
        layer.kernel.shape for layer in ranker.mixture.experts[0].stack if hasattr(layer, "kernel")
    ]
    U1 = kernels[0][1]
    expert = sum(2 * rows_ * columns for rows_, columns in kernels)
    user_half = 2 * mixture.user_width * U1
    gates, of_users = 0, 0
    for gate in ranker.mixture.gates:
        for kernel, _ in gate.linear_maps():
            gates += 2 * int(np.prod(kernel.shape))
            if gate.reads_products:
                of_users += 2 * mixture.user_width * kernel.shape[1]
    towers = sum(
        2 * int(np.prod(variable.shape))
        for tower in ranker.towers.values()
        for variable in tower.trainable_weights
        if len(variable.shape) == 2
    )
    return {
        "mode": mixture.mode,
        "dense": mixture.mode == "dense",
        "experts": E,
        "experts_in_file": len(mixture.kept),
        "kept": mixture.kept,
        "tasks": {
            task: {
                "gate": type(gate).__name__,
                "static": gate.static,
                "hardened": gate.hardened,
                "experts": [e for e in range(E) if load[task][e] > 0],
                "experts_per_row": float(np.sum(load[task])),
            }
            for task, gate in zip(ranker.contract.tasks, ranker.mixture.gates, strict=True)
        },
        "rows": rows,
        "experts_per_row": per_row,
        "ceiling": E / per_row,
        "flops_per_candidate": {
            "dense": E * expert + gates + towers,
            "sparse": round(per_row * expert) + gates + towers,
            "rank": round(per_row * (expert - user_half)) + gates - of_users + towers,
            "minimum": round(per_row * (expert - user_half)) + towers,
        },
        "flops_per_user": {"rank": len(mixture.kept) * user_half + of_users},
    }
