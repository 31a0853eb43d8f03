"""Id dropout: in training a share of the ids becomes an unknown one.

Where items come and go, most candidates of tomorrow are outside the vocabulary, while hardly any
row of the training split is: its items made the vocabulary.  The embedding of unknown ids is then
hardly trained and carries the predictions all the same.  Replacing known ids by an unknown one
trains it, and teaches the other layers to do without ids (DropoutNet of Volkovs, Yu and Poutanen
2017 drops the preference vectors of users and items for the same reason).
"""

from collections.abc import Mapping
from typing import Any

import keras

from multigate.configs.contract import Contract
from multigate.model.gates.parts.base import Tensor, derive_seed


class IdDropout(keras.layers.Layer):
    """Replaces codes of known ids by codes of unknown ones, each with its feature's probability.

    Missing values and padding stay as they are.

    Args:
        contract: says which codes stand for unknown ids.
        shares: probability by feature; features that are not named keep their ids.
        seed: of the draws.
    """

    def __init__(
        self, contract: Contract, shares: Mapping[str, float], seed: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.shares = {name: share for name, share in shares.items() if share > 0}
        self.unknown = {name: contract.unknown_codes(name) or 0 for name in self.shares}
        self.generators = {
            name: keras.random.SeedGenerator(derive_seed(seed, "id_dropout", name))
            for name in self.shares
        }
        self.built = True

    def call(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The encoded features, with some ids of B rows replaced."""
        ops = keras.ops
        found = dict(encoded)
        for name, share in self.shares.items():
            codes, n = encoded[name], self.unknown[name]
            # One draw says whether the id goes, and which of the n codes it gets.
            draw = keras.random.uniform(ops.shape(codes), seed=self.generators[name]) / share
            code = 1 + ops.cast(ops.floor(draw * n), codes.dtype)
            found[name] = ops.where((draw < 1) & (codes > n), ops.minimum(code, n), codes)
        return found
