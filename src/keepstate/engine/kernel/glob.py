r"""Name patterns: `*` any text, `?` one character, `[a-z]` or `[!a-z]` one of a set, `\` escapes.

`/` is an ordinary character: `*`, `?` and sets match it too. Matching time depends on the length of the name
only, not on the pattern: the positions that the pattern may have reached are the bits of one integer, and
each character shifts them once (Baeza-Yates and Gonnet, "A New Approach to Text Searching", 1992).
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
"""One more than the largest code point."""
_CACHED_MASKS: Final = 512

_Spans = list[tuple[int, int]]
"""Which characters an element matches: from each first one up to the next, without it; in order, apart."""


class Glob:
    """A compiled pattern. `prefix` is the literal text that every match starts with."""

    __slots__ = (
        "_alphabet",
        "_end",
        "_masks",
        "_start",
        "_stars",
        "_boundaries",
        "everything",
        "prefix",
        "text",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self.prefix, rest = _split_prefix(text)
        self.everything = rest == "*"
        elements, self._stars = _parse(text, rest)
        self._start, self._end = 1, 1 << len(elements)
        self._boundaries, self._alphabet = _build_alphabet(elements)
        self._masks: dict[str, int] = {}

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches the pattern."""
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
        mask = self._alphabet[bisect_right(self._boundaries, ord(sign)) - 1]
        if len(self._masks) < _CACHED_MASKS:
            self._masks[sign] = mask
        return mask


def compile_pattern(pattern: str) -> Glob:
    """Compile a pattern, or return it from the cache.

    Raises:
        InvalidError: It is not a str, it is longer than `limits.PATTERN_BYTES`, it ends with a backslash, or
            a set in it is not closed.
    """
    if type(pattern) is not str:
        raise InvalidError(f"`pattern` is {pattern!r} ({type(pattern).__name__}); give a str")
    size = len(pattern)
    if size <= limits.PATTERN_BYTES:
        size = len(pattern.encode(errors="surrogatepass"))
    if size > limits.PATTERN_BYTES:
        raise InvalidError(
            f"`pattern` has at least {size:,} bytes, beginning with {pattern[:40]!r}; "
            f"at most {limits.PATTERN_BYTES:,} are allowed"
        )
    return _compiled(pattern)


_compiled = lru_cache(maxsize=64)(Glob)


def escape_pattern(name: str) -> str:
    """Escape a name: return the pattern that matches only this name."""
    return "".join(f"\\{sign}" if sign in _SPECIAL else sign for sign in name)


def _split_prefix(text: str) -> tuple[str, str]:
    plain, index = list[str](), 0
    while index < len(text) and text[index] not in "*?[":
        sign, index = _read_literal(text, index, text)
        plain.append(sign)
    return "".join(plain), text[index:]


def _read_literal(text: str, index: int, whole: str) -> tuple[str, int]:
    """Return the literal character at an index, escaped or not, and the index after it."""
    if text[index] != "\\":
        return text[index], index + 1
    if index + 1 == len(text):
        raise InvalidError(f"pattern {whole!r} ends with a backslash; write \\\\ for a literal backslash")
    return text[index + 1], index + 2


def _parse(whole: str, text: str) -> tuple[list[_Spans], int]:
    """Return the elements, each matching one character, and a bit for each index among them with a star."""
    elements, stars, index = list[_Spans](), 0, 0
    while index < len(text):
        sign = text[index]
        if sign == "*":
            stars, index = stars | 1 << len(elements), index + 1
            continue
        if sign == "?":
            spans, index = [(0, _BEYOND)], index + 1
        elif sign == "[":
            spans, index = _parse_set(text, index, whole)
        else:
            plain, index = _read_literal(text, index, whole)
            spans = [(ord(plain), ord(plain) + 1)]
        elements.append(spans)
    return elements, stars


def _parse_set(text: str, index: int, whole: str) -> tuple[_Spans, int]:
    """Return the characters of the set at an index, and the index after the set."""
    negated = text.startswith("!", index + 1)
    first = index + (2 if negated else 1)
    end = text.find("]", first + 1)
    if end < 0:
        raise InvalidError(
            f"pattern {whole!r} opens a set with [ and does not close it; write \\[ for a literal ["
        )
    spans, index = _Spans(), first
    while index < end:
        low = high = text[index]
        if index + 2 < end and text[index + 1] == "-":
            high, index = text[index + 2], index + 2
        if low > high:
            raise InvalidError(
                f"pattern {whole!r} has the range {low}-{high} in a set; the lower end comes first"
            )
        spans.append((ord(low), ord(high) + 1))
        index += 1
    merged = _merge_spans(spans)
    return _complement(merged) if negated else merged, end + 1


def _merge_spans(spans: _Spans) -> _Spans:
    """Return spans in order, with overlapping and adjacent ones merged."""
    merged = _Spans()
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def _complement(spans: _Spans) -> _Spans:
    """Return the spans of all characters outside these spans."""
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), _BEYOND]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _build_alphabet(elements: list[_Spans]) -> tuple[list[int], list[int]]:
    """Return the boundaries of all spans, and the elements that match from each boundary on, as bits."""
    flips = defaultdict[int, int](int)
    for index, spans in enumerate(elements):
        for low, high in spans:
            flips[low] ^= 1 << index
            flips[high] ^= 1 << index
    flips.setdefault(0, 0)
    boundaries, alphabet, matching = sorted(flips), list[int](), 0
    for boundary in boundaries:
        matching ^= flips[boundary]
        alphabet.append(matching)
    return boundaries, alphabet
