"""Batches of training pairs, and which ids are hidden in them."""

from typing import Any, NamedTuple

import numpy as np

from multigate.candidates.keras2 import tf
from multigate.candidates.pairs import Catalogue, Pairs
from multigate.configs.contract import Contract
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.model.data.unknown_ids import bounded, unknown_shares


class Hidden(NamedTuple):
    """Shares of the users and items whose ids training hides."""

    users: float
    items: float


class Batches:
    """Batches of training pairs; their order and what is hidden depend on seed and epoch alone.

    Args:
        pairs: the training split's.
        items: holds all their items.
        config: sizes.
        hidden: how many ids are hidden.
    """

    def __init__(
        self, pairs: Pairs, items: Catalogue, config: CandidatesConfig, hidden: Hidden
    ) -> None:
        self._rows, self._items = len(pairs), len(items)
        self._config, self._hidden = config, hidden
        places = np.searchsorted(items.ids, pairs.items).astype(np.int32)
        share = (np.bincount(places, minlength=len(items)) / len(pairs)).astype(np.float32)
        # Items as the index will have them, all of one time, and not as each row saw its own.
        of_items = {name: values[places] for name, values in items.features.items()}
        columns = pairs.features | of_items | {"item": places, "share": share[places]}
        self._tensors = {name: tf.constant(values) for name, values in columns.items()}

    def epoch(self, number: int) -> Any:
        """A dataset of whole batches; see `Retrieval.compute_loss` for what they hold."""
        random = np.random.default_rng([self._config.seed, number])
        rows = random.permutation(self._rows)
        hidden = random.random(self._rows) < self._hidden.users
        size = self._config.batch_size
        # A smaller last batch is left out: its rows would have fewer negatives, one row none.
        whole = max(self._rows - self._rows % size, min(self._rows, size))
        index = tf.data.Dataset.from_tensor_slices((rows[:whole], hidden[:whole])).batch(size)
        seed = int(random.integers(1 << 31))

        def gather(step: Any, batch: tuple[Any, Any]) -> dict[str, Any]:
            chosen, users = batch
            found = {name: tf.gather(values, chosen) for name, values in self._tensors.items()}
            drawn = tf.random.stateless_uniform((self._items,), seed=tf.stack([seed, step]))
            return found | {"hidden_users": users, "hidden_items": drawn < self._hidden.items}

        # As `model.data.ahead.prefetched`, which is not among the modules that both models share:
        # the end of an epoch would wait for the thread that tunes.
        options = tf.data.Options()
        options.autotune.enabled = False
        return index.enumerate().map(gather).prefetch(4).with_options(options)


def hidden_shares(contract: Contract, config: CandidatesConfig, held_out: Pairs) -> Hidden:
    """What training hides, see `CandidatesConfig.hidden_users`; of hashed ids nothing is."""
    unknown = unknown_shares(contract, held_out.features)

    def share(name: str, given: float | None) -> float:
        if not contract.unknown_codes(contract.vocabulary_of(name)):
            return 0.0
        return bounded(unknown[name]) if given is None else given

    return Hidden(
        share(contract.user, config.hidden_users), share(contract.item, config.hidden_items)
    )
