"""How often a candidate stands in the user's lists, as a TensorFlow graph.

`model.data.encoding.Encoder` computes the same in NumPy (`<list>__match`).  Raw ids are compared,
because ids outside the vocabulary share codes.  Comparing texts pair by pair is slow, so that each
is first replaced by its fingerprint, once per user and once per item.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from multigate.configs.contract import LENGTH, MATCH, PRESENT, Contract, IdListFeature
from multigate.model.export.frozen.columns import side_by_side
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
        int64 by feature: (N,), or (N, L) for lists.  Of a user's list an empty text has a
        fingerprint, too: that of a candidate is 0, so that the two are not equal.
    """
    found = {}
    for name in names:
        feature: Any = contract.features[name]
        values = raw[name]
        if isinstance(feature, IdListFeature):
            of_candidate = feature.side == "item"
            prints = _present(values) if of_candidate else _fingerprint(values)
            found[name] = last_values(prints, raw[name + LENGTH], feature.max_length)
            continue
        if feature.missing == "default":
            present = raw[name + PRESENT]
            if values.dtype == tf.string:
                present &= values != ""
            values = tf.where(present, values, tf.constant(feature.default, values.dtype))
        found[name] = _present(values)
        if feature.missing == "indicator":
            found[name] *= tf.cast(raw[name + PRESENT], tf.int64)
    return found


def _fingerprint(values: Tensor) -> Tensor:
    """Fingerprints of raw ids, at least 1."""
    if values.dtype == tf.string:
        return 1 + tf.strings.to_hash_bucket_fast(values, _FINGERPRINTS)
    mixed = tf.bitcast(values, tf.uint64) * tf.constant(_ODD, tf.uint64)
    return 1 + tf.bitcast(tf.bitwise.right_shift(mixed, tf.ones((), tf.uint64)), tf.int64)


def _present(values: Tensor) -> Tensor:
    """Fingerprints of raw ids, 0 for an empty text."""
    prints = _fingerprint(values)
    return prints * tf.cast(values != "", tf.int64) if values.dtype == tf.string else prints


def matches(
    contract: Contract,
    prints: dict[str, Tensor],
    names: Iterable[str],
    user_index: Tensor | None,
) -> dict[str, Tensor]:
    """The arrays `<list>__match` of `Encoder`, (N, 1) float32 each.

    Lists of one length that may hold the same features are compared together.

    Args:
        contract: says which of the item's features a list may hold.
        prints: fingerprints of the lists (M, L), and of the item's features (N,) or (N, K).
        names: the lists.
        user_index: (N,) each item's row of the lists; None if M = N and row n belongs to n.
    """
    groups: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for name in names:
        kind = int(prints[name].shape[1]), tuple(contract.matches()[name])
        groups.setdefault(kind, []).append(name)
    found: dict[str, Tensor] = {}
    for (_, candidates), together in groups.items():
        values = side_by_side([prints[name] for name in together])  # (M, F, L)
        values = values if user_index is None else tf.gather(values, user_index)
        counts = [_times(values, prints[candidate]) for candidate in candidates]
        logs = tf.math.log1p(tf.add_n(counts))  # (N, F)
        columns = tf.split(logs, len(together), axis=1)
        found |= {name + MATCH: one for name, one in zip(together, columns, strict=True)}
    return found


def _times(values: Tensor, ids: Tensor) -> Tensor:
    """How often lists (N, F, L) hold an id (N,), or one of some (N, K); float32 (N, F)."""
    # A missing value equals none of the list's, missing ones included.
    ids -= tf.cast(tf.equal(ids, 0), tf.int64)
    # Not `==`, which is False where the shapes differ.
    if len(ids.shape) == 1:
        equal, axes = tf.equal(values, ids[:, None, None]), [2]
    else:
        equal, axes = tf.equal(values[:, :, None, :], ids[:, None, :, None]), [2, 3]
    return tf.reduce_sum(tf.cast(equal, tf.float32), axis=axes)
