"""Own experts: each task has some besides the shared ones (PLE, Tang et al. 2020, section 4).

This is the paper's Customized Gate Control, PLE with one level.  Task t's gate chooses among the
shared experts and the task's own, so that tasks that contradict one another need not share all.
All G = shared + T * own experts have one order, the mixture's:

    shared 0 .. shared - 1, then the own experts of task 0, of task 1, and so on

A gate numbers the E = shared + own experts that it chooses among in the same order.  Its weights
become a vector over all G experts, with exact zeros for those of other tasks, so that dispatch and
export treat them as any other expert that a gate does not select.
"""

from collections.abc import Sequence

import keras
import numpy as np

from multigate.model.gates.parts.base import Routing, Tensor


def choices(shared: int, own: int, tasks: int) -> list[list[int]]:
    """Which of all G experts each of T gates chooses among, (T, E)."""
    return [[*range(shared), *own_experts(shared, own, task)] for task in range(tasks)]


def own_experts(shared: int, own: int, task: int) -> list[int]:
    """The experts of task number `task` alone."""
    return list(range(shared + task * own, shared + (task + 1) * own))


def spread(weights: Tensor, choice: Sequence[int], experts: int) -> Tensor:
    """A gate's numbers (..., E) for its experts, as numbers (..., G) for all: 0 for the others."""
    if list(choice) == list(range(experts)):
        return weights
    ops = keras.ops
    places = np.full(experts, len(choice), np.int32)
    places[list(choice)] = np.arange(len(choice))
    padded = ops.concatenate([weights, ops.zeros_like(weights[..., :1])], axis=-1)
    return ops.take(padded, places, axis=-1)


def spread_routing(routing: Routing, choice: Sequence[int], experts: int) -> Routing:
    """A gate's routing over its E experts, as one over all G."""
    diagnostics = dict(routing.diagnostics)
    if "load" in diagnostics:  # noisy_topk's expected_load stays a number for each of its own
        diagnostics["load"] = spread(diagnostics["load"], choice, experts)
    return routing._replace(
        weights=spread(routing.weights, choice, experts), diagnostics=diagnostics
    )
