"""What most gates share: logits that are linear in the gate's input."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Tensor, derive_seed


class LinearGate(Gate):
    """A gate with logits xA + b, or just b in its static form.

    A (D, E) starts with Glorot's uniform initialiser, b (E,) with zeros.
    """

    reads_products = True
    input_weights = (("kernel", "bias"),)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create A (D, E) and b (E,)."""
        if not self.static:
            self.kernel = self.add_weight(
                shape=(input_shape[-1], self.num_experts),
                initializer=keras.initializers.GlorotUniform(seed=self.seed),
                name="kernel",
            )
        self.bias = self.add_weight(
            shape=(self.num_experts,), initializer=self.bias_initializer(), name="bias"
        )

    def bias_initializer(self) -> Any:
        """Initialiser of b."""
        return "zeros"

    def logits(self, x: Tensor) -> Tensor:
        """Finite logits (B, E), or (E,) from a static gate, of x (B, D)."""
        ops = keras.ops
        logits = ops.convert_to_tensor(self.bias)
        if not self.static:
            logits = product(x, self.kernel) + logits
        return self.check_logits(logits)


def product(x: Tensor, kernel: Any) -> Tensor:
    """The input x (B, D) times a gate's kernel (D, .).

    An exported graph computes the user's part of each product once per user.  So it gives its
    gates an object that has products but no values (`Gate.reads_products`).
    """
    return x.product(kernel) if hasattr(x, "product") else keras.ops.matmul(x, kernel)


def noise_generator(seed: int | None) -> keras.random.SeedGenerator:
    """Generator of a gate's training noise, with another seed than its initialisers."""
    return keras.random.SeedGenerator(derive_seed(seed, "noise"))
