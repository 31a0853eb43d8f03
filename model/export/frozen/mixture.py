"""The mixture as an exported graph computes it.

There are three modes:

    constant  every gate is static: experts that no task selects are left out, the others run on all
              rows and are mixed with constant weights
    dispatch  an expert runs on the rows where some task's weight for it is not zero
    fused     all experts run on all rows as one product and are mixed with weights, zeros included

Gates that weight every expert on every row (softmax), and static shapes (XLA), need `fused`.
Otherwise `export.dispatch` decides, or `choose_mode`.

An expert's first layer is linear in its input, and the input is a user's columns and an item's.  So
the user half of the product is computed once per user and added to the item half of each of the
user's rows.  The same holds for gates that read their input through linear maps.
Those of all tasks are one product, and outside `dispatch` those of all experts are another: as one
they would have to be copied apart, which takes longer than a small product.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from multigate.configs.errors import ExportError
from multigate.configs.sections.model import Dispatch
from multigate.model.checkpoints.weights import to_numpy
from multigate.model.export.frozen.experts import LaterLayers, SelectedExperts, mix_pairs, select
from multigate.model.export.frozen.gates import FrozenGates
from multigate.model.export.frozen.trained import DenseLayer, expert_layers
from multigate.model.export.frozen.user_half import Halves, SplitKernel
from multigate.model.export.frozen.weights import StoredAs
from multigate.model.gates.parts.base import Gate
from multigate.model.moe.mixture import Mixture
from multigate.model.moe.own import spread

Tensor = Any
Mode = Literal["constant", "dispatch", "fused"]

CANDIDATES = 100
"""Rows of the call that `choose_mode` estimates."""
PRODUCT_RATE = 30_000.0
"""Floating-point operations per microsecond of a large product of matrices, on one core."""
EXPERT_COST = 6.0
"""Microseconds that dispatch takes per expert, for its operations."""
PAIR_COST = 0.1
"""Microseconds that dispatch takes per pair of row and expert, to collect it and to mix it."""
ALWAYS_SELECTED = 16
"""From this number of experts on, `auto` evaluates selected pairs only."""
NEARLY_ALL = 0.9
"""Share of the experts that a row selects from which on there is nothing to leave out."""


class FrozenMixture:
    """Gates and experts of a trained mixture, for inference only.

    Attributes:
        mode: see the module's text.
        reason: why it is this mode, a sentence.
        experts: E, how many the trained mixture has.
        kept: indices of the experts in the graph.
        user_width: Du.
        constant_weights: (T, S) over the kept experts if every gate is static, else None.

    Args:
        mixture: the trained mixture; its gates as they are to be exported, hardened or not.
        names: of the gates, for messages.
        columns: (D,) the column of the mixture's input for each column of `Halves`, the user's
            first.
        user_width: Du.
        stored_as: how the file stores the experts' kernels.
        static_shapes: whether no shape may depend on values, as XLA requires: experts then run on
            all rows instead of some.
        dispatch: the mode for gates that allow both, `auto` to choose.
        experts_per_row: mean number of experts that rows select, as measured; None to estimate it.

    Raises:
        ExportError: a task's gate selects no expert at all, or `selected` is asked of gates that
            do not select.
    """

    def __init__(
        self,
        mixture: Mixture,
        names: Sequence[str],
        columns: np.ndarray,
        user_width: int,
        stored_as: StoredAs = "float32",
        static_shapes: bool = False,
        dispatch: Dispatch = "auto",
        experts_per_row: float | None = None,
    ) -> None:
        self.user_width = user_width
        constant = [
            _constant_weights(gate, choice, len(mixture.experts), len(columns))
            for gate, choice in zip(mixture.gates, mixture.choices, strict=True)
        ]
        for name, weights in zip(names, constant, strict=True):
            if weights is not None and not weights.any():
                raise ExportError(
                    f"gate of {name!r}: selects none of the {len(mixture.experts)} experts; "
                    "train with a weaker sparsity penalty (gumbel_softmax) or a larger "
                    "reachability_weight (dselect_k), and export again"
                )
        self.experts = len(mixture.experts)
        self.kept = list(range(self.experts))
        self.constant_weights: np.ndarray | None = None
        self._gates: FrozenGates | None = None
        known = [weights for weights in constant if weights is not None]
        if len(known) == len(mixture.gates):
            stacked = np.stack(known)  # (T, E)
            self.kept = np.flatnonzero(stacked.any(axis=0)).tolist()
            self.constant_weights = stacked[:, self.kept]
        else:
            self._gates = FrozenGates(
                mixture.gates, mixture.choices, len(self.kept), constant, columns
            )
        layers = [expert_layers(mixture.experts[e]) for e in self.kept]
        self.mode, self.reason = _mode(
            mixture.gates, layers, user_width, static_shapes, dispatch, experts_per_row
        )
        self._experts: SelectedExperts | None = None
        self._first: list[SplitKernel] = []
        """Kernels of the products: of all experts, and of all gates; those that there are."""
        self._units = len(layers) * len(layers[0][0].bias)  # S * U1
        self._activation = layers[0][0].activation
        kernels, biases = [], []
        if self.mode == "dispatch":
            self._experts = SelectedExperts(layers, self.kept, columns, user_width, stored_as)
        else:
            self._later = LaterLayers([later for _, *later in layers], stored_as)
            kernels.append(np.concatenate([first.kernel[columns] for first, *_ in layers], axis=1))
            biases.append(np.concatenate([first.bias for first, *_ in layers]))
        if self._gates is not None and self._gates.kernel.shape[1]:
            kernels.append(self._gates.kernel)
            biases.append(self._gates.bias)
        stored: list[StoredAs] = ["float32"] if self.mode == "dispatch" else [stored_as, "float32"]
        self._first = [
            SplitKernel(kernel, user_width, bias, how)
            for kernel, bias, how in zip(kernels, biases, stored, strict=False)
        ]

    def precompute_items(self, items: np.ndarray) -> int:
        """Store what items (R, Di) add to the first layers; return the size in bytes."""
        size = 0 if self._experts is None else self._experts.precompute_items(items)
        return size + sum(kernel.precompute_items(items) for kernel in self._first)

    def __call__(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> Tensor:
        """Mix the experts for every gate.

        Args:
            halves: the experts' input.
            gate_input: returns the gates' input (N, D), columns in the mixture's order; called only
                if a gate does not read products.
            ids: (N,) int32, for gates that route by id; None where none does.

        Returns:
            (T, N, U).
        """
        first, weights = self._route(halves, gate_input, ids)
        if self._experts is not None:
            used = _used(weights)
            with tf.name_scope("dispatch"):
                pairs = select(used)
            results = self._experts(halves, pairs)
            with tf.name_scope("mix"):
                return mix_pairs(weights, used, results)
        with tf.name_scope("experts"):
            x = self._activation(first)
            x = tf.reshape(x, [-1, len(self.kept), self._units // len(self.kept)])  # (N, S, U1)
            if len(self._later):
                x = tf.transpose(self._later(tf.transpose(x, [1, 0, 2])), [1, 0, 2])  # (N, S, U)
        with tf.name_scope("mix"):
            if self.constant_weights is not None:
                return self._mix_constant(tf.transpose(x, [1, 0, 2]))
            return tf.transpose(tf.matmul(weights, x), [1, 0, 2])

    def count_experts(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None, rows: Tensor
    ) -> Tensor:
        """How many experts each row is evaluated by, the union over the tasks.

        Args:
            halves: as in `__call__`.
            gate_input: as in `__call__`.
            ids: as in `__call__`.
            rows: (), N.  Unless the gates decide row by row, nothing else is read.

        Returns:
            (N,) int32.
        """
        if self.mode != "dispatch":
            return tf.fill([rows], len(self.kept))
        _, weights = self._route(halves, gate_input, ids)
        return tf.math.count_nonzero(_used(weights), axis=1, dtype=tf.int32)

    def weights(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None, rows: Tensor
    ) -> Tensor:
        """Each task's weights of all trained experts, (N, T, E); arguments as in `count_experts`.

        An expert that is not in the graph has 0.
        """
        if self.constant_weights is not None:
            whole = np.zeros((len(self.constant_weights), self.experts), np.float32)
            whole[:, self.kept] = self.constant_weights
            return tf.tile(whole[None], [rows, 1, 1])
        _, weights = self._route(halves, gate_input, ids)
        return weights

    def _route(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Sums (N, S * U1) of the first layers outside `dispatch`, and weights (N, T, S)."""
        with tf.name_scope("first_layers"):
            products = [kernel(halves) for kernel in self._first]
        first = None if self._experts is not None else products.pop(0)
        of_gates = products[0] if products else None
        if self._gates is None:
            return first, None
        rows = tf.shape(halves.item)[0]
        return first, self._gates(of_gates, rows, gate_input, ids)

    def _mix_constant(self, results: Tensor) -> Tensor:
        """Constant mixes (T, N, U) of results (S, N, U)."""
        weights = self.constant_weights
        assert weights is not None
        if (np.count_nonzero(weights, axis=1) == 1).all():
            chosen, scale = weights.argmax(axis=1), weights.max(axis=1)
            if list(chosen) != list(range(len(self.kept))):
                results = tf.gather(results, chosen)
            return results if (scale == 1).all() else results * scale[:, None, None]
        N, U = tf.shape(results)[1], results.shape[-1]
        flat = tf.reshape(results, [len(self.kept), -1])  # (S, N * U)
        return tf.reshape(tf.matmul(tf.constant(weights), flat), [len(weights), N, U])


