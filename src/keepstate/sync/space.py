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
    """The unit of atomicity and order: what is in one space can change together.

    Made by `Keepstate.space`; making one does no I/O. Every operation is atomic, and strictly serializable
    with all others on the space.

    Attributes:
        name: Its name, without its tenant.
        author: Who writes, or None.
    """

    @property
    def name(self) -> str:
        """Its name, without its tenant."""
        return self._inner.name

    @property
    def author(self) -> str | None:
        """Who writes, or None."""
        return self._inner.author

    def by(self, author: str | None = None, *, message: str | None = None) -> Space:
        """Return the same space for one who writes there; asks the store nothing.

        Events, commits and what is recorded name the author; what is recorded tells the message.

        Args:
            author: Who writes; without it, who writes here.
            message: What for; at most 64 KiB of UTF-8.
        """
        return Space(self._inner.by(author, message=message))

    @single_use
    def transaction(self, *, lease: Lease | None = None, message: str = "") -> Generator[Transaction]:
        """Gather what its body does and apply it as one batch at the end.

        The body runs once; if it raises, nothing is applied.

        Args:
            lease: Applies only while this lease is held.
            message: Says what the transaction is for; what is recorded of it tells so.

        Raises:
            ConflictError: What the body had read has changed; nothing was applied.
            LeaseLostError: The lease is no longer held; nothing was applied.
        """
        with entered(
            self._inner.transaction(
                lease=inner_of(lease) if isinstance(lease, Lease) else lease, message=message
            )
        ) as inner:
            yield Transaction(inner)

    def transact(self, fn: Callable[[Transaction], T], attempts: int = 8) -> T:
        """Call `fn(tx)` and apply what it did as one batch; on conflict calls it again, with another `tx`.

        Returns:
            What `fn` returned.

        Raises:
            AttemptsExhaustedError: Every attempt ended in a conflict; nothing was applied. What must not be
                refused for that asks for more attempts, or is an update of one document.
        """
        return finish(self._inner.transact(receiving(Transaction, fn), attempts))

    def size(self) -> SpaceSize:
        """Return how much the space holds, by reading it; what comes meanwhile may be counted or not."""
        return finish(self._inner.size())

    def revision(self) -> int:
        """Return how many batches the space has seen."""
        return finish(self._inner.revision())

    def outcome(self, token: bytes) -> int | None:
        """Settle a batch whose outcome was unknown.

        Returns:
            The revision at which it applied; None if it did not apply, and from now on never will.

        Raises:
            OutcomeUnknownError: The log no longer reaches back to it.
        """
        return finish(self._inner.outcome(token))
