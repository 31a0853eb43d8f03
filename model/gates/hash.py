"""Hash gate, a control: a fixed pseudo-random expert for each id (MOESART, section 2)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Properties, Routing, Tensor


@keras.saving.register_keras_serializable("multigate")
class Hash(Gate):
    """w = 1 for expert hash(id) mod E and 0 for all others; nothing is learnt.

    The hash is a 32-bit integer mix, the same on every backend and in every process.  (By default
    JAX has integers of 32 bits, and truncates wider ids before any layer sees them.)  The ranker
    passes the hash of the user's raw id, which does not change when the vocabulary does.

    Args:
        salt: changes the assignment; assignments with different salts are independent.
        num_selected: k, always 1.
    """

    has_static = False
    reads_ids = True

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        salt: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_option("num_selected", num_selected, num_selected == 1, "1, one expert per id")
        self.check_option("salt", salt, 0 <= salt < 2**32, "0 <= salt < 2^32")
        self.salt = salt

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create nothing: the gate has no variables."""

    @property
    def properties(self) -> Properties:
        """One expert per example."""
        return Properties(False, sparse_in_training=True, sparse_at_inference=True)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E) of ids (B,), integers of any width."""
        ops = keras.ops
        if ids is None:
            raise ValueError(
                "ids: the hash gate routes by id, expected (B,) integers, received None; "
                "pass ids= when calling the gate"
            )
        ids = ops.convert_to_tensor(ids)
        dtype = keras.backend.standardize_dtype(ids.dtype)
        if len(ids.shape) != 1 or "int" not in dtype:
            raise ValueError(
                f"ids: expected (B,) integers, received shape {tuple(ids.shape)} of {dtype}"
            )
        expert = (
            ops.cast(ops.right_shift(_mix_id(ids, dtype, self.salt), 1), "int32") % self.num_experts
        )
        return Routing(ops.one_hot(expert, self.num_experts, dtype=self.compute_dtype), {}, {})

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {"salt": self.salt}


def _mix_id(ids: Tensor, dtype: str, salt: int) -> Tensor:
    """Hash of ids (B,) as uint32; the same for every integer type that holds the id."""
    ops = keras.ops
    wide = dtype.endswith("64")
    # The bits above the lowest 32; for a narrower type, its sign.
    high = ops.right_shift(ids, 32) if wide else ops.where(ids < 0, -1, 0)
    mixed = _mix(ops.bitwise_xor(ops.cast(high, "uint32"), _uint32(salt)))
    return _mix(ops.bitwise_xor(ops.cast(ids, "uint32"), mixed))


def _mix(h: Tensor) -> Tensor:
    """Spread each bit of h (uint32) over all bits; products wrap modulo 2^32."""
    h = _fold(h, 16) * _uint32(0x7FEB352D)
    h = _fold(h, 15) * _uint32(0x846CA68B)
    return _fold(h, 16)


def _fold(h: Tensor, bits: int) -> Tensor:
    """Exclusive or of h and h shifted right by `bits`."""
    return keras.ops.bitwise_xor(h, keras.ops.right_shift(h, bits))


def _uint32(value: int) -> Tensor:
    return keras.ops.convert_to_tensor(value, dtype="uint32")
