"""Keys in words, for messages."""

from __future__ import annotations

from typing import Final

from keepstate.engine import layout
from keepstate.errors import CorruptError
from keepstate.values.key import unpack

_WORDS: Final = {
    layout.DOCUMENTS: "document",
    layout.LEASES: "lease",
    layout.BRANCHES: "branch",
    layout.TAGS: "tag",
}


def describe(key: bytes) -> str:
    """Returns `document 'plan'` for a known key, and its path for any other."""
    for part, word in _WORDS.items():
        if key.startswith(part):
            return f"{word} {key[len(part) :].decode('utf-8', 'replace')!r}"
    try:
        return "/".join(str(segment) for segment in unpack(key[1:]))
    except CorruptError:
        return f"key {key.hex()}"
