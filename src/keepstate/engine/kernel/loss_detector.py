"""What was read of a space holds only as long as the space has lost no history since.

A server that forgot acknowledged writes counts its revisions up again from lower ones. Versions and tokens
from before then match what strangers wrote after. The store notices, once; whoever keeps something that was
read (a unit, a lease, a claimed task, a watch) compares the number of losses.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from keepstate.errors import HistoryLostError
from keepstate.stores.protocol import DetectsLosses, Store


@cache
def _notices(kind: type) -> bool:
    # To ask it of each store anew takes as long as reading from it.
    return issubclass(kind, DetectsLosses)


class LossDetector:
    """How often a space was found to have lost history when something was read there.

    Args:
        store: Where the space is.
        space: The name of the space in the store.
        name: What messages call it.
    """

    __slots__ = ("_name", "_space", "_store", "known")

    def __init__(self, store: Store, space: str, name: str) -> None:
        self._store = cast("DetectsLosses", store) if _notices(type(store)) else None
        self._space, self._name = space, name
        self.known = self._told()

    def _told(self) -> int | None:
        return None if self._store is None else self._store.losses(self._space)

    @property
    def has_lost_history(self) -> bool:
        """Whether the space was found to have lost history since."""
        return self._told() != self.known

    def verify(self) -> None:
        """Raise `HistoryLostError` if what was read is void."""
        if self.has_lost_history:
            raise HistoryLostError(
                f"space {self._name!r} lost acknowledged writes since this was read; begin again",
                space=self._name,
            )
