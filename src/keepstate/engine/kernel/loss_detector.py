"""Detection of lost history: a server that lost acknowledged writes after data was read from it.

Such a server continues from a lower revision. Versions and tokens from before the loss may then match later
writes of other clients. The store counts each loss that it notices. Every object that holds data of a space
(a unit, a lease, a claimed task, a watch) compares that count.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from keepstate.errors import HistoryLostError
from keepstate.stores.protocol import DetectsLosses, Store


@cache
def notices_losses(kind: type) -> bool:
    """Return whether stores of this class detect losses of history."""
    # Cached, because the check costs as much as a read from the store.
    return issubclass(kind, DetectsLosses)


class LossDetector:
    """The number of losses of history known at the time of a read, to be compared later.

    Args:
        store: The store of the space.
        space: The name of the space in the store.
        name: The name of the space in messages.
    """

    __slots__ = ("_name", "_space", "_store", "known")

    def __init__(self, store: Store, space: str, name: str) -> None:
        self._store = cast("DetectsLosses", store) if notices_losses(type(store)) else None
        self._space, self._name = space, name
        self.known = self._count()

    def _count(self) -> int | None:
        return None if self._store is None else self._store.losses(self._space)

    @property
    def has_lost_history(self) -> bool:
        """True if the store has noticed a loss of history since this detector was created."""
        return self._count() != self.known

    def verify(self) -> None:
        """Raise `HistoryLostError` if the data that was read is invalid because of a loss."""
        if self.has_lost_history:
            raise HistoryLostError(
                f"space {self._name!r} lost acknowledged writes since this was read. Read everything again",
                space=self._name,
            )
