"""What a row of the log keeps of its revision's changes."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from keepstate.errors import CorruptError
from keepstate.stores.protocol import Change

PUT: Final = 0
DELETED: Final = 1
PUT_OVER_EXPIRED: Final = 2

Logged: TypeAlias = tuple[bytes, int, bytes | None, bytes | None]
"""A key, one of the three kinds above, and where the section keeps values its old and its new one."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Logged])

encode = _encoder.encode


def decode(changes: bytes, revision: int) -> list[Change]:
    """Return the changes of a row.

    Raises:
        CorruptError: It holds none.
    """
    if not changes:
        return []
    try:
        logged = _decoder.decode(changes)
    except msgspec.MsgspecError as error:
        place = f"revision {revision} of the log"
        raise CorruptError(f"{place} is damaged: {error}", place=place) from error
    return [
        Change(revision, key, kind == DELETED, old, new, kind == PUT_OVER_EXPIRED)
        for key, kind, old, new in logged
    ]
