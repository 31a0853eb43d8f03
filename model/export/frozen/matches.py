"""How often a candidate stands in the user's lists, as a TensorFlow graph.

`model.data.encoding.Encoder` computes the same in NumPy (`<list>__match`).  Raw ids are compared,
because ids outside the vocabulary share codes.  Comparing texts pair by pair is slow, so that each
is first replaced by its fingerprint, once per user and once per item.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from multigate.configs.contract import LENGTH, MATCH, PRESENT, Contract, IdListFeature
from multigate.model.export.frozen.encoding import last_values

Tensor = Any

_FINGERPRINTS = 2**62  # of texts; two of them are equal by chance once in 2^62 times
_ODD = 0x9E3779B97F4A7C15  # multiplication by it is one to one; then one bit of 64 is dropped


def fingerprints(
    contract: Contract, raw: dict[str, Tensor], names: Iterable[str]
) -> dict[str, Tensor]:
    """Integers that are equal where raw ids are equal; 0 where one is missing, never -1.

    Args:
        contract: the features.
        raw: inputs as in `frozen.encoding.raw_inputs`.
        names: id features (N,) and lists (N, .).

    Returns:
        int64 by feature: (N,), or (N, L) for lists.
    """
    found = {}
    for name in names:
        feature: Any = contract.features[name]
        values = raw[name]
        if isinstance(feature, IdListFeature):
            length = raw[name + LENGTH]
            found[name] = last_values(_fingerprint(values), length, feature.max_length)
            continue
        if feature.missing == "default":
            present = raw[name + PRESENT]
            if values.dtype == tf.string:
                present &= values != ""
            values = tf.where(present, values, tf.constant(feature.default, values.dtype))
        found[name] = _fingerprint(values)
        if feature.missing == "indicator":
            found[name] *= tf.cast(raw[name + PRESENT], tf.int64)
    return found


def _fingerprint(values: Tensor) -> Tensor:
    """Fingerprints of raw ids, which are present unless they are empty texts."""
    if values.dtype == tf.string:
        prints = 1 + tf.strings.to_hash_bucket_fast(values, _FINGERPRINTS)
        return prints * tf.cast(values != "", tf.int64)
    mixed = tf.bitcast(values, tf.uint64) * tf.constant(_ODD, tf.uint64)
    return 1 + tf.bitcast(tf.bitwise.right_shift(mixed, tf.ones((), tf.uint64)), tf.int64)


def matches(
    contract: Contract,
    prints: dict[str, Tensor],
    names: Iterable[str],
    user_index: Tensor | None,
) -> dict[str, Tensor]:
    """The arrays `<list>__match` of `Encoder`, (N,) float32 each.

    Args:
        contract: says which of the item's features a list may hold.
        prints: fingerprints of the lists (M, L), and of the item's features (N,) or (N, K).
        names: the lists.
        user_index: (N,) each item's row of the lists; None if M = N and row n belongs to n.
    """
    found = {}
    for name in names:
        values = prints[name]
        values = values if user_index is None else tf.gather(values, user_index)
        counts = []
        for candidate in contract.matches()[name]:
            ids = prints[candidate]
            # A missing value equals none of the list's, missing ones included.
            ids -= tf.cast(tf.equal(ids, 0), tf.int64)
            wide = ids[:, :, None] if len(ids.shape) == 2 else ids[:, None, None]
            # Not `==`, which is False where the shapes differ.
            equal = tf.cast(tf.equal(values[:, None, :], wide), tf.float32)  # (N, K, L)
            counts.append(tf.reduce_sum(equal, axis=[1, 2]))
        found[name + MATCH] = tf.math.log1p(tf.add_n(counts))
    return found
