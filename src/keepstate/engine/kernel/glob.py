r"""Name patterns: `*` any text, `?` one character, `[a-z]` or `[!a-z]` one of a set, `\` escapes.

`/` is a character like any other: `*`, `?` and sets match it too. Matching takes time by the length of the
name, whatever the pattern: all positions that the pattern may have reached are the bits of one integer, and
each character moves them by one shift (Baeza-Yates and Gonnet, "A New Approach to Text Searching", 1992).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from functools import lru_cache
from typing import Final

from keepstate.errors import InvalidError
from keepstate.values import limits

_SPECIAL: Final = "*?[\\"
_BEYOND: Final = 0x110000
"""Above every character."""
_KEPT_MASKS: Final = 512

_Spans = list[tuple[int, int]]
"""Which characters an element matches: from each first one up to the next, without it; in order, apart."""


class Glob:
    """A compiled pattern; `prefix` is the plain text that every match starts with."""

    __slots__ = ("_alphabet", "_end", "_masks", "_start", "_stars", "_turns", "everything", "prefix", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.prefix, rest = _plain_prefix(text)
        self.everything = rest == "*"
        elements, self._stars = _parsed(text, rest)
        self._start, self._end = 1, 1 << len(elements)
        self._turns, self._alphabet = _alphabet_of(elements)
        self._masks: dict[str, int] = {}

    def matches(self, name: str) -> bool:
        """Return whether the whole name fits the pattern."""
        if not name.startswith(self.prefix):
            return False
        if self.everything:
            return True
        reached, stars, masks = self._start, self._stars, self._masks
        for sign in name[len(self.prefix) :]:
            mask = masks.get(sign)
            if mask is None:
                mask = self._mask(sign)
            reached = (reached & mask) << 1 | reached & stars
            if not reached:
                return False
        return bool(reached & self._end)

    def _mask(self, sign: str) -> int:
        """Return the elements that match a character, one bit each."""
        mask = self._alphabet[bisect_right(self._turns, ord(sign)) - 1]
        if len(self._masks) < _KEPT_MASKS:
            self._masks[sign] = mask
        return mask


def compile_pattern(pattern: str) -> Glob:
    """Return the pattern, compiled once.

    Raises:
        InvalidError: It is not a str, is longer than `limits.PATTERN_BYTES`, or a set or backslash in it has
            no end.
    """
    if type(pattern) is not str:
        raise InvalidError(f"`pattern` is {pattern!r} ({type(pattern).__name__}); give a str")
    size = len(pattern)
    if size <= limits.PATTERN_BYTES:
        size = len(pattern.encode(errors="surrogatepass"))
    if size > limits.PATTERN_BYTES:
        raise InvalidError(
            f"`pattern` has {size:,} bytes or more, beginning {pattern[:40]!r}; "
            f"it may have {limits.PATTERN_BYTES:,}"
        )
    return _compiled(pattern)


_compiled = lru_cache(maxsize=64)(Glob)


def escape_pattern(name: str) -> str:
    """Return the pattern that only this name fits."""
    return "".join(f"\\{sign}" if sign in _SPECIAL else sign for sign in name)


def _plain_prefix(text: str) -> tuple[str, str]:
    plain, place = list[str](), 0
    while place < len(text) and text[place] not in "*?[":
        sign, place = _plain(text, place, text)
        plain.append(sign)
    return "".join(plain), text[place:]


def _plain(text: str, place: int, whole: str) -> tuple[str, int]:
    """Return the character that stands here, escaped or not, and the place behind it."""
    if text[place] != "\\":
        return text[place], place + 1
    if place + 1 == len(text):
        raise InvalidError(f"pattern {whole!r} ends with a backslash; double it to mean itself")
    return text[place + 1], place + 2


def _parsed(whole: str, text: str) -> tuple[list[_Spans], int]:
    """Return the elements that match one character each, and a bit for each place among them with a star."""
    elements, stars, place = list[_Spans](), 0, 0
    while place < len(text):
        sign = text[place]
        if sign == "*":
            stars, place = stars | 1 << len(elements), place + 1
            continue
        if sign == "?":
            spans, place = [(0, _BEYOND)], place + 1
        elif sign == "[":
            spans, place = _set(text, place, whole)
        else:
            plain, place = _plain(text, place, whole)
            spans = [(ord(plain), ord(plain) + 1)]
        elements.append(spans)
    return elements, stars


def _set(text: str, place: int, whole: str) -> tuple[_Spans, int]:
    """Return the characters of the set that begins here, and the place behind it."""
    negated = text.startswith("!", place + 1)
    first = place + (2 if negated else 1)
    end = text.find("]", first + 1)
    if end < 0:
        raise InvalidError(f"pattern {whole!r} opens a set with [ and never closes it; \\[ means itself")
    spans, place = _Spans(), first
    while place < end:
        low = high = text[place]
        if place + 2 < end and text[place + 1] == "-":
            high, place = text[place + 2], place + 2
        if low > high:
            raise InvalidError(
                f"pattern {whole!r} has the range {low}-{high} in a set; the lower end comes first"
            )
        spans.append((ord(low), ord(high) + 1))
        place += 1
    joined = _joined(spans)
    return _others(joined) if negated else joined, end + 1


def _joined(spans: _Spans) -> _Spans:
    """Return spans in order, with those that overlap or touch as one."""
    joined = _Spans()
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def _others(spans: _Spans) -> _Spans:
    """Return the spans between these."""
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), _BEYOND]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _alphabet_of(elements: list[_Spans]) -> tuple[list[int], list[int]]:
    """Return the characters at which elements begin or end to match, and those that match from each on."""
    turned = defaultdict[int, int](int)
    for place, spans in enumerate(elements):
        for low, high in spans:
            turned[low] ^= 1 << place
            turned[high] ^= 1 << place
    turned.setdefault(0, 0)
    turns, alphabet, matching = sorted(turned), list[int](), 0
    for turn in turns:
        matching ^= turned[turn]
        alphabet.append(matching)
    return turns, alphabet
