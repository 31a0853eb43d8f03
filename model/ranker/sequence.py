"""Sequence encoder: a list's entries in their order become one vector, read at the last entry."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Tensor, derive_seed


class SequenceEncoder(keras.layers.Layer):
    """One block of causal self-attention, as in SASRec (Kang and McAuley 2018, section 3).

        h_i = e_i + p_(n-1-i)                            p: learnt, 0 for the most recent entry
        z   = h_(n-1) + W_o sum over i of softmax_i(q . k_i / sqrt(d)) v_i
              q = W_q norm(h_(n-1)),  k_i = W_k norm(h_i),  v_i = W_v norm(h_i)
        out = z + W_2 gelu(W_1 norm(z) + b_1) + b_2

    for the entries e_0 .. e_(n-1), oldest first.  Only the output at the last entry is read.  Its
    query sees all entries, so that the causal mask hides none of them and one query is computed
    instead of L.  Deviations: gelu instead of relu, norm before each part instead of after it, and
    positions that count from the end, so that "the last but one" is the same in lists of any
    length.  An empty list gives zeros.

    A GRU was considered.  It has about as many weights, but L steps that wait for one another: in
    the exported graph a loop, where this block is a few matrix products.
    `keras_hub.layers.TransformerDecoder` was considered, too: it computes the output at all L
    entries.

    Axes: B lists, L entries, d columns of an embedding.

    Args:
        width: d.
        length: L, the longest list.
        units: width of W_1.
        seed: of the initial weights.
    """

    def __init__(
        self, width: int, length: int, units: int, seed: int | None, **kwargs: Any
    ) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.width, self.units = width, units
        self.positions = self.add_weight(
            shape=(length, width),
            initializer=keras.initializers.RandomUniform(
                -0.05, 0.05, seed=derive_seed(seed, "positions")
            ),
            name="positions",
        )
        self.query, self.key, self.value, self.mix = (
            self._dense(name, width, width, seed) for name in ("query", "key", "value", "mix")
        )
        self.up = self._dense("up", width, units, seed, activation="gelu")
        self.down = self._dense("down", units, width, seed)
        self.norms = [
            keras.layers.LayerNormalization(epsilon=1e-6, dtype="float32", name=f"norm_{part}")
            for part in ("attention", "feed_forward")
        ]
        for norm in self.norms:
            norm.build((None, width))
        self.built = True

    def _dense(self, name: str, given: int, units: int, seed: int | None, **options: Any) -> Any:
        layer = keras.layers.Dense(
            units,
            use_bias=name in ("up", "down"),
            kernel_initializer=keras.initializers.GlorotUniform(derive_seed(seed, name)),
            dtype="float32",
            name=name,
            **options,
        )
        layer.build((None, given))
        return layer

    def call(self, entries: Tensor, real: Tensor) -> Tensor:
        """Encode lists.

        Args:
            entries: (B, L, d) embeddings, oldest first, then padding.
            real: (B, L), False for padding.

        Returns:
            (B, d).
        """
        ops = keras.ops
        real = ops.cast(real, "int32")
        lengths = ops.sum(real, axis=1)  # (B,)
        place = ops.arange(entries.shape[1], dtype="int32")
        age = ops.maximum(lengths[:, None] - 1 - place, 0)  # (B, L); 0 for padding, too
        h = entries + ops.take(self.positions, age, axis=0)
        last = ops.cast(place == ops.maximum(lengths[:, None] - 1, 0), h.dtype)  # (B, L) one-hot
        normed = self.norms[0](h)
        query = self.query(ops.matmul(last[:, None, :], normed))  # (B, 1, d)
        scores = ops.matmul(query, ops.transpose(self.key(normed), (0, 2, 1))) / self.width**0.5
        # Not minus infinity: a row of padding alone would be NaN.
        weights = ops.softmax(ops.where(real[:, None, :] > 0, scores, -1e9), axis=-1)
        read = ops.matmul(weights, self.value(normed))  # (B, 1, d)
        z = (ops.matmul(last[:, None, :], h) + self.mix(read))[:, 0, :]  # (B, d)
        out = z + self.down(self.up(self.norms[1](z)))
        return out * ops.cast(lengths > 0, out.dtype)[:, None]

    def operations(self, length: int) -> int:
        """Floating-point operations for a list of `length`."""
        of_entry = 2 * self.width * (2 * self.width + 2)  # key, value; score, weighted sum
        of_list = 2 * self.width * (2 * self.width + 2 * self.units)
        return length * of_entry + of_list
