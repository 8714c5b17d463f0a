"""Search by words: an inverted index in memory, scored by BM25.

Texts are normalized by NFKC and case-folded. Words are not stemmed. A text in a script without spaces between
words is split into its characters. BM25 is the ranking of Robertson and Zaragoza, "The Probabilistic
Relevance Framework" (2009). A score is divided by the most that any text could reach for the query.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from heapq import nlargest
from math import log
from typing import Final
from unicodedata import normalize

_K1: Final = 1.2
_B: Final = 0.75
_QUERY_WORDS: Final = 64
"""The largest number of words of a query that are looked up: the rarest ones, so a long query stays cheap."""
_ROUNDING: Final = 1e-9
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u065f\u0670\u06d6-\u06dc\u0900-\u0903\u093a-\u094f\u0980-\u0983"
    "\u09bc-\u09cd\u0a3c-\u0a4d\u0abc-\u0acd\u0b3c-\u0b4d\u0bbe-\u0bcd\u0c3e-\u0c4d\u0cbc-\u0ccd\u0d3e-\u0d4d"
)
"""Combining marks, which `\\w` leaves out, in scripts that put them within words."""
_WORD: Final = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[\w{_MARKS}])+")


def words_of(text: str) -> list[str]:
    """Return the words of a text, normalized, in order."""
    return _WORD.findall(normalize("NFKC", normalize("NFKC", text).casefold()))


class WordIndex:
    """The words of texts by key. A change costs the words of its text, a search the texts with its words."""

    def __init__(self) -> None:
        self._postings: dict[str, dict[str, int]] = {}
        self._words: dict[str, tuple[str, ...]] = {}
        self._lengths: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return len(self._words)

    def put(self, key: str, text: str) -> None:
        """Add or replace the text of a key."""
        self.discard(key)
        counts = Counter(words_of(text))
        for word, count in counts.items():
            self._postings.setdefault(word, {})[key] = count
        self._words[key] = tuple(counts)
        self._lengths[key] = counts.total()
        self._total += counts.total()

    def discard(self, key: str) -> None:
        """Remove the text of a key, if there is one."""
        for word in self._words.pop(key, ()):
            postings = self._postings[word]
            del postings[key]
            if not postings:
                del self._postings[word]
        self._total -= self._lengths.pop(key, 0)

    def nearest(
        self, query: str, limit: int, allowed: Collection[str] | None = None
    ) -> list[tuple[str, float]]:
        """Return the texts with the largest scores, from 0 to 1, and all that equal the last of them.

        Words are looked up from the rarest on. Once the others together cannot lift a text to the last place,
        they are looked up for the texts that are left only (Turtle and Flood, "Query Evaluation", 1995).

        Args:
            query: A text.
            limit: The number of texts.
            allowed: Only these keys.
        """
        postings = {word: self._postings.get(word, {}) for word in set(words_of(query))}
        rarest = sorted(postings, key=lambda word: (len(postings[word]) or len(self), word))[:_QUERY_WORDS]
        weights = [self._weight(len(postings[word])) for word in rarest]
        rest = most = sum(weights)
        slope = _K1 * _B * len(self) / self._total if self._total else 0.0
        lengths, found, is_open = self._lengths, dict[str, float](), True
        for word, weight in zip(rarest, weights, strict=True):
            counts, share = postings[word], weight / most
            rest -= weight
            candidates = counts if is_open else [key for key in found if key in counts]
            for key in candidates:
                if allowed is None or key in allowed:
                    count = counts[key]
                    norm = _K1 * (1 - _B) + slope * lengths[key]
                    found[key] = found.get(key, 0.0) + share * count / (count + norm)
            if len(found) > limit:
                least = nlargest(limit, found.values())[-1]
                is_open = is_open and least <= rest / most + _ROUNDING
                if not is_open:
                    bound = least - rest / most - _ROUNDING
                    found = {key: score for key, score in found.items() if score >= bound}
        if len(found) <= limit:
            return list(found.items())
        least = nlargest(limit, found.values())[-1]
        return [(key, score) for key, score in found.items() if score >= least]

    def _weight(self, texts: int) -> float:
        return log(1 + (len(self) - texts + 0.5) / (texts + 0.5))
