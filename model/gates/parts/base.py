"""What every gate is: a Keras layer from features to expert weights.

Axis legend of code, docstrings and tests:

    B  examples in a batch      D  input features of a gate
    E  experts                  k  experts selected per example and task
    T  tasks (one gate each)    U  units of an expert's output

Gates decide what is computed: an expert runs on an example if, and only if, some task's weight for
it is not exactly zero.  Where a gate's weight is exactly zero, its gradient is exactly zero too, so
skipping the expert changes neither output nor gradient.
"""

import zlib
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import keras

from multigate.model import backend

Tensor = Any  # a tensor of the backend that Keras runs on


class Routing(NamedTuple):
    """What a gate decides for one batch.

    Attributes:
        weights: (B, E), or (E,) from a static gate; float; weight of each expert, >= 0.
        losses: named regularisation terms, scalars that include their strength; the training loss
            adds them up.  Empty outside training.
        diagnostics: named scalars or vectors to log: `entropy` (nats, mean over the batch),
            `experts_per_example` (mean number of non-zero weights), `load` (E,) (share of the
            examples that use each expert); gates add their own, such as `convergence`.
        log_prob: (B,) log probability of the drawn expert; sampled routers only.
        importance: (B,) importance weight, without gradient; sampled routers only.
        kept: (B,) 1.0 if the example found room at its expert, else 0.0; sampled routers only.
    """

    weights: Tensor
    losses: dict[str, Tensor]
    diagnostics: dict[str, Tensor]
    log_prob: Tensor | None = None
    importance: Tensor | None = None
    kept: Tensor | None = None


@dataclass(frozen=True)
class Properties:
    """What a gate guarantees; tests check it and export relies on it.

    Attributes:
        static: one weight vector for all examples.
        sparse_in_training: at most k non-zero weights per example from the first step.
        sparse_at_inference: at most k non-zero weights per example at inference.
        batch_dependent: in training, a row's weights depend on other rows of the batch (never at
            inference).
        normalised: weights sum to one; otherwise to at most one.
        straight_through: in training, a zero weight may carry gradient, so every expert must run
            on every example (hard Gumbel-softmax only).
    """

    static: bool
    sparse_in_training: bool
    sparse_at_inference: bool
    batch_dependent: bool = False
    normalised: bool = True
    straight_through: bool = False


class _Traced:
    """Checks of a call that JAX traces, which cannot raise; hidden from Keras's tracking."""

    def __init__(self) -> None:
        self.finite: list[Tensor] = []


