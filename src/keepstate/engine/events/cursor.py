"""How far a projection has come, as it is kept."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keepstate.engine.kernel.stored import decode_stored


class Cursor(NamedTuple):
    """How far a projection has come."""

    number: int | None
    """Of the last event that it counted."""
    version: int
    is_clearing: bool = False
    """Whether what it had written is being removed, to begin anew."""

    @classmethod
    def of(cls, stored: bytes, name: str) -> Cursor:
        """Return what is stored of the projection of this name.

        Raises:
            CorruptError: Nobody has stored this.
        """
        return decode_stored(stored, cls, f"the cursor of {name!r}")

    def encoded(self) -> bytes:
        """Return it as it is stored."""
        return msgspec.msgpack.encode(self)
