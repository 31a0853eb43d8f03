"""Stable 64-bit hashes of columns: the same on every machine, version and run.

Buckets, random splits, sampled negatives and the numbers of impressions are functions of these
hashes, so that no result depends on the order of the rows or on how workers share them. polars'
`hash` changes between versions, and xxhash hashes one value at a time.
"""

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x4E55_4C4C)
_BYTES_AT_ONCE = 8 << 20


def mix(values: Any) -> Hashes:
    """Scramble 64-bit numbers one to one: the finaliser of SplitMix64 (Steele et al., 2014).

    Args:
        values: (B,) integers of 64 bits.

    Returns:
        (B,) numbers each of whose bits depends on every bit of the value.
    """
    h = np.asarray(values).astype(np.uint64) + _BASE
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


def combine(left: Any, right: Any) -> Hashes:
    """Hash pairs of hashes. (a, b) and (b, a) differ."""
    left = np.asarray(left).astype(np.uint64)
    return mix(left * _BASE + np.asarray(right).astype(np.uint64))


def hash_column(column: Any) -> Hashes:
    """Hash a polars column of integers or text. Null hashes like zero or the empty text.

    Returns:
        (B,) hashes. Text: sum of word_j * base**j over its 8-byte words, scrambled.
    """
    if column.dtype.is_integer():
        return mix(column.fill_null(0).to_numpy())
    texts = column.cast(str).fill_null("").to_arrow().cast(pa.large_binary())
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if len(texts) == 0:
        return np.zeros(0, np.uint64)
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    # Eight spare bytes, since the last word of the last text is read whole.
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    raw = np.concatenate([raw[bounds[0] : bounds[-1]], np.zeros(8, np.uint8)])
    bounds = bounds - bounds[0]
    result = np.empty(len(texts), np.uint64)
    first = 0
    while first < len(texts):
        limit = np.searchsorted(bounds, bounds[first] + _BYTES_AT_ONCE, side="right") - 1
        last = min(max(int(limit), first + 1), len(texts))
        result[first:last] = _hash_texts(raw, bounds[first : last + 1])
        first = last
    return result


def hash_values(column: Any) -> Hashes:
    """Hash a polars column of numbers, flags, times, texts or lists of them; (B,).

    Unlike `hash_column`, it tells null from zero and from the empty text, and [] from null.
    """
    kind = column.dtype
    if kind == pl.Boolean:
        hashes = mix(column.cast(pl.Int64).fill_null(0).to_numpy())
    elif kind.is_float():
        numbers = column.cast(pl.Float64).fill_null(0).to_numpy() + 0.0  # -0.0 is 0.0
        hashes = mix(numbers.view(np.uint64))
    elif kind.is_temporal():
        hashes = hash_column(column.to_physical())
    elif isinstance(kind, pl.List):
        hashes = _hash_lists(column)
    else:
        hashes = hash_column(column)
    if column.null_count():
        hashes[column.is_null().to_numpy()] = _NULL
    return hashes


def _hash_lists(column: Any) -> Hashes:
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    place = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    values = hash_values(column.filter(pl.Series(lengths > 0)).explode())
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(combine(values, place))])
    return combine(lengths, sums[ends] - sums[ends - lengths])


def _hash_texts(raw: NDArray[np.uint8], bounds: NDArray[np.int64]) -> Hashes:
    """Hash the texts raw[bounds[i] : bounds[i + 1]]; `raw` has eight spare bytes at its end."""
    lengths = np.diff(bounds)
    words = np.maximum((lengths + 7) // 8, 1)  # an empty text is one word of no bytes
    first = np.cumsum(words) - words
    index = np.arange(int(words.sum())) - np.repeat(first, words)  # the word's place in its text
    overlapping = np.ndarray(len(raw) - 7, "<u8", raw, strides=(1,))  # a word from every byte on
    values = overlapping[np.repeat(bounds[:-1], words) + 8 * index]
    # Clear the bytes of the last word that do not belong to the text.
    last, spare = first + words - 1, (8 * (8 * words - lengths)).astype(np.uint64)
    values[last] = np.where(spare == 64, 0, (values[last] << spare) >> spare)
    powers = np.full(int(words.max()), _BASE)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint64)
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    sums = np.add.reduceat(values * powers[index], first, dtype=np.uint64)
    return mix(sums ^ (lengths.astype(np.uint64) << np.uint64(48)))
