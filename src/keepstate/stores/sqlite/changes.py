"""The encoding of a revision's changes in a row of the log."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from keepstate.errors import CorruptError
from keepstate.stores.protocol import Change

PUT: Final = 0
DELETED: Final = 1
PUT_OVER_EXPIRED: Final = 2

Logged: TypeAlias = tuple[bytes, int, bytes | None, bytes | None]
"""A key, one of the three kinds above, and the old and new value if the section logs values."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Logged])

encode = _encoder.encode


def decode(changes: bytes, revision: int) -> list[Change]:
    """Decode the changes of a row.

    Raises:
        CorruptError: The bytes are not changes.
    """
    if not changes:
        return []
    try:
        logged = _decoder.decode(changes)
    except msgspec.MsgspecError as error:
        place = f"revision {revision} of the log"
        raise CorruptError(
            f"{place} is damaged: {error}. Restore the file from a backup.", place=place
        ) from error
    return [
        Change(revision, key, kind == DELETED, old, new, kind == PUT_OVER_EXPIRED)
        for key, kind, old, new in logged
    ]
