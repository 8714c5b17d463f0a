"""Totals of a tenant: the sizes of all its spaces, as this process last read or wrote them.

A batch changes one space, and cannot check another one. So a process counts the spaces of a tenant, and from
then on corrects the sum by each space that it writes to itself. What other processes write, it learns by the
next count, which asks only spaces that have changed. A count rests for a second, and for a millisecond more
for each space, by the time of the store.

Invariant: after a count, the sum has all that was written before it began. It may lack what other processes
have written since, so a quota on it is not exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from keepstate import names
from keepstate.engine.kernel import layout
from keepstate.stores.protocol import PartSize, ReportsLastChange, Sizes, Store
from keepstate.values.key import part_of

COUNTED: Final = {
    "documents": (layout.DOCUMENTS,),
    "queued": (layout.READY, layout.WAITING, layout.CLAIMED),
    "streams": (layout.HEADS,),
}
"""The parts that each quota counts."""
BYTES: Final = "size_bytes"
_NOTHING: Final = PartSize(0, 0)
_REST_MS: Final = 1_000


def used_in(sizes: Sizes) -> dict[str, int]:
    """Return the amounts that a space holds, by the name of the quota."""
    used = {
        name: sum(sizes.parts.get(part_of(part), _NOTHING).entries for part in parts)
        for name, parts in COUNTED.items()
    }
    return used | {BYTES: sum(part.size_bytes for part in sizes.parts.values())}


class _Space(NamedTuple):
    """The contents of a space, and the time of its last change; None if that has to be asked again."""

    used: Mapping[str, int]
    changed_ms: int | None


class Totals:
    """The contents of the spaces of one tenant.

    Attributes:
        used: The sum over all spaces, by the name of the quota.
    """

    def __init__(self) -> None:
        self.used: dict[str, int] = dict.fromkeys((*COUNTED, BYTES), 0)
        self._spaces: dict[str, _Space] = {}
        self._counted_ms: int | None = None
        self._noted: set[str] = set()
        self._is_counting = False

    async def refresh(self, store: Store, beginning: str, now_ms: int, *, is_urgent: bool) -> None:
        """Count the spaces that have changed, unless another call does so, or the last count is recent.

        Args:
            store: The store.
            beginning: The prefix of the names of the tenant's spaces.
            now_ms: The time of the store.
            is_urgent: Whether a batch would be rejected otherwise; then only a second is recent.
        """
        rest_ms = _REST_MS + (0 if is_urgent else len(self._spaces))
        is_recent = self._counted_ms is not None and 0 <= now_ms - self._counted_ms < rest_ms
        if is_recent or self._is_counting:
            return
        self._is_counting = True
        try:
            await self._count(store, beginning)
            self._counted_ms = now_ms
        finally:
            self._is_counting = False

    def note(self, space: str, used: Mapping[str, int]) -> None:
        """Note the amounts that a space holds, which this process has just read or written."""
        self._noted.add(space)
        self._set(space, _Space(used, None))

    def apart_from(self, space: str) -> dict[str, int]:
        """Return what all other spaces hold."""
        known = self._spaces.get(space)
        return {name: used - (known.used[name] if known else 0) for name, used in self.used.items()}

    async def _count(self, store: Store, beginning: str) -> None:
        self._noted = set()
        listed: set[str] = set()
        after: str | None = None
        while page := await store.spaces(beginning, after=after):
            after = page[-1]
            own = [space for space in page if not names.is_reserved(space)]
            listed.update(own)
            times = await store.changed_ms(own) if isinstance(store, ReportsLastChange) else [None] * len(own)
            for space, changed_ms in zip(own, times, strict=True):
                if not self._is_known(space, changed_ms):
                    used = used_in(await store.sizes(space))
                    if space not in self._noted:
                        self._set(space, _Space(used, changed_ms))
        for space in self._spaces.keys() - listed - self._noted:
            self._set(space, None)

    def _is_known(self, space: str, changed_ms: int | None) -> bool:
        known, counted_ms = self._spaces.get(space), self._counted_ms
        return (
            known is not None
            and changed_ms is not None
            and counted_ms is not None
            and known.changed_ms == changed_ms < counted_ms
        )

    def _set(self, space: str, now: _Space | None) -> None:
        before = self._spaces.pop(space, None)
        if now is not None:
            self._spaces[space] = now
        for name in self.used:
            self.used[name] += (now.used[name] if now else 0) - (before.used[name] if before else 0)
