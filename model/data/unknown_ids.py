"""How many ids the model will not know: measured on both splits, trained by id dropout.

See `model.ranker.id_dropout` for why.
"""

from collections.abc import Mapping

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.sections.model import ModelConfig
from multigate.model.data.encoding import Encoded

LEAST = 0.1
"""Share of the users' and items' ids that are replaced even if validation knows all of them."""

MOST = 0.9
"""Largest share that is replaced unless the configuration asks for more."""


def bounded(share: float, least: float = LEAST) -> float:
    """The share of ids to replace in training, of the share that validation does not know."""
    return min(max(share, least), MOST)


def unknown_shares(contract: Contract, rows: Encoded) -> dict[str, float]:
    """Share of the ids that are not in the vocabulary, by feature that uses one.

    Args:
        contract: the features.
        rows: an encoded split, or a sample of it.
    """
    found = {}
    for name in contract.features:
        n = contract.unknown_codes(name)
        if n is not None:
            codes = rows[name]
            present = codes[codes > 0]
            found[name] = float(np.mean(present <= n)) if len(present) else 0.0
    return found


def dropout_shares(
    contract: Contract,
    config: ModelConfig,
    unknown: Mapping[str, float],
    in_training: Mapping[str, float],
) -> dict[str, float]:
    """The share of each feature's ids that training replaces, see `ModelConfig.id_dropout`.

    Ids that training lacks itself (rare ones under `min_count`, the default of a missing id) need
    no dropout: of the others as many are replaced as make both splits lack the same share.

    Args:
        contract: the features.
        config: what is configured.
        unknown: what `unknown_shares` found in the validation split.
        in_training: what it found in the training split.
    """
    own = {contract.vocabulary_of(contract.user), contract.vocabulary_of(contract.item)}
    found = {}
    for name, share in unknown.items():
        least = LEAST if contract.vocabulary_of(name) in own else 0.0
        known = 1 - in_training[name]
        measured = bounded(1 - (1 - share) / known if known > 0 else 0.0, least)
        everywhere = measured if config.id_dropout is None else config.id_dropout
        found[name] = config.id_dropouts.get(name, everywhere)
    return found
