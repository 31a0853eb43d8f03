"""The hash of ids outside the vocabulary, the same in NumPy and in the exported graph.

With P odd and all arithmetic modulo 2^64:

    text of bytes c_0 .. c_{n-1}:  h = mixed(n + sum over i < 256 of (c_i + 1) * P^(i + 1))
    integer v:                     h = mixed(v as two's complement)

`mixed` is the finaliser of SplitMix64: without it the low bits of the result depend only on the
low bits of the bytes.  Only the first 256 bytes of a text and its length count.
"""

import numpy as np
import pyarrow as pa

LONGEST = 256
"""Number of bytes of a text that count."""

MIXER = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Rounds of the finaliser: h ^= h >> shift, then h *= factor; at the end h ^= h >> 31."""

POWERS = np.cumprod(np.full(LONGEST, 0x9E3779B97F4A7C15, np.uint64))  # wraps modulo 2^64
"""P^1 .. P^256."""


def hash_ids(values: pa.Array, buckets: int) -> np.ndarray:
    """Bucket of each id.

    Args:
        values: (N,) text or integers, without nulls.
        buckets: number of buckets, at least 1.

    Returns:
        (N,) int64 in [0, buckets).
    """
    if pa.types.is_integer(values.type):
        h = np.asarray(values.cast(pa.int64())).view(np.uint64)
    else:
        h = _polynomial(values)
    for shift, factor in MIXER:
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    h = h ^ (h >> np.uint64(31))
    # Without the top bit, signed and unsigned integers have the same remainder.
    return (h >> np.uint64(1)).astype(np.int64) % buckets


def _polynomial(texts: pa.Array) -> np.ndarray:
    """The sum above, before mixing, of each text; (N,) uint64."""
    binary = texts.cast(pa.large_binary())
    _, offsets, content = binary.buffers()
    bounds = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    lengths = np.diff(bounds)
    ends = np.cumsum(lengths)
    data = np.frombuffer(content or b"", np.uint8)[bounds[0] : bounds[-1]]
    place = np.arange(len(data)) - np.repeat(ends - lengths, lengths)  # in its own text
    terms = (data.astype(np.uint64) + np.uint64(1)) * POWERS[np.minimum(place, LONGEST - 1)]
    terms[place >= LONGEST] = 0
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    return sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64)
