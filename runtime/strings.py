"""Texts in TensorFlow's memory: arrays of TF_TString, 24 bytes each.

The two lowest bits of the first byte say where a text is:

    small    size (1 byte, times 4), then up to 22 bytes of text
    large    size (8 bytes, times 4, plus 1), capacity (8), address (8)
    offset   size (4, times 4, plus 2), distance of the text from this struct (4)
    view     size (8, times 4, plus 3), address (8), owner (8; 0: none)

TensorFlow's header `tsl/platform/ctstring_internal.h` defines this layout.
"""

import ctypes
import sys
from collections.abc import Sequence
from itertools import chain

import numpy as np

BYTES = 24
_SMALL, _LARGE, _OFFSET, _VIEW = range(4)
_TWO_BITS, _IS_VIEW = np.uint64(2), np.uint64(_VIEW)
assert sys.byteorder == "little"  # big-endian machines have another layout


def views(texts: Sequence[bytes]) -> tuple[bytes, np.ndarray]:
    """TF_TStrings that point into one buffer.

    Args:
        texts: N texts.

    Returns:
        The buffer, which must outlive the use of the strings, and their words: (N, 3) uint64.

    Raises:
        TypeError: a text is not bytes.
    """
    buffer = b"".join(texts)
    address: int = ctypes.c_size_t.from_buffer(ctypes.c_char_p(buffer)).value
    numbers = np.fromiter(chain((address,), map(len, texts)), np.uint64, len(texts) + 1)
    words = np.zeros((len(texts), 3), np.uint64)
    words[:, 1] = numbers.cumsum()[:-1]
    numbers <<= _TWO_BITS
    numbers |= _IS_VIEW
    words[:, 0] = numbers[1:]
    return buffer, words


def read(address: int, count: int) -> list[bytes]:
    """Copies of the texts of so many TF_TStrings at an address."""
    raw = ctypes.string_at(address, count * BYTES)
    words = np.frombuffer(raw, np.uint64).reshape(count, 3).tolist()
    found = []
    for place, (first, second, third) in enumerate(words):
        kind = first & 3
        if kind == _SMALL:
            start = place * BYTES + 1
            found.append(raw[start : start + ((first & 255) >> 2)])
        elif kind == _OFFSET:
            where = address + place * BYTES + (first >> 32)
            found.append(ctypes.string_at(where, (first & 0xFFFFFFFF) >> 2))
        else:
            found.append(ctypes.string_at(third if kind == _LARGE else second, first >> 2))
    return found
