r"""Name patterns: `*` any text, `?` one character, `[a-z]` or `[!a-z]` one of a set, `\` escapes."""

from __future__ import annotations

import re
from functools import lru_cache

from keepstate.errors import InvalidError


class Glob:
    """A compiled pattern; `prefix` is the plain text that every match starts with."""

    __slots__ = ("_regex", "everything", "prefix", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.prefix, rest = _plain_prefix(text)
        self.everything = rest == "*"
        self._regex = re.compile(re.escape(self.prefix) + _translated(rest), re.DOTALL)

    def matches(self, name: str) -> bool:
        """Whether the whole name fits the pattern."""
        if self.everything:
            return name.startswith(self.prefix)
        return self._regex.fullmatch(name) is not None


def compiled(pattern: str) -> Glob:
    """Returns the pattern, compiled once.

    Raises:
        InvalidError: It is no str, or a set or backslash in it has no end.
    """
    if type(pattern) is not str:
        raise InvalidError(f"`pattern` is {pattern!r} ({type(pattern).__name__}); give a str")
    return _compiled(pattern)


_compiled = lru_cache(maxsize=256)(Glob)


def escaped(name: str) -> str:
    """Returns the pattern that only this name fits."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)


def _plain_prefix(text: str) -> tuple[str, str]:
    plain, place = "", 0
    while place < len(text) and text[place] not in "*?[":
        if text[place] == "\\":
            place += 1
            if place == len(text):
                raise InvalidError(f"pattern {text!r} ends with a backslash; double it to mean itself")
        plain += text[place]
        place += 1
    return plain, text[place:]


def _translated(text: str) -> str:
    made, place = "", 0
    while place < len(text):
        sign = text[place]
        if sign == "*":
            made += ".*"
        elif sign == "?":
            made += "."
        elif sign == "[":
            one_of, place = _set(text, place)
            made += one_of
            continue
        elif sign == "\\":
            place += 1
            if place == len(text):
                raise InvalidError(f"pattern {text!r} ends with a backslash; double it to mean itself")
            made += re.escape(text[place])
        else:
            made += re.escape(sign)
        place += 1
    return made


def _set(text: str, place: int) -> tuple[str, int]:
    """Returns the regular expression of the set that begins here, and where it has ended."""
    end = text.find("]", place + (3 if text[place + 1 : place + 2] == "!" else 2))
    if end < 0:
        raise InvalidError(f"pattern {text!r} opens a set with [ and never closes it; \\[ means itself")
    inside = text[place + 1 : end]
    negated = inside.startswith("!")
    signs = (inside[1:] if negated else inside).replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
    try:
        one_of = f"[{'^' if negated else ''}{signs}]"
        re.compile(one_of)
    except re.error as error:
        raise InvalidError(f"pattern {text!r} has a set that is none: {error}") from error
    return one_of, end + 1
