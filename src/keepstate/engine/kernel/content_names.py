"""Names derived from content: of parts, objects, event ids, tool results and positions.

A plain digest lets every reader verify a guess of the content. An encrypted store therefore keys these names
with a secret of its own. Invariant: digests become part of a key, or of a text that leaves the process, only
here. Names that callers choose are not digests, and stay readable.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import cast

from keepstate.engine.kernel import layout
from keepstate.stores.protocol import NamesObjects, Store
from keepstate.values.digest import DIGEST_SIZE

_EVENT_ID_BYTES = 16


def content_name(store: Store, space: str, content: bytes) -> bytes:
    """Return the 20-byte name of content in a space: keyed by the store, otherwise a truncated SHA-256."""
    return keyed_name(store, space, content) or sha256(content).digest()[:DIGEST_SIZE]


def keyed_name(store: Store, space: str, content: bytes) -> bytes | None:
    """Return the keyed name of content in a space, or None if the store does not key names.

    Args:
        store: The opened store.
        space: The name of the space in the store.
        content: The bytes to name.
    """
    if not _names_objects(type(store)):
        return None
    return cast("NamesObjects", store).object_name(space, content)


@cache
def _names_objects(kind: type) -> bool:
    return issubclass(kind, NamesObjects)  # cached: the check costs as much as a read from the store


def event_id_key(store: Store, space: str, stream: str, id: str) -> bytes:
    """Return the key of the entry that maps an event id to the event's index in a stream."""
    return layout.event_id_key(stream, content_name(store, space, id.encode())[:_EVENT_ID_BYTES])
