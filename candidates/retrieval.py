"""The two-tower model: towers, the loss of pairs, and the index."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multigate.candidates.keras2 import tf, tfrs
from multigate.candidates.pairs import Catalogue, Pairs, tower_features
from multigate.candidates.towers import Tables, Tower, embedded
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.model.data.encoding import Encoder

Tensor = Any
_ROWS = 4096  # users or items that a tower computes together


class Retrieval(tfrs.Model):
    """Scores of all items for a user, as products of the towers' vectors.

    The loss is the softmax cross-entropy of a pair's own item: among all items, after `against`,
    else among those of its batch. In a batch frequent items are negatives more often: the log of
    their share is subtracted from their scores (the sampling-bias correction), so that both losses
    have the same aim. Items of the batch that equal the pair's own are not negatives.

    Args:
        encoder: encoder of the examples.
        config: widths and training.
    """

    def __init__(self, encoder: Encoder, config: CandidatesConfig) -> None:
        super().__init__(name="candidates")
        self.encoder, self.config = encoder, config
        self._all: dict[str, Tensor] | None = None
        contract = encoder.contract
        self.user_features, self.item_features = tower_features(contract)
        names = embedded(contract, [*self.user_features, *self.item_features])
        self.tables = Tables(encoder, names, config.embedding_dim, config.seed)
        seed = config.seed
        self.user_tower = Tower(contract, self.user_features, self.tables, config, seed, "user")
        self.item_tower = Tower(
            contract, self.item_features, self.tables, config, seed + 1000, "item"
        )
        self.retrieval = tfrs.tasks.Retrieval(
            temperature=config.temperature,
            remove_accidental_hits=True,
            loss=tf.keras.losses.CategoricalCrossentropy(
                from_logits=True, reduction=tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
            ),
        )

    def against(self, items: Catalogue) -> None:
        """Learn a pair's item among all of these, not only among those of its batch."""
        self._all = {name: tf.constant(values) for name, values in items.features.items()}

    def compute_loss(self, inputs: Mapping[str, Tensor], training: bool = False) -> Tensor:
        """Loss of a batch of pairs.

        Args:
            inputs: encoded user and item features; `item` (B,), the item's number in the catalogue;
                `share` (B,), its share of the training pairs; `hidden_users` (B,) and
                `hidden_items` (I,), whose ids are hidden.
            training: part of Keras's signature; not used.
        """
        contract, hidden = self.encoder.contract, inputs["hidden_items"]
        users = self.user_tower(_with_hidden(inputs, contract.user, inputs["hidden_users"]))
        if self._all is not None:
            items = self.item_tower(_with_hidden(self._all, contract.item, hidden))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=inputs["item"],
                logits=tf.linalg.matmul(users, items, transpose_b=True) / self.config.temperature,
            )
            return tf.reduce_mean(losses)
        hidden = tf.gather(hidden, inputs["item"])
        return self.retrieval(
            users,
            self.item_tower(_with_hidden(inputs, contract.item, hidden)),
            candidate_sampling_probability=inputs["share"],
            candidate_ids=inputs["item"],
            compute_metrics=False,
        )

    def item_vectors(self, catalogue: Catalogue) -> np.ndarray:
        """Vectors (I, D + 1) float32 of all items."""
        return _in_batches(self.item_tower, catalogue.features, len(catalogue))

    def user_vectors(self, pairs: Pairs) -> np.ndarray:
        """Vectors (N, D + 1) float32 of the users of pairs."""
        features = {
            name: values
            for name, values in pairs.features.items()
            if name.partition("__")[0] in self.user_features
        }
        return _in_batches(self.user_tower, features, len(pairs))

    def index(self, catalogue: Catalogue) -> Any:
        """An index that finds the best items for a user's vector by comparing it with all items."""
        index = tfrs.layers.factorized_top_k.BruteForce(name="index")
        places = tf.range(len(catalogue), dtype=tf.int32)
        index.index(tf.constant(self.item_vectors(catalogue)), places)
        return index


def recall_of_pairs(
    model: Retrieval, catalogue: Catalogue, pairs: Pairs, ks: tuple[int, ...]
) -> dict[int, float]:
    """Share of pairs whose item is among the best k of all items, by k.

    This is `tfrs.metrics.FactorizedTopK`: one target per row, nothing left out. Pairs whose item is
    not in the catalogue count as not found.
    """
    known = np.isin(pairs.items, catalogue.ids)
    if not known.any():
        return dict.fromkeys(ks, 0.0)
    largest = [min(k, len(catalogue)) for k in ks]
    metric = tfrs.metrics.FactorizedTopK(candidates=model.index(catalogue), ks=largest)
    users = model.user_vectors(pairs)[known]
    items = np.searchsorted(catalogue.ids, pairs.items[known]).astype(np.int32)
    vectors = model.item_vectors(catalogue)[items]
    for start in range(0, len(items), _ROWS):
        batch = slice(start, start + _ROWS)
        metric.update_state(
            tf.constant(users[batch]),
            tf.constant(vectors[batch]),
            true_candidate_ids=tf.constant(items[batch][:, None]),
        )
    share = float(known.mean())
    return {k: share * float(value) for k, value in zip(ks, metric.result(), strict=True)}


def _with_hidden(inputs: Mapping[str, Tensor], name: str, hidden: Tensor) -> dict[str, Tensor]:
    """The features with the first code of ids that are not in the vocabulary where hidden."""
    return {**inputs, name: tf.where(hidden, 1, inputs[name])}


def _in_batches(tower: Tower, encoded: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    batches = [
        tower({name: values[start : start + _ROWS] for name, values in encoded.items()}).numpy()
        for start in range(0, rows, _ROWS)
    ]
    return np.concatenate(batches)