def choose_mode(
    layers: Sequence[DenseLayer], user_width: int, experts: int, experts_per_row: float
) -> tuple[Mode, str]:
    """The cheaper mode for a call of `rank`, and the reason.

    Of a call with N = `CANDIDATES` rows, E experts of F operations per row and r selected per row:

        fused     N E F / PRODUCT_RATE                                        microseconds
        dispatch  N r (F / PRODUCT_RATE + PAIR_COST) + E EXPERT_COST

    The constants were measured by `benchmarks/inference.py` (docs/results/inference.md).  From
    `ALWAYS_SELECTED` experts on it is dispatch, unless rows select nearly all of them: sparse
    inference is what so many experts are for, and calls with more candidates gain.

    Args:
        layers: of one expert.
        user_width: columns that are multiplied once per user.
        experts: E.
        experts_per_row: r.
    """
    operations = sum(2 * layer.kernel.size for layer in layers)
    operations -= 2 * user_width * layers[0].kernel.shape[1]
    each = CANDIDATES * operations / PRODUCT_RATE
    fused = experts * each
    selected = experts_per_row * (each + CANDIDATES * PAIR_COST) + experts * EXPERT_COST
    costs = (
        f"estimated microseconds of {CANDIDATES} candidates: all {experts} experts {fused:.0f}, "
        f"the {experts_per_row:.1f} that a row selects {selected:.0f}"
    )
    if experts >= ALWAYS_SELECTED and experts_per_row < NEARLY_ALL * experts:
        return "dispatch", f"{experts} experts, at least {ALWAYS_SELECTED}; {costs}"
    return ("dispatch" if selected < fused else "fused"), costs


