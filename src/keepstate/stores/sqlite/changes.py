"""What a row of the log keeps of its revision's changes."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from keepstate.errors import CorruptError
from keepstate.stores.protocol import Change

Logged: TypeAlias = tuple[bytes, bool, bytes | None, bytes | None]
"""A key, whether it was deleted, and where the section keeps values its old and its new one."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Logged])

encode = _encoder.encode


def decode(changes: bytes, revision: int) -> list[Change]:
    """Returns the changes of a row.

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
    return [Change(revision, key, deleted, old, new) for key, deleted, old, new in logged]
