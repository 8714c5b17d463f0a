"""Blocking twins of `keepstate.engine.space.space`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from keepstate._finish import entered, finish
from keepstate.engine.space import space as engine
from keepstate.engine.space.size import SpaceSize
from keepstate.sync.lease import Lease
from keepstate.sync.parts import Parts
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of, receiving, single_use

T = TypeVar("T")


class Space(Parts[engine.Space]):
    """The unit of atomicity and order: everything in one space can change together.

    Made by `Keepstate.space`, without I/O. Every operation is atomic, and strictly serializable with all
    other operations on the space.

    Attributes:
        name: The name of the space, without its tenant.
        author: The author of writes, or None.
    """

    @property
    def name(self) -> str:
        """The name of the space, without its tenant."""
        return self._inner.name

    @property
    def author(self) -> str | None:
        """The author of writes, or None."""
        return self._inner.author

    def by(self, author: str | None = None, *, message: str | None = None) -> Space:
        """Return the same space with another author or message. Makes no call to the store.

        Events and commits name the author. Commits of a recorded space contain the message.

        Args:
            author: The author of writes. Default: the author of this space.
            message: The purpose of the writes; at most 64 KiB of UTF-8.
        """
        return Space(self._inner.by(author, message=message))

    @single_use
    def transaction(self, *, lease: Lease | None = None, message: str = "") -> Generator[Transaction]:
        """Collect the operations of the body and apply them as one batch at its end.

        The body runs once. If it raises, nothing is applied.

        Args:
            lease: Apply the batch only if this lease is still held.
            message: The purpose of the transaction, for the commit of a recorded space.

        Raises:
            ConflictError: Something that the body read has changed. Nothing was applied.
            LeaseLostError: The lease is no longer held. Nothing was applied.
        """
        with entered(
            self._inner.transaction(
                lease=inner_of(lease) if isinstance(lease, Lease) else lease, message=message
            )
        ) as inner:
            yield Transaction(inner)

    def transact(self, fn: Callable[[Transaction], T], attempts: int = 8) -> T:
        """Call `fn(tx)` and apply its operations as one batch; on conflict, call it again with a new `tx`.

        Returns:
            The return value of `fn`.

        Raises:
            AttemptsExhaustedError: Every attempt ended in a conflict. Nothing was applied. Allow more
                attempts, or update a single document, which is retried until it succeeds.
        """
        return finish(self._inner.transact(receiving(Transaction, fn), attempts))

    def size(self) -> SpaceSize:
        """Return the size of the space, by reading all of it. Concurrent writes may or may not be counted."""
        return finish(self._inner.size())

    def revision(self) -> int:
        """Return the number of batches that the space has applied."""
        return finish(self._inner.revision())

    def outcome(self, token: bytes) -> int | None:
        """Settle a batch whose outcome was unknown.

        Returns:
            The revision at which the batch was applied. None if it was not applied, and never will be.

        Raises:
            OutcomeUnknownError: The log no longer reaches back that far.
        """
        return finish(self._inner.outcome(token))
