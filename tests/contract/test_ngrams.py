"""Texts become the same n-grams in Python (training) and in the graph (serving)."""

import sys

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from multigate.configs.contract import TextFeature
from multigate.model.data import ngrams
from multigate.model.export.frozen.ngrams import ngram_lists

SURROGATES = range(0xD800, 0xE000)  # no text holds one alone
POINTS = [p for p in range(sys.maxunicode + 1) if p not in SURROGATES]

TITLES = [
    "Ethereum, a Virtual Currency, Enables Transactions That Rival Bitcoin's",
    "Novo workaholic trabalha, pratica esportes e tem tempo para a família. Conheça",
    "A Indústria 4.0 e a transformação digital: por que AGORA?",
    "Não dá para ignorar: ações à prova de crises — o guia (2ª edição)",
    "IEEE to Talk Blockchain at Cloud Computing Oxford-Con - CoinDesk",
    "Google I/O '16 — what's new in C++ & .NET?",
    "東京オリンピックのエンブレム、野老さんの「組市松紋」に",
    "📱 10 apps que você PRECISA ter! 👍🏽",
    "",
    "   ",
    "...",
]


def graph_ngrams(feature: TextFeature, texts: list[str]) -> list[list[str]]:
    values, lengths = ngram_lists(feature, tf.constant(texts, tf.string))
    rows = zip(values.numpy().tolist(), lengths.numpy().tolist(), strict=True)
    return [[one.decode() for one in row[:length]] for row, length in rows]


def test_words_pairs_and_triples_of_the_first_words() -> None:
    feature = TextFeature(kind="text", side="item", ngrams=3, max_length=4)
    found = ngrams.ngrams(feature, "Don't PANIC, 42 times!")  # the fifth word does not count
    words = ["don", "t", "panic", "42"]
    pairs = ["don t", "t panic", "panic 42"]
    assert found == [*words, *pairs, "don t panic", "t panic 42"]
    assert len(found) == feature.as_list.max_length
    assert graph_ngrams(feature, ["Don't PANIC, 42 times!"]) == [found]


def test_ideographs_and_emoji_are_words_of_their_own() -> None:
    assert ngrams.words("東京タワー🗼 go👍🏽 Ünïted") == [
        *"東京タワー",
        "🗼",
        "go",
        "👍",
        "ünïted",
    ]


@pytest.mark.parametrize(
    "every",
    [pytest.param(16, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)],
)
def test_code_points_agree(every: int) -> None:
    """As the first letter of a word, inside one, and twice in a row; below 0x3000 all of them."""
    points = [p for p in POINTS if p < 0x3000 or p % every == 0]
    feature = TextFeature(kind="text", side="item", ngrams=1, max_length=8)
    for start in range(0, len(points), 1 << 18):
        texts = [
            f"{chr(p)}a b{chr(p)}b {chr(p)}{chr(p)}" for p in points[start : start + (1 << 18)]
        ]
        expected = [ngrams.ngrams(feature, text) for text in texts]
        found = graph_ngrams(feature, texts)
        wrong = [t for t, one, two in zip(texts, expected, found, strict=True) if one != two]
        assert not wrong, wrong[:3]


def test_titles_agree(real_data) -> None:
    path = real_data("ml-100k/u.item")
    titles = [line.split("|")[1] for line in path.read_text("latin-1").splitlines()]
    texts = TITLES + titles
    feature = TextFeature(kind="text", side="item", ngrams=2, max_length=6)
    expected = ngrams.ngram_lists(feature, pa.array(texts)).to_pylist()
    assert graph_ngrams(feature, texts) == expected
    assert max(map(len, expected)) == 11


@pytest.mark.parametrize("seed", range(3))
def test_random_texts_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    letters = np.array([*"aAbBçÇ Σς-_.'0๑", "é", "e\u0301", "🎉", "日", "\0", "İ", "ß", "\ufeff"])
    texts = ["".join(rng.choice(letters, rng.integers(0, 40))) for _ in range(500)]
    feature = TextFeature(kind="text", side="item", ngrams=3, max_length=5)
    assert graph_ngrams(feature, texts) == [ngrams.ngrams(feature, text) for text in texts]


@pytest.mark.parametrize("texts", [[], [""], ["", "..."]])
def test_a_call_without_a_word(texts: list[str]) -> None:
    feature = TextFeature(kind="text", side="item")
    frozen = tf.function(lambda given: ngram_lists(feature, given))
    values, lengths = frozen(tf.constant(texts, tf.string))
    assert values.shape[0] == len(texts)
    assert not lengths.numpy().any()


def test_bytes_that_are_no_utf_8_do_not_stop_a_call() -> None:
    feature = TextFeature(kind="text", side="item")
    values, lengths = ngram_lists(feature, tf.constant([b"ab\xff cd", b"ok"]))
    assert values.numpy()[1, : lengths[1]].tolist() == [b"ok"]
    assert b"cd" in values.numpy()[0].tolist()
