"""A namespace: the document name prefix of one part, in a space or transaction.

The prefix of a session depends on its current generation, which only the store knows. Other prefixes never
change. Parts ask their namespace for the prefix, so the same code serves both.
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


class Namespace:
    """A namespace with a fixed prefix.

    Args:
        target: The space, or a transaction whose batch all writes join.
        prefix: The prefix of document names.
        lease: Writes apply only while this lease is held.

    Attributes:
        target: The space, or a transaction whose batch all writes join.
        prefix: The fixed prefix of document names.
    """

    def __init__(self, target: Space | Transaction, prefix: str = "", *, lease: Lease | None = None) -> None:
        self.target, self.prefix, self._lease = target, prefix, lease

    @property
    def runner(self) -> Runner:
        """The runner of the mode."""
        return self.target.runner

    @property
    def space(self) -> Space | None:
        """The space; None inside a transaction."""
        return self.target if isinstance(self.target, Space) else None

    async def to_read(self) -> str | None:
        """Return the current prefix, or None if there are no documents."""
        return self.prefix

    async def to_write(self, tx: Transaction) -> str:
        """Return the current prefix for the writes of a transaction."""
        return self.prefix

    async def together(
        self,
        work: Callable[[Transaction, str], Awaitable[T]],
        *,
        message: str = "",
        lease: Lease | None = None,
    ) -> T:
        """Apply work as one batch and return its result; see `engine.space.joint_work.together`.

        Calls of one process in the same namespace run one after another.

        Args:
            work: Called with the transaction and the current prefix.
            message: Description of the change.
            lease: Applies the batch only while this lease is held, instead of the namespace's own.
        """

        async def on(tx: Transaction) -> T:
            return await work(tx, await self.to_write(tx))

        return await together(
            self.target, on, lease=lease or self._lease, message=message, turn=f"namespace/{self.prefix}"
        )


class OutOfTransaction(Namespace):
    """Placeholder for data outside the current transaction. Every access raises `InvalidError`.

    Args:
        target: The space or transaction in use.
        why: The error message: names both spaces, and says what to do.
    """

    def __init__(self, target: Space | Transaction, why: str) -> None:
        super().__init__(target)
        self._why = why

    def _reject(self) -> NoReturn:
        raise InvalidError(self._why)

    async def to_read(self) -> str | None:
        """Raise `InvalidError`."""
        self._reject()

    async def to_write(self, tx: Transaction) -> str:
        """Raise `InvalidError`."""
        self._reject()
