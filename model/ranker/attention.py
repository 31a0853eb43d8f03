"""Target attention: the candidate decides how much each entry of a user's list counts."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Tensor, derive_seed


class TargetAttention(keras.layers.Layer):
    """The activation unit of DIN (Zhou et al. 2018, section 4.3): a small network of each pair.

        a(e, c) = out . silu(K [e, c, e * c, e - c] + b) + b'        v(c) = sum over e of a(e, c) e

    for the entries e and the candidate c.  As in the paper, the weights a do not add up to 1, so
    that v also says how much of the list resembles the candidate; `normalise` applies a softmax
    over the entries.  Padding has weight 0, and an empty list gives zeros.  silu stands in the
    place of the paper's Dice, which needs statistics of the batch.  b' starts at 1, so that
    training starts from a sum over the list and the entries' embeddings get gradients at once.

    K is linear, so that (K_e + K_d) e is computed once per user and (K_c - K_d) c once per
    candidate; only K_p (e * c) and what follows is computed for each pair.  The largest tensor has
    N * L * max(H, d) numbers.

    Axes: M users, N candidates, L entries, d columns of an embedding, H units.

    Args:
        width: d.
        units: H.
        normalise: softmax over the entries.
        seed: of the initial weights.
    """

    def __init__(
        self, width: int, units: int, normalise: bool, seed: int | None, **kwargs: Any
    ) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.width, self.units, self.normalise = width, units, normalise
        glorot = keras.initializers.GlorotUniform
        self.kernel = self.add_weight(
            shape=(4 * width, units), initializer=glorot(derive_seed(seed, "kernel")), name="kernel"
        )
        self.bias = self.add_weight(shape=(units,), initializer="zeros", name="bias")
        self.out_kernel = self.add_weight(
            shape=(units, 1), initializer=glorot(derive_seed(seed, "out")), name="out_kernel"
        )
        self.out_bias = self.add_weight(shape=(1,), initializer="ones", name="out_bias")
        self.built = True

    def call(
        self, entries: Tensor, real: Tensor, candidates: Tensor, user_index: Tensor | None = None
    ) -> Tensor:
        """Pool each candidate's list.

        Args:
            entries: (M, L, d) embeddings of the lists' entries.
            real: (M, L), False for padding.
            candidates: (N, d).
            user_index: (N,) each candidate's row of `entries`; None if M = N and row n belongs to
                n.

        Returns:
            (N, d).
        """
        ops = keras.ops
        of_entry, of_candidate, of_product, of_difference = ops.split(self.kernel, 4)  # (d, H)
        once = ops.matmul(entries, of_entry + of_difference)  # (M, L, H)
        real = ops.cast(real, entries.dtype)
        if user_index is not None:
            once, entries, real = (ops.take(x, user_index, axis=0) for x in (once, entries, real))
        each = ops.matmul(candidates, of_candidate - of_difference) + self.bias  # (N, H)
        pairs = ops.matmul(entries, candidates[:, :, None] * of_product)  # (N, L, H)
        hidden = ops.silu(once + pairs + each[:, None, :])
        weights = ops.matmul(hidden, self.out_kernel)[:, :, 0] + self.out_bias  # (N, L)
        if self.normalise:
            # Not minus infinity: a row of padding alone would be NaN.
            weights = ops.softmax(ops.where(real > 0, weights, -1e9), axis=-1)
        return ops.matmul((weights * real)[:, None, :], entries)[:, 0, :]

    def operations(self, length: int) -> tuple[int, int]:
        """Floating-point operations for a user, and for a candidate, with a list of `length`."""
        product = 2 * self.width * self.units
        return length * product, product + length * (product + 2 * self.units + 2 * self.width)
