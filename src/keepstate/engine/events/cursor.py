"""Stored progress of a projection."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keepstate.engine.kernel.stored import decode_stored


class Cursor(NamedTuple):
    """The progress of a projection."""

    number: int | None
    """The number of the last event that it processed."""
    version: int
    is_clearing: bool = False
    """True while its documents are being deleted, before it starts again."""

    @classmethod
    def of(cls, stored: bytes, name: str) -> Cursor:
        """Decode the stored progress of the projection of this name.

        Raises:
            CorruptError: The bytes are damaged.
        """
        return decode_stored(stored, cls, f"the cursor of {name!r}")

    def encoded(self) -> bytes:
        """Encode the progress for storing."""
        return msgspec.msgpack.encode(self)
