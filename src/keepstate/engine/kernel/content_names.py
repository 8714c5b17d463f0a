"""Names that are made of content: of parts, objects, events' ids, results of tools, positions.

A digest tells its content to every reader who can guess it. An encrypted store therefore keys these names by
a secret of its own. Invariant: no digest becomes a part of a key, or of a text that leaves the process,
anywhere but here. Names that callers choose are not digests, and stay readable.
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
    """Return the name of content in a space: 20 bytes, of SHA-256 where the store keys no names."""
    return keyed_name(store, space, content) or sha256(content).digest()[:DIGEST_SIZE]


def keyed_name(store: Store, space: str, content: bytes) -> bytes | None:
    """Return the keyed name of content in a space, None where the store keys no names.

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
    return issubclass(kind, NamesObjects)  # to ask it of each store takes as long as reading from it


def event_id_key(store: Store, space: str, stream: str, id: str) -> bytes:
    """Return the key of the entry that says at which index a stream has the event of an id."""
    return layout.event_id_key(stream, content_name(store, space, id.encode())[:_EVENT_ID_BYTES])
