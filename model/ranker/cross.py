"""Cross layers: products of the features, before the mixture and the gates."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Tensor, derive_seed


class Cross(keras.layers.Layer):
    """The cross network of DCN-v2 (Wang et al. 2021, section 3.2), with kernels of low rank.

        x_(l+1) = x_0 * (x_l V_l U_l + b_l) + x_l          V: (D, r)   U: (r, D)   b: (D,)

    Each layer multiplies every column by a sum over all columns, so that l layers can make products
    of up to l + 1 features.  `keras_rs.layers.FeatureCross` was considered: the exported graph
    needs the kernels one by one, to compute the user half of x_0 V_0 once per user.

    Args:
        width: D.
        layers: how many.
        rank: r.
        seed: of the initial weights.
    """

    def __init__(self, width: int, layers: int, rank: int, seed: int | None, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.width, self.rank = width, rank
        self.kernels: list[tuple[Any, Any, Any]] = []
        """V, U and b of each layer."""
        for layer in range(layers):
            down, up = (
                self.add_weight(
                    shape=shape,
                    initializer=keras.initializers.GlorotUniform(derive_seed(seed, name, layer)),
                    name=f"{name}_{layer}",
                )
                for name, shape in (("down", (width, rank)), ("up", (rank, width)))
            )
            bias = self.add_weight(shape=(width,), initializer="zeros", name=f"bias_{layer}")
            self.kernels.append((down, up, bias))
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """Map x (B, D) to (B, D)."""
        ops = keras.ops
        first = x
        for down, up, bias in self.kernels:
            x = first * (ops.matmul(ops.matmul(x, down), up) + bias) + x
        return x

    def operations(self, user_width: int) -> tuple[int, int]:
        """Floating-point operations for a user with so many columns, and for a candidate."""
        once = 2 * user_width * self.rank
        return once, len(self.kernels) * 4 * self.width * self.rank - once
