"""Bookings of slots that expire, made by transactions that scan all slots first.

Invariant: no slot has two live holders. A holder books a slot only while it is free, and renews its booking
only while that is live. The log shows both: a change over an expired value is marked as such. Expiry does not
change the revision of a space. So a scan that is guarded by the revision alone renews a booking that has
ended, after other clients have seen the slot free.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.space.space import Space
from keepstate.stores.protocol import Change
from keepstate.values import codec

_SLOTS: Final = ("slot/a", "slot/b", "slot/c")
_KEYS: Final = {layout.named_key(layout.DOCUMENTS, name): name for name in _SLOTS}
_HOLDER: Final = "holder"
_IS_RENEWED: Final = "is_renewed"


async def book(space: Space, holder: str, *, ttl_s: float, wait: Callable[[], Awaitable[None]]) -> None:
    """Renew the live booking of a holder, or book a free slot, or do nothing if there is none.

    Args:
        space: The space of the slots.
        holder: The name of the holder.
        ttl_s: The time to live of the booking, in seconds.
        wait: Called between the scan and the write. A booking may expire in the meantime.

    Raises:
        ConflictError: Another booking came first, or one of those that the scan found has expired.
    """
    async with space.transaction() as tx:
        holders = {name: value[_HOLDER] async for name, value in tx.documents.items("slot/*")}
        await wait()
        own = [name for name, known in holders.items() if known == holder]
        free = [name for name in _SLOTS if name not in holders]
        for name in (own or free)[:1]:
            await tx.documents.put(name, {_HOLDER: holder, _IS_RENEWED: bool(own)}, ttl_s=ttl_s)


def double_bookings(log: Iterable[Change]) -> Iterator[str]:
    """Yield each booking of a slot that another holder has, or could have, at the same time."""
    for change in log:
        if change.key not in _KEYS or change.new is None:
            continue
        new = codec.decode(change.new)
        old = None if change.old is None or change.expired else codec.decode(change.old)
        before = None if old is None else old[_HOLDER]
        where = f"{_KEYS[change.key]} at revision {change.revision}"
        if new[_IS_RENEWED] and before != new[_HOLDER]:
            now = "free" if before is None else f"of {before}"
            yield f"{where}: {new[_HOLDER]} renewed a booking that had ended, and the slot was {now}"
        elif not new[_IS_RENEWED] and before is not None:
            yield f"{where}: {new[_HOLDER]} booked it, and {before} still held it"
