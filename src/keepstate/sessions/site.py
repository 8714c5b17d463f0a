"""Where one part keeps its documents: a place, and what their names begin with there, now.

The names of a session's documents depend on which of its lives is the present one, and only the store knows
that; those of all else are always the same. Parts ask their site and need not know which it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from keepstate._runner import Runner
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import together
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError

T = TypeVar("T")


class Site:
    """A place where documents are always called the same.

    Args:
        place: The space, or a transaction whose batch all joins.
        prefix: What names begin with.
        lease: Applies what is written only while this is held.

    Attributes:
        place: The space, or a transaction whose batch all joins.
        prefix: What names begin with, at all times.
    """

    def __init__(self, place: Space | Transaction, prefix: str = "", *, lease: Lease | None = None) -> None:
        self.place, self.prefix, self._lease = place, prefix, lease

    @property
    def runner(self) -> Runner:
        """Return how the colour waits."""
        return self.place.runner

    @property
    def space(self) -> Space | None:
        """The space; None inside a transaction."""
        return self.place if isinstance(self.place, Space) else None

    async def to_read(self) -> str | None:
        """Return what names begin with; None if nothing is there."""
        return self.prefix

    async def to_write(self, tx: Transaction) -> str:
        """Return what the names begin with of what a transaction writes."""
        return self.prefix

    async def together(
        self,
        work: Callable[[Transaction, str], Awaitable[T]],
        *,
        message: str = "",
        lease: Lease | None = None,
    ) -> T:
        """Return what the work returned, once what it did is applied as one batch; see `engine.together`.

        Those of one process who write at one site come in turn.

        Args:
            work: Is given the transaction, and what names begin with.
            message: Says what it is for.
            lease: Applies only while this is held, instead of the site's own.
        """

        async def on(tx: Transaction) -> T:
            return await work(tx, await self.to_write(tx))

        return await together(
            self.place, on, lease=lease or self._lease, message=message, turn=f"site/{self.prefix}"
        )


class Elsewhere(Site):
    """Stands for a place that is not part of what is being done together, and says so.

    Args:
        place: The one in which it is done.
        why: Names both, and says what to do.
    """

    def __init__(self, place: Space | Transaction, why: str) -> None:
        super().__init__(place)
        self._why = why

    def _refused(self) -> NoReturn:
        raise InvalidError(self._why)

    async def to_read(self) -> str | None:
        """Raise `InvalidError`."""
        self._refused()

    async def to_write(self, tx: Transaction) -> str:
        """Raise `InvalidError`."""
        self._refused()
