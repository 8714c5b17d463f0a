"""Full encodings of values that are stored in parts; the inverse of `replanted`."""

from __future__ import annotations

from keepstate.values import types
from keepstate.values.contents import open_contents, whole
from keepstate.values.hash_flooding import decoder
from keepstate.values.merkle import compose
from keepstate.values.nodes import refs_in
from keepstate.values.refs import Fetching, together


def inlined(encoding: bytes) -> Fetching[bytes]:
    """Return the full encoding of a value, without decoding it, so that its classes need not be registered.

    Raises:
        CorruptError: An object is missing or damaged.
    """
    if not refs_in(encoding):
        return encoding
    contents = yield from open_contents(encoding)
    entries = yield from contents.items()
    children = yield from together([inlined(child) for child in (yield from whole(entries))])
    return compose(children, [entry.key for entry in entries] if contents.style.has_keys else None)


def holds_pickle(encoding: bytes) -> bool:
    """Return whether a full encoding contains a pickle."""
    found = False

    def look(tag: int, body: memoryview) -> None:
        nonlocal found
        if tag == types.PICKLE:
            found = True
        elif tag in types.CONTAINERS:
            decode(body)

    decode = decoder(look)
    decode(encoding)
    return found
