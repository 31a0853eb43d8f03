"""From texts to n-grams of words: the same in Python and, as `frozen.ngrams`, in the graph.

Letters, marks and digits make words, in lower case; everything else separates them.  Each
ideograph, kana and symbol (such as an emoji) is a word of its own, because such texts have no
blanks.  "Don't panic 🎉" has the words don, t, panic, 🎉.

Tokenisers of tf.text, ICU and RE2 were considered: each has Unicode tables of its own version, so
that training and serving would disagree on some characters.  Here both sides read `characters`.
"""

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from multigate.configs.contract import TextFeature

_ALONE = (  # kana and ideographs
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
)
_POINTS = 0x110000
BLANK = 32


class Characters(NamedTuple):
    """What becomes of each code point, P = 0x110000.

    Attributes:
        folded: (P,) int32; in lower case, or `BLANK` where it separates words.
        alone: (P,) bool; whether it is a word of its own.
    """

    folded: np.ndarray
    alone: np.ndarray


@cache
def characters() -> Characters:
    """The table of all code points."""
    folded = np.full(_POINTS, BLANK, np.int32)
    alone = np.zeros(_POINTS, bool)
    for point in range(_POINTS):
        folded[point], alone[point] = _character(point)
    return Characters(folded, alone)


def _character(point: int) -> tuple[int, bool]:
    category = unicodedata.category(chr(point))
    if category == "So":
        return point, True
    if category[0] not in "LMN":
        return BLANK, False
    # The first code point: one letter becomes one letter (İ becomes i and a dot above).
    folded = ord(chr(point).lower()[0])
    return folded, any(first <= point <= last for first, last in _ALONE)


class _Fold(dict[int, str]):
    """A table for `str.translate`, filled as characters are met."""

    def __missing__(self, point: int) -> str:
        folded, alone = _character(point)
        self[point] = f" {chr(folded)} " if alone else chr(folded)
        return self[point]


_FOLD = _Fold()


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.translate(_FOLD).split()


def ngrams(feature: TextFeature, text: str) -> list[str]:
    """The n-grams of a text: its first words, then pairs of them, and so on."""
    first = words(text)[: feature.max_length]
    return [
        " ".join(first[start : start + n])
        for n in range(1, feature.ngrams + 1)
        for start in range(len(first) - n + 1)
    ]


def ngram_lists(feature: TextFeature, texts: pa.Array) -> pa.Array:
    """The n-grams (N,) of texts (N,), as lists; a missing text has none."""
    distinct = texts.cast(pa.string()).dictionary_encode()
    lists = [ngrams(feature, text) for text in distinct.dictionary.to_pylist()]
    indices = distinct.indices.fill_null(len(lists))
    return pa.array([*lists, []], pa.list_(pa.string())).take(indices)
