"""What a recorded space keeps about being one."""

from __future__ import annotations

from typing import Annotated

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import StoredMs, decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.stores.protocol import Entry

_FORMAT = 1


class Flag(msgspec.Struct, array_like=True, frozen=True):
    """Says that a space is recorded.

    Attributes:
        format: How its record is kept.
        expiring_ms: No recorded document expires before; None if none of them does.
    """

    format: Annotated[int, msgspec.Meta(ge=1, le=_FORMAT)] = _FORMAT
    expiring_ms: StoredMs | None = None


def read_flag(entry: Entry | None) -> Flag | None:
    """Return what an entry says; None if the space is not recorded."""
    return None if entry is None else decode_stored(entry.value, Flag, describe(layout.RECORDED))


def put_flag(unit: Unit, flag: Flag) -> None:
    """Write it."""
    unit.put(layout.RECORDED, msgspec.msgpack.encode(flag))