def _mode(
    gates: Sequence[Gate],
    layers: Sequence[Sequence[DenseLayer]],
    user_width: int,
    static_shapes: bool,
    dispatch: Dispatch,
    experts_per_row: float | None,
) -> tuple[Mode, str]:
    """The mode of a mixture, and the reason."""
    if all(gate.static for gate in gates):
        return "constant", "every gate is static"
    dense = [g for g in gates if not (g.static or g.properties.sparse_at_inference)]
    if dense:
        if dispatch == "selected":
            raise ExportError(
                f"export.dispatch: selected needs gates that select experts, received a gate "
                f"{type(dense[0]).__name__}, which weights all of them; set auto or fused"
            )
        return "fused", f"a {type(dense[0]).__name__} gate weights every expert"
    if static_shapes:
        return "fused", "XLA compiles shapes that do not depend on the routing"
    if dispatch != "auto":
        mode: Mode = "fused" if dispatch == "fused" else "dispatch"
        return mode, f"export.dispatch is {dispatch}"
    E = len(layers)
    if experts_per_row is None:  # as if each task drew its experts on its own
        missed = np.prod([1 - min(gate.num_selected, E) / E for gate in gates])
        experts_per_row = float(E * (1 - missed))
    return choose_mode(layers[0], user_width, E, experts_per_row)


def _used(weights: Tensor) -> Tensor:
    """For weights (N, T, S) >= 0: whether some task uses the expert on the row, (N, S)."""
    return tf.reduce_max(weights, axis=1) > 0


def _constant_weights(
    gate: Gate, choice: Sequence[int], experts: int, width: int
) -> np.ndarray | None:
    """Weights (E,) of a static gate for all experts; None for other gates."""
    if not gate.static:
        return None
    weights = gate.route(keras.ops.zeros((1, width)), training=False, ids=None).weights
    return to_numpy(spread(weights, choice, experts)).astype(np.float32)
