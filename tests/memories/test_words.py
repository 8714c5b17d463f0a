"""Words of texts, and their scores."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.memories.words import WordIndex, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Straße, STRASSE!", ["strasse", "strasse"]),
        ("ﬁne Ⅷ", ["fine", "viii"]),
        ("cafe\u0301", ["café"]),
        ("שָׁלוֹם עולם", ["שָׁלוֹם", "עולם"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("東京に住む", ["東", "京", "に", "住", "む"]),
        ("a\0b _ \u202ec", ["a", "b", "_", "c"]),
        ("", []),
        ("!?", []),
    ],
)
def test_texts_are_split_into_folded_words(text: str, words: list[str]) -> None:
    assert words_of(text) == [words_of(word)[0] for word in words]
    assert len(words_of(text)) == len(words)


TEXTS = st.lists(st.sampled_from(["tea", "dog", "cat", "sun"]), max_size=6).map(" ".join)


@given(
    texts=st.dictionaries(st.sampled_from("abcdef"), TEXTS),
    removed=st.sets(st.sampled_from("abcdef")),
    query=TEXTS,
)
def test_scores_equal_those_of_a_walk_over_all_texts(
    texts: dict[str, str], removed: set[str], query: str
) -> None:
    index = WordIndex()
    for key, text in texts.items():
        index.put(key, "dog dog")
        index.put(key, text)
    for key in removed:
        index.discard(key)
    left = {key: text.split() for key, text in texts.items() if key not in removed}

    words = set(query.split())
    mean = sum(map(len, left.values())) / len(left) if left else 0.0
    weights = {
        word: log(1 + (len(left) - n + 0.5) / (n + 0.5))
        for word in words
        for n in [sum(word in text for text in left.values())]
    }
    expected = {
        key: sum(
            weights[word] * text.count(word) / (text.count(word) + 1.2 * (0.25 + 0.75 * len(text) / mean))
            for word in words
        )
        / sum(weights.values())
        for key, text in left.items()
        if words & set(text)
    }
    assert dict(index.nearest(query, 100)) == pytest.approx(expected)
    for limit in (1, 2):
        best = dict(index.nearest(query, limit))
        assert best == pytest.approx({key: expected[key] for key in best})
        assert sorted(best.values(), reverse=True)[:limit] == pytest.approx(
            sorted(expected.values(), reverse=True)[:limit]
        )


def test_a_long_query_looks_up_its_rarest_words() -> None:
    index = WordIndex()
    for number in range(200):
        index.put(str(number), f"common w{number}")

    assert {
        key for key, _ in index.nearest(" ".join(["common", *(f"w{number}" for number in range(64))]), 1_000)
    } == set(map(str, range(64)))
