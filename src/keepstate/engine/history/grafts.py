"""What comes before a commit whose parents were pruned: its nearest kept ancestors.

A commit names its parents and never changes. So the grafts of all commits stand in one entry. What walks from
commit to commit reads it, and so is refused if something was pruned meanwhile.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Final, TypeAlias

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import corrupt_error, decode_stored
from keepstate.engine.kernel.unit import Unit

_CHECKSUM_BYTES: Final = 8


class Graft(msgspec.Struct, array_like=True, frozen=True):
    """What stands in place of a commit's parents.

    Attributes:
        parents: Its nearest kept ancestors.
        skipped: How many first parents were pruned between it and the first of them, or the beginning.
        goes_on: Whether the first of them is on its line of first parents; else that line ends here.
    """

    parents: list[bytes]
    skipped: Annotated[int, msgspec.Meta(ge=0)]
    goes_on: bool = True


Grafts: TypeAlias = dict[bytes, Graft]


async def read_grafts(unit: Unit) -> Grafts:
    """Return all grafts by commit; the unit's batch applies only if they are still the same."""
    entry = await unit.get(layout.GRAFTS)
    return {} if entry is None else decoded(await unit.value(entry))


def put_grafts(unit: Unit, grafts: Grafts) -> None:
    """Write all grafts."""
    unit.put(layout.GRAFTS, encoded(grafts))


def encoded(grafts: Grafts) -> bytes:
    """Return grafts as they are stored.

    Their checksum stands behind them: a value that begins with one may begin like a value that is in parts.
    """
    told = msgspec.msgpack.encode(grafts)
    return told + _checksum(told)


def decoded(stored: bytes) -> Grafts:
    """Return grafts as they are stored; nothing else would tell that one of them is another."""
    place = describe(layout.GRAFTS)
    told = stored[:-_CHECKSUM_BYTES]
    if stored[-_CHECKSUM_BYTES:] != _checksum(told):
        raise corrupt_error(place, "its checksum is another's")
    return decode_stored(told, Grafts, place)


def _checksum(told: bytes) -> bytes:
    return sha256(told).digest()[:_CHECKSUM_BYTES]
