"""Two towers: a user's and an item's features become vectors; their dot product is the score."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multigate.candidates.keras2 import tf
from multigate.configs.contract import (
    PRESENT,
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.model.data.encoding import Encoder

Tensor = Any


class Tables(tf.Module):
    """The embedding tables; features that share a vocabulary share a table across the towers.

    A user's history is therefore the mean of the same vectors that the item tower reads.

    Args:
        encoder: says how many rows each table has.
        names: features that are embedded.
        width: width of every table.
        seed: seed of the initial values; each table derives its own from it.
    """

    def __init__(self, encoder: Encoder, names: Iterable[str], width: int, seed: int) -> None:
        super().__init__(name="tables")
        self.read_whole = False
        """Set by export: a file with gathers from variables cannot be frozen."""
        contract = encoder.contract
        owners = dict.fromkeys(contract.vocabulary_of(name) for name in names)
        self.tables = {
            owner: tf.Variable(
                tf.random.stateless_normal(
                    (encoder.rows(owner), width), seed=(seed, number), stddev=width**-0.5
                ),
                name=f"table_{owner}",
            )
            for number, owner in enumerate(owners)
        }
        self._owner = {name: contract.vocabulary_of(name) for name in names}

    def __call__(self, name: str, codes: Tensor) -> Tensor:
        """Vectors (..., D) of a feature's codes (...)."""
        table = self.tables[self._owner[name]]
        return tf.gather(table.read_value() if self.read_whole else table, codes)


class Tower(tf.Module):
    """Encoded features of one side to vectors (B, D + 1).

    Ids are embedded, lists and the n-grams of texts are embedded and averaged, numbers and
    vectors enter as they are encoded. Hidden layers and a linear map of all of them make the
    vector. The embeddings of the side's own id and of the lists are also added to the output, so
    that without hidden layers the model contains plain matrix factorisation. One number more, a
    linear map of the same inputs, says how wanted an item is by all, and how much that counts for
    a user.

    Args:
        contract: says what kind each feature is.
        names: features of this side.
        tables: the embedding tables.
        config: widths of the layers.
        seed: seed of the initial weights.
        name: name of the tower.
    """

    def __init__(
        self,
        contract: Contract,
        names: Sequence[str],
        tables: Tables,
        config: CandidatesConfig,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(name=name)
        self._contract, self._names, self._tables = contract, list(names), tables
        self._normalise = config.normalise
        self.layers = [
            tf.keras.layers.Dense(
                units,
                activation="relu" if place < len(config.units) else None,
                kernel_initializer=tf.keras.initializers.GlorotUniform(seed=seed + place),
                name=f"{name}_{place}",
            )
            for place, units in enumerate([*config.units, config.embedding_dim])
        ]
        self.all = tf.keras.layers.Dense(
            1,
            kernel_initializer="zeros",
            bias_initializer="zeros" if name == "item" else "ones",
            name=f"{name}_all",
        )

    def __call__(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """Vectors (B, D + 1); their first D numbers have length 1 where `normalise` is set.

        Args:
            encoded: the side's features, see `model.data.encoding.Encoder`.
        """
        parts, direct = [], []
        for name in self._names:
            feature = self._contract.features[name]
            if isinstance(feature, IdListFeature) and feature.entry is not None:
                continue  # the towers read a history's items only
            values = encoded[name]
            if isinstance(feature, IdListFeature | TextFeature):
                pooled = self._pool(name, values)
                parts.append(pooled)
                direct.append(pooled)
            elif name in embedded(self._contract, [name]):
                vectors = self._tables(name, values)
                parts.append(vectors)
                if name in (self._contract.user, self._contract.item):
                    direct.append(vectors)
            else:
                is_vector = isinstance(feature, VectorFeature)
                parts.append(values if is_vector else values[:, None])
            if (
                isinstance(feature, NumberFeature | VectorFeature)
                and feature.missing == "indicator"
            ):
                parts.append(encoded[name + PRESENT][:, None])
        x = tf.concat(parts, axis=1)
        by_all = self.all(x)
        for layer in self.layers:
            x = layer(x)
        x += tf.add_n(direct)
        x = tf.math.l2_normalize(x, axis=1) if self._normalise else x
        return tf.concat([x, by_all], axis=1)

    def _pool(self, name: str, codes: Tensor) -> Tensor:
        """Mean of a list's vectors (B, D); zeros for an empty list."""
        present = tf.cast(codes > 0, tf.float32)[..., None]
        total = tf.reduce_sum(self._tables(name, codes) * present, axis=1)
        return total / tf.maximum(tf.reduce_sum(present, axis=1), 1.0)


def embedded(contract: Contract, names: Iterable[str]) -> list[str]:
    """Those of the features that have, or share, an embedding table."""
    found = []
    for name in names:
        feature = contract.features[name]
        if isinstance(feature, IdListFeature) and feature.entry is not None:
            continue
        bucketed = isinstance(feature, NumberFeature) and feature.scale == "buckets"
        if isinstance(feature, IdFeature | IdListFeature | TextFeature) or bucketed:
            found.append(name)
    return found