class Gate(keras.layers.Layer):
    """Base class of the gates: checks the common arguments and completes the `Routing`.

    A subclass implements `build` (its variables), `route` and `properties`.  `has_static` and
    `has_per_example` say which of the two forms it has.

    Gates compute in float32 under any global dtype policy, unless `dtype` is given: in half
    precision neighbouring logits tie and small weights vanish.

    Args:
        num_experts: E >= 1.
        num_selected: k, 1 <= k <= E.
        static: one weight vector for all examples instead of one per example.
        seed: seed of the initialisers and of the training noise.

    Raises:
        ValueError: an argument is out of range, or the gate does not have that form.
    """

    has_static: ClassVar[bool] = True
    has_per_example: ClassVar[bool] = True
    reads_products: ClassVar[bool] = False
    """Whether inference reads its input only through `linear.product`, with kernels (D, .) that are
    weights of the gate."""

    input_weights: ClassVar[tuple[tuple[str, str | None], ...]] = ()
    """Weights (D, .) whose first axis is the input's features: the name of each, and the name of
    the bias (.,) that is added to its product, or None."""

    reads_ids = False
    """Whether routing needs `ids`."""

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        for argument, value in (("num_experts", num_experts), ("num_selected", num_selected)):
            if not isinstance(value, Integral):
                raise ValueError(f"{argument}: expected an integer, received {value!r}")
        if num_experts < 1:
            raise ValueError(f"num_experts: expected at least 1, received {num_experts}")
        if not 1 <= num_selected <= num_experts:
            raise ValueError(
                f"num_selected: expected 1 <= k <= num_experts={num_experts}, "
                f"received {num_selected}"
            )
        if not (self.has_static if static else self.has_per_example):
            form = "per example" if static else "as a static gate"
            raise ValueError(
                f"static: {type(self).__name__} exists {form} only, expected {not static}, "
                f"received {static}"
            )
        self.num_experts = num_experts
        self.num_selected = num_selected
        self.static = static
        self.seed = seed
        self.hardened = False
        self._traced = _Traced()

    @property
    def properties(self) -> Properties:
        """What the gate guarantees, see `Properties`."""
        raise TypeError(f"{type(self).__name__} does not state its properties")

    def route(self, x: Tensor, training: bool, ids: Tensor | None) -> Routing:
        """Compute the routing; `call` has checked the input and adds the common diagnostics.

        Args:
            x: (B, D) float.
            training: whether to draw noise and report regularisers.
            ids: (B,) integers, needed where `reads_ids`.
        """
        raise TypeError(f"{type(self).__name__} does not route")

    def harden(self) -> None:
        """Switch inference to the k-sparse form that export freezes (DSelect-k, COMET).

        Other gates stay as they are: they are k-sparse at inference anyway, or dense.  Variables
        and training do not change.  The switch is not saved: a gate loaded from a file is soft
        until it is hardened again.
        """
        self.hardened = True

    def call(self, x: Tensor, training: bool = False, ids: Tensor | None = None) -> Routing:
        """Route a batch.

        Args:
            x: (B, D) float; a static gate ignores its values.
            training: whether to draw noise and report regularisers.
            ids: (B,) integers, needed where `reads_ids`.

        Returns:
            A `Routing` with weights (B, E), or (E,) from a static gate.

        Raises:
            ValueError: x is not of rank 2, or logits are not finite.
        """
        if len(x.shape) != 2:
            raise ValueError(f"x: expected shape (B, D), received {tuple(x.shape)}")
        self._traced.finite = []
        routing = self.route(x, bool(training), ids)
        weights = routing.weights
        if not self.properties.straight_through:
            weights = exact_zeros(weights)
        for finite in self._traced.finite:
            weights = keras.ops.where(finite, weights, float("nan"))
        return routing._replace(
            weights=weights, diagnostics=_diagnose(weights) | routing.diagnostics
        )

    def levels(self) -> "list[Gate]":
        """The gate itself and the gates within it."""
        return [layer for layer in self._flatten_layers() if isinstance(layer, Gate)]

    def linear_maps(self) -> list[tuple[Any, Any]]:
        """Every kernel (D, .) that reads the input, with its bias (.,) or None; levels included.

        By name and not by shape: where E = D, a permutation (E, E) has the shape of a kernel.
        """
        return [
            (kernel, None if bias is None else getattr(gate, bias))
            for gate in self.levels()
            for name, bias in gate.input_weights
            if (kernel := getattr(gate, name, None)) is not None
        ]

    def check_option(self, name: str, value: Any, valid: bool, expected: str) -> None:
        """Unless `valid`, raise a ValueError that names option, expected and received value."""
        if not valid:
            raise ValueError(
                f"{name}: {type(self).__name__} expected {expected}, received {value!r}"
            )

    def check_logits(self, logits: Tensor) -> Tensor:
        """Return `logits`; raise if one is NaN or infinite (see `backend.check_finite`).

        Under `jax.jit` nothing can raise.  There `call` makes all weights NaN instead, because a
        comparison, an argmax or a selection would turn a NaN logit into a finite weight, and the
        guard on the loss would see nothing.
        """
        if backend.is_traced(logits):
            self._traced.finite.append(keras.ops.all(keras.ops.isfinite(logits)))
        return backend.check_finite(logits, f"logits of gate {self.name!r}")

    def compute_output_spec(self, x: Any, training: bool = False, ids: Any = None) -> Routing:
        """Symbolic output: weights only, because losses and diagnostics need values."""
        shape = (self.num_experts,) if self.static else (x.shape[0], self.num_experts)
        return Routing(keras.KerasTensor(shape, dtype=self.compute_dtype), {}, {})

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "num_experts": self.num_experts,
            "num_selected": self.num_selected,
            "static": self.static,
            "seed": self.seed,
        }


def derive_seed(seed: int | None, *labels: str | int) -> int | None:
    """Seed for one of several uses of `seed`, so that no two draw the same; None stays None."""
    if seed is None:
        return None
    return zlib.crc32("/".join(map(str, (seed, *labels))).encode())


def exact_zeros(weights: Tensor) -> Tensor:
    """Stop the gradient where a weight is exactly zero.

    A product of small factors can underflow to zero while its derivative does not: a smooth-step
    of 1e-20 has slope 4e-10.  And a processor that flushes subnormal numbers treats them as zero
    in some operations only.  After this function, both weight and gradient are zero.  NaN stays
    NaN, so that the guard on the loss sees it.
    """
    ops = keras.ops
    return ops.where(weights <= 0, ops.zeros_like(weights), weights)


def entropy(p: Tensor, axis: int = -1) -> Tensor:
    """Entropy in nats along `axis`, with 0 log 0 = 0 and a finite gradient there."""
    ops = keras.ops
    positive = p > 0
    safe = ops.where(positive, p, ops.ones_like(p))
    return -ops.sum(ops.where(positive, p * ops.log(safe), ops.zeros_like(p)), axis=axis)


def _diagnose(weights: Tensor) -> dict[str, Tensor]:
    """Diagnostics of every gate; no gradient flows through them."""
    ops = keras.ops
    w = ops.stop_gradient(weights)
    rows = ops.reshape(w, (-1, w.shape[-1]))  # (B, E), or (1, E) from a static gate
    used = ops.cast(rows > 0, rows.dtype)
    count = ops.maximum(ops.cast(ops.shape(rows)[0], rows.dtype), 1.0)  # B = 0 divides by 1
    return {
        "entropy": ops.sum(entropy(rows)) / count,
        "experts_per_example": ops.sum(used) / count,
        "load": ops.sum(used, axis=0) / count,  # (E,)
    }
