"""Formatting of keys and stored texts for messages."""

from __future__ import annotations

from typing import Final

from keepstate.engine.kernel import layout
from keepstate.errors import CorruptError
from keepstate.values.key import unpack

_WORDS: Final = {
    layout.DOCUMENTS: "document",
    layout.LEASES: "lease",
    layout.BRANCHES: "branch",
    layout.TAGS: "tag",
}

_SHOWN_BEGIN: Final = 160
_SHOWN_END: Final = 80


def shorten(text: str) -> str:
    """Return a stored text for a message. A long text is cut to its beginning and its end.

    Stored text is not trusted: any writer of the store decides its length.
    """
    if len(text) <= _SHOWN_BEGIN + _SHOWN_END:
        return text
    return f"{text[:_SHOWN_BEGIN]}…{text[-_SHOWN_END:]}"


def describe(key: bytes) -> str:
    """Return `document 'plan'` for a key with a name, and the path of any other key."""
    for part, word in _WORDS.items():
        if key.startswith(part):
            return f"{word} {key[len(part) :].decode('utf-8', 'replace')!r}"
    try:
        segments = unpack(key[1:])
    except CorruptError:
        return f"key {key.hex()}"
    if len(segments) == 2 and key.startswith((layout.HEADS, layout.TASKS)):
        return f"{segments[0]!s} {segments[1]!r}"
    return "/".join(str(segment) for segment in segments)
