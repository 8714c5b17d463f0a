"""Paths as they are typed and printed: `messages[3].meta`, `['a.b']`.

A path begins with a key. After it stand `.key`, and `[…]` with a place or key as Python writes it: `[3]`,
`[-1]`, `['a.b']`. A key that stands bare is a text without `.`, `[`, `]`, quotes and spaces; any other key is
written in brackets, also as the first: `['a.b'][0]`.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from keepstate.errors import InvalidError

_BARE: Final = re.compile(r"[^.\[\]\s'\"]+")
_ANY: Final = "*"


def path_of(text: str, *, has_any: bool = False) -> tuple[Any, ...]:
    """Returns the steps of a path.

    Args:
        text: The path.
        has_any: Takes `*` for any step, which is None then; `*` alone is for the whole state.

    Raises:
        InvalidError: It is none; says where it ends to be one.
    """
    if has_any and text == _ANY:
        return ()
    steps: list[Any] = []
    place = 0
    while place < len(text) or not steps:
        if text[place : place + 1] == "[":
            place, step = _bracketed(text, place, has_any=has_any)
        else:
            if steps and text[place] != ".":
                raise _wrong(text, place)
            begin = place + bool(steps)
            bare = _BARE.match(text, begin)
            if bare is None:
                raise _wrong(text, begin)
            place, step = bare.end(), None if has_any and bare[0] == _ANY else bare[0]
        steps.append(step)
    return tuple(steps)


def _bracketed(text: str, begin: int, *, has_any: bool) -> tuple[int, Any]:
    """Returns where a bracket ends and the step in it, the shortest that is one."""
    end = text.find("]", begin)
    while end >= 0:
        inside = text[begin + 1 : end]
        if has_any and inside == _ANY:
            return end + 1, None
        try:
            step = ast.literal_eval(inside)
            hash(step)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            end = text.find("]", end + 1)
            continue
        return end + 1, step
    raise _wrong(text, begin)


def _wrong(text: str, place: int) -> InvalidError:
    here = f"{text[:place]}⟨here⟩{text[place:]}"
    return InvalidError(
        f"{here} is no path; write it as messages[3].meta, and a key with dots or spaces as ['a.b']"
    )
